import { activityInfo, CompleteAsyncError } from '@temporalio/activity'
import { type Client, WorkflowNotFoundError } from '@temporalio/client'
import { checkLeaseId, checkNumber, checkOptionalVersion, checkPoolName } from '../contract/check.js'
import { noSuchPool, silentPool } from '../contract/errors.js'
import { LIMIT, TIMEOUT } from '../contract/limits.js'
import { poolWorkflowId, SIGNAL } from '../contract/names.js'
import type { AwaitLeaseInput } from '../contract/run.js'
import { activityFailure } from './failure.js'
import type { ShardRoutes } from './shard-routes.js'

/** Tokens that come within this time of each other go to a pool in one signal. */
const BATCH_MS = 5

interface Offer {
  leaseId: string
  token: string
}

/**
 * The activity `firepool.awaitLease`, for callers in any SDK: offers its own task token to the pool and completes
 * asynchronously with the Grant. Give it a start-to-close of a minute or more and a retry policy with coefficient 1:
 * a token dies with its attempt, and the next attempt offers a new one. Retries end by themselves when the pool says nothing.
 */
export function createAwaitLease(client: Client, shards: ShardRoutes) {
  const batches = new Map<string, { offers: Offer[]; sent: Promise<void> }>()

  /** Only the lease workflow knows which shard was asked, and it may have been another one before: all of them are told. */
  async function send(pool: string, offers: { v: 1; batch: Offer[] }): Promise<void> {
    const all = await shards.allShards(pool)
    const signals = all.map(async (name) => {
      try {
        await client.workflow.getHandle(poolWorkflowId(name)).signal(SIGNAL.token, offers)
      } catch (error) {
        // One that has just ended holds nothing; that the pool itself is gone is for the caller to know.
        if (name === pool || !(error instanceof WorkflowNotFoundError)) throw error
        shards.forget(pool)
      }
    })
    await Promise.all(signals)
  }

  function offer(pool: string, mine: Offer): Promise<void> {
    const open = batches.get(pool)
    if (open) {
      open.offers.push(mine)
      return open.sent
    }
    const offers = [mine]
    const sent = new Promise<void>((resolve, reject) => {
      setTimeout(() => {
        batches.delete(pool)
        const batch = offers.map((each) => ({ v: 1, ...each }))
        send(pool, { v: 1, batch }).then(resolve, reject)
      }, BATCH_MS)
    })
    batches.set(pool, { offers, sent })
    return sent
  }

  return async (input: AwaitLeaseInput): Promise<never> => {
    const version = checkOptionalVersion(input?.v)
    if (version.problem) throw activityFailure(version.problem)
    const pool = checkPoolName(input?.pool)
    if (pool.problem) throw activityFailure(pool.problem)
    const leaseId = checkLeaseId(input.leaseId)
    if (leaseId.problem) throw activityFailure(leaseId.problem)
    const acquire = checkNumber('acquireTimeout', input.acquireTimeout, {
      min: 1,
      max: LIMIT.acquireMsMax,
      otherwise: LIMIT.acquireMsMax,
      duration: true,
    })
    if (acquire.problem) throw activityFailure(acquire.problem)
    const { taskToken, scheduledTimestampMs } = activityInfo()
    const waitedMs = Date.now() - scheduledTimestampMs
    // The pool tells of a deadline that is over. One that says nothing may be stuck, and retries would go on for ever.
    if (waitedMs > acquire.value + TIMEOUT.poolSilentMs)
      throw activityFailure(silentPool(pool.value, waitedMs))
    const token = Buffer.from(taskToken).toString('base64')
    try {
      await offer(pool.value, { leaseId: leaseId.value, token })
    } catch (error) {
      if (!(error instanceof WorkflowNotFoundError)) throw error
      throw activityFailure(noSuchPool(pool.value))
    }
    throw new CompleteAsyncError()
  }
}
