import { createHash } from 'node:crypto'
import { Agent, type RequestOptions, request } from 'node:http'
import { performance } from 'node:perf_hooks'
import { setTimeout as sleep } from 'node:timers/promises'
import { FirepoolError, SEAT_LOST, SEAT_SET_SICK } from '../contract/index.js'
import {
  BANNED,
  bannedProblem,
  CHECKPOINT_FAILED,
  checkpointProblem,
  type Seat,
  type SeatAgent,
  type SeatArbiter,
  seatProblem,
  sickProblem,
} from './seat.js'
import { type SeatGrant, SeatHold, type SeatIdle } from './seat-hold.js'

/**
 * The node agent's client: seats over the socket in the pod's volume, or over TCP with the token of the pod's lease
 * (API version 1, node-agent/README.md).
 */

export type NodeAgentOptions = SeatAgent & {
  /** for each job */
  gpus: number
  /** default park */
  idle?: SeatIdle
  /** the pod is in a seat set; default false */
  isInSet?: boolean
  /** of the runner's process: another process asks under other ids */
  incarnation: string
  log: (line: string) => void
  /** how long a job waits for its seat; default SEAT_WAIT_MS */
  waitMs?: number
}

/** Waiting on a busy set is cheaper than moving to another one for about this long; what still waits then is told. */
const SEAT_WAIT_MS = 15_000
/** an agent that restarts is back within seconds, and its holders keep what they have */
const RETRY_MS = 200
/** a release that was not heard is a seat that nobody can use */
const RELEASE_AGAIN_MS = 1_000
/** a connection is kept for the next job; shorter than the agent keeps it, so that this end closes it */
const KEEP_MS = 30_000
/** answers are a handful of numbers and a sentence for each GPU */
const ANSWER_BYTES_MAX = 64 * 1024

/** How a seat ended that was kept. */
interface Ended {
  lost?: string
  banned?: string
}

/** No seat, and why: a code of the agent's, or AgentAway. */
class NoSeat extends Error {
  constructor(
    readonly code: string,
    message: string,
  ) {
    super(message)
  }
}

/** What is on a GPU could not be measured, or is still being moved: nothing has become of it. */
const NOT_YET: readonly string[] = ['SeatUnavailable', 'Superseded']

/** The agent is down or starts: it can be asked again. */
class AgentAway extends NoSeat {}

/** The agent has refused. */
class Refused extends NoSeat {}

export class NodeAgentSeats implements SeatArbiter {
  readonly #options: NodeAgentOptions
  readonly #hold: SeatHold
  readonly #connections = new Agent({ keepAlive: true, timeout: KEEP_MS })
  /** seat epochs whose release the agent has not heard yet */
  readonly #owed = new Set<number>()
  #timer: NodeJS.Timeout | null = null
  /** a seat is asked for, or what is on one is being suspended: never both */
  #doing: 'take' | 'suspend' | null = null
  #authorization = ''
  #bound = { epoch: 0, tenant: '' }
  #useless: (reason: string, message: string) => void = () => {}
  /** the seat that is kept, and what breaks its watch off */
  #watched: { seatEpoch: number; cut: AbortController } | null = null
  /** the last one that was lost while it was kept */
  #lost: { seatEpoch: number; why: string } | null = null

  constructor(options: NodeAgentOptions) {
    this.#options = options
    this.#hold = new SeatHold(options.idle ?? 'park')
  }

  holds(epochMax: number): boolean {
    return this.#hold.isHeldBy(epochMax)
  }

  hasNone(): boolean {
    return !this.#hold.isHeld && this.#owed.size === 0
  }

  async endEpochs(epochMax: number): Promise<void> {
    await this.#release(this.#hold.epochsEnded(epochMax))
  }

  bound(epoch: number, tenant: string): void {
    this.#bound = { epoch, tenant }
  }

  onUseless(listener: (reason: string, message: string) => void): void {
    this.#useless = listener
  }

  heard(authorization: string): void {
    this.#authorization = authorization
  }

