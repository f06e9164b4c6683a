import { afterAll, beforeAll, expect, test } from 'vitest'
import { createFirepoolClient, type FirepoolClient } from '../../dist/client/index.js'
import {
  type JobResult,
  type PoolStatus,
  poolWorkflowId,
  SIGNAL,
  shardName,
  shardOfCaller,
} from '../../dist/contract/index.js'
import type { Ran } from '../support/callers.js'
import { holderOf } from '../support/holder.js'
import { makeWorld, type World, waitUntil } from '../support/world.js'

let world: World
let firepool: FirepoolClient
beforeAll(async () => {
  world = await makeWorld()
  firepool = createFirepoolClient({ client: world.client })
})
afterAll(() => world?.close())

const until = (pool: string, what: string, check: (status: PoolStatus) => boolean) =>
  waitUntil(what, async () => {
    const status = await firepool.describePool(pool)
    return check(status) ? status : null
  })

/** Creates a pool and waits until requests go to all of its shards. */
async function sharded(name: string, spec: Record<string, unknown>): Promise<void> {
  await firepool.applyPool({ name, budget: 4, ...spec })
  await routed(name, Number(spec.shards ?? 1))
}

const routed = (name: string, n: number) =>
  until(
    name,
    `requests go to ${n} shards`,
    ({ shards }) => (shards?.routes ?? 1) === n && (shards?.all ?? 1) === n,
  )

const isRunning = async (name: string) => {
  const { status } = await world.client.workflow.getHandle(poolWorkflowId(name)).describe()
  return status.name === 'RUNNING'
}

/** The shard whose pod it is. */
const shardOfPod = (pool: string, pod: string) =>
  Number(new RegExp(`^${pool}-(?:(\\d+)-)?[0-9a-f]{6}-\\d+$`).exec(pod)![1] ?? 0)

test('callers are spread over the shards, each finds its pod again, and describe shows the whole', async () => {
  await sharded('spread', { budget: 9, standby: 3, shards: 3 })
  await until('spread', 'standbys', (s) => s.standby.ready === 3)
  const callers = Array.from({ length: 6 }, (_, i) => `agent-${i}`)
  const loop = (caller: string) =>
    world.start<Ran[]>('loop', [
      { pool: 'spread', caller, jobs: [{ command: 'echo x >> f; wc -l < f' }, { command: 'true' }] },
    ])
  const pods = new Map<string, string>()
  for (const handle of await Promise.all(
    callers.map((caller) => loop(caller).then((h) => ({ caller, h }))),
  )) {
    const ran: Ran[] = await handle.h.result()
    expect(new Set(ran.map(({ pod }) => pod)).size).toBe(1)
    expect(shardOfPod('spread', ran[0]!.pod)).toBe(shardOfCaller(handle.caller, 3))
    pods.set(handle.caller, ran[0]!.pod)
  }
  expect(new Set([...pods.values()].map((pod) => shardOfPod('spread', pod))).size).toBe(3)
  const status = await until('spread', 'all released', (s) => s.leases === 0)
  expect(status).toMatchObject({ budget: { spec: 9, inForce: 9, held: 6 }, pods: { idle: 6 } })
  expect(status.shards!.rows!.map(({ name }) => name)).toEqual(['spread', 'spread.1', 'spread.2'])
  expect(status.shards!.rows!.map(({ budget }) => budget.inForce)).toEqual([3, 3, 3])
  // Each way finds the caller's pod: a loop, a job in one call, and a session.
  const again = await (await loop('agent-0')).result()
  expect(again[0]).toMatchObject({ pod: pods.get('agent-0'), hit: 'warm' })
  expect(again[0]!.result.stdout.trim()).toBe('2')
  const once = await firepool.runJob({ pool: 'spread', caller: 'agent-1', job: { command: 'wc -l < f' } })
  expect([once.pod, once.stdout.trim()]).toEqual([pods.get('agent-1'), '1'])
  const session = firepool.session('spread', { caller: 'agent-2' })
  expect((await session.run({ command: 'true' })).pod).toBe(pods.get('agent-2'))
  await session.end()
  const all = await firepool.pods('spread', { limit: 4 })
  const rest = await firepool.pods('spread', { offset: all.next!, limit: 100 })
  expect(new Set([...all.rows, ...rest.rows].map(({ pod }) => pod)).size).toBe(all.total)
  expect((await firepool.listPools()).map(({ pool }) => pool)).toEqual(['spread'])
})

