/**
 * `firepool/workflow`: what a caller imports into its own workflows. This code lives in USERS' histories: each change
 * of its command order needs a patched() gate (patches.ts) and a recorded history.
 */
import { ApplicationFailure } from '@temporalio/common'
import {
  CancellationScope,
  defineSignal,
  getExternalWorkflowHandle,
  isCancellation,
  ParentClosePolicy,
  patched,
  setHandler,
  sleep,
  startChild,
  uuid4,
  workflowInfo,
} from '@temporalio/workflow'
import {
  ACQUIRE_OPTIONS,
  type Acquire,
  asOptions,
  type Checked,
  checkAcquire,
  checkOnPodLost,
  checkPoolName,
  invalid,
  isRecord,
  shown,
} from '../contract/check.js'
import { checkJob } from '../contract/check-job.js'
import { noSuchPool, type Problem, poolTakesNoSignal, problem, silentPool } from '../contract/errors.js'
import type { JobResult, JobSpec } from '../contract/job.js'
import type { AcquireOptions, Grant, LeaseEnd, LeaseInput } from '../contract/lease.js'
import { LIMIT, TIMEOUT } from '../contract/limits.js'
import { poolWorkflowId, QUEUE, SIGNAL, WORKFLOW } from '../contract/names.js'
import { refuseUnknownNames } from '../contract/option-names.js'
import type { ShortInput } from '../contract/run.js'
import { failureOf, problemOf } from './failure.js'
import { guardGrants } from './grant-guard.js'
import { grantIn } from './grant-in.js'
import { leaseWorkflowId } from './lease-id.js'
import { runOnPod } from './run-activity.js'
import { runShort } from './short-job.js'
import { summaryText } from './summary.js'

export type { ErrorCode, Origin, Problem } from '../contract/errors.js'
export type { JobFile, JobResult, JobSpec } from '../contract/job.js'
export type { AcquireOptions } from '../contract/lease.js'
export { problemOf } from './failure.js'

/** A lease that was recalled again and again before a job could start: somebody takes pods faster than they are used. */
const MAX_ACQUIRES_PER_JOB = 20

export interface SandboxOptions extends AcquireOptions {
  /** 'fail' (default): a lost pod is a typed failure (PodLost); 'rerun': start the job again elsewhere, at least once */
  onPodLost?: 'fail' | 'rerun'
}

const SANDBOX_OPTIONS = [...ACQUIRE_OPTIONS, 'onPodLost']

interface HeldLease {
  grant: Grant
  /** cancels the lease workflow: the release */
  scope: CancellationScope
  end: Promise<LeaseEnd>
}

guardGrants()

const grantSignal = defineSignal<[unknown]>(SIGNAL.grant)

/** Grants that arrived, and who waits for one. One board for each workflow run: the module is loaded once for each. */
const board = {
  listening: false,
  waiting: new Map<string, (grant: Grant) => void>(),
  open: new Set<string>(),
}

function listen(): void {
  if (board.listening) return
  board.listening = true
  setHandler(grantSignal, (payload) => {
    for (const [leaseId, take] of board.waiting) {
      const grant = grantIn(payload, leaseId)
      if (grant) take(grant)
    }
  })
}

/**
 * Opens a sandbox on a pool: a lease that is acquired by the first job and held until release, recall, or the end of
 * this workflow, however it ends. Opening costs nothing.
 * @throws ApplicationFailure of type InvalidRequest when an option is unknown or out of bounds, or the slot is in use in
 * this workflow
 */
export function openPool(pool: string, options: SandboxOptions = {}): Sandbox {
  const name = checkPoolName(pool)
  if (name.problem) throw failureOf(name.problem)
  const onPodLost = checkNames(options)
  if (onPodLost.problem) throw failureOf(onPodLost.problem)
  const acquire = checkAcquire(options, workflowInfo().workflowId)
  if (acquire.problem) throw failureOf(acquire.problem)
  const id = leaseWorkflowId(pool, acquire.value.caller, acquire.value.slot, uuid4())
  if (id.problem) throw failureOf(id.problem)
  const key = JSON.stringify([pool, acquire.value.caller, acquire.value.reuseTag, acquire.value.slot])
  if (board.open.has(key)) {
    throw failureOf(
      problem(
        'InvalidRequest',
        `this workflow has a sandbox on slot '${acquire.value.slot}' of pool ${pool} already; give parallel sandboxes different slots, or release the first`,
      ),
    )
  }
  board.open.add(key)
  listen()
  return new Sandbox(pool, acquire.value, onPodLost.value, key)
}

/** What is no option of openPool would be ignored in silence. @returns what becomes of a job whose pod is lost */
function checkNames(options: unknown): Checked<'fail' | 'rerun'> {
  if (!isRecord(options)) return invalid(`the options of openPool are an object, not ${shown(options)}`)
  const known = refuseUnknownNames('openPool', 'option', options, SANDBOX_OPTIONS)
  return known.problem ? known : checkOnPodLost(options.onPodLost)
}

