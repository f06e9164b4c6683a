import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { LeaseEnd, Problem } from '../../dist/contract/index.js'
import type { Ran } from '../support/callers.js'
import { holderOf as holder, marker } from '../support/holder.js'
import { makeWorld, processWith, type World, waitUntil } from '../support/world.js'

type HolderArgs = Parameters<typeof holder> extends [World, ...infer Rest] ? Rest : never

let world: World
beforeAll(async () => {
  world = await makeWorld()
})
afterAll(() => world?.close())

const holderOf = (...args: HolderArgs) => holder(world, ...args)

describe('reuse', () => {
  test('a loop holds its lease: the first job acquires, all jobs run on the same pod and epoch', async () => {
    const pool = await world.pool('hold')
    const jobs = [{ command: 'echo one > f; echo 1' }, { command: 'cat f' }, { command: ['false'] }]
    const handle = await world.start<Ran[]>('loop', [{ pool: 'hold', jobs }])
    const ran = await handle.result()
    expect(ran.map((r: Ran) => r.result.stdout)).toEqual(['1\n', 'one\n', ''])
    expect(ran[2]!.result.exitCode).toBe(1)
    expect(new Set(ran.map((r: Ran) => `${r.pod}/${r.epoch}`)).size).toBe(1)
    expect(ran[0]!.hit).toBe('standby')
    await pool.until('the end of the caller is the release', (s) => s.leases === 0)
  })

  test('a second workflow of the same caller gets the warm pod; another caller never does (I2, F10)', async () => {
    const pool = await world.pool('reuse')
    const one = await world.start<Ran[]>('loop', [
      { pool: 'reuse', caller: 'ann', jobs: [{ command: 'echo secret > f' }] },
    ])
    const [first] = await one.result()
    await pool.until('released', (s) => s.pods.idle === 1)
    const other = await world.start<Ran[]>('loop', [
      { pool: 'reuse', caller: 'bob', jobs: [{ command: 'cat f' }] },
    ])
    const [others] = await other.result()
    expect(others!.pod).not.toBe(first!.pod)
    expect(others!.result.exitCode).not.toBe(0)
    const tagged = await world.start<Ran[]>('loop', [
      { pool: 'reuse', caller: 'ann', reuseTag: 'v2', jobs: [{ command: 'cat f' }] },
    ])
    expect((await tagged.result())[0]!.pod).not.toBe(first!.pod)
    const again = await world.start<Ran[]>('loop', [
      { pool: 'reuse', caller: 'ann', jobs: [{ command: 'cat f' }] },
    ])
    const [second] = await again.result()
    expect(second).toMatchObject({ pod: first!.pod, hit: 'warm', epoch: first!.epoch + 1 })
    expect(second!.result.stdout).toBe('secret\n')
  })

  test('slots: parallel leases of one caller have pods of their own; a second holder of a slot waits (F20, SlotBusy)', async () => {
    const pool = await world.pool('slots')
    const a = await holderOf('slots', { caller: 'ann', slot: 'a' })
    const b = await holderOf('slots', { caller: 'ann', slot: 'b' })
    await a.job('true')
    await b.job('true')
    const [podA, podB] = [(await a.nth(1)).pod, (await b.nth(1)).pod]
    expect(podA).not.toBe(podB)
    const second = await holderOf('slots', { caller: 'ann', slot: 'a' })
    await second.job('true')
    await pool.until('the second holder of slot a waits', (s) => s.queue.slotBusy === 1)
    await a.handle.signal('finish', 'complete')
    expect((await second.nth(1)).pod).toBe(podA)
    for (const h of [b, second]) await h.handle.signal('finish', 'complete')
    await pool.until('all released', (s) => s.leases === 0)
  })
})