test('a caller by token gets its grant from whichever shard is its own', async () => {
  await sharded('tokens', { budget: 6, standby: 3, shards: 3 })
  const results = await Promise.all(
    Array.from({ length: 5 }, async () => {
      const handle = await world.start<JobResult>('byToken', [
        { pool: 'tokens', job: { command: 'echo ok' } },
      ])
      return (await handle.result()).stdout
    }),
  )
  expect(results).toEqual(Array(5).fill('ok\n'))
  await until('tokens', 'all released', (s) => s.leases === 0)
})

test('growing and shrinking under load loses no job and no lease, and never exceeds the budget', async () => {
  const budget = 4
  await sharded('moves', { budget, keepAliveMs: 2_000, shards: 1 })
  const stop = { now: false }
  let most = 0
  const watch = (async () => {
    while (!stop.now) {
      const { budget: now } = await firepool.describePool('moves')
      most = Math.max(most, now.held)
      await new Promise((resolve) => setTimeout(resolve, 100))
    }
  })()
  const work = { command: 'sleep 0.2; echo done' }
  const loops = await Promise.all(
    Array.from({ length: 8 }, (_, i) =>
      world.start<Ran[]>('loop', [
        { pool: 'moves', caller: `agent-${i}`, jobs: Array(12).fill(work), pauseMs: 300 },
      ]),
    ),
  )
  const jobs: Promise<JobResult>[] = []
  const more = (count: number) => {
    for (let i = 0; i < count; i++) jobs.push(firepool.runJob({ pool: 'moves', job: work }))
  }
  more(4)
  await firepool.applyPool({ name: 'moves', budget, keepAliveMs: 2_000, shards: 3 })
  await routed('moves', 3)
  more(8)
  await new Promise((resolve) => setTimeout(resolve, 3_000))
  await firepool.applyPool({ name: 'moves', budget, keepAliveMs: 2_000, shards: 1 })
  more(8)
  for (const handle of loops) {
    const ran: Ran[] = await handle.result()
    expect(ran.map(({ result }) => result.stdout)).toEqual(Array(12).fill('done\n'))
  }
  for (const job of jobs) expect((await job).stdout).toBe('done\n')
  await routed('moves', 1)
  stop.now = true
  await watch
  expect(most).toBeLessThanOrEqual(budget)
  expect(most).toBeGreaterThan(1)
  const status = await until('moves', 'nothing is held', (s) => s.leases === 0 && s.budget.held === 0)
  expect(status.leaked).toBe(0)
  expect(await isRunning('moves.1')).toBe(false)
  expect(await isRunning('moves.2')).toBe(false)
})

test('a held lease goes on in a shard that leaves, and the shard ends when it is released', async () => {
  await sharded('held', { budget: 4, shards: 2 })
  const caller = ['a', 'b', 'c', 'd', 'e', 'f'].find((name) => shardOfCaller(name, 2) === 1)!
  const holder = await world.start('holder', [{ pool: 'held', caller }])
  await holder.signal('job', { command: 'echo first; sleep 4' })
  await until('held', 'it holds a pod', (s) => s.leases === 1)
  await firepool.applyPool({ name: 'held', budget: 4, shards: 1 })
  await until('held', 'requests go to the head', ({ shards }) => shards?.routes === 1)
  expect((await firepool.describePool('held')).leases).toBe(1)
  await holder.signal('finish', 'complete')
  const [ran] = (await holder.result()) as Ran[]
  expect(ran!.result.stdout).toBe('first\n')
  await routed('held', 1)
  expect(await isRunning('held.1')).toBe(false)
})

