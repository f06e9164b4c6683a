/** What `firepool demo --json` prints: two loops, each run twice with the same jobs and seeds. */
export interface DemoResult {
  v: 1
  seed: string | number
  /** the imitated cold start of a pod, ms; null when pods start as fast as the machine lets them */
  startDelay: { minMs: number; maxMs: number } | null
  /** recorded pauses were divided by this */
  compression: number
  loops: LoopResult[]
}

export interface LoopResult {
  name: string
  /** jobs of one side */
  jobs: number
  /** jobs of both sides that gave no result: infrastructure, or a step whose check did not hold */
  failures: number
  /** freshPod.totalMs / withFirepool.totalMs */
  speedup: number
  /** results of both sides whose right value is known beforehand, and how many had it */
  rewards: { expected: number; right: number }
  withFirepool: SideResult
  freshPod: SideResult
}

export interface SideResult {
  totalMs: number
  /** from asking for a pod to the start of the job */
  startMs: { p50: number; p90: number; p99: number }
  /** of the jobs, by where their pod came from; each 0..1, together 1 */
  shares: { warm: number; standby: number; cold: number }
  /** time that pods were held for callers, seconds */
  podSecondsHeld: number
  /** what a pod for each caller from its first job to its last would have held, seconds */
  alwaysOnPodSeconds: number
}

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
