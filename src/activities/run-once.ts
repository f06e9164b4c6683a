import { activityInfo, Context } from '@temporalio/activity'
import { type Client, WorkflowNotFoundError, WorkflowUpdateFailedError } from '@temporalio/client'
import { ApplicationFailure } from '@temporalio/common'
import { checkOptionalVersion } from '../contract/check.js'
import { checkRunInput } from '../contract/check-run.js'
import {
  FirepoolError,
  isErrorCode,
  noSuchPool,
  type Problem,
  problem,
  shardMoved,
} from '../contract/errors.js'
import type { Acquired, Grant, LeaseRequest } from '../contract/lease.js'
import { TIMEOUT } from '../contract/limits.js'
import { poolWorkflowId, UPDATE } from '../contract/names.js'
import type { RunOnceInput, RunOnceResult } from '../contract/run.js'
import { RunnerUnreachable } from '../runner/client.js'
import { bind, type DeliverDeps } from './deliver.js'
import { activityFailure } from './failure.js'
import { beating, isLaterAttempt } from './heartbeat.js'
import type { KnownAttributes } from './known-attributes.js'
import { type RunDeps, runGranted, sendRelease } from './run.js'
import type { ShardRoutes } from './shard-routes.js'

type BindDeps = Pick<DeliverDeps, 'backend'>

/** A pool that does not answer within this has no worker, or too much to do: the request goes by signal then. */
const ACQUIRE_MS = 10_000

/**
 * The activity behind firepool.runJob: acquires by an update of the pool, whose answer is the grant, binds the pod
 * itself, and runs the job. No signal, no delivery and no workflow task of the caller lies between.
 */
export function createRunOnce(
  deps: RunDeps & BindDeps & { shards: ShardRoutes; attributes: Pick<KnownAttributes, 'maySet'> },
) {
  const { shards, attributes } = deps
  const seen = () => (attributes.maySet ? ({ searchAttributes: true } as const) : {})
  return async (input: RunOnceInput): Promise<RunOnceResult> => {
    const version = checkOptionalVersion(input.v)
    if (version.problem) throw activityFailure(version.problem)
    const { pool, jobId, request, releaseAfter, job } = input
    const context = Context.current()
    const { heartbeatDetails } = activityInfo()
    const earlier = heartbeatDetails as { grant?: Grant; at?: string } | undefined
    const known = earlier?.grant
    const again = isLaterAttempt()
    // Each heartbeat replaces the last: all of them carry which shard was asked.
    const beat: { v: 1; jobId: string; at?: string } = { v: 1, jobId }
    if (earlier?.at !== undefined) beat.at = earlier.at
    const tell = (at: string) => {
      beat.at = at
      context.heartbeat(beat)
    }
    const asked: Asked = known
      ? { at: known.pool, acquired: { v: 1, outcome: 'granted', grant: known } }
      : await beating(context, beat, askShard(deps, input, again, earlier?.at, tell))
    const { at, acquired } = asked
    if (acquired.outcome === 'waiting')
      return { v: 1, outcome: 'waiting', ...(at === pool ? {} : { at }), ...seen() }
    if (acquired.outcome === 'refused') {
      // It asks again, and then the caller's new shard.
      if (acquired.problem.details?.reason === 'ShardMoved') shards.forget(pool)
      throw activityFailure(refusalOf(acquired.problem, again))
    }
    const { grant } = acquired
    if (!known) await beating(context, beat, bindUnlessBound(deps, grant, request, again))
    const run = checkRunInput({ v: 1, grant, jobId, job, releaseAfter }, jobId)
    if (run.problem) throw activityFailure(run.problem)
    const result = await runGranted(deps, run.value, { v: 1, jobId, grant })
    return { v: 1, outcome: 'ran', result, ...seen() }
  }
}

interface Asked {
  /** the shard that was asked, by its name */
  at: string
  acquired: Acquired
}

/**
 * Asks the caller's shard; a later attempt asks the one that the first had asked, because only that one knows what became
 * of the request. A shard that is gone is asked no more: what is known of the shards is read anew.
 * @param tell leaves word for a later attempt, before a shard other than the head is asked
 */