test('resize, pause and continue-as-new reach all shards', async () => {
  await sharded('told', { budget: 4, shards: 2 })
  await firepool.resizePool('told', { budget: 8 })
  await until('told', 'both have their part', (s) =>
    s.shards!.rows!.every(({ budget }) => budget.inForce === 4),
  )
  await firepool.pausePool('told')
  await until('told', 'both are paused', (s) => s.shards!.rows!.every(({ mode }) => mode === 'paused'))
  const head = world.client.workflow.getHandle(poolWorkflowId('told'))
  const { runId } = await head.describe()
  await head.executeUpdate('firepool.upgrade')
  await world.client.workflow.getHandle(poolWorkflowId('told.1')).executeUpdate('firepool.upgrade')
  await waitUntil('it has continued as new', async () => (await head.describe()).runId !== runId)
  expect((await head.describe()).memo).toMatchObject({ firepoolShards: { routes: 2, all: 2 } })
  await firepool.resumePool('told')
  await until('told', 'both run', (s) => s.shards!.rows!.every(({ mode }) => mode === 'running'))
  const caller = ['a', 'b', 'c', 'd', 'e', 'f'].find((name) => shardOfCaller(name, 2) === 1)!
  const { pod } = await firepool.runJob({ pool: 'told', caller, job: { command: 'true' } })
  expect(shardOfPod('told', pod)).toBe(1)
})

test("a shard takes an operator's word from nobody but its head", async () => {
  await sharded('alone', { budget: 4, standby: 2, shards: 2 })
  await until('alone', 'standbys', (s) => s.standby.ready === 2)
  const shard = world.client.workflow.getHandle(poolWorkflowId('alone.1'))
  const spec = await firepool.poolSpec('alone')
  const words: [string, unknown][] = [
    ['firepool.pause', { v: 1 }],
    ['firepool.drain', { v: 1 }],
    ['firepool.resize', { v: 1, budget: 0 }],
    ['firepool.setBudget', { v: 1, budget: 0, expiresAtMs: Date.now() + 60_000 }],
    ['firepool.apply', spec],
  ]
  for (const [name, payload] of words) await shard.signal(name, payload)
  const status = await waitUntil('it has counted them', async () => {
    const own = await shard.query<PoolStatus>('firepool.status')
    return own.poison.count === words.length ? own : null
  })
  expect(status).toMatchObject({ mode: 'running', budget: { inForce: 2, operator: null, fleet: null } })
  expect(status.poison.last).toMatch(/alone.1 is a shard of pool alone.*send this to workflow pool\/alone$/)
  for (const [name, payload] of [...words, ['firepool.delete', { v: 1, force: true }] as const]) {
    const update = shard.executeUpdate(name, { args: [payload] })
    await expect(update, name).rejects.toMatchObject({
      cause: { type: 'InvalidRequest', message: expect.stringContaining('is a shard of pool alone') },
    })
  }
  expect((await shard.query<PoolStatus>('firepool.status')).mode).toBe('running')
  // It is all counted still when the shard has gone.
  await firepool.applyPool({ ...spec, shards: 1 })
  await until('alone', 'the head has it', (s) => s.shards === undefined && s.poison.count === words.length)
})

test('a name of a shard is taken by no user', async () => {
  const one = await firepool.runJob({ pool: 'told.1', job: { command: 'true' } }).catch((error) => error)
  expect(one.problem?.code).toBe('InvalidRequest')
  const other = await firepool.applyPool({ name: 'told.1', budget: 1 }).catch((error) => error)
  expect(other.problem?.code).toBe('InvalidRequest')
})

