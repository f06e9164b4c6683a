import { setTimeout as pause } from 'node:timers/promises'
import { Context as Activity, activityInfo, type Context } from '@temporalio/activity'
import type { Client } from '@temporalio/client'
import { ApplicationFailure, CancelledFailure } from '@temporalio/common'
import { type CheckedRun, checkRunInput } from '../contract/check-run.js'
import { FirepoolError, SEAT_SET_SICK } from '../contract/errors.js'
import { durationMs, type JobOutcome, type JobResult, problem, TIMEOUT } from '../contract/index.js'
import type { Grant, Release } from '../contract/lease.js'
import { poolWorkflowId, SIGNAL } from '../contract/names.js'
import type { RunInput } from '../contract/run.js'
import { createRunnerClient, jobDigest, type RunnerClient, RunnerUnreachable } from '../runner/client.js'
import type { Signer } from '../token/token.js'
import { activityFailure, podLost } from './failure.js'
import { beating, isLaterAttempt } from './heartbeat.js'
import { CONTROL_MS } from './pods.js'

export interface RunDeps {
  client: Client
  signer: Signer
}

/** A refused connection is tried again this often before the pod counts as lost, a broken one that often. */
const REFUSALS = 5
const RECONNECTS = 100
const RECONNECT_MS = 200
/** A job's result may come this long after its time limit: the grace of its processes, and a large output. */
const SILENCE_MS = TIMEOUT.runMarginMs / 2

/** The activity `firepool.run`: posts one job to the runner of a held lease and returns its result. */
export function createRun({ client, signer }: RunDeps) {
  return async (given: RunInput): Promise<JobResult> => {
    const { workflowExecution, activityId } = activityInfo()
    const checked = checkRunInput(given, `${workflowExecution?.runId}/${activityId}`)
    if (checked.problem) throw activityFailure(checked.problem)
    return await runGranted({ client, signer }, checked.value, { v: 1, jobId: checked.value.jobId })
  }
}

/**
 * Runs a job on a granted pod and returns its result.
 * @param beat the details of its heartbeats: what the next attempt needs to know
 */
export async function runGranted(
  { client, signer }: RunDeps,
  input: CheckedRun,
  beat: unknown,
): Promise<JobResult> {
  const { grant } = input
  const runner = createRunnerClient(grant.address, () =>
    signer(grant.pod, 'lease', grant.epoch, grant.leaseId),
  )
  const outcome = await beating(Activity.current(), beat, attachJob(runner, input))
  const sick = sickBy(outcome)
  // Awaited: whoever acquires again must not get a pod with the same GPUs.
  if (sick !== null) await beating(Activity.current(), beat, tellSick(client, grant, sick))
  // Not awaited: the result need not wait for the pool to hear of it, and reconcile finds a release that was lost.
  else if (input.releaseAfter) void endLease(client, runner, input)
  if (outcome.kind === 'result') return outcome.result
  if (outcome.problem.code === 'Cancelled') throw new CancelledFailure(outcome.problem.message)
  throw activityFailure(outcome.problem)
}

/**
 * Posts the job, and follows a cancel: the job is killed ONLY when the caller asked for it. Whatever else ends this
 * attempt (a lost heartbeat, a worker's shutdown, a reset) detaches, because another attempt may be attached already.
 */
async function attachJob(runner: RunnerClient, input: CheckedRun): Promise<JobOutcome> {
  const context = Activity.current()
  const cut = new AbortController()
  const posted = postJob(runner, input, cut.signal)
  posted.catch(() => undefined)
  try {
    return await Promise.race([posted, context.cancelled])
  } catch (error) {
    if (!(error instanceof CancelledFailure)) throw error
    try {
      if (context.cancellationDetails?.cancelRequested) return await cancelJob(runner, input, posted)
      throw detached(context, error)
    } finally {
      // Not after every job: an abort makes an error with its stack trace, which costs as much as signing a token.
      cut.abort()
    }
  }
}

async function cancelJob(
  runner: RunnerClient,
  input: CheckedRun,
  posted: Promise<JobOutcome>,
): Promise<JobOutcome> {
  await runner.cancel(input.jobId)
  return await posted
}

