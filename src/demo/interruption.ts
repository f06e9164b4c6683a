import { constants } from 'node:os'

/** Signals that ask the demo to end: Ctrl-C, Ctrl-\, kill, and a terminal that was closed. */
const SIGNALS = ['SIGINT', 'SIGQUIT', 'SIGTERM', 'SIGHUP'] as const
export type EndSignal = (typeof SIGNALS)[number]

/** npm passes a Ctrl-C on that the terminal has delivered already: within this time it is the same press. */
const SAME_PRESS_MS = 1_000

/** The reason of the abort signal. */
export class Interrupted extends Error {
  override readonly name = 'Interrupted'
  constructor(readonly by: NodeJS.Signals) {
    super(`ended by ${by}`)
  }

  /** as shells count: 128 and the signal's number */
  get exitCode(): number {
    return 128 + constants.signals[this.by]
  }
}

export interface Interruption {
  readonly signal: AbortSignal
  /** ends the demo as a first signal does, for another reason */
  abort(reason: Error): void
  /** gives the signals back to the process */
  close(): void
}

/** Where signals come from; `process` is one. */
export interface SignalSource {
  on(signal: EndSignal, handler: (signal: EndSignal) => void): unknown
  off(signal: EndSignal, handler: (signal: EndSignal) => void): unknown
}

/**
 * Turns the first of these signals into an abort, and calls `force` at the second one.
 * @param nowMs a clock, ms
 */
export function listenForEnd(
  force: (by: EndSignal) => void,
  source: SignalSource = process,
  nowMs: () => number = () => performance.now(),
): Interruption {
  const controller = new AbortController()
  let firstAtMs: number | undefined
  const handler = (by: EndSignal) => {
    if (firstAtMs === undefined) {
      firstAtMs = nowMs()
      controller.abort(new Interrupted(by))
    } else if (nowMs() - firstAtMs >= SAME_PRESS_MS) {
      force(by)
    }
  }
  for (const signal of SIGNALS) source.on(signal, handler)
  return {
    signal: controller.signal,
    abort: (reason) => controller.abort(reason),
    close() {
      for (const signal of SIGNALS) source.off(signal, handler)
    },
  }
}

/** Waits for the work, or rejects as soon as the signal is given; the work itself is not stopped. */
export async function unlessAborted<T>(signal: AbortSignal, work: Promise<T>): Promise<T> {
  // The loser of the race must not become an unhandled rejection.
  work.catch(() => undefined)
  signal.throwIfAborted()
  let onAbort: (() => void) | undefined
  const aborted = new Promise<never>((_, reject) => {
    onAbort = () => reject(signal.reason)
    signal.addEventListener('abort', onAbort)
  })
  try {
    return await Promise.race([work, aborted])
  } finally {
    signal.removeEventListener('abort', onAbort!)
  }
}
