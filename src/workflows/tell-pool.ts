import { CancellationScope, proxyLocalActivities } from '@temporalio/workflow'
import type { LeaseRequest, Release } from '../contract/lease.js'
import { TIMEOUT } from '../contract/limits.js'
import { ACTIVITY, type SIGNAL } from '../contract/names.js'
import type { TellPool, ToldPool } from '../contract/run.js'

const local = (forMs?: number) =>
  proxyLocalActivities<{ [ACTIVITY.tellPool]: (what: TellPool) => Promise<ToldPool> }>({
    startToCloseTimeout: TIMEOUT.tellPoolMs,
    retry: { initialInterval: 100, backoffCoefficient: 2, maximumInterval: TIMEOUT.effectRetryMs },
    ...(forMs === undefined ? {} : { scheduleToCloseTimeout: forMs }),
  })

/**
 * Tells the pool something, and waits until it has it: a release must not overtake its request. A cancel does not
 * interrupt it for the same reason.
 * @param where which shard of the pool, when it has several (see TellPool)
 * @param forMs then it fails with an ActivityFailure; until it has arrived when absent
 * @returns problem: PoolNotFound when there is no such pool, null when it arrived
 */
export async function tellPool(
  pool: string,
  message:
    | { signal: typeof SIGNAL.request; payload: LeaseRequest }
    | { signal: typeof SIGNAL.release; payload: Release },
  where: Pick<TellPool, 'caller' | 'at' | 'fresh'> = {},
  forMs?: number,
): Promise<ToldPool> {
  return await CancellationScope.nonCancellable(() =>
    local(forMs)[ACTIVITY.tellPool]({ v: 1, pool, ...message, ...where }),
  )
}