async function askShard(
  { client, shards }: { client: Client; shards: ShardRoutes },
  { pool, request }: RunOnceInput,
  again: boolean,
  askedBefore: string | undefined,
  tell: (at: string) => void,
): Promise<Asked> {
  const route = () => client.withDeadline(Date.now() + ACQUIRE_MS, () => shards.shardOf(pool, request.caller))
  const isGone = (at: string, acquired: Acquired) =>
    at !== pool && acquired.outcome === 'refused' && acquired.problem.code === 'PoolNotFound'
  if (again) {
    const at = askedBefore ?? pool
    const acquired = await acquire(client, at, request, again)
    if (!isGone(at, acquired)) return { at, acquired }
    // It left once it held no lease.
    return { at, acquired: { v: 1, outcome: 'refused', problem: shardMoved(pool) } }
  }
  try {
    let at = await route()
    if (at !== pool) tell(at)
    let acquired = await acquire(client, at, request, again)
    if (!isGone(at, acquired)) return { at, acquired }
    shards.forget(pool)
    at = await route()
    if (at !== pool) tell(at)
    acquired = await acquire(client, at, request, again)
    if (!isGone(at, acquired)) return { at, acquired }
    // Not there yet, or started again in a moment: by signal then.
  } catch {
    // The server is busy or away: by signal then, which is tried for longer.
  }
  return { at: pool, acquired: { v: 1, outcome: 'waiting' } }
}

/** The update's id is the lease's: an attempt that comes again gets the same answer, until the pool continues as new. */
async function acquire(
  client: Client,
  pool: string,
  request: LeaseRequest,
  again: boolean,
): Promise<Acquired> {
  const handle = client.workflow.getHandle(poolWorkflowId(pool))
  try {
    return await client.withDeadline(Date.now() + ACQUIRE_MS, () =>
      handle.executeUpdate<Acquired, [unknown]>(UPDATE.acquire, {
        args: [request],
        updateId: request.leaseId,
      }),
    )
  } catch (error) {
    const refused = refusal(error, pool)
    if (refused) return { v: 1, outcome: 'refused', problem: refused }
    // Everything else (the server's limits on updates, a pool without a worker) is a matter of time: by signal then. But a
    // request that an earlier attempt was granted would hear that it has ended, and be asked anew as if nothing had run.
    if (again) return unanswered(pool, request)
    return { v: 1, outcome: 'waiting' }
  }
}

/** The next attempt asks the pool again, until the request's time is over. */
function unanswered(pool: string, { deadlineMs }: LeaseRequest): Acquired {
  if (Date.now() > deadlineMs + TIMEOUT.poolSilentMs) {
    const reason = 'the worker that ran it was lost, and its pool has not answered since'
    return { v: 1, outcome: 'refused', problem: perhapsStarted(reason) }
  }
  throw ApplicationFailure.create({
    type: 'PoolUnanswered',
    message: `pool ${pool} did not answer; only it can tell what became of an earlier attempt, which is asked again`,
  })
}

/**
 * LeaseRevoked promises that the job never started: a lease that has ended since an earlier attempt asked for it may
 * have been granted to that attempt, and have run the job.
 */
function refusalOf(refused: Problem, again: boolean): Problem {
  if (!again || refused.code !== 'LeaseRevoked') return refused
  return perhapsStarted('its lease ended, and the worker that ran it was lost before it reported')
}

function perhapsStarted(reason: string): Problem {
  return problem(
    'PodLost',
    `the pod of this job is not known any more (${reason}); the job may have started there. Run it again if that is safe, or set onPodLost: 'rerun'`,
    { reason },
  )
}

function refusal(error: unknown, pool: string): Problem | null {
  if (error instanceof WorkflowNotFoundError) {
    return noSuchPool(pool)
  }
  const { cause } = error instanceof WorkflowUpdateFailedError ? error : { cause: undefined }
  if (cause instanceof ApplicationFailure && isErrorCode(cause.type)) return cause.details?.[0] as Problem
  return null
}

/**
 * A pod that cannot be bound has not started the job: LeaseRevoked, and the workflow asks again. Unless an earlier attempt
 * may have bound it and posted the job: then only the runner's job table can tell.
 */
async function bindUnlessBound(
  { client, signer, backend }: RunDeps & BindDeps,
  grant: Grant,
  { caller, reuseTag, tenant }: RunOnceInput['request'],
  again: boolean,
): Promise<void> {
  try {
    await bind({ signer, backend }, { grant, owner: { caller, reuseTag }, tenant })
  } catch (error) {
    if (again) return
    if (!(error instanceof FirepoolError || error instanceof RunnerUnreachable)) throw error
    // Without a word of it the pool would keep the pod for this caller, and grant it again.
    await sendRelease(client, grant, { clean: true, retire: true })
    throw activityFailure(
      problem('LeaseRevoked', `pod ${grant.pod} could not be bound; the job never started`, {
        pod: grant.pod,
        epoch: grant.epoch,
      }),
    )
  }
}
