import type { PoolSpec } from '../contract/pool.js'
import { Clock } from './clock.js'
import { Cluster } from './cluster.js'
import type { Holders } from './holders.js'
import { type Inspection, Inspector } from './inspector.js'
import type { Latencies } from './latencies.js'
import { Measures } from './measures.js'
import { SimulatedPool } from './pool.js'

export interface WorldOptions {
  spec: PoolSpec
  seed: string | number
  latencies: Latencies
  /** how long a request may wait for a pod, ms */
  acquireMs: number
  inspection: Inspection
}

/** A pool, the cluster that carries out its orders, and who holds its leases. */
export class World {
  readonly clock = new Clock()
  readonly measures = new Measures()
  readonly holders: Holders = new Map()
  readonly inspector: Inspector
  readonly pool: SimulatedPool
  readonly cluster: Cluster
  private leases = 0

  constructor(readonly options: WorldOptions) {
    const { clock, holders, measures } = this
    this.inspector = new Inspector(options.inspection)
    this.pool = new SimulatedPool(clock, options.spec, holders, this.inspector, measures, (effect) =>
      this.cluster.carryOut(effect),
    )
    this.cluster = new Cluster(
      clock,
      options.latencies,
      holders,
      (event) => this.pool.send(event),
      options.seed,
    )
  }

  /** When something happens next, ms since the epoch; Infinity: never. */
  get nextAt(): number {
    return Math.min(this.clock.nextAt, this.pool.alarmAt)
  }

  /** Lets happen what happens next. */
  goOn(): void {
    this.clock.advanceTo(this.nextAt)
    this.pool.act()
  }

  /** An id for a lease: a uuid in form, its first 48 bits (which stand for it among tombstones) given once. */
  leaseId(): string {
    const id = (++this.leases).toString(16).padStart(12, '0')
    return `${id.slice(0, 8)}-${id.slice(8)}-4000-8000-000000000000`
  }
}
