/** A generous limit for hangs: tests assert the order of events, never durations. */
export const HANG_MS = 90_000

/** Looking costs the machine something, and who has waited for a second can wait a little longer. */
const FIRST_LOOK_MS = 25
const LAST_LOOK_MS = 150

/** Reads again and again until there is a value that is neither null nor false. */
export async function waitUntil<T>(
  what: string,
  read: () => Promise<T | null | false> | T | null | false,
  hangMs = HANG_MS,
): Promise<T> {
  const end = Date.now() + hangMs
  for (let pauseMs = FIRST_LOOK_MS; ; pauseMs = Math.min(LAST_LOOK_MS, pauseMs * 1.2)) {
    const value = await read()
    if (value !== null && value !== false) return value
    if (Date.now() > end) throw new Error(`did not happen within ${hangMs} ms: ${what}`)
    await new Promise((resolve) => setTimeout(resolve, pauseMs))
  }
}