  async take(jobId: string, epoch: number, signal: AbortSignal): Promise<Seat> {
    const deadlineMs = performance.now() + (this.#options.waitMs ?? SEAT_WAIT_MS)
    // What an earlier epoch still holds is in the way; the agent ends what that has left.
    await this.endEpochs(epoch - 1)
    for (;;) {
      signal.throwIfAborted()
      const lost = this.#hold.whyLost(epoch)
      if (lost !== null) throw new FirepoolError(checkpointProblem(lost))
      try {
        return await this.#ask(jobId, epoch, Math.max(0, deadlineMs - performance.now()), signal)
      } catch (error) {
        if (signal.aborted) throw signal.reason
        if (!(error instanceof NoSeat)) throw error
        const held = this.#hold.heldFor(epoch)
        if (error instanceof AgentAway && held !== null) return this.#seat(epoch, held)
        if (error.code === BANNED) throw new FirepoolError(bannedProblem(error.message))
        if (error.code === SEAT_SET_SICK && this.#options.isInSet)
          throw new FirepoolError(sickProblem(error.message))
        const isHeld = error.code === 'HoldAndWait'
        if ((error instanceof Refused && !isHeld) || performance.now() > deadlineMs)
          throw new FirepoolError(seatProblem(error.code, error.message))
        if (isHeld) await this.#releaseEarlier()
      }
      await sleep(RETRY_MS, undefined, { signal }).catch(() => {})
    }
  }

  async #ask(jobId: string, epoch: number, waitMs: number, signal: AbortSignal): Promise<Seat> {
    if (this.#doing !== null)
      throw new NoSeat('Suspending', 'what the jobs before left on the GPUs is still on its way to the host.')
    this.#doing = 'take'
    try {
      return await this.#askNow(jobId, epoch, waitMs, signal)
    } finally {
      this.#doing = null
    }
  }

  async #askNow(jobId: string, epoch: number, waitMs: number, signal: AbortSignal): Promise<Seat> {
    const granted = await this.#call<SeatGrant>(
      'POST',
      '/v1/seats',
      {
        v: 1,
        requestId: this.#requestId(this.#hold.requestKey(jobId, epoch)),
        leaseEpoch: epoch,
        gpus: this.#options.gpus,
        ...(this.#bound.epoch === epoch && this.#bound.tenant !== '' ? { tenant: this.#bound.tenant } : {}),
        waitMs: Math.round(waitMs),
      },
      signal,
    )
    const seat = this.#seat(epoch, granted)
    if (this.#hold.isSuspended(epoch)) await this.#resume(epoch, granted.seatEpoch)
    if (signal.aborted) {
      await seat.release()
      throw signal.reason
    }
    return seat
  }

  #seat(epoch: number, grant: SeatGrant): Seat {
    this.#hold.granted(epoch, grant)
    const { seatEpoch, uuids } = grant
    if (this.#options.idle === 'hold') void this.#watch(seatEpoch)
    const release = async () => {
      const why = await this.#jobEnded()
      return why ?? (this.#lost?.seatEpoch === seatEpoch ? this.#lost.why : null)
    }
    return { uuids, release }
  }

  /** A seat that is kept is released long after its loss: the agent is asked to say when it ends, and answers only then. */
  async #watch(seatEpoch: number): Promise<void> {
    if (this.#watched?.seatEpoch === seatEpoch) return
    this.#watched?.cut.abort()
    const cut = new AbortController()
    this.#watched = { seatEpoch, cut }
    for (;;) {
      try {
        const body = { v: 1, seatEpoch }
        const ended = await this.#call<Ended>('POST', '/v1/seats/ended', body, cut.signal)
        if (ended.lost) this.#lost = { seatEpoch, why: ended.lost }
        if (ended.lost) this.#useless(SEAT_LOST, ended.lost)
        else if (ended.banned) this.#useless(BANNED, ended.banned)
        return
      } catch (error) {
        if (cut.signal.aborted) return
        if (!(error instanceof AgentAway)) {
          // An agent of a release before: the next job hears of it, or the end of the lease.
          this.#options.log(`the end of seat epoch ${seatEpoch} is not told: ${String(error)}`)
          return
        }
        await sleep(RELEASE_AGAIN_MS, undefined, { signal: cut.signal }).catch(() => {})
        if (cut.signal.aborted) return
      }
    }
  }

  /** @returns why a GPU was lost */
  async #jobEnded(): Promise<string | null> {
    const given = this.#hold.jobEnded()
    return given.length > 0 ? this.#release(given) : this.#suspend()
  }

  /** Has what jobs left on the GPUs taken off them, which gives the seat back; when nothing is there, gives it back. @returns why a GPU was lost */
  async #suspend(): Promise<string | null> {
    const seat = this.#hold.toSuspend
    if (seat === null) return null
    if (this.#doing !== null) {
      this.#settleLater()
      return null
    }
    const { epoch, seatEpoch } = seat
    this.#doing = 'suspend'
    try {
      await this.#call('POST', '/v1/seats/suspend', { v: 1, seatEpoch })
      this.#hold.suspended({ epoch, seatEpoch })
      return null
    } catch (error) {
      const { code, message } = error as NoSeat
      if (error instanceof AgentAway || NOT_YET.includes(code)) {
        this.#settleLater() // held as long as that
        return null
      }
      // Nothing is on it, or the agent has taken it back: then its release says why. What was half-way back on it is killed.
      const lost = await this.#release(this.#hold.giveBack(seatEpoch))
      const isKilled = code === CHECKPOINT_FAILED || this.#hold.isSuspended(epoch)
      const why = lost ?? (isKilled ? message : null)
      if (why !== null) {
        this.#options.log(`what jobs left on the GPUs is lost: ${why}`)
        this.#hold.lost(epoch, why)
      }
      return lost
    } finally {
      this.#doing = null
    }
  }

  /**
   * Has what is suspended put back on the GPUs of this seat. Nothing breaks it off: half of it is on them.
   * @throws NoSeat: it is still suspended; or FirepoolError: it is lost
   */
  async #resume(epoch: number, seatEpoch: number): Promise<void> {
    try {
      await this.#call('POST', '/v1/seats/resume', { v: 1, seatEpoch })
    } catch (error) {
      const { code, message } = error as NoSeat
      if (error instanceof AgentAway) {
        // Back on them or not: when the agent is there again, it is taken off.
        await this.#release(this.#hold.jobEnded())
        this.#settleLater()
        throw error
      }
      // It ended by itself meanwhile, or an answer was not heard.
      if (code !== 'NotSuspended') {
        await this.#release(this.#hold.giveBack(seatEpoch))
        if (code !== CHECKPOINT_FAILED) throw error
        this.#hold.resumed()
        this.#hold.lost(epoch, message)
        throw new FirepoolError(checkpointProblem(message))
      }
    }
    this.#hold.resumed()
  }

