import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { Ran } from '../support/callers.js'
import { ENDS, seeTheEnd } from '../support/ends.js'
import { holderOf, marker } from '../support/holder.js'
import { reset } from '../support/reset.js'
import { makeWorld, processWith, type World, waitUntil } from '../support/world.js'

/** Pinned leases: the release matrix once more, on pools that keep nothing alive by themselves; renewal and expiry. */

const PIN = '10s'

let world: World
beforeAll(async () => {
  world = await makeWorld()
})
afterAll(() => world?.close())

const kept = { budget: 2, keepAliveMs: 0 }

describe.concurrent('a caller that holds a pinned pod ends', () => {
  test.each(ENDS)(
    '$name: zero leases, nothing runs, its pod is kept for it and for nobody else',
    async (how) => {
      await seeTheEnd(world, await world.pool(`pin-${how.name}`, kept), how, { pin: PIN })
    },
  )
})

describe.concurrent('a caller with a pinned pod starts again', () => {
  test('by five continue-as-news finds the same pod and its files each time', async () => {
    const pool = await world.pool('news', kept)
    const handle = await world.start<{ pods: string[]; count: number }>('chain', [
      { pool: 'news', left: 5, pin: PIN },
    ])
    const { pods, count } = await handle.result()
    expect(count).toBe(6)
    expect(new Set(pods).size).toBe(1)
    await pool.until('zero leases, the pod kept', (s) => s.leases === 0 && s.pods.idle === 1)
  })

  test('by its retry policy finds the same pod and its files', async () => {
    const pool = await world.pool('retry', kept)
    const handle = await world.start<{ attempt: number; stdout: string }>(
      'flaky',
      [{ pool: 'retry', pin: PIN }],
      {
        retry: { maximumAttempts: 2, initialInterval: 100 },
      },
    )
    expect(await handle.result()).toMatchObject({ attempt: 2, stdout: 'x\nx\n' })
    await pool.until('zero leases, the pod kept', (s) => s.leases === 0 && s.pods.idle === 1)
  })

  test.each([
    ['before its acquire', 1],
    ['after its acquire', 4],
  ])('by a reset to a moment %s: one lease at most, the job of an hour is gone', async (when, task) => {
    const name = `reset-${task}`
    const pool = await world.pool(name, { ...kept, standby: 1 })
    const mark = marker()
    const holder = await holderOf(world, name, { caller: 'ann', pin: PIN })
    await holder.job('echo kept > f')
    await holder.nth(1)
    await holder.job('sleep 3600', { env: { MARK: mark } })
    await waitUntil('the job runs', () => processWith(mark).length > 0)
    const { workflowId } = holder.handle
    const { runId } = await holder.handle.describe()
    const again = world.client.workflow.getHandle(workflowId, await reset(world, workflowId, runId, task))
    await waitUntil(`the job of an hour ${when} is gone`, () => processWith(mark).length === 0)
    await again.terminate('over')
    const { ends } = await pool.until('zero leases', (s) => s.leases === 0 && s.queue.slotBusy === 0)
    expect(ends.failed).toBe(0)
    await waitUntil('nothing runs', () => processWith(mark).length === 0)
  })
})

describe.concurrent('a caller that thinks', () => {
  const thinks = (pool: string, renews: boolean) =>
    world.start<Ran[]>('pinned', [{ pool, pin: PIN, pauseMs: 4_000, pauses: 4, renews }])

  test('for longer than its pin and renews it finds its pod, although the pool keeps nothing alive', async () => {
    const pool = await world.pool('renews', kept)
    const [first, last] = await (await thinks('renews', true)).result()
    expect(last).toMatchObject({ pod: first!.pod, epoch: first!.epoch, result: { stdout: 'x\nx\n' } })
    const { ends } = await pool.until('zero leases', (s) => s.leases === 0)
    expect(ends).toMatchObject({ released: 1, expired: 0, recalled: 0 })
  })

  test('and renews nothing loses it when the pin is over; the next job acquires again by itself', async () => {
    const pool = await world.pool('expires', kept)
    const [first, last] = await (await thinks('expires', false)).result()
    expect(last!.pod).not.toBe(first!.pod)
    expect(last!.result.stdout).toBe('x\n')
    const { ends } = await pool.until('zero leases', (s) => s.leases === 0)
    expect(ends).toMatchObject({ released: 1, expired: 1, recalled: 0 })
  })
})
