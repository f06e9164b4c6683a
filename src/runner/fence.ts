import {
  type AckRequest,
  type BindReply,
  type BindRequest,
  type DrainReply,
  type DrainRequest,
  type JobOutcome,
  type JobRequest,
  LIMIT,
  type Problem,
  problem,
  TIMEOUT,
} from '../contract/index.js'
import { type FinishedJob, HeldResults, type HeldResultsLimits } from './held-results.js'
import { busyProblem, cancelledProblem, digestProblem, earlierProblem, goneProblem } from './refusal.js'
import { StartedIds } from './started-ids.js'

/**
 * The runner's decision core: who may run what, now. It does no I/O, has no clock and draws no random numbers:
 * each input carries the time (ms on the runner's monotonic clock), each method answers with what is to be done.
 * One turn of the event loop makes one call; the order of the rules in `post` is the one of the lease protocol.
 */

/** Bounds and times of a fence; the defaults are the contract's. */
export interface FenceLimits extends HeldResultsLimits {
  /** jobs that wait */
  queue: number
  /** cancelled ids that were never seen */
  tombstones: number
  /** ranges of started job ids; past it the pod retires, because a forgotten id could start twice */
  startedIds: number
  /** answers to drains kept for repeated calls */
  drains: number
  /** leases that were bound, by epoch: past it a job of so many leases ago is only the broker's to ask for */
  leases: number
}

export const FENCE_LIMITS: FenceLimits = {
  queue: LIMIT.runnerQueue,
  results: LIMIT.runnerResults,
  resultBytes: 64 * 1024 ** 2,
  tombstones: LIMIT.tombstones,
  startedIds: 200_000,
  drains: 1_000,
  leases: 10_000,
  resultSentMs: TIMEOUT.resultSentMs,
  resultHoldMs: TIMEOUT.resultHoldMs,
}

/** What an earlier runner process in the same pod folder was bound to. */
export interface EarlierBinding {
  epoch: number
  ownerHash: string
}

export interface FenceInit {
  incarnation: string
  nowMs: number
  earlier?: EarlierBinding | undefined
  limits?: Partial<FenceLimits> | undefined
}

interface Accepted {
  jobId: string
  digest: string
  epoch: number
}

/** A job that is not over yet. */
type Job = (Accepted & { kind: 'waiting'; request: JobRequest }) | (Accepted & { kind: 'running' })

/** What to do with a POST /jobs. */
export type PostDecision =
  /** recorded: start its process now, and answer this connection when it is over */
  | { kind: 'start'; request: JobRequest }
  /** it waits or runs already: answer this connection when it is over */
  | { kind: 'attach' }
  | { kind: 'answer'; outcome: JobOutcome }
  | { kind: 'refuse'; problem: Problem }

/** What to do after a cancel or a revoke. */
export interface EndDecision {
  /** the running job to kill; its outcome comes by `finish` */
  kill: string | null
  /** jobs that will never start: answer their connections with this outcome */
  ended: { jobId: string; outcome: JobOutcome }[]
}

export type Answer<Reply> = { reply: Reply } | { problem: Problem }

export class Fence {
  readonly #incarnation: string
  readonly #earlier: EarlierBinding | undefined
  readonly #limits: FenceLimits
  /** accepted jobs that are not over */
  readonly #jobs = new Map<string, Job>()
  /** those that are, as long as their outcome is known */
  readonly #results: HeldResults
  readonly #started = new StartedIds()
  readonly #tombstones = new Set<string>()
  /** epochs that were still to come when a job was refused under them: that answer must stay true */
  readonly #refusedAhead = new Map<string, number>()
  readonly #drains = new Map<string, DrainReply>()
  /** the lease of each epoch that was bound to this incarnation */
  readonly #leases = new Map<number, string>()
  #queue: string[] = []
  #running: string | null = null
  #epoch = 0
  /** the first epoch bound to this incarnation: earlier ones may have run jobs in an earlier process */
  #firstEpoch: number | null = null
  #revokedEpoch = 0
  #ownerHash: string | null
  #drained = false
  #retired = false
  #useSeq = 0
  #idleSinceMs: number
  #startedTwice: string[] = []

