import type { PoolSpec } from '../contract/pool.js'
import { type Latencies, meanMs } from './latencies.js'
import type { Classes } from './measures.js'
import type { Simulation } from './simulation.js'
import type { TraceProblem } from './trace-reader.js'

/** What `firepool simulate --json` prints of one run. Shares are 0..1, of all jobs that had ended or started; null: no such jobs. */
export interface SimulationResult {
  v: 1
  /** false: it was stopped, and this is what was measured so far */
  complete: boolean
  seed: string | number
  pool: PoolSpec
  workload: Readonly<Record<string, string | number>>
  latencies: Latencies
  acquireTimeoutMs: number
  simulatedSeconds: number
  /** real time, and CPU time of the process: on a machine that is busy otherwise the first says little */
  wallSeconds: number
  cpuSeconds: number
  /** of the simulated world, and of the pool: calls of `step` */
  events: number
  steps: number
  /** of real time */
  eventsPerSecond: number
  /** `unfinished`: of a run that was stopped, waiting or running */
  jobs: { asked: number; finished: number; unserved: number; unfinished: number }
  /** `hit`: warm or standby, and started within 3.5 s; unserved jobs are misses */
  shares: Shares & { hit: number | null }
  /** the first job of each session, and all others */
  first: Shares & { jobs: number }
  later: Shares & { jobs: number }
  /** from the wish for a job to its start; null: none started */
  startMs: { p50: number | null; p90: number | null; p99: number | null; max: number | null }
  /**
   * seat-seconds: held by pods with a caller; used by jobs; floor: jobs and one hand-back each; and what a seat for each session, a seat
   * while each caller lives and a fixed pool at the peak would have held. null: the workload has no sessions
   */
  seatSeconds: {
    held: number
    used: number
    floor: number
    session: number | null
    life: number | null
    peak: number | null
  }
  /** held / each of these; null: nothing to compare with */
  heldOver: { session: number | null; life: number | null; peak: number | null; floor: number | null }
  /** all pods, standbys and those that start included */
  podSeconds: number
  sessions: number
  peakSeats: number
  podsCreated: number
  podsPerJob: number | null
  /** share of the jobs that ended without a start, and how many by code */
  unserved: number | null
  unservedBy: Record<string, number>
  /** of a trace: lines that were wrong, and the first of them */
  leftOut?: { lines: number; first: readonly TraceProblem[] }
  invariantViolations: number
  /** steps after which the invariants were checked */
  invariantsChecked: number
}

type Shares = Record<keyof Classes, number | null>

/** The figures of a run, as far as it has come. */
export function resultOf(simulation: Simulation): SimulationResult {
  const { world, workload, wallMs, cpuMs } = simulation
  const { clock, measures, inspector, options, pool } = world
  const { asked, finished, unserved } = measures
  const all = sum(measures.first, measures.later)
  const jobs = total(all)
  const { podsCreated } = pool.state.counters
  const seconds = seatSeconds(simulation)
  const over = (part: number | null) => ratio(seconds.held, part ?? 0)
  return {
    v: 1,
    complete: simulation.isOver,
    seed: options.seed,
    pool: options.spec,
    workload: workload.inputs,
    latencies: options.latencies,
    acquireTimeoutMs: options.acquireMs,
    simulatedSeconds: clock.elapsedMs / 1_000,
    wallSeconds: wallMs / 1_000,
    cpuSeconds: cpuMs / 1_000,
    events: clock.events,
    steps: inspector.steps,
    eventsPerSecond: Math.round(ratio(clock.events, wallMs / 1_000) ?? 0),
    jobs: { asked, finished, unserved, unfinished: asked - finished - unserved },
    shares: { ...sharesOf(all), hit: ratio(measures.hits, jobs) },
    first: { jobs: total(measures.first), ...sharesOf(measures.first) },
    later: { jobs: total(measures.later), ...sharesOf(measures.later) },
    startMs: startMs(simulation),
    seatSeconds: seconds,
    heldOver: {
      session: over(seconds.session),
      life: over(seconds.life),
      peak: over(seconds.peak),
      floor: over(seconds.floor),
    },
    podSeconds: measures.podMs / 1_000,
    sessions: measures.sessions,
    peakSeats: measures.peakSeats,
    podsCreated,
    podsPerJob: ratio(podsCreated, jobs),
    unserved: ratio(unserved, jobs),
    unservedBy: Object.fromEntries(measures.unservedBy),
    ...(workload.leftOut ? { leftOut: workload.leftOut } : {}),
    invariantViolations: inspector.violations,
    invariantsChecked: inspector.checked,
  }
}

function seatSeconds({ world, workload }: Simulation): SimulationResult['seatSeconds'] {
  const { measures, options } = world
  const handBackMs = measures.finished * meanMs(options.latencies.handBack)
  const ofSessions = (ms: number) => (workload.hasSessions ? ms / 1_000 : null)
  return {
    held: measures.heldMs / 1_000,
    used: measures.usedMs / 1_000,
    floor: (measures.usedMs + handBackMs) / 1_000,
    session: ofSessions(measures.sessionMs),
    life: ofSessions(measures.lifeMs),
    peak: ofSessions(measures.peakSeats * measures.lastEndMs),
  }
}

function startMs({ world }: Simulation): SimulationResult['startMs'] {
  const { starts } = world.measures
  if (starts.count === 0) return { p50: null, p90: null, p99: null, max: null }
  const [p50, p90, p99] = [50, 90, 99].map((percent) => starts.percentile(percent)) as [
    number,
    number,
    number,
  ]
  return { p50, p90, p99, max: starts.max }
}

function sum(a: Classes, b: Classes): Classes {
  return {
    warm: a.warm + b.warm,
    standby: a.standby + b.standby,
    cold: a.cold + b.cold,
    unserved: a.unserved + b.unserved,
  }
}

function total({ warm, standby, cold, unserved }: Classes): number {
  return warm + standby + cold + unserved
}

function sharesOf(classes: Classes): Shares {
  const of = (part: number) => ratio(part, total(classes))
  const { warm, standby, cold, unserved } = classes
  return { warm: of(warm), standby: of(standby), cold: of(cold), unserved: of(unserved) }
}

function ratio(part: number, whole: number): number | null {
  return whole > 0 ? part / whole : null
}
