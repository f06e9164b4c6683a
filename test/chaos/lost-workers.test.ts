/**
 * Workers that are lost at the worst moment, or come back from the dead: what they had done is not done again, what they had
 * not reported is not lost.
 */
import { join } from 'node:path'
import type { WorkflowHandle } from '@temporalio/client'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type JobResult, QUEUE, SIGNAL, WORKFLOW } from '../../dist/contract/index.js'
import { Chaos, killed, lines, takenUpAgain, type WorkerOfTest } from '../support/chaos.js'
import { holderOf, marker } from '../support/holder.js'
import { type PoolHandle, processWith, type Stop, waitUntil } from '../support/world.js'

const EARLY = 'lost-describe'
const LONG = { keepAliveMs: 600_000 }

let chaos: Chaos
/** The holders of leases are looked at every 30 s: this one gets its lease now. */
let early: Awaited<ReturnType<typeof holderOf>>
beforeAll(async () => {
  chaos = await Chaos.open()
  await chaos.pool(EARLY, LONG)
  early = await holderOf(chaos.world, EARLY)
  await early.job(chaos.told(EARLY, 'first'))
  await early.nth(1)
})
afterAll(() => chaos?.close())

test('a worker that is suspended past its heartbeat and comes back: the job started once, the result is right', async () => {
  const pool = await chaos.pool('suspended')
  await chaos.killAll()
  // With its only slot taken it waits for no other job: the server would hand the next attempts to it, and wait each time.
  const first = await chaos.startWorker({ jobSlots: 1 })
  const holder = await holderOf(chaos.world, 'suspended')
  await holder.job(chaos.lasting('suspended', 'job'))
  await chaos.started('suspended', 'job')
  first.child.kill('SIGSTOP')
  const second = await chaos.startWorker()
  await takenUpAgain(holder.handle, second)
  first.child.kill('SIGCONT')
  await holder.handle.query('ran')
  chaos.letGo('suspended')
  expect((await holder.nth(1)).result.stdout).toBe('job\n')
  await killed(first.child)
  await holder.job(chaos.told('suspended', 'next'))
  expect((await holder.nth(2)).result.stdout).toBe('next\n')
  expect(chaos.jobs('suspended')).toEqual(['job', 'next'])
  await holder.finish()
  await chaos.expectNothingLeft(pool)
})

/** An effect that was carried out and not reported: how it comes to that, and what must be so when another worker took over. */
interface Case {
  does: string
  answer?: Record<string, unknown>
  spec?: Record<string, unknown>
  /** @returns what is done and expected afterwards */
  begin(name: string, pool: PoolHandle): Promise<() => Promise<void>>
}

const startRunJob = (pool: string, command: string, caller?: string) =>
  chaos.world.client.workflow.start(WORKFLOW.runJob, {
    workflowId: `lost-${marker()}`,
    taskQueue: QUEUE.workflows,
    args: [{ pool, job: { command }, ...(caller ? { caller } : {}) }],
  })

/** A holder whose job lasts over all of it. */
async function heldThroughout(name: string): Promise<() => Promise<void>> {
  const holder = await holderOf(chaos.world, name)
  await holder.job(chaos.lasting(name, 'job'))
  await chaos.started(name, 'job')
  return async () => {
    chaos.letGo(name)
    expect((await holder.nth(1)).result.stdout).toBe('job\n')
    await holder.finish()
    expect(chaos.jobs(name)).toEqual(['job'])
  }
}

