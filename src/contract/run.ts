import type { Problem } from './errors.js'
import type { JobOutcome, JobResult, JobSpec } from './job.js'
import type { AcquireOptions, Grant, LeaseRequest } from './lease.js'

/** Argument of the activity `firepool.run`: one job on a held lease. */
export interface RunInput {
  v?: 1
  /** as firepool.awaitLease returned it */
  grant: Grant
  /** the idempotency key, {sandbox uuid4}/n in openPool; default: one for each activity, the same in all its attempts */
  jobId?: string
  job: JobSpec
  /** the pod may have started it already: a call before this one may have reached it */
  posted?: boolean
  /** send the release to the pool when the job is over (firepool.runJob) */
  releaseAfter?: 'keep' | 'retire'
}

/**
 * What became of a short job: it `ended`, the pod `refused` it, or it `goesOn` and a normal activity attaches to it.
 * `posted`: the pod may have started it.
 */
export type ShortOutcome =
  | { v: 1; kind: 'ended'; outcome: JobOutcome }
  | { v: 1; kind: 'refused'; problem: Problem }
  | { v: 1; kind: 'goesOn'; posted: boolean; why: string }

/** Argument of the local activity `firepool.cancelShort`. */
export interface CancelShort {
  v: 1
  grant: Grant
  jobId: string
}

/** Argument of the local activity `firepool.runShort`. */
export interface ShortInput {
  v: 1
  grant: Grant
  jobId: string
  job: JobSpec
}

/** Argument of the activity `firepool.runOnce`: one job on a lease that it acquires itself. */
export interface RunOnceInput {
  v: 1
  pool: string
  request: LeaseRequest
  jobId: string
  job: JobSpec
  releaseAfter: 'keep' | 'retire'
}

/** `waiting`: no pod was free at once; ask by signal with the same leaseId, and run on the grant that comes. */
export type RunOnceResult = (
  | { v: 1; outcome: 'ran'; result: JobResult }
  /** `at`: the shard that was asked, by its name; absent when it is the pool itself */
  | { v: 1; outcome: 'waiting'; at?: string }
) &
  Pick<ToldPool, 'searchAttributes'>

/** Argument of the activity `firepool.awaitLease`. */
export interface AwaitLeaseInput {
  v?: 1
  pool: string
  leaseId: string
  /** as the lease's own: past it, and some seconds, the next attempt fails when the pool has said nothing; default 24 h */
  acquireTimeout?: number | string
}

/** Argument of the local activity `firepool.tellPool`: a signal from a lease workflow to its pool. */
export interface TellPool {
  v: 1
  pool: string
  signal: string
  payload: unknown
  /** whose request it is: its shard is found by it. A release without `at` goes to all shards: a wrong one makes no use of it */
  caller?: string
  /** the shard that was told before, by its name */
  at?: string
  /** what is known of the pool's shards is out of date */
  fresh?: boolean
}

/** `problem`: PoolNotFound, or null when the signal arrived. */
export interface ToldPool {
  v: 1
  problem: Problem | null
  /** the shard that has it, by its name; absent when it is the pool itself */
  at?: string
  /** the namespace has Firepool's search attributes: they may be set; absent when not, or when that is not known */
  searchAttributes?: true
}

/** Argument of the workflow `firepool.runJob`; plain JSON from any SDK. */
export interface RunJobInput extends AcquireOptions {
  v?: 1
  pool: string
  job: JobSpec
  /** 'fail' (default): a lost pod is a typed failure; 'rerun': start again elsewhere, at least once */
  onPodLost?: 'fail' | 'rerun'
}
