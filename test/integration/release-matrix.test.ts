import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { holderOf, marker } from '../support/holder.js'
import { reset } from '../support/reset.js'
import { makeWorld, processWith, type World, waitUntil } from '../support/world.js'

/** Ends and restarts of callers beyond those of lease.test.ts: one lease at most, none at the end. */

let world: World
beforeAll(async () => {
  world = await makeWorld()
})
afterAll(() => world?.close())

describe.concurrent('a caller that starts again', () => {
  test('by five continue-as-news finds the same pod and its files each time', async () => {
    const pool = await world.pool('news', { budget: 2, standby: 1 })
    const handle = await world.start<{ pods: string[]; count: number }>('chain', [{ pool: 'news', left: 5 }])
    const { pods, count } = await handle.result()
    expect(count).toBe(6)
    expect(new Set(pods).size).toBe(1)
    await pool.until('zero leases, the pod warm', (s) => s.leases === 0 && s.pods.idle === 1)
  })

  test('by its retry policy finds the same pod and its files', async () => {
    const pool = await world.pool('retry')
    const handle = await world.start<{ attempt: number; stdout: string }>('flaky', [{ pool: 'retry' }], {
      retry: { maximumAttempts: 2, initialInterval: 100 },
    })
    expect(await handle.result()).toMatchObject({ attempt: 2, stdout: 'x\nx\n' })
    await pool.until('zero leases, the pod warm', (s) => s.leases === 0 && s.pods.idle === 1)
  })

  test.each([
    ['before its acquire', 1],
    ['after its acquire', 4],
  ])('by a reset to a moment %s: one lease at most, the job of an hour is gone', async (when, task) => {
    const name = `reset-${task}`
    const pool = await world.pool(name, { budget: 2, standby: 1 })
    const mark = marker()
    const holder = await holderOf(world, name, { caller: 'ann' })
    await holder.job('echo kept > f')
    await holder.nth(1)
    await holder.job('sleep 3600', { env: { MARK: mark } })
    await waitUntil('the job runs', () => processWith(mark).length > 0)
    const { workflowId } = holder.handle
    const { runId } = await holder.handle.describe()
    const again = world.client.workflow.getHandle(workflowId, await reset(world, workflowId, runId, task))
    await waitUntil(`the job of an hour ${when} is gone`, () => processWith(mark).length === 0)
    await again.terminate('over')
    const { leases, ends } = await pool.until('zero leases', (s) => s.leases === 0 && s.queue.slotBusy === 0)
    expect({ leases, failed: ends.failed }).toEqual({ leases: 0, failed: 0 })
    await waitUntil('nothing runs', () => processWith(mark).length === 0)
  })
})

test('a hundred rounds of request, cancel and release, in one task and across tasks, leave nothing', async () => {
  const pool = await world.pool('rounds', { budget: 2, standby: 1 })
  await (await world.start('rounds', [{ pool: 'rounds', rounds: 50 }])).result()
  const status = await pool.until(
    'zero leases and nobody waits',
    (s) => s.leases === 0 && s.queue.capacity === 0 && s.queue.slotBusy === 0 && s.effectsInFlight === 0,
  )
  expect(status.ends).toMatchObject({ failed: 0, podLost: 0 })
  await waitUntil('no lease workflow is left', async () => {
    const query = 'WorkflowType = "firepool.lease" AND ExecutionStatus = "Running"'
    for await (const _ of world.client.workflow.list({ query })) return false
    return true
  })
})
