import type { Problem } from '../../src/contract/errors.js'
import { problem } from '../../src/contract/errors.js'
import type { JobOutcome } from '../../src/contract/job.js'
import type { Grant, LeaseEnd, LeaseRequest } from '../../src/contract/lease.js'
import type { Network } from './protocol-network.js'
import type { Reply } from './protocol-pod.js'
import type { Holders, ModelPool } from './protocol-pool.js'
import { Happening, Process, type Program, race, type Simulation, type Wait } from './simulation.js'

/** What one job came to, as its caller saw it. */
export interface JobRecord {
  run: Run
  jobId: string
  /** the last grant it was sent with */
  grant: Grant | null
  /** whether that pod had died, restarted or been deleted when the outcome came */
  podGone: boolean
  outcome: JobOutcome | { kind: 'acquire'; problem: Problem }
}

type Held = { grant: Grant; child: LeaseChild }

/** The lease workflow: asks the pool, watches, and releases when it is cancelled. Its result is the end of the lease. */
export class LeaseChild {
  readonly end = new Happening<LeaseEnd>()
  closed = false

  constructor(
    private readonly world: Callers,
    readonly request: LeaseRequest,
  ) {
    world.children.set(request.leaseWorkflowId, this)
    world.network.later(() => world.pool.send({ kind: 'request', request }))
  }

  /** Also while the request is still on its way: then the release may overtake it. */
  cancel(): void {
    if (this.closed) return
    const { leaseId } = this.request
    this.world.network.later(() => {
      this.world.pool.send({ kind: 'release', release: { v: 1, leaseId } })
      this.finish({ v: 1, leaseId, end: 'released' })
    })
  }

  finish(end: LeaseEnd): void {
    if (this.closed) return
    this.closed = true
    this.end.set(end)
  }
}

export interface Plan {
  caller: string
  slot: string
  workflowId: string
  jobs: { pauseMs: number; forMs: number; cancelAfterMs: number | null }[]
  replyTo: 'signal' | 'token'
  acquireMs: number
  priority: number
}

/** One run of a caller's workflow, with the library in it. */
export class Run {
  closed = false
  finished = false
  readonly grants = new Map<string, Happening<Grant>>()
  readonly children: LeaseChild[] = []
  held: Held | null = null
  current = 0
  private readonly process: Process

  constructor(
    private readonly world: Callers,
    readonly plan: Plan,
    readonly runId: string,
    /** of the sandbox: a reset run has the one of the run before, and counts on from where it was reset to */
    readonly sandbox: string,
    first: number,
  ) {
    world.runs.set(runId, this)
    this.current = first
    this.process = new Process(this.main())
  }

  /** The server closes it, or it closes itself: its children are cancelled, but not those of a run that is reset. */
  close(how: 'closed' | 'reset'): void {
    if (this.closed) return
    this.closed = true
    this.process.kill()
    if (how === 'reset') return
    for (const child of this.children) this.world.network.later(() => child.cancel())
  }

  private *main(): Program<void> {
    const { jobs } = this.plan
    for (; this.current < jobs.length; this.current++) {
      yield this.world.sim.sleep(jobs[this.current]!.pauseMs)
      const record = yield* this.job(`${this.sandbox}/${this.current + 1}`, this.current)
      this.world.records.push(record)
    }
    this.finished = true
    this.close('closed')
  }

  private *job(jobId: string, n: number): Program<JobRecord> {
    const { forMs, cancelAfterMs } = this.plan.jobs[n]!
    let grant: Grant | null = null
    for (let tries = 0; tries < 200; tries++) {
      if (!this.held) {
        const refused: Problem | null = yield* this.acquire()
        if (refused)
          return { run: this, jobId, grant, podGone: false, outcome: { kind: 'acquire', problem: refused } }
      }
      const held: Held | null = this.held
      // It was recalled between its grant and this line.
      if (!held) continue
      grant = held.grant
      const outcome: JobOutcome = yield* this.world.runActivity(this, grant, jobId, forMs, cancelAfterMs)
      const code = outcome.kind === 'problem' ? outcome.problem.code : null
      if (code === 'LeaseRevoked' || code === 'PodLost') {
        if (this.held === held) this.held = null
        held.child.cancel()
      }
      if (code === 'LeaseRevoked') {
        this.world.revokedWord(grant, jobId)
        continue
      }
      return { run: this, jobId, grant, podGone: this.world.pool.lost.has(grant.pod), outcome }
    }
    throw new Error(`job ${jobId} acquires again and again`)
  }

