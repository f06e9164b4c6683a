/** Ctrl-C, Ctrl-\, a terminal that closes, and an orderly stop by a supervisor. */
const SIGNALS = ['SIGINT', 'SIGQUIT', 'SIGTERM', 'SIGHUP'] as const

/** npm and timeout(1) pass on a Ctrl-C that the terminal has sent to us already: one press, heard twice. */
const SAME_PRESS_MS = 500

export interface Interrupt {
  /** aborted by the first signal */
  readonly signal: AbortSignal
  /** signals have their usual effect again */
  release(): void
}

/**
 * Takes over the signals that ask for an end: the first one aborts, the second one calls `again` (once), the third one
 * ends the process at once.
 */
export function takeInterrupts(again: () => void): Interrupt {
  const controller = new AbortController()
  let count = 0
  let heardAt = Number.NEGATIVE_INFINITY
  const listener = () => {
    const now = performance.now()
    if (now - heardAt < SAME_PRESS_MS) return
    heardAt = now
    count++
    if (count === 1) {
      controller.abort()
    } else if (count === 2) again()
    else process.exit(130)
  }
  for (const signal of SIGNALS) process.on(signal, listener)
  return {
    signal: controller.signal,
    release() {
      for (const signal of SIGNALS) process.off(signal, listener)
    },
  }
}
