import type { PoolState } from '../broker/index.js'
import { Monitor, type Seen, type Violation } from '../broker/invariants.js'

/** `all`: after each step; `sampled`: in a window of steps now and then, for large runs; `none`: never. */
export type Inspection = 'all' | 'sampled' | 'none'

/** Some invariants are about what follows on what: a few steps in a row. */
const WINDOW_STEPS = 5
/** A check costs about as much for each pod and lease as a step (10 us): so many steps of rest for each keep it at a tenth. */
const REST_STEPS_EACH = 10

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
  /** the step with which the next window begins */
  private windowAt = 1

  constructor(private readonly inspection: Inspection) {}

  /** Before a step: a monitor learns the state that it will look on from. */
  before(state: PoolState): void {
    this.steps++
    if (this.inspection === 'none') return
    if (this.inspection === 'sampled' && this.steps === this.windowAt + WINDOW_STEPS) {
      this.monitor = null
      this.windowAt = this.steps + WINDOW_STEPS * REST_STEPS_EACH * (state.pods.size + state.leases.size)
    }
    if (this.steps >= this.windowAt) this.monitor ??= new Monitor(state, true)
  }

  after(seen: Seen): void {
    if (!this.monitor) return
    this.checked++
    const broken = this.monitor.observe(seen)
    this.violations += broken.length
    for (const violation of broken) if (this.first.length < VIOLATIONS_KEPT) this.first.push(violation)
  }
}
