/** What a loop's workflow reports, and how its figures become one side of the result. Pure; workflow safe. */
import type { HitClass } from '../contract/lease.js'
import type { PoolStatus } from '../contract/pool.js'
import {
  type LoopResult,
  MAX_COMPLAINTS,
  type PodSource,
  type SideResult,
  speedupOf,
  startPercentiles,
} from './result.js'

/** How one job went. Small: hundreds of them travel in one workflow result. */
export interface JobRecord {
  /** from wanting the job to the start of its process, ms; null when the job ended without a result */
  startMs: number | null
  /** where its pod came from; null when that is only known to the pool (a fresh pod per job) or the job never had one */
  hit: HitClass | null
  /** right: as it must be; wrong: another result; none: no result, which is never a reward */
  verdict: 'right' | 'wrong' | 'none'
  /** for all but `right`: what was wrong */
  why?: string
}

/** The result of a loop's workflow. */
export interface LoopRecord {
  v: 1
  /** from its start to its last result or pause, in workflow time, ms */
  totalMs: number
  jobs: JobRecord[]
}

/** The answer to the loops' progress query. */
export interface LoopProgress {
  v: 1
  done: number
  total: number
  failures: number
  hits: Record<HitClass, number>
}

export function newProgress(total: number): LoopProgress {
  return { v: 1, done: 0, total, failures: 0, hits: { warm: 0, standby: 0, cold: 0 } }
}

/** Counts a job that is over. */
export function count(progress: LoopProgress, record: JobRecord): void {
  progress.done++
  if (record.verdict === 'none') progress.failures++
  if (record.hit) progress.hits[record.hit]++
}

/** What several workflows have done so far, as one. */
export function sumOf(parts: readonly LoopProgress[]): LoopProgress {
  const sum = newProgress(0)
  for (const part of parts) {
    sum.done += part.done
    sum.total += part.total
    sum.failures += part.failures
    for (const hit of ['warm', 'standby', 'cold'] as const) sum.hits[hit] += part.hits[hit]
  }
  return sum
}

/** One side of a loop as it was run: its record, and its pool when the loop began and when the last pod was given up. */
export interface SideRun {
  record: LoopRecord
  before: PoolStatus
  after: PoolStatus
  podSecondsExisting: number
  /** jobs that the loop runs at once */
  concurrency: number
}

/** The figures of one side. */
export function sideResult(run: SideRun): SideResult {
  const { record, before, after, concurrency } = run
  const starts = record.jobs.flatMap((job) => (job.startMs === null ? [] : [job.startMs]))
  return {
    totalMs: record.totalMs,
    startMs: startPercentiles(starts),
    startsNotMeasured: record.jobs.length - starts.length,
    shares: sharesOfRun(run),
    podSecondsHeld: (after.heldPodMs - before.heldPodMs) / 1_000,
    podSecondsExisting: run.podSecondsExisting,
    alwaysOnPodSeconds: (concurrency * record.totalMs) / 1_000,
    podsCreated: after.podsCreated,
  }
}

/** By the jobs' own records where they have them (a held lease: one grant, many jobs), else by the pool's grants. */
function sharesOfRun({ record, before, after }: SideRun): SideResult['shares'] {
  const counts: Record<PodSource, number> = { warm: 0, standby: 0, cold: 0 }
  const known = record.jobs.flatMap((job) => (job.hit === null ? [] : [job.hit]))
  for (const hit of known) counts[hit]++
  if (known.length === 0) {
    for (const hit of ['warm', 'standby', 'cold'] as const)
      counts[hit] = after.grants[hit] - before.grants[hit]
  }
  const total = counts.warm + counts.standby + counts.cold
  const share = (hit: PodSource) => (total === 0 ? 0 : counts[hit] / total)
  return { warm: share('warm'), standby: share('standby'), cold: share('cold') }
}

/** Both sides of a loop. */
export function loopResult(name: string, ours: SideRun, fresh: SideRun): LoopResult {
  const withFirepool = sideResult(ours)
  const freshPod = sideResult(fresh)
  const sides = [
    { label: 'with Firepool', jobs: ours.record.jobs },
    { label: 'a fresh pod per job', jobs: fresh.record.jobs },
  ]
  const complaints = sides.flatMap(({ label, jobs }) =>
    jobs.filter((job) => job.verdict !== 'right').map((job) => `${label}: ${job.why}`),
  )
  const all = [...ours.record.jobs, ...fresh.record.jobs]
  const surplus = complaints.length - MAX_COMPLAINTS
  return {
    name,
    jobs: ours.record.jobs.length,
    failures: all.filter((job) => job.verdict === 'none').length,
    speedup: speedupOf(withFirepool, freshPod),
    rewards: { expected: all.length, right: all.filter((job) => job.verdict === 'right').length },
    complaints: [...complaints.slice(0, MAX_COMPLAINTS), ...(surplus > 0 ? [`and ${surplus} more`] : [])],
    withFirepool,
    freshPod,
  }
}

/** Whether a loop did all it should: no failure, every result right. */
export function isRight(loop: LoopResult): boolean {
  return loop.failures === 0 && loop.rewards.right === loop.rewards.expected && loop.rewards.expected > 0
}
