/** What `firepool demo --json` prints: two loops, each run twice with the same jobs and seeds. */
export interface DemoResult {
  v: 1
  seed: string | number
  /** the imitated cold start of a pod, ms; null when pods start as fast as the machine lets them */
  startDelay: { minMs: number; maxMs: number } | null
  /** recorded pauses were divided by this */
  compression: number
  loops: LoopResult[]
  /** loops that could not be run; not empty: the demo has failed */
  notRun: { name: string; reason: string }[]
}

export interface LoopResult {
  name: string
  /** jobs of one side */
  jobs: number
  /** jobs of both sides that gave no result (a lost pod, say); a result that is not right counts in `rewards` */
  failures: number
  /** freshPod.totalMs / withFirepool.totalMs */
  speedup: number
  /** results of both sides whose right value is known beforehand, and how many had it */
  rewards: { expected: number; right: number }
  /** what went wrong, one line each, at most MAX_COMPLAINTS of them */
  complaints: string[]
  withFirepool: SideResult
  freshPod: SideResult
}

export interface SideResult {
  totalMs: number
  /** from the moment the loop wants the job to the start of its process: the call's time less the job's own time */
  startMs: { p50: number; p90: number; p99: number }
  /** jobs that ended without a result (at their time limit, say): when they started was not measured */
  startsNotMeasured: number
  /** of the jobs, by where their pod came from; each 0..1, together 1 */
  shares: { warm: number; standby: number; cold: number }
  /** time that pods were held for callers, the keep-alive after the last job too: the pool's own count, seconds */
  podSecondsHeld: number
  /** time that pods existed, starting and standing by too, until the last one was given up: sampled, seconds */
  podSecondsExisting: number
  /** what as many pods as the loop uses at once would have held, kept on for its total time, seconds */
  alwaysOnPodSeconds: number
  /** pods that the pool created, its first standbys included */
  podsCreated: number
}

/** A broken demo says what is wrong, not the same thing five hundred times. */
export const MAX_COMPLAINTS = 10

export type PodSource = keyof SideResult['shares']

/**
 * Nearest-rank percentile: the smallest value that at least `percent` of the values do not exceed. Always one of the
 * values, never a mean of two, so a p99 was really seen.
 * @param values in any order; not changed
 * @param percent above 0, at most 100
 * @returns NaN (null in JSON) when there are no values
 */
export function percentile(values: readonly number[], percent: number): number {
  if (!(percent > 0 && percent <= 100)) throw new RangeError(`a percentile lies in (0, 100], got ${percent}`)
  if (values.length === 0) return Number.NaN
  const sorted = [...values].sort((a, b) => a - b)
  return sorted[Math.ceil((percent / 100) * sorted.length) - 1] as number
}

/** The three percentiles that the table shows. */
export function startPercentiles(startsMs: readonly number[]): SideResult['startMs'] {
  return { p50: percentile(startsMs, 50), p90: percentile(startsMs, 90), p99: percentile(startsMs, 99) }
}

/** The share of each source among the jobs; all 0 when there are none. */
export function sharesOf(sources: readonly PodSource[]): SideResult['shares'] {
  const share = (source: PodSource) =>
    sources.length === 0 ? 0 : sources.filter((s) => s === source).length / sources.length
  return { warm: share('warm'), standby: share('standby'), cold: share('cold') }
}

/** freshPod over withFirepool, by total time. */
export function speedupOf(withFirepool: SideResult, freshPod: SideResult): number {
  return freshPod.totalMs / withFirepool.totalMs
}
