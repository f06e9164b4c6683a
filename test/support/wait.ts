/** A generous limit for hangs: tests assert the order of events, never durations. */
export const HANG_MS = 90_000

/** Reads again and again until there is a value that is neither null nor false. */
export async function waitUntil<T>(
  what: string,
  read: () => Promise<T | null | false> | T | null | false,
  hangMs = HANG_MS,
): Promise<T> {
  const end = Date.now() + hangMs
  for (;;) {
    const value = await read()
    if (value !== null && value !== false) return value
    if (Date.now() > end) throw new Error(`did not happen within ${hangMs} ms: ${what}`)
    await new Promise((resolve) => setTimeout(resolve, 25))
  }
}