  /** The same for every try of one request: asked again, it keeps its turn or gets the same seat. */
  #requestId(key: string): string {
    return `${this.#options.incarnation}/${createHash('sha256').update(key).digest('hex').slice(0, 32)}`
  }

  /** What an earlier process of this pod held: its jobs were killed with it. */
  async #releaseEarlier(): Promise<void> {
    try {
      const { held } = await this.#call<{ held: { seatEpoch: number } | null }>('GET', '/v1/seats')
      if (held === null) return
      this.#options.log(`gives seat epoch ${held.seatEpoch} back, which no job of this runner holds`)
      await this.#release([held.seatEpoch])
    } catch (error) {
      this.#options.log(`what this pod holds is not known: ${String(error)}`) // it is asked again before the deadline
    }
  }

  /** @returns why one of them was lost */
  async #release(seatEpochs: number[]): Promise<string | null> {
    if (seatEpochs.length === 0) return null
    for (const seatEpoch of seatEpochs) this.#owed.add(seatEpoch)
    if (this.#watched !== null && seatEpochs.includes(this.#watched.seatEpoch)) this.#watched.cut.abort()
    const lost = await this.#settle()
    return seatEpochs.map((seatEpoch) => lost.get(seatEpoch)).find((why) => why !== undefined) ?? null
  }

  /** @returns why seats were lost, by their epoch */
  async #settle(): Promise<Map<number, string>> {
    const lost = new Map<number, string>()
    for (const seatEpoch of this.#owed) {
      try {
        const answer = await this.#call<{ lost?: string }>('POST', '/v1/seats/release', { v: 1, seatEpoch })
        if (answer.lost) lost.set(seatEpoch, answer.lost)
        this.#owed.delete(seatEpoch)
      } catch (error) {
        if (error instanceof Refused) {
          // Nothing of it is this pod's any more.
          this.#options.log(`seat epoch ${seatEpoch} could not be given back: ${error.message}`)
          this.#owed.delete(seatEpoch)
        } else this.#settleLater()
      }
    }
    return lost
  }

  #settleLater(): void {
    if (this.#timer !== null) return
    this.#timer = setTimeout(() => {
      this.#timer = null
      void this.#settle()
      void this.#suspend()
    }, RELEASE_AGAIN_MS)
  }

  #address(): Pick<RequestOptions, 'socketPath' | 'host' | 'port'> {
    if ('socket' in this.#options) return { socketPath: this.#options.socket }
    const { hostname, port } = new URL(this.#options.url)
    return { host: hostname.replace(/^\[|\]$/g, ''), port: port === '' ? 80 : port }
  }

  /** A socket is in one pod; over TCP the agent has to be shown that a broker knows this one. */
  #proof(): { authorization?: string } {
    return 'url' in this.#options && this.#authorization !== '' ? { authorization: this.#authorization } : {}
  }

  /** @throws AgentAway | Refused */
  #call<Reply>(method: 'GET' | 'POST', path: string, body?: unknown, signal?: AbortSignal): Promise<Reply> {
    return new Promise((resolve, reject) => {
      const away = (error: Error) =>
        reject(new AgentAway('AgentAway', `the node agent does not answer (${error.message}).`))
      // A kept connection may have been closed at its other end before it could be seen here: asking twice is asking once.
      const failed = (error: Error) => {
        if (call.reusedSocket && !signal?.aborted) resolve(this.#call(method, path, body, signal))
        else away(error)
      }
      const text = body === undefined ? '' : JSON.stringify(body)
      const call = request(
        {
          ...this.#address(),
          method,
          path,
          agent: this.#connections,
          signal,
          headers: {
            'content-type': 'application/json',
            'content-length': Buffer.byteLength(text),
            ...this.#proof(),
          },
        },
        (answer) => {
          call.off('error', failed).on('error', away)
          const chunks: Buffer[] = []
          let bytes = 0
          answer.on('error', away)
          answer.on('data', (chunk: Buffer) => {
            chunks.push(chunk)
            bytes += chunk.length
            if (bytes > ANSWER_BYTES_MAX) call.destroy(new Error('its answer is too long'))
          })
          answer.on('end', () => {
            try {
              resolve(replyOf<Reply>(answer.statusCode ?? 0, Buffer.concat(chunks).toString('utf8')))
            } catch (error) {
              reject(error as Error)
            }
          })
        },
      )
      call.on('error', failed)
      call.end(text)
    })
  }
}

function replyOf<Reply>(status: number, text: string): Reply {
  let answer: { error?: { code: string; message: string; remedy: string } }
  try {
    answer = JSON.parse(text) as typeof answer
  } catch {
    const why = `the node agent answered ${status} without JSON.`
    throw status === 404 ? new Refused(String(status), why) : new AgentAway('AgentAway', why)
  }
  if (status === 200) return answer as Reply
  const { code, message, remedy } = answer.error ?? { code: String(status), message: text, remedy: '' }
  const why = `${message}. ${remedy}.`
  throw code === 'ShuttingDown' ? new AgentAway(code, why) : new Refused(code, why)
}
