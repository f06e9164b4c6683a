import { activityInfo, Context } from '@temporalio/activity'
import { type Client, WorkflowNotFoundError, WorkflowUpdateFailedError } from '@temporalio/client'
import { ApplicationFailure } from '@temporalio/common'
import { checkRunInput } from '../contract/check-run.js'
import { FirepoolError, isErrorCode, noSuchPool, type Problem, problem } from '../contract/errors.js'
import type { Acquired, Grant, LeaseRequest } from '../contract/lease.js'
import { poolWorkflowId, UPDATE } from '../contract/names.js'
import type { RunOnceInput, RunOnceResult } from '../contract/run.js'
import { RunnerUnreachable } from '../runner/client.js'
import { bind } from './deliver.js'
import { activityFailure } from './failure.js'
import { beating } from './heartbeat.js'
import { type RunDeps, runGranted, sendRelease } from './run.js'
import type { ShardRoutes } from './shard-routes.js'

/** A pool that does not answer within this has no worker, or too much to do: the request goes by signal then. */
const ACQUIRE_MS = 10_000

/**
 * The activity behind firepool.runJob: acquires by an update of the pool, whose answer is the grant, binds the pod
 * itself, and runs the job. No signal, no delivery and no workflow task of the caller lies between.
 */
export function createRunOnce(deps: RunDeps & { shards: ShardRoutes }) {
  const { client, shards } = deps
  return async (input: RunOnceInput): Promise<RunOnceResult> => {
    const { pool, jobId, request, releaseAfter, job } = input
    const context = Context.current()
    const { attempt, heartbeatDetails } = activityInfo()
    const known = (heartbeatDetails as { grant?: Grant } | undefined)?.grant
    const asked: Asked = known
      ? { at: known.pool, acquired: { v: 1, outcome: 'granted', grant: known } }
      : await beating(context, { v: 1, jobId }, acquireRouted(client, shards, input))
    const { at, acquired } = asked
    if (acquired.outcome === 'waiting') return { v: 1, outcome: 'waiting', ...(at === pool ? {} : { at }) }
    if (acquired.outcome === 'refused') {
      // It asks again, and then the caller's new shard.
      if (acquired.problem.details?.reason === 'ShardMoved') shards.forget(pool)
      throw activityFailure(acquired.problem)
    }
    const { grant } = acquired
    if (!known) await beating(context, { v: 1, jobId }, bindUnlessBound(deps, grant, request, attempt > 1))
    const run = checkRunInput({ v: 1, grant, jobId, job, releaseAfter }, jobId)
    if (run.problem) throw activityFailure(run.problem)
    return { v: 1, outcome: 'ran', result: await runGranted(deps, run.value, { v: 1, jobId, grant }) }
  }
}

interface Asked {
  /** the shard that was asked, by its name */
  at: string
  acquired: Acquired
}

/** Asks the caller's shard. One that is gone is asked no more: what is known of the shards is read anew. */
async function acquireRouted(client: Client, shards: ShardRoutes, input: RunOnceInput): Promise<Asked> {
  const { pool, request } = input
  const route = () => client.withDeadline(Date.now() + ACQUIRE_MS, () => shards.shardOf(pool, request.caller))
  let at: string
  try {
    at = await route()
    const acquired = await acquire(client, at, request)
    if (at === pool || acquired.outcome !== 'refused' || acquired.problem.code !== 'PoolNotFound')
      return { at, acquired }
    shards.forget(pool)
    at = await route()
  } catch {
    // The server is busy or away: by signal then, which is tried for longer.
    return { at: pool, acquired: { v: 1, outcome: 'waiting' } }
  }
  const acquired = await acquire(client, at, request)
  // Not there yet, or started again in a moment.
  const missing = at !== pool && acquired.outcome === 'refused' && acquired.problem.code === 'PoolNotFound'
  return missing ? { at: pool, acquired: { v: 1, outcome: 'waiting' } } : { at, acquired }
}

/** The update's id is the lease's: an attempt that comes again gets the same answer. */
async function acquire(client: Client, pool: string, request: LeaseRequest): Promise<Acquired> {
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
    // Everything else (the server's limits on updates, a pool without a worker) is a matter of time: by signal then.
    return refused ? { v: 1, outcome: 'refused', problem: refused } : { v: 1, outcome: 'waiting' }
  }
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
  { client, signer }: RunDeps,
  grant: Grant,
  { caller, reuseTag }: RunOnceInput['request'],
  again: boolean,
): Promise<void> {
  try {
    await bind(signer, { grant, owner: { caller, reuseTag } })
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