describe('every end of the caller frees the lease and kills what runs under it', () => {
  const ends: [
    string,
    (h: Awaited<ReturnType<typeof holderOf>>) => Promise<unknown>,
    Record<string, unknown>?,
  ][] = [
    ['cancelled', (h) => h.handle.cancel()],
    ['terminated', (h) => h.handle.terminate('test')],
    ['timed out', async () => undefined, { workflowRunTimeout: '5s' }],
  ]
  test.each(ends)('%s while a job runs', async (name, end, start = {}) => {
    const poolName = `end-${name.replace(' ', '-')}`
    const pool = await world.pool(poolName)
    const mark = marker()
    const holder = await holderOf(poolName, {}, start)
    await holder.job('sleep 3600', { env: { MARK: mark } })
    await waitUntil('the job runs', () => processWith(mark).length > 0)
    await end(holder)
    await pool.until('zero leases', (s) => s.leases === 0 && s.queue.capacity === 0)
    await waitUntil('the job of an hour is gone', () => processWith(mark).length === 0)
  })

  test.each(['complete', 'fail'] as const)('%s after a job', async (how) => {
    const pool = await world.pool(`after-${how}`)
    const holder = await holderOf(`after-${how}`)
    await holder.job('true')
    await holder.nth(1)
    await holder.handle.signal('finish', how)
    await pool.until('zero leases, the pod stays warm', (s) => s.leases === 0 && s.pods.idle === 1)
  })

  test('continue-as-new: the next run of the caller takes the same pod (F25)', async () => {
    const pool = await world.pool('chain')
    const holder = await holderOf('chain')
    await holder.job('echo kept > f')
    const first = await holder.nth(1)
    await holder.handle.signal('finish', 'continue')
    await pool.until('the old run released', (s) => s.ends.released === 1)
    const chain = world.client.workflow.getHandle(holder.handle.workflowId)
    await chain.signal('job', { command: 'cat f' })
    const ran = await waitUntil('the next run used its sandbox', async () => {
      const all = await chain.query<Ran[]>('ran')
      return all.length > 0 ? all : null
    })
    expect(ran[0]).toMatchObject({ pod: first.pod, hit: 'warm' })
    expect(ran[0]!.result.stdout).toBe('kept\n')
    await chain.signal('finish', 'complete')
  })

  test('a cancelled workflow can still acquire and run in a non-cancellable scope', async () => {
    const pool = await world.pool('cleanup')
    const handle = await world.start<string>('cleanUp', [{ pool: 'cleanup' }])
    await handle.cancel()
    expect(await handle.result()).toBe('cleaned\n')
    await pool.until('released', (s) => s.leases === 0)
  })

  test('a cancelled scope kills its job, and the sandbox goes on', async () => {
    await world.pool('scope')
    const mark = marker()
    const handle = await world.start<{ cancelled: boolean; after: { stdout: string } }>('cancelOne', [
      {
        pool: 'scope',
        long: { command: `trap '' TERM; sleep 3600; sleep 3600`, env: { MARK: mark } },
        after: { command: 'echo on' },
      },
    ])
    expect(await handle.result()).toMatchObject({ cancelled: true, after: { stdout: 'on\n' } })
    expect(processWith(mark)).toEqual([])
  })
})

