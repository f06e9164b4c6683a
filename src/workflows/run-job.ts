import { ActivityFailure, TimeoutFailure } from '@temporalio/common'
import {
  condition,
  defineSignal,
  isCancellation,
  patched,
  setCurrentDetails,
  setHandler,
  uuid4,
  workflowInfo,
} from '@temporalio/workflow'
import {
  checkAcquire,
  checkOnPodLost,
  checkOptionalVersion,
  checkPoolName,
  invalid,
  isRecord,
} from '../contract/check.js'
import { checkJob } from '../contract/check-job.js'
import { type Problem, problem, silentPool } from '../contract/errors.js'
import type { JobResult } from '../contract/job.js'
import type { Grant, LeaseEnd, LeaseRequest } from '../contract/lease.js'
import { TIMEOUT } from '../contract/limits.js'
import { SIGNAL } from '../contract/names.js'
import type { RunJobInput } from '../contract/run.js'
import { checkInput, decodedResult } from './decoded.js'
import { failureOf, problemOf } from './failure.js'
import { grantIn } from './grant-in.js'
import { endIn, releaseLease } from './lease.js'
import { setLeaseAttributes } from './lease-attributes.js'
import { runOnce, runOnPod } from './run-activity.js'
import { tellPool } from './tell-pool.js'

const grantSignal = defineSignal<[unknown]>(SIGNAL.grant)
const endedSignal = defineSignal<[unknown]>(SIGNAL.ended)

/** A lease that was revoked again and again before its job could start. */
const MAX_ACQUIRES = 20

/**
 * The workflow `firepool.runJob`: one job in one call. It is its own lease workflow. One activity acquires, runs and
 * releases when a pod is free at once; else the request waits in the pool's queue and the grant comes by signal.
 * @throws ApplicationFailure whose type is the code
 */
export async function runJob(input: RunJobInput): Promise<JobResult> {
  const { pool, who, acquireMs, jobMs, rerun, retire } = checked(input)
  const info = workflowInfo()
  const holder = {
    workflowId: info.workflowId,
    firstExecutionRunId: info.firstExecutionRunId,
    runId: info.runId,
  }
  const jobId = uuid4()
  let starts = 1
  const inbox: { grant: Grant | null; end: LeaseEnd | null; leaseId: string } = {
    grant: null,
    end: null,
    leaseId: '',
  }
  setHandler(grantSignal, (payload) => {
    inbox.grant ??= grantIn(payload, inbox.leaseId)
  })
  setHandler(endedSignal, (payload) => {
    inbox.end ??= endIn(payload, inbox.leaseId)
  })
  let last: Problem | null = null
  for (let acquires = 0; acquires < MAX_ACQUIRES; acquires++) {
    const leaseId = uuid4()
    let at: string | undefined
    Object.assign(inbox, { grant: null, end: null, leaseId })
    const request: LeaseRequest = {
      v: 1,
      leaseId,
      holder,
      leaseWorkflowId: info.workflowId,
      ...who,
      requestedAtMs: Date.now(),
      deadlineMs: Date.now() + acquireMs,
      replyTo: 'signal',
    }
    setCurrentDetails(`One job on pool **${pool}** for caller \`${who.caller}\`.`)
    const run = {
      v: 1,
      jobId: `${jobId}/${starts}`,
      job: input.job,
      releaseAfter: retire ? 'retire' : 'keep',
    } as const
    try {
      const once = decodedResult(await runOnce({ ...run, pool, request }, jobMs))
      if (once.searchAttributes) setLeaseAttributes(pool, who)
      if (once.outcome === 'ran') return once.result
      setCurrentDetails(`One job on pool **${pool}** for caller \`${who.caller}\`: waits for a pod.`)
      at = await ask(pool, request, once.at)
      await heard(pool, request, () => inbox.grant !== null || inbox.end !== null)
      const { grant, end } = inbox
      if (!grant)
        throw failureOf(
          (end!.end === 'failed' ? end!.problem : undefined) ??
            problem('LeaseRevoked', `the lease ended (${end!.end}) before a pod was granted`),
        )
      setCurrentDetails(
        `One job on pod \`${grant.pod}\` of pool **${pool}**: **${grant.hit}**, after ${grant.waitedMs} ms in the pool.`,
      )
      return decodedResult(await runOnPod({ ...run, grant }, jobMs))
    } catch (error) {
      await releaseLease(pool, leaseId, retire, at, TIMEOUT.releaseMs)
      if (isCancellation(error)) throw error
      last = problemOf(error)
      const again = last?.code === 'LeaseRevoked' || (last?.code === 'PodLost' && rerun)
      if (!again) throw last ? failureOf(last) : error
      // A job that is started again is another job: the pod that lost the first may be the one we get.
      if (last?.code === 'PodLost') starts++
    }
  }
  throw failureOf(last!)
}

/** Puts the request into the pool's queue. @returns the shard that has it */
async function ask(pool: string, request: LeaseRequest, asked?: string): Promise<string> {
  const where = { caller: request.caller, ...(asked === undefined ? {} : { at: asked }) }
  const message = { signal: SIGNAL.request, payload: request } as const
  const told = await tellPool(pool, message, where, patienceMs(request)).catch((error: unknown) => {
    // A pool at the server's limit of signals, which has not moved on in all that time.
    throw error instanceof ActivityFailure && error.cause instanceof TimeoutFailure
      ? failureOf(silent(pool, request))
      : error
  })
  if (told.problem) throw failureOf(told.problem)
  return told.at ?? pool
}

/** Waits for the pool's word, which may be late, but not for ever. */
async function heard(pool: string, request: LeaseRequest, word: () => boolean): Promise<void> {
  if (!patched('firepool-silent-pool')) return condition(word)
  if (!(await condition(word, patienceMs(request)))) throw failureOf(silent(pool, request))
}

/** How long from now on the pool may still be the first to tell that the request's time is over. */
function patienceMs({ deadlineMs }: LeaseRequest): number {
  return Math.max(1, deadlineMs + TIMEOUT.poolSilentMs - Date.now())
}

function silent(pool: string, { requestedAtMs }: LeaseRequest): Problem {
  return silentPool(pool, Date.now() - requestedAtMs)
}

function checked(input: RunJobInput) {
  const fail = (p: Problem): never => {
    throw failureOf(p)
  }
  checkInput(input, 'the input of firepool.runJob')
  if (!isRecord(input)) return fail(invalid('firepool.runJob takes { pool, caller, job }').problem)
  const version = checkOptionalVersion(input.v)
  if (version.problem) return fail(version.problem)
  const pool = checkPoolName(input.pool)
  if (pool.problem) return fail(pool.problem)
  const acquire = checkAcquire(input, workflowInfo().workflowId)
  if (acquire.problem) return fail(acquire.problem)
  const onPodLost = checkOnPodLost(input.onPodLost)
  if (onPodLost.problem) return fail(onPodLost.problem)
  const jobMs = checkJob(input.job)
  if (jobMs.problem) return fail(jobMs.problem)
  const { acquireMs, ...who } = acquire.value
  // Without a caller the workflow's own id is the key: nobody else will ever ask for this pod.
  const retire = input.caller === undefined || input.caller === null
  const rerun = onPodLost.value === 'rerun'
  return { pool: pool.value, who, acquireMs, jobMs: jobMs.value, rerun, retire }
}