  /** @returns why there is no lease, or null when there is one */
  private *acquire(): Program<Problem | null> {
    const { world, plan } = this
    for (let tries = 0; tries < 200; tries++) {
      const leaseId = world.sim.random.uuid()
      const granted = new Happening<Grant>()
      this.grants.set(leaseId, granted)
      const child = new LeaseChild(world, {
        v: 1,
        leaseId,
        holder: { workflowId: plan.workflowId, firstExecutionRunId: plan.workflowId, runId: this.runId },
        leaseWorkflowId: `lease/${leaseId}`,
        caller: plan.caller,
        reuseTag: '',
        slot: plan.slot,
        tenant: '',
        priority: plan.priority,
        requestedAtMs: world.sim.now,
        deadlineMs: world.sim.now + plan.acquireMs,
        replyTo: plan.replyTo,
        pinMs: 0,
      })
      this.children.push(child)
      if (plan.replyTo === 'token') new Process(this.awaitLease(leaseId, granted, child))
      const first: Grant | LeaseEnd = yield race<Grant | LeaseEnd>(granted.wait, child.end.wait)
      if ('pod' in first) {
        const held = { grant: first, child }
        if (child.closed) continue
        this.held = held
        child.end.wait(() => {
          if (this.held === held) this.held = null
        })
        return null
      }
      // It ended before its grant came, so nothing can have started under it: ask again, unless the pool said why not.
      const why = first.end === 'failed' ? first.problem : undefined
      if (why && why.code !== 'LeaseRevoked') return why
    }
    return problem('LeaseRevoked', 'every lease ended before it was granted')
  }

  /** The activity firepool.awaitLease: a new token for each attempt, which dies with it. */
  private *awaitLease(leaseId: string, granted: Happening<Grant>, child: LeaseChild): Program<void> {
    const { world } = this
    while (!this.closed && !granted.happened && !child.closed) {
      const token = `t${world.sim.random.uuid()}`
      const completed = new Happening<Grant | null>()
      world.tokens.set(token, completed)
      world.network.later(() => world.pool.send({ kind: 'token', leaseId, token }))
      const timeout: Wait<'timeout'> = (resume) => world.sim.at(60_000, () => resume('timeout'))
      const grant: Grant | null | 'timeout' = yield race<Grant | null | 'timeout'>(completed.wait, timeout)
      world.tokens.delete(token)
      if (grant === null || this.closed) return
      if (grant !== 'timeout') granted.set(grant)
    }
  }
}

/** All callers, their leases, their activities, and the server's part in between. */
export class Callers implements Holders {
  readonly runs = new Map<string, Run>()
  readonly children = new Map<string, LeaseChild>()
  readonly tokens = new Map<string, Happening<Grant | null>>()
  readonly records: JobRecord[] = []
  /** told LeaseRevoked: pod/epoch/job; it must never have started there */
  readonly revokedWords: { pod: string; epoch: number; jobId: string }[] = []
  /** chance that a worker dies in an attempt of firepool.run */
  workerDeaths = 0

  constructor(
    readonly sim: Simulation,
    readonly network: Network,
    readonly pool: ModelPool,
  ) {
    pool.holders = this
  }

  revokedWord({ pod, epoch }: Grant, jobId: string): void {
    this.revokedWords.push({ pod, epoch, jobId })
  }

