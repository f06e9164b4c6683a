import type { JobOutcome } from '../contract/index.js'

/** Bounds and times of held results. */
export interface HeldResultsLimits {
  /** results held */
  results: number
  /** bytes of all held results together: a thousand full results would be most of a gigabyte */
  resultBytes: number
  /** for how long a result that was sent to a client may still be fetched again */
  resultSentMs: number
  /** for how long one that nobody has fetched is kept for its client */
  resultHoldMs: number
}

/** A job that is over, and what became of it. */
export interface FinishedJob {
  jobId: string
  digest: string
  epoch: number
  kind: 'finished'
  outcome: JobOutcome
  /** what holding the outcome costs */
  bytes: number
  finishedAtMs: number
  sentAtMs: number | null
  acknowledged: boolean
}

/** Outcomes of jobs that are over, within bounds. Like the fence, of which it is a part, it has no clock and does no I/O. */
export class HeldResults {
  readonly #limits: HeldResultsLimits
  /** in the order they finished */
  readonly #jobs = new Map<string, FinishedJob>()
  #bytes = 0

  constructor(limits: HeldResultsLimits) {
    this.#limits = limits
  }

  get(jobId: string): FinishedJob | undefined {
    return this.#jobs.get(jobId)
  }

  /** Holds one more; others may go for it, itself never. */
  add(job: Pick<FinishedJob, 'jobId' | 'digest' | 'epoch' | 'outcome' | 'bytes'>, nowMs: number): void {
    this.#jobs.set(job.jobId, {
      ...job,
      kind: 'finished',
      finishedAtMs: nowMs,
      sentAtMs: null,
      acknowledged: false,
    })
    this.#bytes += job.bytes
    this.#dropBeyondBounds(nowMs)
  }

  /** A response with the outcome was fully sent to a client. */
  sent(jobId: string, nowMs: number): void {
    const job = this.#jobs.get(jobId)
    if (job !== undefined) job.sentAtMs ??= nowMs
  }

  /** A client has it: it may be dropped from now on. */
  acknowledge(jobId: string): void {
    const job = this.#jobs.get(jobId)
    if (job !== undefined) job.acknowledged = true
  }

  /** Results that a client may still come for. */
  undelivered(nowMs: number): number {
    let count = 0
    for (const job of this.#jobs.values()) if (!this.#isSettled(job, nowMs)) count++
    return count
  }

  /** Broken invariants, as sentences; none in a correct program. */
  invariants(): string[] {
    const broken: string[] = []
    let bytes = 0
    for (const job of this.#jobs.values()) bytes += job.bytes
    if (bytes !== this.#bytes) broken.push('the count of held results is wrong')
    if (this.#jobs.size > this.#limits.results) broken.push(`${this.#jobs.size} results are held`)
    return broken
  }

  ids(): Iterable<string> {
    return this.#jobs.keys()
  }

  #isSettled(job: FinishedJob, nowMs: number): boolean {
    if (job.acknowledged) return true
    return job.sentAtMs === null
      ? nowMs >= job.finishedAtMs + this.#limits.resultHoldMs
      : nowMs >= job.sentAtMs + this.#limits.resultSentMs
  }

  /** Settled ones go first, then sent ones, then the oldest, never the newest. */
  #dropBeyondBounds(nowMs: number): void {
    while (
      this.#jobs.size > 1 &&
      (this.#jobs.size > this.#limits.results || this.#bytes > this.#limits.resultBytes)
    ) {
      const dropped =
        this.#oldest((job) => this.#isSettled(job, nowMs)) ??
        this.#oldest((job) => job.sentAtMs !== null) ??
        this.#oldest(() => true)
      if (dropped === undefined) return
      this.#jobs.delete(dropped.jobId)
      this.#bytes -= dropped.bytes
    }
  }

  #oldest(accepts: (job: FinishedJob) => boolean): FinishedJob | undefined {
    for (const job of this.#jobs.values()) if (accepts(job)) return job
    return undefined
  }
}