/** A held pod as its caller sees it. Jobs run one after the other, in the order of the calls. */
export class Sandbox {
  private readonly id = uuid4()
  private jobs = 0
  private held: HeldLease | null = null
  private queue: Promise<unknown> = Promise.resolve()
  private released = false

  /** @internal use openPool */
  constructor(
    readonly pool: string,
    private readonly options: Acquire,
    private readonly onPodLost: 'fail' | 'rerun',
    private readonly key: string,
  ) {}

  /** The pod of the held lease, or null between leases. */
  get pod(): string | null {
    return this.held?.grant.pod ?? null
  }

  /** How the last acquired lease was served, or null before the first job. */
  lastGrant: Grant | null = null

  /**
   * Runs one job and returns its result; a non-zero exit is a result. Acquires a lease first when none is held.
   * @throws ApplicationFailure whose type is the code and whose first detail is the Problem; CancelledFailure when
   * the surrounding scope is cancelled (the job is killed first)
   */
  run(job: JobSpec): Promise<JobResult> {
    const jobId = `${this.id}/${++this.jobs}`
    const before = this.queue
    const result = (async () => {
      await before
      return await this.runJob(jobId, job)
    })()
    this.queue = result.then(
      () => undefined,
      () => undefined,
    )
    return result
  }

  /**
   * Takes the lease now, ahead of the first job, so that a pod starts while the caller still thinks.
   * @throws as run does
   */
  async acquire(): Promise<void> {
    if (this.released) throw failureOf(problem('InvalidRequest', 'this sandbox was released; open another'))
    const before = this.queue
    const acquired = (async () => {
      await before
      if (!this.held) await this.takeLease()
    })()
    this.queue = acquired.catch(() => undefined)
    await acquired
  }

  /**
   * Says that a pinned lease is still wanted: its pin counts from now on again, as it does from the end of each job. Call it
   * in time when you think for longer than the pin. Without a held lease it does nothing: the next job acquires one.
   * @throws ApplicationFailure of type InvalidRequest when the sandbox is not pinned, PoolNotFound when its pool is gone, QueueFull
   * when the server takes no more signals for it
   */
  async renew(): Promise<void> {
    if (this.options.pinMs === 0)
      throw failureOf(problem('InvalidRequest', "this sandbox is not pinned; open it with the option 'pin'"))
    if (!this.held) return
    const { leaseId, pool } = this.held.grant
    for (let tries = 1; ; tries++) {
      try {
        return await getExternalWorkflowHandle(poolWorkflowId(pool)).signal(SIGNAL.renew, { v: 1, leaseId })
      } catch (error) {
        if (isCancellation(error)) throw error
        const busy = patched('firepool-silent-pool') ? signalRefusal(error) : null
        // A shard ends after its last lease: there is nothing to renew, and the next job acquires from another one.
        if (busy === null && pool !== this.pool) return
        if (busy === null) throw failureOf(noSuchPool(pool))
        if (tries === LIMIT.renewTries) throw failureOf(poolTakesNoSignal(pool, busy))
      }
      await sleep(TIMEOUT.renewRetryMs)
    }
  }

  /** Gives the pod back; it stays warm for this caller during its keep-alive. The sandbox may not be used afterwards. */
  async release(): Promise<void> {
    if (this.released) return
    this.released = true
    board.open.delete(this.key)
    await this.queue
    const { held } = this
    this.held = null
    if (!held) return
    held.scope.cancel()
    await CancellationScope.nonCancellable(() => held.end)
  }

  private async runJob(jobId: string, job: JobSpec): Promise<JobResult> {
    if (this.released) throw failureOf(problem('InvalidRequest', 'this sandbox was released; open another'))
    const jobMs = checkJob(job)
    if (jobMs.problem) throw failureOf(jobMs.problem)
    let last: Problem | null = null
    let reruns = 0
    for (let acquires = 0; acquires < MAX_ACQUIRES_PER_JOB; acquires++) {
      let held: HeldLease | null = null
      try {
        held = this.held ?? (await this.takeLease())
        // A job that is started again is another job: the pod that lost the first may be the one we get.
        const id = reruns === 0 ? jobId : `${jobId}.${reruns}`
        return await runHeld({ v: 1, grant: held.grant, jobId: id, job }, jobMs.value)
      } catch (error) {
        last = problemOf(error)
        if (last === null) throw error
        const again = last.code === 'LeaseRevoked' || (last.code === 'PodLost' && this.onPodLost === 'rerun')
        if (held && (last.code === 'LeaseRevoked' || last.code === 'PodLost')) this.drop(held)
        if (!again) throw failureOf(last)
        if (last.code === 'PodLost') reruns++
      }
    }
    throw failureOf(last!)
  }