describe('recall', () => {
  test('a pause longer than the keep-alive ends the lease; the next job acquires again by itself', async () => {
    const pool = await world.pool('recall', { keepAliveMs: 1_500 })
    const holder = await holderOf('recall')
    await holder.job('echo 1')
    const first = await holder.nth(1)
    await pool.until('recalled', (s) => s.ends.recalled === 1 && s.leases === 0)
    await pool.until(
      'its capacity returned as a fresh standby',
      (s) => s.standby.ready === 1 && s.budget.held === 0,
    )
    await holder.job('echo 2')
    const second = await holder.nth(2)
    expect(second.pod).not.toBe(first.pod)
    expect(second.result.stdout).toBe('2\n')
    // Its caller learns of it from the lease workflow's result: no signal, which not every SDK can take.
    const { events = [] } = await holder.handle.fetchHistory()
    const [ended] = events!.flatMap((event) => event.childWorkflowExecutionCompletedEventAttributes ?? [])
    const notice = JSON.parse(Buffer.from(ended!.result!.payloads![0]!.data!).toString()) as LeaseEnd
    expect(notice).toMatchObject({ v: 1, leaseId: expect.any(String), end: 'recalled' })
    await holder.handle.signal('finish', 'complete')
  })

  test('a job that runs is never recalled, however short the keep-alive (F18)', async () => {
    const pool = await world.pool('busy', { keepAliveMs: 300 })
    const holder = await holderOf('busy')
    await holder.job('sleep 3; echo done')
    expect((await holder.nth(1)).result.stdout).toBe('done\n')
    expect((await pool.status()).ends.podLost).toBe(0)
    await holder.handle.signal('finish', 'complete')
  })

  test('jobs that arrive while drains are under way all run exactly once', async () => {
    await world.pool('race', { keepAliveMs: 60, budget: 6, standby: 2 })
    const file = join(world.dir, marker())
    const jobs = Array.from({ length: 24 }, (_, i) => ({ command: `echo ${i} >> ${file}` }))
    const handle = await world.start<Ran[]>('loop', [{ pool: 'race', jobs, pauseMs: 45 }])
    const ran = await handle.result()
    expect(ran.every((r: Ran) => r.result.exitCode === 0)).toBe(true)
    expect(readFileSync(file, 'utf8').trim().split('\n').map(Number)).toEqual(jobs.map((_, i) => i))
  })
})

describe('queue', () => {
  test('priority first, then arrival; a time-out names the reason and the position (F13)', async () => {
    const pool = await world.pool('order', { budget: 1, standby: 1, keepAliveMs: 0 })
    const first = await holderOf('order', { caller: 'first' })
    await first.job('true')
    await first.nth(1)
    const waiting: [string, number][] = [
      ['late-low', 1],
      ['mid-a', 5],
      ['mid-b', 5],
      ['high', 9],
    ]
    const handles = []
    for (const [i, [caller, priority]] of waiting.entries()) {
      handles.push(await holderOf('order', { caller, priority }))
      await handles[i]!.job(`echo ${caller} >> ${join(world.dir, 'order')}`)
      await pool.until(`${caller} waits`, (s) => s.queue.capacity === i + 1)
    }
    const impatient = await holderOf('order', { caller: 'impatient', priority: 0, acquireTimeout: '1s' })
    await impatient.job('true')
    const refused = await waitUntil('the impatient one fails', async () => {
      const [problem] = (await impatient.ran()) as Problem[]
      return problem ?? null
    })
    expect(refused).toMatchObject({
      code: 'QueueTimeout',
      origin: 'infrastructure',
      details: { reason: 'BudgetExhausted', position: 5 },
    })
    for (const h of [impatient, first, handles[3]!, handles[1]!, handles[2]!, handles[0]!]) {
      await h.handle.signal('finish', 'complete')
      await h.handle.result()
    }
    const order = readFileSync(join(world.dir, 'order'), 'utf8').trim().split('\n')
    expect(order).toEqual(['high', 'mid-a', 'mid-b', 'late-low'])
  })

  test('a resize serves the queue, a resize down drains idle pods first (I4)', async () => {
    const pool = await world.pool('resize', { budget: 1 })
    const holders = await Promise.all(['a', 'b', 'c'].map((caller) => holderOf('resize', { caller })))
    for (const h of holders) await h.job('true')
    await pool.until('two wait for the budget', (s) => s.queue.capacity === 2)
    await pool.handle.signal('firepool.resize', { v: 1, budget: 3 })
    for (const h of holders) await h.nth(1)
    await pool.handle.executeUpdate('firepool.resize', { args: [{ v: 1, budget: 1 }] })
    await pool.until('idle pods of held leases were recalled', (s) => s.budget.held <= 1)
    for (const h of holders) await h.handle.signal('finish', 'complete')
  })
})
