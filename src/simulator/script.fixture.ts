import { checkPoolSpec } from '../contract/check-spec.js'
import type { PoolSpec } from '../contract/pool.js'
import type { Inspection } from './inspector.js'
import type { Range } from './latencies.js'
import { type Manner, Sandbox } from './sandbox.js'
import { Simulation } from './simulation.js'
import type { Workload } from './workload.js'
import type { World } from './world.js'

/** A pool of the simulator's tests, with every default that is not named. */
export function aPool(change: Partial<PoolSpec> = {}): PoolSpec {
  const checked = checkPoolSpec({ v: 1, name: 'tested', budget: 4, ...change })
  if (checked.problem) throw new Error(checked.problem.message)
  return checked.value
}

const always = (ms: number): Range => ({ minMs: ms, maxMs: ms })

/** Nothing of these is drawn: what follows from them can be computed by hand. */
export const FIXED = {
  coldStart: always(30_000),
  promotion: always(500),
  handBack: always(1_000),
  dispatch: always(50),
  message: always(10),
}

export interface Line {
  /** since the beginning */
  atMs: number
  caller: string
  runMs: number
  /** the caller ends with this job */
  isLast?: boolean
}

/** Jobs at fixed moments: what a test wants to happen. */
export class Script implements Workload {
  readonly inputs = { workload: 'script' }
  readonly hasSessions = false
  readonly horizonAt = Number.POSITIVE_INFINITY
  readonly progress = null
  /** outcomes in the order of their ends, e.g. 'a ran at 32560' */
  readonly ends: string[] = []
  private readonly sandboxes = new Map<string, Sandbox>()

  constructor(
    private readonly lines: readonly Line[],
    private readonly manner: Manner = 'loop',
  ) {}

  get isOver(): boolean {
    return this.ends.length === this.lines.length
  }

  readOn(): Promise<void> {
    return Promise.resolve()
  }

  start(world: World): void {
    for (const [n, { atMs, caller, runMs, isLast }] of this.lines.entries())
      world.clock.after(atMs, () => {
        const sandbox = this.sandboxOf(world, caller, n)
        sandbox.run({ runMs, isFirst: false }, (ran) => {
          this.ends.push(`${caller} ${ran ? 'ran' : 'did not run'} at ${world.clock.elapsedMs}`)
          if (isLast) sandbox.close()
        })
      })
  }

  private sandboxOf(world: World, caller: string, n: number): Sandbox {
    const who = { workflowId: caller, caller, slot: '0', tenant: '', priority: 0 }
    if (this.manner === 'call') return new Sandbox(world, { ...who, workflowId: `call${n}` }, 'call')
    const known = this.sandboxes.get(caller) ?? new Sandbox(world, who, 'loop')
    this.sandboxes.set(caller, known)
    return known
  }
}

export interface Settings {
  spec?: Partial<PoolSpec>
  seed?: number
  acquireMs?: number
  inspection?: Inspection
}

/** A simulation with fixed latencies in which every step is checked. */
export function simulate(workload: Workload, settings: Settings = {}): Simulation {
  const { spec = {}, seed = 1, acquireMs = 300_000, inspection = 'all' } = settings
  return new Simulation({ spec: aPool(spec), seed, latencies: FIXED, acquireMs, inspection }, workload)
}
