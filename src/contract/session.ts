import type { Duration } from './duration.js'
import type { JobOutcome, JobSpec } from './job.js'
import type { AcquireOptions } from './lease.js'

/** Argument of the workflow `firepool.session`: a held lease for who has no workflow of its own. */
export interface SessionInput extends AcquireOptions {
  v?: 1
  pool: string
  /** it ends when it was not used for this long; default TIMEOUT.sessionTtlMs */
  ttl?: Duration
  onPodLost?: 'fail' | 'rerun'
  /** what an earlier run of the session hands on */
  carried?: SessionCarried
}

/** Argument of its update `firepool.run`; the answer is a JobResult. */
export interface SessionRun {
  v?: 1
  job: JobSpec
  /** the idempotency key: what was asked under it is run once, and answered again; default: the update's id */
  key?: string
}

/** Result of the workflow. */
export interface SessionEnd {
  v: 1
  /** not used for its ttl, or told to end */
  end: 'expired' | 'ended'
  /** jobs run, over all its runs */
  jobs: number
}

/** An answer that is kept for who asks again. */
export interface SessionAnswer {
  key: string
  digest: string
  outcome: JobOutcome
}

export interface SessionCarried {
  jobs: number
  answers: SessionAnswer[]
}