const CASES: Record<string, Case> = {
  create: {
    does: 'create',
    async begin(name) {
      return async () => {
        await chaos.runsNext(name, 'ann')
      }
    },
  },
  delete: {
    does: 'delete',
    async begin(name, pool) {
      await pool.handle.signal(SIGNAL.resize, { v: 1, standby: 0 })
      return async () => {
        await pool.until('no pod is left', ({ pods }) => Object.values(pods).every((count) => count === 0))
        await chaos.runsNext(name, 'ann')
      }
    },
  },
  drain: {
    does: 'drain',
    answer: { drained: true },
    spec: { keepAliveMs: 300 },
    async begin(name, pool) {
      const holder = await holderOf(chaos.world, name)
      await holder.job(chaos.told(name, 'first'))
      const { pod } = await holder.nth(1)
      return async () => {
        const { ends } = await pool.until('the lease was recalled', (s) => s.ends.recalled === 1)
        expect(ends).toMatchObject({ podLost: 0, failed: 0 })
        await holder.job(chaos.told(name, 'second'))
        expect((await holder.nth(2)).pod).not.toBe(pod)
        expect(chaos.jobs(name)).toEqual(['first', 'second'])
        await holder.finish()
      }
    },
  },
  revoke: {
    does: 'revoke',
    async begin(name, pool) {
      const mark = marker()
      const holder = await holderOf(chaos.world, name, { caller: 'ann' })
      await holder.job('echo kept > f')
      const { pod } = await holder.nth(1)
      await holder.job('sleep 3600', { env: { MARK: mark } })
      await waitUntil('the job runs', () => processWith(mark).length > 0)
      await holder.handle.terminate('test')
      return async () => {
        expect(processWith(mark)).toEqual([])
        await pool.until('the pod is warm', (s) => s.leases === 0 && s.pods.idle === 1)
        expect(await chaos.runsNext(name, 'ann')).toBe(pod)
      }
    },
  },
  'deliver by signal': { does: 'deliver', begin: heldThroughout },
  'deliver by token': {
    does: 'deliver',
    async begin(name) {
      // Its deadline is over when the grant is delivered again.
      const handle = await chaos.world.start<JobResult>('byToken', [
        { pool: name, job: { command: chaos.lasting(name, 'job') }, acquireTimeout: '10s' },
      ])
      await chaos.started(name, 'job')
      return async () => {
        chaos.letGo(name)
        expect((await handle.result()).stdout).toBe('job\n')
        expect(chaos.jobs(name)).toEqual(['job'])
      }
    },
  },
  announce: { does: 'announce', begin: heldThroughout },
  notify: {
    does: 'notify',
    async begin(name, pool) {
      await pool.handle.signal(SIGNAL.resize, { v: 1, budget: 0 })
      const holder = await holderOf(chaos.world, name, { acquireTimeout: '1s' })
      await holder.job(chaos.told(name, 'never'))
      return async () => {
        expect(await holder.outcome(1)).toMatchObject({ code: 'QueueTimeout' })
        await pool.handle.signal(SIGNAL.resize, { v: 1, budget: 1 })
        await holder.job(chaos.told(name, 'job'))
        expect((await holder.nth(2)).result.stdout).toBe('job\n')
        expect(chaos.jobs(name)).toEqual(['job'])
        await holder.finish()
      }
    },
  },
  describe: {
    does: 'describe',
    async begin(name, pool) {
      const [{ leaseId } = { leaseId: '' }] = (await pool.status()).leased
      const query = `WorkflowType = "${WORKFLOW.lease}" AND ExecutionStatus = "Running"`
      const watching = await waitUntil('its lease workflow is listed', async () => {
        for await (const { workflowId } of chaos.world.client.workflow.list({ query }))
          if (workflowId.endsWith(leaseId)) return workflowId
        return null
      })
      const lease = chaos.world.client.workflow.getHandle(watching)
      await waitUntil('it was told of its pod: until then that finds out whether it is there', async () => {
        const { events } = await lease.fetchHistory()
        return (events ?? []).some((e) => e.workflowExecutionSignaledEventAttributes)
      })
      // Nobody watches over the holder any more, and only describe finds that out.
      await lease.terminate('test')
      return async () => {
        await pool.until('the lease is given back', (s) => s.leaked === 1 && s.leases === 0)
        await early.job(chaos.told(name, 'second'))
        await early.nth(2)
        expect(chaos.jobs(name)).toEqual(['first', 'second'])
        await early.finish()
      }
    },
  },
  'tell of a request': { does: `tell ${SIGNAL.request}`, begin: heldThroughout },
  'tell of a release': {
    does: `tell ${SIGNAL.release}`,
    async begin(name, pool) {
      const pod = await chaos.runsNext(name, 'ann')
      return async () => {
        await pool.until('released once', (s) => s.leases === 0 && s.ends.released === 1)
        expect(await chaos.runsNext(name, 'ann')).toBe(pod)
        expect(chaos.jobs(name)).toEqual(['next', 'next'])
      }
    },
  },
  run: {
    does: 'run',
    async begin(name) {
      const holder = await holderOf(chaos.world, name)
      await holder.job(chaos.told(name, 'job'))
      return async () => {
        expect((await holder.nth(1)).result.stdout).toBe('job\n')
        expect(chaos.jobs(name)).toEqual(['job'])
        await holder.finish()
      }
    },
  },
  runOnce: {
    does: 'runOnce',
    async begin(name) {
      const handle = await startRunJob(name, chaos.told(name, 'job'), 'ann')
      return async () => {
        expect(((await handle.result()) as JobResult).stdout).toBe('job\n')
        expect(chaos.jobs(name)).toEqual(['job'])
      }
    },
  },
  'runOnce, of a pool that has forgotten the request': {
    does: 'runOnce',
    async begin(name, pool) {
      // Without a caller the pod goes with the lease, and the next one would start the job anew.
      const handle = await startRunJob(name, chaos.told(name, 'job'))
      await pool.until('it is over, its pod replaced', (s) => s.ends.released === 1 && s.standby.ready === 1)
      const { runId } = await pool.handle.describe()
      await pool.handle.executeUpdate('firepool.upgrade')
      await waitUntil('continued as new', async () => (await pool.handle.describe()).runId !== runId)
      return async () => {
        await expect(handle.result()).rejects.toMatchObject({ cause: { type: 'PodLost' } })
        expect(chaos.jobs(name)).toEqual(['job'])
      }
    },
  },
}

