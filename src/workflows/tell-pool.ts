import { CancellationScope, proxyLocalActivities } from '@temporalio/workflow'
import type { LeaseRequest, Release } from '../contract/lease.js'
import { TIMEOUT } from '../contract/limits.js'
import { ACTIVITY, type SIGNAL } from '../contract/names.js'
import type { TellPool, ToldPool } from '../contract/run.js'

const local = proxyLocalActivities<{ [ACTIVITY.tellPool]: (what: TellPool) => Promise<ToldPool> }>({
  startToCloseTimeout: TIMEOUT.tellPoolMs,
  retry: { initialInterval: 100, backoffCoefficient: 2, maximumInterval: TIMEOUT.effectRetryMs },
})

/**
 * Tells the pool something, and waits until it has it: a release must not overtake its request. A cancel does not
 * interrupt it for the same reason.
 * @param where which shard of the pool, when it has several (see TellPool)
 * @returns problem: PoolNotFound when there is no such pool, null when it arrived
 */
export async function tellPool(
  pool: string,
  message:
    | { signal: typeof SIGNAL.request; payload: LeaseRequest }
    | { signal: typeof SIGNAL.release; payload: Release },
  where: Pick<TellPool, 'caller' | 'at' | 'fresh'> = {},
): Promise<ToldPool> {
  return await CancellationScope.nonCancellable(() =>
    local[ACTIVITY.tellPool]({ v: 1, pool, ...message, ...where }),
  )
}