  constructor(init: FenceInit) {
    this.#incarnation = init.incarnation
    this.#earlier = init.earlier
    this.#ownerHash = init.earlier?.ownerHash ?? null
    this.#limits = { ...FENCE_LIMITS, ...init.limits }
    this.#results = new HeldResults(this.#limits)
    this.#idleSinceMs = init.nowMs
  }

  get epoch(): number {
    return this.#epoch
  }

  get useSeq(): number {
    return this.#useSeq
  }

  get running(): string | null {
    return this.#running
  }

  get waiting(): number {
    return this.#queue.length
  }

  get state(): 'standby' | 'bound' | 'draining' {
    if (this.#drained || this.#retired) return 'draining'
    return this.#epoch === 0 ? 'standby' : 'bound'
  }

  /**
   * Gives the pod to a lease. The epoch only grows; the same bind again changes nothing. Jobs that still wait
   * under an older epoch will never start: they are in `ended`. A running one goes on until it is revoked.
   */
  bind(request: BindRequest, nowMs: number): Answer<BindReply> & { ended: EndDecision['ended'] } {
    const refused = this.#bindProblem(request)
    if (refused) return { problem: refused, ended: [] }
    if (request.epoch > this.#epoch) {
      this.#epoch = request.epoch
      this.#firstEpoch ??= request.epoch
      this.#leases.set(request.epoch, request.leaseId)
      if (this.#leases.size > this.#limits.leases) dropOldest(this.#leases)
      this.#ownerHash = request.ownerHash
      this.#idleSinceMs = nowMs
    }
    return {
      reply: { v: 1, useSeq: this.#useSeq },
      ended: this.#endWaiting((job) => job.epoch < this.#epoch),
    }
  }

  #bindProblem(request: BindRequest): Problem | undefined {
    if (request.incarnation !== this.#incarnation)
      return problem(
        'PodLost',
        'The runner of this pod restarted since the broker last saw it, and with it went what ran in it. Bind it under the incarnation in its ready file, or replace the pod.',
        { incarnation: this.#incarnation },
      )
    if (this.#ownerHash !== null && request.ownerHash !== this.#ownerHash)
      return problem(
        'InvalidRequest',
        'This pod has served another caller or reuse tag and never serves a second one. Delete it and take a fresh pod.',
        { reason: 'AnotherOwner' },
      )
    if (this.state === 'draining') return this.#revokedProblem()
    const sameLease = request.epoch === this.#epoch && request.leaseId === this.#leases.get(this.#epoch)
    const newer = request.epoch > Math.max(this.#epoch, this.#earlier?.epoch ?? 0)
    if (request.epoch <= this.#revokedEpoch || !(sameLease || newer)) return this.#revokedProblem()
    return undefined
  }

  /**
   * Decides a POST /jobs.
   * @param tokenEpoch of the lease token that came with it. A known job is for the epoch that started it, and for
   *   the current one: a pod serves one owner in all its life, so that is the same owner who came back.
   */
  post(request: JobRequest, tokenEpoch: number, nowMs: number): PostDecision {
    const { jobId, digest, epoch } = request
    // 1. A known job, whatever the epoch or state: checking the epoch first makes finished jobs run twice.
    const known = this.#known(jobId)
    if (known !== undefined) {
      const refused = this.#accessProblem(known, tokenEpoch) ?? digestProblem(known, digest)
      if (refused) return { kind: 'refuse', problem: refused }
      return known.kind === 'finished' ? { kind: 'answer', outcome: known.outcome } : { kind: 'attach' }
    }
    if (this.#started.has(jobId)) return { kind: 'refuse', problem: goneProblem(jobId) }
    // 2. Cancelled before it came.
    if (this.#tombstones.has(jobId)) return { kind: 'refuse', problem: cancelledProblem(jobId) }
    if (tokenEpoch !== epoch)
      return {
        kind: 'refuse',
        problem: problem(
          'InvalidRequest',
          `The job names epoch ${epoch}, its token is for epoch ${tokenEpoch}. Send both of one grant.`,
          { epoch, tokenEpoch },
        ),
      }
    // 3. Not the current epoch, or draining. What an earlier process of this pod may have run is lost, not refused.
    if (this.#firstEpoch === null || epoch < this.#firstEpoch)
      return { kind: 'refuse', problem: earlierProblem(jobId) }
    if (epoch !== this.#epoch || epoch <= this.#revokedEpoch || this.state === 'draining') {
      if (epoch > this.#epoch) this.#refuseAhead(jobId, epoch)
      return { kind: 'refuse', problem: this.#revokedProblem() }
    }
    if (epoch <= (this.#refusedAhead.get(jobId) ?? 0))
      return { kind: 'refuse', problem: this.#revokedProblem() }
    if (this.#started.entries >= this.#limits.startedIds) {
      this.#retired = true
      return { kind: 'refuse', problem: this.#revokedProblem() }
    }
    // 4. One job at a time, a bounded queue behind it.
    if (this.#running !== null && this.#queue.length >= this.#limits.queue)
      return { kind: 'refuse', problem: busyProblem(this.#queue.length) }
    // 5. Record, then start.
    this.#useSeq++
    const accepted = { jobId, digest, epoch }
    if (this.#running !== null) {
      this.#jobs.set(jobId, { ...accepted, kind: 'waiting', request })
      this.#queue.push(jobId)
      return { kind: 'attach' }
    }
    this.#start(accepted)
    this.#idleSinceMs = nowMs
    return { kind: 'start', request }
  }

  #start(job: Accepted): void {
    if (this.#started.has(job.jobId)) this.#startedTwice.push(job.jobId)
    this.#started.add(job.jobId)
    this.#jobs.set(job.jobId, { jobId: job.jobId, digest: job.digest, epoch: job.epoch, kind: 'running' })
    this.#running = job.jobId
  }

  /**
   * The running job is over.
   * @param bytes what holding the outcome costs
   * @returns the job to start next, if one waits
   */
  finish(jobId: string, outcome: JobOutcome, bytes: number, nowMs: number): { start: JobRequest | null } {
    const job = this.#jobs.get(jobId)
    if (job === undefined || job.kind !== 'running' || this.#running !== jobId)
      throw new Error(`job ${jobId} is said to be over, but it is not the one that runs`)
    this.#jobs.delete(jobId)
    this.#results.add({ jobId, digest: job.digest, epoch: job.epoch, outcome, bytes }, nowMs)
    this.#running = null
    this.#idleSinceMs = nowMs
    const nextId = this.#queue.shift()
    if (nextId === undefined) return { start: null }
    const next = this.#jobs.get(nextId)
    if (next === undefined || next.kind !== 'waiting')
      throw new Error(`job ${nextId} waits but is not recorded`)
    this.#start(next)
    return { start: next.request }
  }

  /** A response with the job's outcome was fully sent to a client. */
  sent(jobId: string, nowMs: number): void {
    this.#results.sent(jobId, nowMs)
  }

  /** A client says that it has the outcome. The result may be dropped from now on; the id is remembered. */
  ack(request: AckRequest, tokenEpoch: number | null): Problem | undefined {
    const job = this.#known(request.jobId)
    if (job === undefined) return undefined
    const refused = this.#accessProblem(job, tokenEpoch) ?? digestProblem(job, request.digest)
    if (refused) return refused
    if (job.kind !== 'finished')
      return problem(
        'InvalidRequest',
        `Job ${job.jobId} is not over yet. Acknowledge it after its result came.`,
      )
    this.#results.acknowledge(job.jobId)
    return undefined
  }

  /**
   * Cancels a job: one that runs is to be killed, one that waits never starts, one that has not come is refused
   * when it comes, one that is over keeps its outcome.
   * @param tokenEpoch of a lease token, null for the broker
   */
  cancel(jobId: string, tokenEpoch: number | null): Answer<EndDecision> {
    const job = this.#known(jobId)
    if (job === undefined) {
      if (!this.#started.has(jobId)) this.#bury(jobId)
      return { reply: { kill: null, ended: [] } }
    }
    const refused = this.#accessProblem(job, tokenEpoch)
    if (refused) return { problem: refused }
    if (job.kind === 'running') return { reply: { kill: jobId, ended: [] } }
    if (job.kind === 'finished') return { reply: { kill: null, ended: [] } }
    this.#bury(jobId)
    this.#forgetWaiting(jobId)
    return {
      reply: {
        kill: null,
        ended: [{ jobId, outcome: { kind: 'problem', problem: cancelledProblem(jobId) } }],
      },
    }
  }

  /**
   * Ends an epoch and all before it, for good: what runs under them is to be killed, what waits never starts,
   * what comes later is refused. Younger epochs are not touched.
   */
  revoke(epoch: number): EndDecision {
    this.#revokedEpoch = Math.max(this.#revokedEpoch, epoch)
    const running = this.#running === null ? undefined : this.#jobs.get(this.#running)
    return {
      kill: running !== undefined && running.epoch <= epoch ? running.jobId : null,
      ended: this.#endWaiting((job) => job.epoch <= epoch),
    }
  }

  /**
   * The compare-and-set: succeeds iff the epoch and useSeq are those the broker knows and nothing runs, waits or is
   * undelivered. The answer for a drainId never changes. After a success only known jobs are answered.
   */
  drain(request: DrainRequest, nowMs: number): DrainReply {
    const earlier = this.#drains.get(request.drainId)
    if (earlier !== undefined) return earlier
    const drained =
      request.epoch === this.#epoch && request.useSeq === this.#useSeq && !this.isOccupied(nowMs)
    if (drained) this.#drained = true
    const reply: DrainReply = { v: 1, drained, useSeq: this.#useSeq, idleMs: this.idleMs(nowMs) }
    this.#drains.set(request.drainId, reply)
    if (this.#drains.size > this.#limits.drains) dropOldest(this.#drains)
    return reply
  }

  /** Accepts nothing new from now on, as after a drain: the pod is about to end itself. */
  retire(): void {
    this.#retired = true
  }

  /** The pod ends now: like retire, and no waiting job will start. */
  close(): EndDecision {
    this.#retired = true
    return { kill: this.#running, ended: this.#endWaiting(() => true) }
  }

  /** Whether a lease of this epoch may touch the pod's files now. */
  leaseProblem(tokenEpoch: number): Problem | undefined {
    if (this.#firstEpoch === null) return earlierProblem(null)
    const current = tokenEpoch === this.#epoch && tokenEpoch > this.#revokedEpoch && this.state === 'bound'
    return current ? undefined : this.#revokedProblem()
  }

  /** Whether a lease is not the one that was bound to the pod under this epoch: its id is what makes a grant hard to guess. */
  isOtherLease(epoch: number, leaseId: string): boolean {
    const bound = this.#leases.get(epoch)
    return bound !== undefined && leaseId !== bound
  }

  /** Whether the pod accepts a promotion: not when it is about to go. */
  promoteProblem(): Problem | undefined {
    return this.state === 'draining' ? this.#revokedProblem() : undefined
  }

  /** Finished jobs whose result a client may still come for. */
  undelivered(nowMs: number): number {
    return this.#results.undelivered(nowMs)
  }

  /** Whether something runs, waits or is undelivered. */
  isOccupied(nowMs: number): boolean {
    return this.#running !== null || this.#queue.length > 0 || this.undelivered(nowMs) > 0
  }

  /** For how long nothing has run, ms; 0 while something runs, waits or is undelivered. Only jobs and binds are use. */
  idleMs(nowMs: number): number {
    return this.isOccupied(nowMs) ? 0 : Math.max(0, nowMs - this.#idleSinceMs)
  }

  /** Broken invariants, as sentences; none in a correct program. */
  invariants(): string[] {
    const broken = this.#startedTwice.map((jobId) => `I11: job ${jobId} started twice`)
    let waiting = 0
    let running = 0
    for (const jobId of this.#results.ids()) {
      if (!this.#started.has(jobId)) broken.push(`I11: job ${jobId} ran but is not remembered`)
      if (this.#jobs.has(jobId)) broken.push(`I11: job ${jobId} is over, and is not`)
    }
    for (const job of this.#jobs.values()) {
      const started = this.#started.has(job.jobId)
      if (job.kind === 'waiting' && started) broken.push(`I11: job ${job.jobId} waits but has started`)
      if (job.kind === 'running' && !started) broken.push(`I11: job ${job.jobId} ran but is not remembered`)
      if (job.kind === 'waiting' && job.epoch !== this.#epoch)
        broken.push(`I1: job ${job.jobId} waits under epoch ${job.epoch}, the pod is bound to ${this.#epoch}`)
      if (job.kind === 'waiting') waiting++
      if (job.kind === 'running') running++
    }
    if (running !== (this.#running === null ? 0 : 1)) broken.push(`${running} jobs run at once`)
    broken.push(...this.#results.invariants())
    if (waiting !== this.#queue.length)
      broken.push(`${waiting} jobs wait, the queue has ${this.#queue.length}`)
    if (this.#queue.length > this.#limits.queue) broken.push(`${this.#queue.length} jobs wait`)
    if (this.#queue.length > 0 && this.#running === null) broken.push('jobs wait although nothing runs')
    if (new Set(this.#queue).size !== this.#queue.length) broken.push('a job waits twice')
    if (this.#drained && (running > 0 || this.#queue.length > 0)) broken.push('a drained pod has jobs')
    return broken
  }

  /** A job whose outcome is known, or will be. */
  #known(jobId: string): Job | FinishedJob | undefined {
    return this.#jobs.get(jobId) ?? this.#results.get(jobId)
  }

  #accessProblem(job: Accepted, tokenEpoch: number | null): Problem | undefined {
    // A later grant of this pod was its owner's too, also one that is over by now: a run that was reset may hold no other.
    // An epoch that was never bound here has no lease whose id could have been compared: anybody could name it.
    if (tokenEpoch === null || (tokenEpoch >= job.epoch && this.#leases.has(tokenEpoch))) return undefined
    return problem(
      'InvalidRequest',
      `Job ${job.jobId} started under epoch ${job.epoch}; the token is for epoch ${tokenEpoch}. Use the token of the grant that the job was sent with.`,
      { epoch: job.epoch, tokenEpoch },
    )
  }

  #revokedProblem(): Problem {
    return problem(
      'LeaseRevoked',
      'The lease on this pod is over, and the job never started here. Acquire again and send the job there.',
      { epoch: this.#epoch, state: this.state },
    )
  }

  #endWaiting(isOver: (job: Accepted) => boolean): EndDecision['ended'] {
    const ended: EndDecision['ended'] = []
    for (const jobId of this.#queue) {
      const job = this.#jobs.get(jobId)
      if (job !== undefined && isOver(job))
        ended.push({ jobId, outcome: { kind: 'problem', problem: this.#revokedProblem() } })
    }
    // A job that never started is forgotten, so that it can be sent again under the next epoch.
    for (const { jobId } of ended) this.#forgetWaiting(jobId)
    return ended
  }

  #forgetWaiting(jobId: string): void {
    this.#jobs.delete(jobId)
    this.#queue = this.#queue.filter((id) => id !== jobId)
  }

  #bury(jobId: string): void {
    this.#tombstones.add(jobId)
    if (this.#tombstones.size > this.#limits.tombstones) dropOldest(this.#tombstones)
  }

  /** The caller was told that the job never started under this epoch, and may have sent it elsewhere by now. */
  #refuseAhead(jobId: string, epoch: number): void {
    this.#refusedAhead.set(jobId, Math.max(epoch, this.#refusedAhead.get(jobId) ?? 0))
    if (this.#refusedAhead.size > this.#limits.tombstones) dropOldest(this.#refusedAhead)
  }
}

function dropOldest(all: Map<unknown, unknown> | Set<unknown>): void {
  for (const oldest of all.keys()) {
    all.delete(oldest)
    return
  }
}
