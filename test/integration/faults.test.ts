import { existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type JobResult, LIMIT, QUEUE, WORKFLOW } from '../../dist/contract/index.js'
import { startDevServer } from '../../dist/server/dev-server.js'
import type { Ran } from '../support/callers.js'
import { holderOf, marker } from '../support/holder.js'
import { makeWorld, processWith, type World, waitUntil } from '../support/world.js'

const lines = (file: string) => {
  try {
    return readFileSync(file, 'utf8').trim().split('\n').filter(Boolean)
  } catch {
    return []
  }
}

describe('a worker is SIGKILLed', () => {
  let world: World
  beforeAll(async () => {
    world = await makeWorld({ workerProcess: true })
  })
  afterAll(() => world?.close())

  test('after the job began: the next attempt attaches, one start, the right result (F28)', async () => {
    await world.pool('kill-during')
    const file = join(world.dir, marker())
    const holder = await holderOf(world, 'kill-during')
    await holder.job(`echo start >> ${file}; sleep 4; echo result`)
    await waitUntil('the job began', () => lines(file).length > 0)
    await world.killWorker()
    await world.startWorker()
    expect((await holder.nth(1)).result.stdout).toBe('result\n')
    expect(lines(file)).toEqual(['start'])
    await holder.finish()
  })

  test('and the job ended meanwhile: its result is still there, one start', async () => {
    await world.pool('kill-after')
    const file = join(world.dir, marker())
    const holder = await holderOf(world, 'kill-after')
    await holder.job('true')
    await holder.nth(1)
    await holder.job(`echo start >> ${file}; sleep 1; echo result; echo end >> ${file}`)
    await waitUntil('the job began', () => lines(file).length > 0)
    await world.killWorker()
    await waitUntil('the job ended', () => lines(file).includes('end'))
    await world.startWorker()
    expect((await holder.nth(2)).result.stdout).toBe('result\n')
    expect(lines(file)).toEqual(['start', 'end'])
    await holder.finish()
  })

  test('while pods start and leases are asked for: nothing is lost or doubled, pods are adopted', async () => {
    const pool = await world.pool('kill-busy', { budget: 3, standby: 0, keepAliveMs: 500 })
    const file = join(world.dir, marker())
    const holders = await Promise.all(
      ['a', 'b', 'c', 'd', 'e'].map((caller) => holderOf(world, 'kill-busy', { caller })),
    )
    for (const [i, h] of holders.entries()) await h.job(`echo ${i} >> ${file}`)
    await world.killWorker()
    await world.startWorker()
    await Promise.all(holders.map((h) => h.nth(1).then(() => h.finish())))
    for (const h of holders) await h.handle.result()
    expect(lines(file).sort()).toEqual(['0', '1', '2', '3', '4'])
    await pool.until('zero leases, within the budget', (s) => s.leases === 0 && s.budget.held <= 3)
  })
})