function detached(context: Context, error: CancelledFailure): ApplicationFailure {
  const details = context.cancellationDetails
  const why = details?.workerShutdown ? 'the worker shuts down' : `this attempt was ended: ${error.message}`
  return ApplicationFailure.create({
    type: 'Detached',
    message: `${why}; the job goes on and the next attempt attaches to it`,
  })
}

/** Posts until there is an answer: a job that is known there is attached to, so that posting again is safe. */
async function postJob(runner: RunnerClient, input: CheckedRun, signal: AbortSignal): Promise<JobOutcome> {
  const { grant, jobId, job } = input
  const digest = jobDigest(job)
  // An earlier attempt, or a local activity before it, may have been accepted by the runner.
  let mayHaveStarted = input.posted === true || isLaterAttempt()
  let refused = 0
  // The runner ends a job at its limit. One that still says nothing long after that does not run any more.
  const silentAt = Date.now() + (durationMs(job.timeout) ?? TIMEOUT.jobMs) + SILENCE_MS
  for (let tries = 1; ; tries++) {
    try {
      const timeoutMs = Math.max(1, silentAt - Date.now())
      return await runner.jobs({ v: 1, jobId, digest, epoch: grant.epoch, spec: job }, { signal, timeoutMs })
    } catch (error) {
      if (error instanceof FirepoolError) throw activityFailure(refusal(error, input, mayHaveStarted))
      if (!(error instanceof RunnerUnreachable)) throw error
      mayHaveStarted ||= !error.refused
      // Nobody listens: the pod is gone. A broken connection may be the network's, so it has longer.
      const over = error.refused ? ++refused >= REFUSALS : tries >= RECONNECTS
      if (over || Date.now() >= silentAt) {
        throw activityFailure(unreachable(error, input, mayHaveStarted))
      }
      await pause(RECONNECT_MS, undefined, { signal })
    }
  }
}

/** LeaseRevoked promises that the job never started there: that holds only when no earlier post may have been accepted. */
function refusal(error: FirepoolError, { grant }: CheckedRun, mayHaveStarted: boolean) {
  const { problem: p } = error
  if (p.code === 'LeaseRevoked' && mayHaveStarted)
    return podLost(grant.pod, grant.epoch, 'its runner no longer knows the job')
  return p
}

function unreachable(error: RunnerUnreachable, { grant }: CheckedRun, mayHaveStarted: boolean) {
  if (mayHaveStarted) return podLost(grant.pod, grant.epoch, `its runner does not answer (${error.code})`)
  return problem(
    'LeaseRevoked',
    `pod ${grant.pod} is gone (nobody listens at its address); the job never started`,
    {
      pod: grant.pod,
      epoch: grant.epoch,
    },
  )
}

/**
 * What is left to do after the job of firepool.runJob: end what it left running in sessions of its own, then give the lease
 * back. A pool that is gone holds nothing.
 */
async function endLease(
  client: Client,
  runner: RunnerClient,
  { grant, releaseAfter }: CheckedRun,
): Promise<void> {
  const clean = await runner.revoke(grant.epoch, { timeoutMs: CONTROL_MS }).then(
    () => true,
    () => false,
  )
  await sendRelease(client, grant, { clean, retire: releaseAfter === 'retire' })
}

/** Why no job gets its GPUs in the seat set of the pod; null when this outcome does not say so. */
function sickBy(outcome: JobOutcome): string | null {
  if (outcome.kind !== 'problem') return null
  const { code, details, message } = outcome.problem
  if (code !== 'LeaseRevoked' || details?.reason !== SEAT_SET_SICK) return null
  return String(details.said ?? message)
}

/** Gives the pod back, which ends by itself. A pool that cannot be told learns it from that end. */
async function tellSick(client: Client, grant: Grant, sick: string): Promise<void> {
  await client.withDeadline(Date.now() + CONTROL_MS, () =>
    sendRelease(client, grant, { clean: true, retire: true, sick }),
  )
}

/** Tells the pool what became of a lease. If it cannot be told, the close of the lease's workflow is found by reconcile. */
export async function sendRelease(client: Client, grant: Grant, more: Partial<Release>): Promise<void> {
  const { leaseId, pod, epoch } = grant
  await client.workflow
    .getHandle(poolWorkflowId(grant.pool))
    .signal(SIGNAL.release, { v: 1, leaseId, pod, epoch, ...more })
    .catch(() => undefined)
}