describe('a worker that is killed between what it did and its report of it', () => {
  const nameOf = (what: string) => `lost-${what.toLowerCase().replace(/\W+/g, '-')}`
  const pools: Record<string, PoolHandle> = {}
  const rest: Record<string, () => Promise<void>> = {}
  /** takes over, and does whatever it does twice */
  let second: WorkerOfTest
  const stubborn = marker()
  const stubbornLog = () => join(chaos.world.dir, stubborn)
  let toCancel: WorkflowHandle

  beforeAll(async () => {
    await chaos.killAll()
    const stops = Object.entries(CASES).map(
      ([what, { does, answer }]): Stop => ({
        pool: nameOf(what),
        does,
        when: 'after',
        ...(answer ? { answer } : {}),
      }),
    )
    const first = await chaos.startWorker({ stops })
    await Promise.all(
      Object.entries(CASES).map(async ([what, { spec, begin }]) => {
        const name = nameOf(what)
        pools[what] =
          name === EARLY ? chaos.world.existing(name) : await chaos.pool(name, { ...LONG, ...spec })
        rest[what] = await begin(name, pools[what])
      }),
    )
    pools.stubborn = await chaos.pool('stubborn')
    const command = `trap 'echo SIGTERM >> ${stubbornLog()}' TERM; echo start >> ${stubbornLog()}; while :; do sleep 0.2; done`
    const long = { command, env: { MARK: stubborn }, timeout: '1h' }
    toCancel = await chaos.world.start('cancelWhenTold', [
      { pool: 'stubborn', long, after: { command: 'echo on' } },
    ])
    await waitUntil('the job that is to be cancelled runs', () => lines(stubbornLog()).length > 0)
    for (const { pool, does } of stops) {
      await waitUntil(`${does} of ${pool} is done and not reported`, () =>
        first.stopped.some((stop) => stop.pool === pool),
      )
    }
    await killed(first.child)
    second = await chaos.startWorker({ twice: true })
  })

  test.each(Object.keys(CASES))('%s: another worker takes over, nothing is doubled or lost', async (what) => {
    await rest[what]!()
    await chaos.expectNothingLeft(pools[what]!)
  })

  test('a cancel afterwards kills a job of an hour that ignores SIGTERM, and the sandbox goes on', async () => {
    await takenUpAgain(toCancel, second)
    await toCancel.signal('finish')
    expect(await toCancel.result()).toMatchObject({ heard: 'the cancel', after: { stdout: 'on\n' } })
    expect(processWith(stubborn)).toEqual([])
    expect(lines(stubbornLog())).toEqual(['start', 'SIGTERM'])
    await chaos.expectNothingLeft(pools.stubborn!)
    // Its own pod, and a standby in place of it.
    expect(chaos.pods('stubborn')).toHaveLength(2)
  })

  test('all kinds of effects and jobs carried out twice change nothing', async () => {
    const pool = await chaos.pool('twice', { budget: 4, keepAliveMs: 300 })
    const mark = marker()
    const [held, lost, byToken, once, late] = await Promise.all([
      holderOf(chaos.world, 'twice', { caller: 'held' }),
      holderOf(chaos.world, 'twice', { caller: 'lost' }),
      chaos.world.start<JobResult>('byToken', [
        { pool: 'twice', job: { command: chaos.told('twice', 'token') } },
      ]),
      startRunJob('twice', chaos.told('twice', 'once'), 'once'),
      holderOf(chaos.world, 'twice', { caller: 'late', acquireTimeout: '1s' }),
    ])
    await held.job(chaos.told('twice', 'first'))
    await lost.job('sleep 3600', { env: { MARK: mark } })
    expect((await held.nth(1)).result.stdout).toBe('first\n')
    expect((await byToken.result()).stdout).toBe('token\n')
    expect(((await once.result()) as JobResult).stdout).toBe('once\n')
    await waitUntil('the long job runs', () => processWith(mark).length > 0)
    await lost.handle.terminate('test')
    await waitUntil('the long job is gone', () => processWith(mark).length === 0)
    await pool.until('the held lease is recalled', (s) => s.ends.recalled! >= 1)
    await held.job(chaos.told('twice', 'second'))
    expect((await held.nth(2)).result.stdout).toBe('second\n')
    await pool.handle.signal(SIGNAL.resize, { v: 1, budget: 0 })
    await late.job(chaos.told('twice', 'never'))
    expect(await late.outcome(1)).toMatchObject({ code: 'QueueTimeout' })
    for (const holder of [held, late]) await holder.finish()
    await chaos.expectNothingLeft(pool)
    expect(chaos.jobs('twice').sort()).toEqual(['first', 'once', 'second', 'token'])
    const { ends } = await pool.status()
    expect(ends).toMatchObject({ podLost: 0, expired: 0, failed: 1 })
    const kinds = ['awaitLease', ...Object.values(CASES).map(({ does }) => does)].filter(
      (it) => it !== 'runOnce',
    )
    // The lease workflow is told of its pod, and holders are described, in what the first worker left behind.
    expect([...new Set(second.twice)].sort()).toEqual([...new Set(kinds)].sort())
  })
})