describe('a pod dies', () => {
  let world: World
  beforeAll(async () => {
    world = await makeWorld()
  })
  afterAll(() => world?.close())

  test('mid-job: a typed infrastructure failure, never a result (F23); the next job gets another pod', async () => {
    const pool = await world.pool('lost')
    const mark = marker()
    const holder = await holderOf(world, 'lost')
    await holder.job('true')
    const first = await holder.nth(1)
    await holder.job('sleep 3600', { env: { MARK: mark } })
    await waitUntil('the job runs', () => processWith(mark).length > 0)
    for (const pid of processWith(`FIREPOOL_POD=${first.pod}\u0000`)) process.kill(pid, 'SIGKILL')
    expect(await holder.outcome(2)).toMatchObject({ code: 'PodLost', origin: 'infrastructure' })
    await pool.until('the pod is replaced', (s) => s.standby.ready === 1 && s.budget.held === 0)
    await holder.job('echo on')
    const third = await holder.nth(3)
    expect(third.pod).not.toBe(first.pod)
    await holder.finish()
  })

  test("mid-job with onPodLost: 'rerun': the job starts again elsewhere", async () => {
    await world.pool('rerun')
    const file = join(world.dir, marker())
    const holder = await holderOf(world, 'rerun', { onPodLost: 'rerun' })
    await holder.job(`echo $FIREPOOL_POD >> ${file}; [ $(wc -l < ${file}) -gt 1 ] || sleep 3600; echo done`)
    const [pod] = await waitUntil('the job runs', () => (lines(file).length > 0 ? lines(file) : null))
    for (const pid of processWith(`FIREPOOL_POD=${pod}\u0000`)) process.kill(pid, 'SIGKILL')
    expect((await holder.nth(1)).result.stdout).toBe('done\n')
    expect(new Set(lines(file)).size).toBe(2)
    await holder.finish()
  })

  test('while idle: the next job never sees it (it had not started there)', async () => {
    const pool = await world.pool('lost-idle')
    const holder = await holderOf(world, 'lost-idle')
    await holder.job('true')
    const first = await holder.nth(1)
    const runners = processWith(`FIREPOOL_POD=${first.pod}\u0000`)
    for (const pid of runners) process.kill(pid, 'SIGKILL')
    // A job that is sent while it dies may have reached it.
    await waitUntil('it is dead', () => !runners.some((pid) => existsSync(`/proc/${pid}`)))
    await holder.job('echo on')
    const second = await holder.nth(2)
    expect(second.pod).not.toBe(first.pod)
    await pool.until('the loss is counted', (s) => s.ends.podLost === 1)
    await holder.finish()
  })

  test('by hanging (SIGSTOP) while it is warm: it is replaced, and the job runs elsewhere (A9)', async () => {
    const pool = await world.pool('frozen')
    const once = (command: string) =>
      world.client.workflow.execute('firepool.runJob', {
        workflowId: `frozen-${marker()}`,
        taskQueue: 'firepool-workflows',
        args: [{ pool: 'frozen', caller: 'ann', job: { command } }],
      }) as Promise<{ pod: string; stdout: string }>
    const { pod } = await once('true')
    await pool.until('warm', (s) => s.pods.idle === 1)
    const runners = processWith(`FIREPOOL_POD=${pod}\u0000`)
    for (const pid of runners) process.kill(pid, 'SIGSTOP')
    const second = await once('echo on')
    expect(second.stdout).toBe('on\n')
    expect(second.pod).not.toBe(pod)
    await pool.until('the frozen pod is gone', () => processWith(`FIREPOOL_POD=${pod}\u0000`).length === 0)
  })

  test('at its start, again and again: the breaker opens, callers fail typed with the reason (F7, F19)', async () => {
    const pool = await world.pool('broken', {
      standby: 0,
      profile: { prepare: ['/bin/sh', '-c', 'echo no such device >&2; exit 3'] },
    })
    const holder = await holderOf(world, 'broken')
    await holder.job('true')
    const failed = await holder.outcome(1)
    expect(failed).toMatchObject({ code: 'PodStartFailed', origin: 'infrastructure' })
    expect((failed as { message: string }).message).toContain('no such device')
    const status = await pool.status()
    expect(status.breaker.last?.message).toContain('PrepareFailed')
    expect(status.podsCreated).toBeLessThanOrEqual(4)
    await holder.finish()
  })
})

