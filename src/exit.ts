import { setImmediate as nextTurn, setTimeout as pause } from 'node:timers/promises'

/** For an end in a hurry: what is printed last is a line or two, and a reader that takes nothing is not waited for. */
export const HURRY_MS = 500

/**
 * Resolves when all that was printed is out, however slow the reader is, or when nobody takes it any more. Writes to a
 * pipe are asynchronous: `process.exit` drops all that the kernel's 64 KiB have no room for.
 * @param limitMs waits no longer than this
 */
export async function outputWritten(limitMs?: number): Promise<void> {
  const limit = limitMs === undefined ? [] : [pause(limitMs)]
  await Promise.race([Promise.all([process.stdout, process.stderr].map(written)), ...limit])
  // A failed write tells its callback first; those who listen for the stream's error hear it in this turn.
  await nextTurn()
}

function written(stream: NodeJS.WriteStream): Promise<void> {
  return new Promise((resolve) => {
    stream.write('', () => resolve())
  })
}

/** Ends this process once its output is out. */
export async function exitWithOutput(code: number, limitMs?: number): Promise<never> {
  await outputWritten(limitMs)
  process.exit(code)
}