test('a result that nobody has collected survives a drain and another lost worker', async () => {
  await chaos.killAll()
  const first = await chaos.startWorker()
  const pool = await chaos.pool('uncollected', { keepAliveMs: 300 })
  const holder = await holderOf(chaos.world, 'uncollected')
  await holder.job(`${chaos.told('uncollected', 'job')}; sleep 0.5; ${chaos.told('uncollected', 'end')}`)
  await chaos.started('uncollected', 'job')
  await killed(first.child)
  await chaos.started('uncollected', 'end')
  // The pool is served again, the job is not attached to: the pod looks idle, and is asked.
  const drain: Stop = {
    pool: 'uncollected',
    does: 'drain',
    when: 'after',
    // It knows of the job by now: that is not why it is refused.
    asked: { useSeq: 1 },
    answer: { drained: false },
  }
  const second = await chaos.startWorker({
    stops: [{ pool: 'uncollected', does: 'run', when: 'before' }, drain],
  })
  await waitUntil('the job is tried again, and the pod was asked', () =>
    ['run', 'drain'].every((what) => second.stopped.some(({ does }) => does === what)),
  )
  await killed(second.child)
  await chaos.startWorker()
  expect((await holder.nth(1)).result.stdout).toBe('job\nend\n')
  expect(chaos.jobs('uncollected')).toEqual(['job', 'end'])
  expect((await pool.status()).ends).toMatchObject({ podLost: 0, failed: 0 })
  await holder.finish()
  await chaos.expectNothingLeft(pool)
})
