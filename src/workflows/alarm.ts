import { CancellationScope, sleep } from '@temporalio/workflow'

/**
 * One timer for all deadlines of a pool. It is set anew only when an earlier deadline comes: a later one is found when
 * the timer fires, so that a busy pool does not fill its history with cancelled timers.
 */
export class Alarm {
  private set: { at: number; scope: CancellationScope } | null = null
  private rung = false

  /** Whether it rang since the last call. */
  takeRing(): boolean {
    const { rung } = this
    this.rung = false
    return rung
  }

  get ringing(): boolean {
    return this.rung
  }

  /** Rings at `at` (ms since the epoch) or earlier. */
  at(at: number, summary: string): void {
    if (this.set && this.set.at <= at) return
    this.set?.scope.cancel()
    const scope = new CancellationScope()
    const mine = { at, scope }
    this.set = mine
    scope
      .run(() => sleep(Math.max(1, at - Date.now()), { summary }))
      .then(
        () => {
          if (this.set === mine) this.set = null
          this.rung = true
        },
        () => undefined,
      )
  }
}
