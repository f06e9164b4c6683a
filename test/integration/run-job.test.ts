import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { type JobResult, type JobSpec, QUEUE, WORKFLOW } from '../../dist/contract/index.js'
import { marker } from '../support/holder.js'
import { makeWorld, processWith, type World, waitUntil } from '../support/world.js'

let world: World
beforeAll(async () => {
  world = await makeWorld({ workerProcess: true })
})
afterAll(() => world?.close())

function start(pool: string, job: JobSpec, more: Record<string, unknown> = {}) {
  return world.client.workflow.start(WORKFLOW.runJob, {
    workflowId: `run-${marker()}`,
    taskQueue: QUEUE.workflows,
    args: [{ pool, job, ...more }],
  })
}

async function eventTypes(handle: Awaited<ReturnType<typeof start>>) {
  const { events } = await handle.fetchHistory()
  const count = (field: string) =>
    (events ?? []).filter((e) => (e as unknown as Record<string, unknown>)[field]).length
  return {
    activities: count('activityTaskScheduledEventAttributes'),
    signals: count('signalExternalWorkflowExecutionInitiatedEventAttributes'),
  }
}

test('a pod that is free at once: one activity acquires, runs and releases; the caller finds it warm again', async () => {
  const pool = await world.pool('once')
  const first = await start('once', { command: 'echo kept > f; echo 1' }, { caller: 'ann' })
  const one = (await first.result()) as JobResult
  expect(one.stdout).toBe('1\n')
  expect(await eventTypes(first)).toEqual({ activities: 1, signals: 0 })
  await pool.until('released, warm', (s) => s.leases === 0 && s.pods.idle === 1)
  const second = await start('once', { command: 'cat f' }, { caller: 'ann' })
  expect(await second.result()).toMatchObject({ stdout: 'kept\n', pod: one.pod, epoch: one.epoch + 1 })
  expect((await pool.status()).grants).toMatchObject({ warm: 1, standby: 1 })
})

test('what a job left running in a session of its own ends with the lease', async () => {
  const pool = await world.pool('daemon')
  const mark = marker()
  const handle = await start(
    'daemon',
    {
      command: "setsid sh -c ': > left; exec sleep 3600' & until [ -e left ]; do sleep 0.01; done; echo on",
      env: { MARK: mark },
    },
    { caller: 'ann' },
  )
  expect(await handle.result()).toMatchObject({ stdout: 'on\n' })
  await pool.until('released, warm', (s) => s.leases === 0 && s.pods.idle === 1)
  await waitUntil('the daemon is gone', () => processWith(mark).length === 0)
})

test('without a caller nobody comes back: the pod is not kept', async () => {
  const pool = await world.pool('nobody')
  const handle = await start('nobody', { command: 'true' })
  await handle.result()
  await pool.until(
    'the pod is gone, the standby is back',
    (s) => s.budget.held === 0 && s.standby.ready === 1,
  )
})

test('many at once, more than the server takes as updates in flight: all run once, within the budget', async () => {
  const pool = await world.pool('crowd', { budget: 3, standby: 2 })
  const file = join(world.dir, marker())
  const crowd = await Promise.all(
    Array.from({ length: 30 }, (_, i) => start('crowd', { command: `echo ${i} >> ${file}; echo ${i}` })),
  )
  for (const [i, handle] of crowd.entries()) {
    expect(((await handle.result()) as JobResult).stdout).toBe(`${i}\n`)
  }
  const ran = readFileSync(file, 'utf8').trim().split('\n').map(Number)
  expect(ran.sort((a, b) => a - b)).toEqual(crowd.map((_, i) => i))
  await pool.until('nothing is left', (s) => s.leases === 0 && s.queue.capacity === 0 && s.budget.held <= 3)
})

test('a worker killed in the middle: the next attempt attaches, one start, the right result (F28)', async () => {
  const pool = await world.pool('once-killed')
  const file = join(world.dir, marker())
  const handle = await start(
    'once-killed',
    { command: `echo start >> ${file}; sleep 4; echo done` },
    { caller: 'ann' },
  )
  const lines = () => {
    try {
      return readFileSync(file, 'utf8').trim().split('\n')
    } catch {
      return []
    }
  }
  await waitUntil('the job began', () => lines().length > 0)
  await world.killWorker()
  await world.startWorker()
  expect(await handle.result()).toMatchObject({ stdout: 'done\n' })
  expect(lines()).toEqual(['start'])
  await pool.until('released', (s) => s.leases === 0)
})

test('a cancel in the middle kills the job and gives the lease back', async () => {
  const pool = await world.pool('once-cancelled')
  const mark = marker()
  const handle = await start('once-cancelled', { command: 'sleep 3600', env: { MARK: mark } })
  await waitUntil('the job runs', () => processWith(mark).length > 0)
  await handle.cancel()
  await expect(handle.result()).rejects.toThrow()
  expect((await handle.describe()).status.name).toBe('CANCELLED')
  await pool.until('zero leases', (s) => s.leases === 0)
  await waitUntil('the job is gone', () => processWith(mark).length === 0)
})
