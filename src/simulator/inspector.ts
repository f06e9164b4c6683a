import type { PoolState } from '../broker/index.js'
import { Monitor, type Seen, type Violation } from '../broker/invariants.js'

/** `all`: after each step; `sampled`: in a window of steps now and then, for large runs; `none`: never. */
export type Inspection = 'all' | 'sampled' | 'none'

/** The invariants cost O(pods + leases) a step, a hundred times a step itself: so few steps cost a few percent of a run. */
const WINDOW_STEPS = 10
const EVERY_STEPS = 20_000
/** A broken invariant breaks again in each step: the first few say it. */
const VIOLATIONS_KEPT = 10

/** Checks the production invariants while a simulation runs. */
export class Inspector {
  steps = 0
  /** steps that were checked */
  checked = 0
  violations = 0
  readonly first: Violation[] = []
  private monitor: Monitor | null = null

  constructor(private readonly inspection: Inspection) {}

  /** Before a step: a monitor learns the state that it will look on from. */
  before(state: PoolState): void {
    this.steps++
    if (this.inspection === 'none') return
    const place = this.inspection === 'all' ? 0 : (this.steps - 1) % EVERY_STEPS
    if (place >= WINDOW_STEPS) this.monitor = null
    else if (!this.monitor) this.monitor = new Monitor(state, true)
  }

  after(seen: Seen): void {
    if (!this.monitor) return
    this.checked++
    const broken = this.monitor.observe(seen)
    this.violations += broken.length
    for (const violation of broken) if (this.first.length < VIOLATIONS_KEPT) this.first.push(violation)
  }
}
