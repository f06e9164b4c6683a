import type { JobSpec } from './job.js'
import type { AcquireOptions, Grant } from './lease.js'

/** Argument of the activity `firepool.run`: one job on a held lease. */
export interface RunInput {
  v?: 1
  /** as firepool.awaitLease returned it */
  grant: Grant
  /** the idempotency key, {sandbox uuid4}/n in openPool; default: one for each activity, the same in all its attempts */
  jobId?: string
  job: JobSpec
  /** send the release to the pool when the job is over (firepool.runJob) */
  releaseAfter?: 'keep' | 'retire'
}

/** Argument of the activity `firepool.awaitLease`. */
export interface AwaitLeaseInput {
  v?: 1
  pool: string
  leaseId: string
}

/** Argument of the workflow `firepool.runJob`; plain JSON from any SDK. */
export interface RunJobInput extends AcquireOptions {
  v?: 1
  pool: string
  job: JobSpec
  /** 'fail' (default): a lost pod is a typed failure; 'rerun': start again elsewhere, at least once */
  onPodLost?: 'fail' | 'rerun'
}
