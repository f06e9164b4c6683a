import type { Acquired, Grant, HitClass, LeaseEnd } from '../contract/lease.js'
import type { Holder } from './holders.js'
import type { World } from './world.js'

/** Whose jobs these are: the names under which the pool knows them. */
export interface Who {
  workflowId: string
  caller: string
  slot: string
  tenant: string
  priority: number
}

export interface Job {
  runMs: number
  /** the first of a session: its caller can have no pod yet */
  isFirst: boolean
}

/** As in src/workflows/caller.ts: leases that are recalled again and again before the job could start. */
const ACQUIRES_PER_JOB = 20

interface Wish {
  job: Job
  id: string
  wishedAt: number
  /** where the pod came from that it is to run on */
  from: HitClass
  acquires: number
  done: (ran: boolean) => void
}

/**
 * How a job comes to its pod. `loop`: as `openPool` does, the lease is held until it is recalled or the caller ends; `call`: as
 * `firepool.runJob` does, the request is an update, and the lease ends with its job.
 */
export type Manner = 'loop' | 'call'

/** The caller's side of the lease protocol for one slot: what src/workflows has for real callers. One job at a time. */
export class Sandbox implements Holder {
  private lease: { id: string; grant: Grant | null } | null = null
  private wish: Wish | null = null
  private jobs = 0

  constructor(
    private readonly world: World,
    private readonly who: Who,
    private readonly manner: Manner,
  ) {}

  /** Wishes to run a job now. `done` is called once, with whether it ran. */
  run(job: Job, done: (ran: boolean) => void): void {
    const { world, who } = this
    world.measures.jobAsked()
    const id = `${who.workflowId}/${++this.jobs}`
    this.wish = { job, id, wishedAt: world.clock.now, from: 'warm', acquires: 0, done }
    const grant = this.lease?.grant
    if (grant) this.dispatch(grant)
    else this.acquire()
  }

  /** The caller ends, and with it its lease. */
  close(): void {
    this.letGo()
  }

  granted(grant: Grant): void {
    if (this.lease?.id !== grant.leaseId || this.lease.grant) return
    this.lease.grant = grant
    if (!this.wish) return
    this.wish.from = grant.hit
    this.dispatch(grant)
  }

  ended({ leaseId, end, problem }: LeaseEnd): void {
    if (this.lease?.id !== leaseId) return
    const hadGrant = this.lease.grant !== null
    this.forget()
    // A held lease is acquired again by the next job; one that is on its way to its pod finds out there.
    if (hadGrant || !this.wish) return
    if (end === 'failed' && problem && problem.code !== 'LeaseRevoked') this.fail(problem.code)
    else this.acquire()
  }

  answered(answer: Acquired): void {
    if (answer.outcome === 'waiting') return
    const { world } = this
    if (answer.outcome === 'refused') {
      const { lease } = this
      world.clock.after(world.cluster.messageMs(), () => {
        // The pool's notice says the same, and may have come first.
        if (this.lease !== lease) return
        this.forget()
        this.fail(answer.problem.code)
      })
      return
    }
    const { grant } = answer
    world.clock.after(world.cluster.grantMs(grant), () => {
      // Its own bind finds the pod gone, or closed: it asks anew.
      if (world.cluster.bind(grant, { caller: this.who.caller, reuseTag: '' }) === null) this.again()
      else this.granted(grant)
    })
  }

  private acquire(): void {
    const { world, who, manner } = this
    const { clock, cluster, pool } = world
    if (++this.wish!.acquires > ACQUIRES_PER_JOB) {
      this.fail('LeaseRevoked')
      return
    }
    const id = world.leaseId()
    this.lease = { id, grant: null }
    world.holders.set(id, this)
    const request = {
      v: 1,
      leaseId: id,
      holder: { workflowId: who.workflowId, firstExecutionRunId: '1', runId: '1' },
      // A call is its own lease workflow; a loop has one for each lease.
      leaseWorkflowId: manner === 'call' ? who.workflowId : `lease/${id}`,
      caller: who.caller,
      reuseTag: '',
      slot: who.slot,
      tenant: who.tenant,
      priority: who.priority,
      requestedAtMs: clock.now,
      deadlineMs: clock.now + world.options.acquireMs,
      replyTo: 'signal',
      pinMs: 0,
    } as const
    const event = { kind: 'request', request, ...(manner === 'call' ? { answered: true } : {}) } as const
    clock.after(cluster.messageMs(), () => pool.send(event))
  }

  private dispatch(grant: Grant): void {
    const { world } = this
    world.clock.after(world.cluster.draw('dispatch'), () => this.start(grant))
  }

  private start(grant: Grant): void {
    const { world } = this
    const { clock, measures } = world
    const wish = this.wish!
    const pod = world.cluster.pods.get(grant.pod)
    if (!pod?.post(wish.id, grant.epoch, clock.now)) {
      this.again()
      return
    }
    measures.jobStarted(wish.from, clock.now - wish.wishedAt, wish.job.isFirst)
    clock.after(wish.job.runMs, () => {
      pod.finish(wish.id, grant.epoch, clock.now)
      measures.jobFinished(wish.job.runMs, clock.elapsedMs)
      if (this.manner === 'call') this.letGo(grant)
      this.end(true)
    })
  }

  /** The lease was over before the job could start under it (LeaseRevoked): another one is acquired. */
  private again(): void {
    this.letGo()
    this.acquire()
  }

  private fail(code: string): void {
    const { clock, measures } = this.world
    measures.jobUnserved(code, this.wish!.job.isFirst, clock.elapsedMs)
    this.end(false)
  }

  private end(ran: boolean): void {
    const { done } = this.wish!
    this.wish = null
    done(ran)
  }

  /** @param grant of a job that has just ended: nothing runs under it any more */
  private letGo(grant?: Grant): void {
    const { world, lease } = this
    if (!lease) return
    this.forget()
    const named = grant ? { pod: grant.pod, epoch: grant.epoch, clean: true } : {}
    const release = { v: 1, leaseId: lease.id, ...named } as const
    world.clock.after(world.cluster.messageMs(), () => world.pool.send({ kind: 'release', release }))
  }

  private forget(): void {
    if (!this.lease) return
    this.world.holders.delete(this.lease.id)
    this.lease = null
  }
}