  /**
   * The activity firepool.run. Its attempts attach to the job; a killed worker is noticed by its heartbeat, and the next
   * attempt goes on. When the run closes, the attempt learns that it is not wanted any more, and detaches.
   */
  *runActivity(
    run: Run,
    grant: Grant,
    jobId: string,
    forMs: number,
    cancelAfterMs: number | null,
  ): Program<JobOutcome> {
    let mayHaveStarted = false
    let refusedConnections = 0
    if (cancelAfterMs !== null) new Process(this.cancelActivity(run, grant, jobId, cancelAfterMs))
    for (;;) {
      const posted: Wait<Reply> = (resume) => this.post(grant, jobId, forMs, resume)
      const dies = this.sim.random.chance(this.workerDeaths)
      const death: Wait<'died'> = (resume) => {
        if (dies) this.sim.at(this.sim.random.int(0, 2_000), () => resume('died'))
      }
      const reply: Reply | 'died' = yield race<Reply | 'died'>(posted, death)
      if (typeof reply === 'object') {
        if ('refused' in reply) return { kind: 'problem', problem: reply.refused }
        this.ack(grant, jobId)
        return reply.outcome
      }
      if (reply === 'unreachable') {
        if (++refusedConnections >= 5) {
          const { pod } = grant
          return {
            kind: 'problem',
            problem: mayHaveStarted
              ? problem('PodLost', `pod ${pod} is gone`, { reason: 'Unreachable' })
              : problem('LeaseRevoked', `pod ${pod} is gone; the job never started`),
          }
        }
      } else {
        mayHaveStarted = true
      }
      yield this.sim.sleep(reply === 'died' ? 2_500 : 200)
    }
  }

  private post(grant: Grant, jobId: string, forMs: number, resume: (reply: Reply) => void): void {
    const spec = { command: 'work', timeout: forMs }
    const { epoch, pod: name } = grant
    this.network.call((reply) => {
      const pod = this.pool.pods.get(name)
      if (!pod?.listens) return reply('unreachable')
      pod.post({ v: 1, jobId, digest: `of ${jobId}`, epoch, spec }, epoch, reply)
    }, resume)
  }

  /** The caller cancels the job: the runner is told until it answers. */
  private *cancelActivity(run: Run, grant: Grant, jobId: string, afterMs: number): Program<void> {
    yield this.sim.sleep(afterMs)
    for (let tries = 0; tries < 10 && !run.closed; tries++) {
      const reply: Reply = yield (resume: (reply: Reply) => void) =>
        this.network.call((answer) => {
          const pod = this.pool.pods.get(grant.pod)
          if (!pod?.listens) return answer('unreachable')
          const decision = pod.fence.cancel(jobId, grant.epoch)
          if ('reply' in decision) pod.end(decision.reply, 'cancelled')
          answer({ refused: problem('Cancelled', 'heard') })
        }, resume)
      if (reply !== 'broken') return
      yield this.sim.sleep(200)
    }
  }

  private ack({ pod: name, epoch }: Grant, jobId: string): void {
    this.network.call(
      (reply) => {
        this.pool.pods.get(name)?.fence.ack({ v: 1, jobId, digest: `of ${jobId}` }, epoch)
        reply('broken')
      },
      () => undefined,
    )
  }

  grantToRun(runId: string, grant: Grant): boolean {
    const run = this.runs.get(runId)
    if (!run || run.closed) return false
    this.network.later(() => run.grants.get(grant.leaseId)?.set(grant))
    return true
  }

  isLeaseOpen(leaseWorkflowId: string): boolean {
    return this.children.get(leaseWorkflowId)?.closed === false
  }

  endToLease(leaseWorkflowId: string, end: LeaseEnd): void {
    const child = this.children.get(leaseWorkflowId)
    if (child) this.network.later(() => child.finish(end))
  }

  complete(token: string, what: { grant: Grant } | { end: LeaseEnd }): boolean {
    const completed = this.tokens.get(token)
    if (!completed || completed.happened) return false
    completed.set('grant' in what ? what.grant : null)
    return true
  }

  isOpen(runId: string, leaseWorkflowId: string): boolean {
    return this.runs.get(runId)?.closed === false && this.children.get(leaseWorkflowId)?.closed === false
  }
}