  /** Forgets a lease that ended under us. Its workflow is cancelled as well: a release of an ended lease does nothing. */
  private drop(held: HeldLease): void {
    if (this.held === held) this.held = null
    held.scope.cancel()
  }

  private async takeLease(): Promise<HeldLease> {
    if (CancellationScope.current().consideredCancelled) await CancellationScope.current().cancelRequested
    const leaseId = uuid4()
    const { workflowId, runId, firstExecutionRunId } = workflowInfo()
    const { caller, slot } = this.options
    const input: LeaseInput = {
      v: 1,
      pool: this.pool,
      leaseId,
      holder: { workflowId, runId, firstExecutionRunId },
      ...asOptions(this.options),
      replyTo: 'signal',
    }
    const id = leaseWorkflowId(this.pool, caller, slot, leaseId)
    const granted = new Promise<Grant>((resolve) => board.waiting.set(leaseId, resolve))
    const isBounded = patched('firepool-silent-pool')
    const { scope, end } = this.startLease(id.value!, input)
    const patience = new CancellationScope()
    try {
      const grant = await Promise.race([
        granted,
        end.then((notice) => Promise.reject(failureOf(beforeGrant(notice)))),
        cancelled(CancellationScope.current()),
        ...(isBounded ? [patience.run(() => this.giveUp(scope))] : []),
      ])
      this.lastGrant = grant
      const held: HeldLease = { grant, scope, end }
      this.held = held
      end.then(() => {
        if (this.held === held) this.held = null
      })
      return held
    } catch (error) {
      if (isCancellation(error)) scope.cancel()
      throw error
    } finally {
      board.waiting.delete(leaseId)
      patience.cancel()
    }
  }

  /**
   * The pool keeps the deadline, and says what it waited for. One that says nothing long after it may be without a worker, and its
   * lease workflow with it: the caller ends by itself, and a grant that comes later is released.
   */
  private async giveUp(lease: CancellationScope): Promise<never> {
    const waitedMs = this.options.acquireMs + TIMEOUT.poolSilentMs
    await sleep(waitedMs)
    lease.cancel()
    throw failureOf(silentPool(this.pool, waitedMs))
  }

  /**
   * The lease workflow is awaited outside of the caller's own scope: its notice still arrives while a cancelled caller
   * cleans up, and the close of the caller still cancels it on the server.
   */
  private startLease(
    workflowId: string,
    input: LeaseInput,
  ): { scope: CancellationScope; end: Promise<LeaseEnd> } {
    let scope!: CancellationScope
    const end = CancellationScope.nonCancellable(async (): Promise<LeaseEnd> => {
      scope = new CancellationScope()
      return await scope.run(async () => {
        const child = await startChild(WORKFLOW.lease, {
          args: [input],
          workflowId,
          taskQueue: QUEUE.workflows,
          parentClosePolicy: ParentClosePolicy.REQUEST_CANCEL,
          staticSummary: summaryText(`pod of pool ${this.pool} for ${input.caller}, slot ${input.slot}`),
        })
        return (await child.result()) as LeaseEnd
      })
    }).catch((error: unknown): LeaseEnd => {
      const why = problemOf(error)
      if (why) return { v: 1, leaseId: input.leaseId, end: 'failed', problem: why }
      if (isCancellation(error)) return { v: 1, leaseId: input.leaseId, end: 'released' }
      const message = error instanceof Error ? error.message : String(error)
      return {
        v: 1,
        leaseId: input.leaseId,
        end: 'failed',
        problem: problem('LeaseRevoked', `the lease workflow ended: ${message}`),
      }
    })
    return { scope, end }
  }
}

function runHeld(input: ShortInput, jobMs: number): Promise<JobResult> {
  return input.job.short === true ? runShort(input, jobMs) : runOnPod(input, jobMs)
}

/** Rejects when the scope is cancelled. A non-cancellable scope hears of its parent's cancel too, and must not heed it. */
function cancelled(scope: CancellationScope): Promise<never> {
  return new Promise((_, reject) => {
    scope.cancelRequested.catch((error: unknown) => {
      if (scope.consideredCancelled) reject(error)
    })
  })
}

/** Why the server did not take a signal for a workflow that is there; null when it is not there. */
function signalRefusal(error: unknown): string | null {
  const { type = '', message } = error instanceof ApplicationFailure ? error : { message: String(error) }
  return /not_?found/i.test(type ?? '') || /was not found/.test(message) ? null : message
}

/** A lease that ended before we had its grant: whatever became of its pod, nothing was ever sent there. */
function beforeGrant(notice: LeaseEnd): Problem {
  if (notice.end === 'failed' && notice.problem) return notice.problem
  return problem('LeaseRevoked', `the lease ended (${notice.end}) before a pod was granted; try again`)
}