describe('continue-as-new of the pool', () => {
  let world: World
  beforeAll(async () => {
    world = await makeWorld()
  })
  afterAll(() => world?.close())

  test('with requests in flight loses no request, grant or release', async () => {
    const pool = await world.pool(
      'again',
      { budget: 3, standby: 1, keepAliveMs: 500 },
      { continueAfter: { signals: 12, events: 30_000 } },
    )
    const loops = Array.from({ length: 24 }, (_, i) =>
      world.start<Ran[]>('loop', [
        { pool: 'again', caller: `c${i}`, jobs: [{ command: `echo ${i}` }], release: true },
      ]),
    )
    const first = (await pool.handle.describe()).runId
    for (const [i, handle] of (await Promise.all(loops)).entries()) {
      expect((await handle.result())[0]!.result.stdout).toBe(`${i}\n`)
    }
    const status = await pool.until('nothing is left', (s) => s.leases === 0 && s.queue.capacity === 0)
    expect(status.grants.warm + status.grants.standby + status.grants.cold).toBe(24)
    expect(status.ends.released).toBe(24)
    expect(status.ends).toMatchObject({ podLost: 0, failed: 0, expired: 0 })
    expect((await pool.handle.describe()).runId).not.toBe(first)
  })

  test('under load that never pauses: by the length of its history, which stays short', async () => {
    const events = 150
    const pool = await world.pool(
      'busy',
      { budget: 4, standby: 1 },
      { continueAfter: { signals: 8_000, events } },
    )
    const runs = new Set<string>()
    let longest = 0
    let over = false
    const looking = (async () => {
      while (!over) {
        const { runId, historyLength } = await pool.handle.describe()
        runs.add(runId)
        longest = Math.max(longest, historyLength)
      }
    })()
    const one = (caller: string, i: number) =>
      world.client.workflow.execute(WORKFLOW.runJob, {
        workflowId: `busy-${caller}-${i}`,
        taskQueue: QUEUE.workflows,
        args: [{ pool: 'busy', caller, job: { command: `echo ${i} >> f; wc -l < f` } }],
      })
    const callers = ['a', 'b', 'c', 'd'].map(async (caller) => {
      for (let i = 1; i <= 25; i++) {
        const result = (await one(caller, i)) as JobResult
        expect(result.stdout.trim(), `${caller} ${i}`).toBe(String(i))
      }
    })
    await Promise.all(callers)
    over = true
    await looking
    expect(runs.size).toBeGreaterThan(2)
    expect(longest).toBeLessThan(events * (LIMIT.continueEventsMust + 1))
    const { grants, ends } = await pool.until('nothing is left', (s) => s.leases === 0)
    expect(grants.warm + grants.standby + grants.cold).toBe(100)
    expect(ends).toMatchObject({ released: 100, podLost: 0, failed: 0, expired: 0 })
  })

  test('by operator update firepool.upgrade, in the middle of a held lease', async () => {
    const pool = await world.pool('upgrade')
    const holder = await holderOf(world, 'upgrade')
    await holder.job('echo 1 > f')
    const one = await holder.nth(1)
    const before = (await pool.handle.describe()).runId
    await pool.handle.executeUpdate('firepool.upgrade')
    await waitUntil('a new run', async () => (await pool.handle.describe()).runId !== before)
    await holder.job('cat f')
    expect(await holder.nth(2)).toMatchObject({ pod: one.pod, epoch: one.epoch })
    await holder.finish()
    await pool.until('released', (s) => s.leases === 0 && s.pods.idle === 1)
  })

  test('by operator update while effects are on their way: it waits for them and loses none', async () => {
    const pool = await world.pool('upgrade-busy', { budget: 4, standby: 0 })
    for (const standby of [2, 0, 3, 1]) {
      const before = (await pool.handle.describe()).runId
      await pool.handle.signal('firepool.resize', { v: 1, standby })
      await pool.handle.executeUpdate('firepool.upgrade')
      await waitUntil('a new run', async () => (await pool.handle.describe()).runId !== before)
    }
    const holder = await holderOf(world, 'upgrade-busy')
    await holder.job('true')
    await holder.nth(1)
    await holder.finish()
    await pool.until(
      'all is as ordered',
      (s) => s.leases === 0 && s.standby.ready >= 1 && s.effectsInFlight === 0,
    )
  })
})

test('the server restarts on a file database: pools, leases and pods go on', async () => {
  const first = await makeWorld({ serverFile: true })
  const port = Number(first.address.split(':')[1])
  try {
    const pool = await first.pool('durable')
    const holder = await holderOf(first, 'durable')
    await holder.job('echo kept > f')
    const one = await holder.nth(1)
    await first.server.stop()
    const again = await startDevServer({
      logFile: join(first.dir, 'server-2.log'),
      dbFile: join(first.dir, 'temporal.db'),
      port,
    })
    first.server = again
    await holder.job('cat f')
    expect(await holder.nth(2)).toMatchObject({
      pod: one.pod,
      epoch: one.epoch,
      result: { stdout: 'kept\n' },
    })
    await holder.finish()
    await pool.until('released', (s) => s.leases === 0)
  } finally {
    await first.close()
  }
})
