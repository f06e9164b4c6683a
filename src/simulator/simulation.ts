import type { PoolSpec } from '../contract/pool.js'
import { seatSetRule } from '../contract/seat-set.js'
import type { Workload } from './workload.js'
import { World, type WorldOptions } from './world.js'

/** Between two slices it is looked at whether the run is to stop, and how far it is; the clock of the machine between two bundles. */
const SLICE_MS = 50
const BUNDLE_EVENTS = 200

export interface RunOptions {
  /** aborted: the run ends with what was measured so far */
  signal?: AbortSignal
  /** told many times a second */
  onProgress?: (simulation: Simulation) => void
}

/** One run of a workload against a pool: the production core on simulated time. */
export class Simulation {
  readonly world: World
  /** real time that it has run for, and CPU time of the process in it, ms */
  wallMs = 0
  cpuMs = 0

  constructor(
    options: WorldOptions,
    readonly workload: Workload,
  ) {
    this.world = new World(options)
    workload.start(this.world)
  }

  /** All that was asked for has ended, and no pod is held any more. */
  get isOver(): boolean {
    const { pool } = this.world
    return this.workload.isOver && pool.state.leases.size === 0 && pool.seatsHeld === 0
  }

  /**
   * Runs to the end, or until it is told to stop.
   * @throws what the production core throws when an assertion of its own is broken
   */
  async run({ signal, onProgress }: RunOptions = {}): Promise<void> {
    while (!this.isOver && signal?.aborted !== true) {
      const { workload, world } = this
      if (world.nextAt === Number.POSITIVE_INFINITY && workload.horizonAt === world.nextAt)
        throw new Error('the simulation has come to a stand: somebody waits, and nothing will happen')
      if (world.nextAt > workload.horizonAt) await workload.readOn()
      else this.slice()
      onProgress?.(this)
      await turnOfEventLoop()
    }
    this.world.pool.count()
  }

  private slice(): void {
    const { world, workload } = this
    const began = performance.now()
    const before = process.cpuUsage()
    const mayGoOn = () =>
      !this.isOver && world.nextAt <= workload.horizonAt && world.nextAt < Number.POSITIVE_INFINITY
    while (mayGoOn() && performance.now() - began < SLICE_MS)
      for (let n = 0; n < BUNDLE_EVENTS && mayGoOn(); n++) world.goOn()
    this.wallMs += performance.now() - began
    const { user, system } = process.cpuUsage(before)
    this.cpuMs += (user + system) / 1_000
  }
}

/** Signals are heard, and streams read, between two slices only. */
function turnOfEventLoop(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve))
}

/** Why a pool cannot be simulated, with what to do; null when it can. */
export function notSimulated({ shards, profile }: PoolSpec): { why: string; remedy: string } | null {
  if (shards > 1)
    return {
      why: `the pool has ${shards} shards, and the simulator has one workflow a pool`,
      remedy: 'simulate it with shards: 1, or one shard with its part of callers, budget and standbys',
    }
  const parks = profile.backend === 'kubernetes' && profile.gpu !== null && profile.gpu.idle !== 'hold'
  if (parks && seatSetRule(profile) !== null)
    return {
      why: 'its pods park, and the simulator does not model yet how parked pods take turns on the GPUs of their seat set',
      remedy: "set profile.gpu.idle to 'hold'",
    }
  return null
}
