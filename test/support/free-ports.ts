import { randomInt } from 'node:crypto'
import { isFreePort } from '../../src/server/free-port.js'
import type { Part } from './keeper.js'
import { waitUntil } from './wait.js'

/** A dozen ports may be chosen at once, and any of them be taken before its owner has it. */
const PORT_CONFLICT_RETRIES = 5
/**
 * Those that the system hands out by itself are higher. A Temporal server keeps its ports in a column of two bytes, and a server
 * that is to start again on its port must find it free.
 */
const PORTS = { least: 16_000, most: 32_767 } as const
const LOG_TAIL_CHARS = 4_000

/** A port that we chose was taken when its owner came. */
class PortTakenError extends Error {}

/** Calls with other ports of the loopback as long as one of them is taken; they were all free a moment ago, and differ. */
export async function withFreePorts<T>(count: number, start: (ports: number[]) => Promise<T>): Promise<T> {
  for (let attempt = 0; ; attempt++) {
    const ports = new Set<number>()
    while (ports.size < count) {
      const port = randomInt(PORTS.least, PORTS.most + 1)
      if (await isFreePort(port)) ports.add(port)
    }
    try {
      return await start([...ports])
    } catch (error) {
      if (!(error instanceof PortTakenError) || attempt >= PORT_CONFLICT_RETRIES) throw error
    }
  }
}

/**
 * Waits until a process serves; one that does not is stopped.
 * @param portTaken what its log says when its port was taken: then `withFreePorts` chooses others
 * @throws Error with the tail of its log, when it ends or does not serve
 */
export async function untilServing(
  what: string,
  part: Part,
  portTaken: RegExp,
  serves: () => Promise<boolean>,
): Promise<void> {
  const failure = (how: string) => {
    const message = `${what} ${how}. Its log ends with:\n${part.log().slice(-LOG_TAIL_CHARS)}`
    return portTaken.test(part.log()) ? new PortTakenError(message) : new Error(message)
  }
  try {
    await waitUntil(`${what} serves`, async () => {
      const yes = await serves()
      if (part.hasExited()) throw failure(`ended early (${await part.exited})`)
      return yes
    })
  } catch (error) {
    await part.stop()
    throw error
  }
}
