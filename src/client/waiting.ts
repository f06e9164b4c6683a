import { setTimeout as sleep } from 'node:timers/promises'
import type { Client } from '@temporalio/client'
import { ACTIVITY, isRecord, type Page, type PoolStatus, QUEUE, type QueueRow } from '../contract/index.js'
import { firstValue } from './payload.js'
import { FirepoolUnavailableError } from './unavailable.js'

/** What a job of `firepool.runJob` waits for before it starts. */
export type Waiting =
  /** a pod: its place in the pool's queue with the reason, how many wait, and the pool at that moment */
  | { for: 'pod'; row: QueueRow; total: number; status: PoolStatus }
  /** a worker that takes its next task from this task queue */
  | { for: 'worker'; taskQueue: string }
  /** the pool, which answers nobody: cause and remedy */
  | { for: 'answer'; pool: string; why: string }

/** A job that starts at once is not asked about: each look costs the server a call, and the pool two queries. */
const FIRST_LOOK_MS = 1_000
/** Looks become rarer up to this while nothing changes. */
const LOOK_MS_MAX = 5_000
const LOOK_GROWTH = 1.5

/** temporal.api.enums.v1: a task that nobody has taken yet */
const SCHEDULED = 1
/** The request is among a run's last events, unless its job was started many times over. */
const EVENTS = 200

/** What is asked of the pool. */
export interface PoolQuestions {
  queue(pool: string, page: { offset: number }): Promise<Page<QueueRow>>
  describePool(pool: string): Promise<PoolStatus>
}

/**
 * Calls back when the job has waited for about a second, and again whenever the reason or its place changes, until the
 * signal is aborted. A look that fails is left out: whoever waits for the result hears what is wrong.
 */
export async function watchWait(
  look: () => Promise<Waiting | null>,
  onWaiting: (waiting: Waiting) => void,
  signal: AbortSignal,
): Promise<void> {
  let told = ''
  let seen = ''
  for (let pauseMs = FIRST_LOOK_MS; ; pauseMs = Math.min(LOOK_MS_MAX, pauseMs * LOOK_GROWTH)) {
    await sleep(pauseMs, undefined, { signal, ref: false }).catch(() => undefined)
    if (signal.aborted) return
    const waiting = await look().catch(() => undefined)
    if (signal.aborted) return
    if (waiting === undefined) continue
    const before = seen
    seen = waiting ? outline(waiting) : ''
    // A task may be seen in the moment before a worker takes it.
    const passing = waiting?.for === 'worker' && seen !== before
    if (seen === told || passing) continue
    told = seen
    pauseMs = FIRST_LOOK_MS
    if (waiting) onWaiting(waiting)
  }
}

function outline(waiting: Waiting): string {
  if (waiting.for === 'answer') return waiting.why
  return waiting.for === 'pod' ? `${waiting.row.reason} ${waiting.row.position}` : waiting.taskQueue
}

/** Why the job of a `firepool.runJob` has not started; null when it runs, or is about to. */
export async function lookAtWait(
  client: Client,
  pools: PoolQuestions,
  pool: string,
  workflowId: string,
): Promise<Waiting | null> {
  const { raw, runId, status } = await client.workflow.getHandle(workflowId).describe()
  if (status.name !== 'RUNNING') return null
  if (raw.pendingWorkflowTask?.state === SCHEDULED) return { for: 'worker', taskQueue: QUEUE.workflows }
  const activities = raw.pendingActivities ?? []
  if (activities.some(({ state }) => state === SCHEDULED)) return { for: 'worker', taskQueue: QUEUE.jobs }
  // An activity that a worker has taken acquires for milliseconds, then it runs the job.
  if (activities.length > 0) return null
  const leaseId = await leaseIdOf(client, workflowId, runId)
  if (leaseId === null) return null
  return inQueue(pools, pool, leaseId).catch((error: unknown) => {
    if (!(error instanceof FirepoolUnavailableError)) throw error
    return { for: 'answer', pool, why: `${error.why}; ${error.remedy}` }
  })
}

/** The lease that a run asked for last. */
async function leaseIdOf(client: Client, workflowId: string, runId: string): Promise<string | null> {
  const { history } = await client.workflowService.getWorkflowExecutionHistoryReverse({
    namespace: client.options.namespace,
    execution: { workflowId, runId },
    maximumPageSize: EVENTS,
  })
  for (const { activityTaskScheduledEventAttributes: scheduled } of history?.events ?? []) {
    if (scheduled?.activityType?.name !== ACTIVITY.runOnce) continue
    const input = await firstValue(client, scheduled.input?.payloads)
    const request = isRecord(input) ? input.request : undefined
    return isRecord(request) && typeof request.leaseId === 'string' ? request.leaseId : null
  }
  return null
}

async function inQueue(pools: PoolQuestions, pool: string, leaseId: string): Promise<Waiting | null> {
  for (let offset: number | null = 0; offset !== null; ) {
    const page: Page<QueueRow> = await pools.queue(pool, { offset })
    const row = page.rows.find((candidate) => candidate.leaseId === leaseId)
    if (row) return { for: 'pod', row, total: page.total, status: await pools.describePool(pool) }
    offset = page.next
  }
  return null
}