test('delete refuses while any shard has a lease, and with force removes them all', async () => {
  await sharded('gone', { budget: 4, standby: 2, shards: 2 })
  const caller = ['a', 'b', 'c', 'd', 'e', 'f'].find((name) => shardOfCaller(name, 2) === 1)!
  const holder = await world.start('holder', [{ pool: 'gone', caller }])
  await holder.signal('job', { command: 'sleep 60' })
  await until('gone', 'it holds a pod', (s) => s.leases === 1)
  const refused = await firepool.deletePool('gone').catch((error) => error)
  expect(refused.problem).toMatchObject({ code: 'InvalidRequest', details: { leases: 1, waiting: 0 } })
  await firepool.deletePool('gone', { force: true })
  for (const shard of [0, 1]) {
    const name = shardName('gone', shard)
    expect([name, await isRunning(name)]).toEqual([name, false])
    expect(await world.backend.list(name)).toEqual([])
  }
  await holder.signal(SIGNAL.endSession).catch(() => undefined)
  await holder.terminate()
})

test('a worker that is killed while a pool is split anew loses no job, no lease and no shard', async () => {
  const crashing = await makeWorld({ workerProcess: true })
  try {
    const client = createFirepoolClient({ client: crashing.client })
    const spec = { name: 'crash', budget: 4, keepAliveMs: 2_000 }
    await client.applyPool({ ...spec, shards: 1 })
    const loops = await Promise.all(
      Array.from({ length: 4 }, (_, i) =>
        crashing.start<Ran[]>('loop', [
          { pool: 'crash', caller: `agent-${i}`, jobs: Array(6).fill({ command: 'sleep 0.5; echo done' }) },
        ]),
      ),
    )
    for (const shards of [3, 1]) {
      await client.applyPool({ ...spec, shards })
      await crashing.killWorker()
      await crashing.startWorker()
    }
    for (const handle of loops) {
      const ran: Ran[] = await handle.result()
      expect(ran.map(({ result }) => result.stdout)).toEqual(Array(6).fill('done\n'))
    }
    await waitUntil('one shard, nothing held', async () => {
      const { shards, leases, budget } = await client.describePool('crash')
      return (shards?.all ?? 1) === 1 && leases === 0 && budget.held === 0
    })
  } finally {
    await crashing.close()
  }
})

test('a head that is terminated: applied again without shards it counts what they hold, and nobody gets more beside it', async () => {
  await sharded('headless', { budget: 4, shards: 3 })
  const callerOf = (shard: number) =>
    Array.from({ length: 100 }, (_, i) => `agent-${i}`).find((c) => shardOfCaller(c, 3) === shard)!
  const holders = await Promise.all(
    [1, 2].map((shard) => holderOf(world, 'headless', { caller: callerOf(shard), pin: '10m' })),
  )
  for (const holder of holders) await holder.job('echo x > f')
  for (const holder of holders) await holder.nth(1)
  await world.client.workflow.getHandle(poolWorkflowId('headless')).terminate()
  const again = { name: 'headless', budget: 1, standby: 0 }
  expect((await firepool.applyPool(again)).outcome).toBe('created')
  const late = await world.start<Ran[]>('loop', [{ pool: 'headless', jobs: [{ command: 'echo late' }] }])
  await until('headless', 'it knows of both', (s) => s.leases === 2 && s.queue.capacity === 1)
  for (const holder of holders) {
    await holder.job('cat f')
    expect((await holder.nth(2)).result.stdout).toBe('x\n')
    const { budget, queue } = await firepool.describePool('headless')
    expect([budget.held, queue.capacity]).toEqual([holder === holders[0] ? 2 : 1, 1])
    await holder.finish()
    await until('headless', 'it is given back', (s) => s.leases === 0 || s.leases === 1)
  }
  expect((await late.result())[0]!.result.stdout).toBe('late\n')
  for (const shard of [1, 2])
    await waitUntil('the shard has ended', async () => !(await isRunning(shardName('headless', shard))))
  await until('headless', 'it is whole', (s) => s.leases === 0 && s.shards === undefined)
})
