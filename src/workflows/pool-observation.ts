import { proxyActivities, sleep } from '@temporalio/workflow'
import type { PoolEvent } from '../broker/index.js'
import type { ObservedPod } from '../contract/backend.js'
import { TIMEOUT } from '../contract/limits.js'
import { ACTIVITY, QUEUE } from '../contract/names.js'
import { readObservation } from './answers.js'

export interface ObserveInput {
  v: 1
  pool: string
  /** where the last observation ended, or null for everything */
  cursor: string | null
}

export interface Observation {
  v: 1
  cursor: string
  /** all pods of the pool, or only those that changed since the cursor */
  full: boolean
  pods: ObservedPod[]
}

/** After a failed observation (no worker, a backend in trouble). */
const RETRY_MS = 2_000
const MARGIN_MS = 30_000

/**
 * Watches the backend by an activity that returns when something changed. It only reads, so losing one (worker loss,
 * continue-as-new) loses nothing: the next one with an unknown cursor lists everything.
 */
export function watchBackend(pool: string, onEvent: (event: PoolEvent) => void, stop: () => boolean): void {
  const activities = proxyActivities<Record<string, (input: ObserveInput) => Promise<unknown>>>({
    taskQueue: QUEUE.broker,
    startToCloseTimeout: TIMEOUT.observeMs + MARGIN_MS,
    heartbeatTimeout: TIMEOUT.observeHeartbeatMs,
    retry: { initialInterval: 100, backoffCoefficient: 2, maximumInterval: '5s' },
    summary: `watch the pods of pool ${pool}`,
  })
  const loop = async () => {
    let cursor: string | null = null
    while (!stop()) {
      const asOfMs = Date.now()
      try {
        const seen = readObservation(await activities[ACTIVITY.observe]!({ v: 1, pool, cursor }))
        if (!seen) throw new Error('an observation that cannot be read')
        cursor = seen.cursor
        if (seen.full || seen.pods.length > 0)
          onEvent({ kind: 'observed', asOfMs, full: seen.full, pods: seen.pods })
      } catch {
        cursor = null
        await sleep(RETRY_MS, { summary: 'observe again' })
      }
    }
  }
  void loop()
}
