import type { Client } from '@temporalio/client'
import { defaultPayloadConverter } from '@temporalio/common'
import { expect, test, vi } from 'vitest'
import { ACTIVITY, type PoolStatus, QUEUE, type QueueRow } from '../contract/index.js'
import { lookAtWait, type Waiting, watchWait } from './waiting.js'

// The pauses between two looks are not what is tested here.
vi.mock('node:timers/promises', () => ({ setTimeout: async () => {} }))

const forPod = (reason: string, position: number): Waiting => ({
  for: 'pod',
  row: { reason, position } as QueueRow,
  total: 9,
  status: {} as PoolStatus,
})
const forWorker: Waiting = { for: 'worker', taskQueue: QUEUE.jobs }

async function notesOf(looks: (Waiting | null | Error)[]): Promise<string[]> {
  const notes: string[] = []
  const over = new AbortController()
  const watching = watchWait(
    async () => {
      const next = looks.shift()
      if (next === undefined) over.abort()
      if (next instanceof Error) throw next
      return next ?? null
    },
    (waiting) =>
      notes.push(waiting.for === 'pod' ? `${waiting.row.reason} ${waiting.row.position}` : 'worker'),
    over.signal,
  )
  await watching
  return notes
}

test('says why a job waits once, and again when the reason or the place changes', async () => {
  const first = forPod('BudgetExhausted', 3)
  expect(
    await notesOf([
      first,
      first,
      forPod('BudgetExhausted', 2),
      new Error('no answer'),
      forPod('PodStarting', 2),
    ]),
  ).toEqual(['BudgetExhausted 3', 'BudgetExhausted 2', 'PodStarting 2'])
})

test('a job that runs is not spoken of; one that waits anew is', async () => {
  expect(await notesOf([null, null])).toEqual([])
  const waits = forPod('PodStarting', 1)
  expect(await notesOf([waits, null, waits])).toEqual(['PodStarting 1', 'PodStarting 1'])
})

test('a task without a worker is spoken of when it is seen twice', async () => {
  expect(await notesOf([forWorker, null, forWorker, null])).toEqual([])
  expect(await notesOf([forWorker, forWorker, forWorker])).toEqual(['worker'])
})

interface Run {
  status?: string
  pendingWorkflowTask?: { state: number }
  pendingActivities?: { state: number }[]
}

/** A client that answers for one run, whose newest request has this leaseId. */
function clientOf({ status = 'RUNNING', ...raw }: Run, leaseId: string): Client {
  const scheduled = (name: string, input: unknown) => ({
    activityTaskScheduledEventAttributes: {
      activityType: { name },
      input: { payloads: [defaultPayloadConverter.toPayload(input)] },
    },
  })
  const events = [
    {},
    scheduled('other', {}),
    scheduled(ACTIVITY.runOnce, { request: { leaseId } }),
    scheduled(ACTIVITY.runOnce, { request: { leaseId: 'older' } }),
  ]
  return {
    options: {
      namespace: 'default',
      loadedDataConverter: { payloadConverter: defaultPayloadConverter, payloadCodecs: [] },
    },
    workflow: {
      getHandle: () => ({ describe: async () => ({ status: { name: status }, runId: 'r', raw }) }),
    },
    workflowService: { getWorkflowExecutionHistoryReverse: async () => ({ history: { events } }) },
  } as unknown as Client
}

/** A pool whose queue has two pages. */
const pools = {
  describePool: async () => ({ pool: 'p' }) as PoolStatus,
  queue: async (_: string, { offset }: { offset: number }) => {
    const row = { leaseId: offset === 0 ? 'older' : 'mine', position: offset + 1 } as QueueRow
    return { v: 1 as const, rows: [row], total: 2, next: offset === 0 ? 1 : null }
  },
}

const SCHEDULED = 1
const STARTED = 2

test.each<[string, Run, string, unknown]>([
  ['in the queue', {}, 'mine', { for: 'pod', row: { position: 2 }, total: 2, status: { pool: 'p' } }],
  ['granted meanwhile', {}, 'gone', null],
  ['over', { status: 'COMPLETED' }, 'mine', null],
  ['running', { pendingActivities: [{ state: STARTED }] }, 'mine', null],
  [
    'a job that nobody takes',
    { pendingActivities: [{ state: SCHEDULED }] },
    'mine',
    { for: 'worker', taskQueue: QUEUE.jobs },
  ],
  [
    'a workflow that nobody takes',
    { pendingWorkflowTask: { state: SCHEDULED } },
    'mine',
    { for: 'worker', taskQueue: QUEUE.workflows },
  ],
])('%s', async (_, run, leaseId, expected) => {
  const waiting = await lookAtWait(clientOf(run, leaseId), pools, 'p', 'run-1')
  if (expected === null) expect(waiting).toBeNull()
  else expect(waiting).toMatchObject(expected as object)
})
