import { proxyActivities } from '@temporalio/workflow'
import { TIMEOUT } from '../contract/limits.js'
import { ACTIVITY, QUEUE } from '../contract/names.js'

/** Ends what the backend kept for a pool that has ended. What it cannot do now it is asked again, and then let be: it is small. */
export async function forgetPool(pool: string): Promise<void> {
  const activities = proxyActivities<Record<string, (input: { v: 1; pool: string }) => Promise<void>>>({
    taskQueue: QUEUE.broker,
    startToCloseTimeout: TIMEOUT.effectMs,
    retry: { initialInterval: '1s', maximumAttempts: 10 },
    summary: `forget pool ${pool}`,
  })
  try {
    await activities[ACTIVITY.forgetPool]!({ v: 1, pool })
  } catch {
    // The pool has ended all the same; docs/kubernetes.md says what is left and how to find it.
  }
}
