/**
 * Workers that are lost at the worst moment, or come back from the dead: what they had done is not done again, what they had
 * not reported is not lost.
 */
import type { ChildProcess } from 'node:child_process'
import { randomUUID } from 'node:crypto'
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { WorkflowHandle } from '@temporalio/client'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import {
  type Grant,
  type JobResult,
  type LeaseEnd,
  type LeaseRequest,
  QUEUE,
  SIGNAL,
  WORKFLOW,
} from '../../dist/contract/index.js'
import { holderOf, marker } from '../support/holder.js'
import {
  forkWorker,
  makeWorld,
  type PoolHandle,
  processWith,
  type Stop,
  type WorkerFaults,
  type World,
  waitUntil,
} from '../support/world.js'

let world: World
/** The holders of leases are looked at every 30 s: this one gets its lease now. */
let early: Awaited<ReturnType<typeof holderOf>>
beforeAll(async () => {
  world = await makeWorld({ workerProcess: true })
  await poolOf(EARLY, LONG)
  early = await holderOf(world, EARLY)
  await early.job(told(EARLY, 'first'))
  await early.nth(1)
})
afterAll(async () => {
  await killAll()
  // Pools are deleted by a worker.
  await world?.startWorker()
  await world?.close()
})

const EARLY = 'lost-describe'
const LONG = { keepAliveMs: 600_000 }

interface WorkerOfTest {
  child: ChildProcess
  /** where it stands still by now */
  stopped: Stop[]
  /** what it did twice */
  twice: string[]
}
const workers: WorkerOfTest[] = []

/** One more worker, on the same pods. */
async function startWorker(faults: WorkerFaults = {}): Promise<WorkerOfTest> {
  const { address, namespace } = world.server
  const child = await forkWorker(address, namespace, join(world.dir, 'firepool'), faults)
  const worker: WorkerOfTest = { child, stopped: [], twice: [] }
  child.on('message', (message: { stopped?: Stop; twice?: string }) => {
    if (message.stopped) worker.stopped.push(message.stopped)
    if (message.twice) worker.twice.push(message.twice)
  })
  workers.push(worker)
  return worker
}

async function killed(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return
  const gone = new Promise((resolve) => child.once('exit', resolve))
  child.kill('SIGKILL')
  await gone
}

/** Also those that a test which failed has left. */
async function killAll(): Promise<void> {
  await world?.killWorker()
  for (const { child } of workers) await killed(child)
}

const lines = (file: string) => {
  try {
    return readFileSync(file, 'utf8').trim().split('\n').filter(Boolean)
  } catch {
    return []
  }
}

/** Files that tell what really happened: starts of pods and of jobs, and the word for jobs to go on. */
function filesOf(pool: string) {
  const file = (what: string) => join(world.dir, `${pool}-${what}`)
  return { pods: file('pods'), jobs: file('jobs'), go: file('go') }
}

/** A job that says when it starts. */
const told = (pool: string, name: string) => `echo ${name} >> ${filesOf(pool).jobs}; echo ${name}`
/** One that goes on until it is told, once it has started. */
const lasting = (pool: string, name: string) =>
  `${told(pool, name)}; until [ -e ${filesOf(pool).go} ]; do sleep 0.1; done`
const letGo = (pool: string) => writeFileSync(filesOf(pool).go, '')
const started = (pool: string, name: string) =>
  waitUntil(`${name} of ${pool} starts`, () => lines(filesOf(pool).jobs).includes(name))

/** A pool whose pods write down that they start. */
function poolOf(name: string, spec: Record<string, unknown> = {}): Promise<PoolHandle> {
  const prepare = ['/bin/sh', '-c', `echo $FIREPOOL_POD >> ${filesOf(name).pods}`]
  return world.pool(name, { profile: { prepare }, ...spec })
}

/** Each pod's name was started once, the pool knows all pods that there are, and nobody has a lease. */
async function expectNothingLeft(pool: PoolHandle): Promise<void> {
  const { podsCreated } = await pool.until(
    'zero leases, nothing on its way',
    ({ leases, queue, effectsInFlight, pods }) =>
      leases + queue.capacity + queue.slotBusy + effectsInFlight + pods.starting === 0,
  )
  const created = lines(filesOf(pool.name).pods)
  expect(new Set(created).size, `${pool.name}: ${created}`).toBe(created.length)
  // One that was not needed any more may have been deleted before it wrote.
  expect(created.length, `${pool.name}: ${created}`).toBeLessThanOrEqual(podsCreated)
  await waitUntil(`${pool.name}: as many pods as the pool says`, async () => {
    const { pods } = await pool.status()
    const known = Object.values(pods).reduce((sum, count) => sum + count, 0)
    return (await world.backend.list(pool.name)).length === known
  })
}

async function attemptOf(handle: WorkflowHandle): Promise<{ attempt: number; pid: string } | null> {
  const { raw } = await handle.describe()
  const run = raw.pendingActivities?.find(({ activityType }) => activityType?.name === 'firepool.run')
  // 2: a worker has it
  if (run?.state !== 2) return null
  return { attempt: run.attempt ?? 0, pid: run.lastWorkerIdentity?.split('@')[0] ?? '' }
}

/** A holder's next job is taken up by a worker, as an attempt after the first. */
const takenUpAgain = (handle: WorkflowHandle, by: WorkerOfTest) =>
  waitUntil(`an attempt of ${handle.workflowId} on ${by.child.pid}`, async () => {
    const now = await attemptOf(handle)
    return now && now.attempt > 1 && now.pid === String(by.child.pid) ? now : null
  })

test('a worker that is suspended past its heartbeat and comes back: the job started once, the result is right', async () => {
  const pool = await poolOf('suspended')
  await killAll()
  // With its only slot taken it waits for no other job: the server would hand the next attempts to it, and wait each time.
  const first = await startWorker({ jobSlots: 1 })
  const holder = await holderOf(world, 'suspended')
  await holder.job(lasting('suspended', 'job'))
  await started('suspended', 'job')
  first.child.kill('SIGSTOP')
  const second = await startWorker()
  await takenUpAgain(holder.handle, second)
  first.child.kill('SIGCONT')
  await holder.handle.query('ran')
  letGo('suspended')
  expect((await holder.nth(1)).result.stdout).toBe('job\n')
  await killed(first.child)
  await holder.job(told('suspended', 'next'))
  expect((await holder.nth(2)).result.stdout).toBe('next\n')
  expect(lines(filesOf('suspended').jobs)).toEqual(['job', 'next'])
  await holder.finish()
  await expectNothingLeft(pool)
})

/** An effect that was carried out and not reported: how it comes to that, and what must be so when another worker took over. */
interface Case {
  does: string
  answer?: Record<string, unknown>
  spec?: Record<string, unknown>
  /** @returns what is done and expected afterwards */
  begin(name: string, pool: PoolHandle): Promise<() => Promise<void>>
}

/** A caller's next job, after all, on a pod of the pool. */
async function runsNext(name: string, caller: string): Promise<string> {
  const next = await holderOf(world, name, { caller })
  await next.job(told(name, 'next'))
  const { pod, result } = await next.nth(1)
  expect(result.stdout).toBe('next\n')
  await next.finish()
  await next.handle.result()
  return pod
}

const startRunJob = (pool: string, command: string, caller?: string) =>
  world.client.workflow.start(WORKFLOW.runJob, {
    workflowId: `lost-${marker()}`,
    taskQueue: QUEUE.workflows,
    args: [{ pool, job: { command }, ...(caller ? { caller } : {}) }],
  })

/** A holder whose job lasts over all of it. */
async function heldThroughout(name: string): Promise<() => Promise<void>> {
  const holder = await holderOf(world, name)
  await holder.job(lasting(name, 'job'))
  await started(name, 'job')
  return async () => {
    letGo(name)
    expect((await holder.nth(1)).result.stdout).toBe('job\n')
    await holder.finish()
    expect(lines(filesOf(name).jobs)).toEqual(['job'])
  }
}

const CASES: Record<string, Case> = {
  create: {
    does: 'create',
    async begin(name) {
      return async () => {
        await runsNext(name, 'ann')
      }
    },
  },
  delete: {
    does: 'delete',
    async begin(name, pool) {
      await pool.handle.signal(SIGNAL.resize, { v: 1, standby: 0 })
      return async () => {
        await pool.until('no pod is left', ({ pods }) => Object.values(pods).every((count) => count === 0))
        await runsNext(name, 'ann')
      }
    },
  },
  drain: {
    does: 'drain',
    answer: { drained: true },
    spec: { keepAliveMs: 300 },
    async begin(name, pool) {
      const holder = await holderOf(world, name)
      await holder.job(told(name, 'first'))
      const { pod } = await holder.nth(1)
      return async () => {
        const { ends } = await pool.until('the lease was recalled', (s) => s.ends.recalled === 1)
        expect(ends).toMatchObject({ podLost: 0, failed: 0 })
        await holder.job(told(name, 'second'))
        expect((await holder.nth(2)).pod).not.toBe(pod)
        expect(lines(filesOf(name).jobs)).toEqual(['first', 'second'])
        await holder.finish()
      }
    },
  },
  revoke: {
    does: 'revoke',
    async begin(name, pool) {
      const mark = marker()
      const holder = await holderOf(world, name, { caller: 'ann' })
      await holder.job('echo kept > f')
      const { pod } = await holder.nth(1)
      await holder.job('sleep 3600', { env: { MARK: mark } })
      await waitUntil('the job runs', () => processWith(mark).length > 0)
      await holder.handle.terminate('test')
      return async () => {
        expect(processWith(mark)).toEqual([])
        await pool.until('the pod is warm', (s) => s.leases === 0 && s.pods.idle === 1)
        expect(await runsNext(name, 'ann')).toBe(pod)
      }
    },
  },
  'deliver by signal': { does: 'deliver', begin: heldThroughout },
  'deliver by token': {
    does: 'deliver',
    async begin(name) {
      // Its deadline is over when the grant is delivered again.
      const handle = await world.start<JobResult>('byToken', [
        { pool: name, job: { command: lasting(name, 'job') }, acquireTimeout: '10s' },
      ])
      await started(name, 'job')
      return async () => {
        letGo(name)
        expect((await handle.result()).stdout).toBe('job\n')
        expect(lines(filesOf(name).jobs)).toEqual(['job'])
      }
    },
  },
  announce: { does: 'announce', begin: heldThroughout },
  notify: {
    does: 'notify',
    async begin(name, pool) {
      await pool.handle.signal(SIGNAL.resize, { v: 1, budget: 0 })
      const holder = await holderOf(world, name, { acquireTimeout: '1s' })
      await holder.job(told(name, 'never'))
      return async () => {
        expect(await holder.outcome(1)).toMatchObject({ code: 'QueueTimeout' })
        await pool.handle.signal(SIGNAL.resize, { v: 1, budget: 1 })
        await holder.job(told(name, 'job'))
        expect((await holder.nth(2)).result.stdout).toBe('job\n')
        expect(lines(filesOf(name).jobs)).toEqual(['job'])
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
        for await (const { workflowId } of world.client.workflow.list({ query }))
          if (workflowId.endsWith(leaseId)) return workflowId
        return null
      })
      const lease = world.client.workflow.getHandle(watching)
      await waitUntil('it was told of its pod: until then that finds out whether it is there', async () => {
        const { events } = await lease.fetchHistory()
        return (events ?? []).some((e) => e.workflowExecutionSignaledEventAttributes)
      })
      // Nobody watches over the holder any more, and only describe finds that out.
      await lease.terminate('test')
      return async () => {
        await pool.until('the lease is given back', (s) => s.leaked === 1 && s.leases === 0)
        await early.job(told(name, 'second'))
        await early.nth(2)
        expect(lines(filesOf(name).jobs)).toEqual(['first', 'second'])
        await early.finish()
      }
    },
  },
  'tell of a request': { does: `tell ${SIGNAL.request}`, begin: heldThroughout },
  'tell of a release': {
    does: `tell ${SIGNAL.release}`,
    async begin(name, pool) {
      const pod = await runsNext(name, 'ann')
      return async () => {
        await pool.until('released once', (s) => s.leases === 0 && s.ends.released === 1)
        expect(await runsNext(name, 'ann')).toBe(pod)
        expect(lines(filesOf(name).jobs)).toEqual(['next', 'next'])
      }
    },
  },
  run: {
    does: 'run',
    async begin(name) {
      const holder = await holderOf(world, name)
      await holder.job(told(name, 'job'))
      return async () => {
        expect((await holder.nth(1)).result.stdout).toBe('job\n')
        expect(lines(filesOf(name).jobs)).toEqual(['job'])
        await holder.finish()
      }
    },
  },
  runOnce: {
    does: 'runOnce',
    async begin(name) {
      const handle = await startRunJob(name, told(name, 'job'), 'ann')
      return async () => {
        expect(((await handle.result()) as JobResult).stdout).toBe('job\n')
        expect(lines(filesOf(name).jobs)).toEqual(['job'])
      }
    },
  },
  'runOnce, of a pool that has forgotten the request': {
    does: 'runOnce',
    async begin(name, pool) {
      // Without a caller the pod goes with the lease, and the next one would start the job anew.
      const handle = await startRunJob(name, told(name, 'job'))
      await pool.until('it is over, its pod replaced', (s) => s.ends.released === 1 && s.standby.ready === 1)
      const { runId } = await pool.handle.describe()
      await pool.handle.executeUpdate('firepool.upgrade')
      await waitUntil('continued as new', async () => (await pool.handle.describe()).runId !== runId)
      return async () => {
        await expect(handle.result()).rejects.toMatchObject({ cause: { type: 'PodLost' } })
        expect(lines(filesOf(name).jobs)).toEqual(['job'])
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
  const stubbornLog = () => join(world.dir, stubborn)
  let toCancel: WorkflowHandle

  beforeAll(async () => {
    await killAll()
    const stops = Object.entries(CASES).map(
      ([what, { does, answer }]): Stop => ({
        pool: nameOf(what),
        does,
        when: 'after',
        ...(answer ? { answer } : {}),
      }),
    )
    const first = await startWorker({ stops })
    await Promise.all(
      Object.entries(CASES).map(async ([what, { spec, begin }]) => {
        const name = nameOf(what)
        pools[what] = name === EARLY ? world.existing(name) : await poolOf(name, { ...LONG, ...spec })
        rest[what] = await begin(name, pools[what])
      }),
    )
    pools.stubborn = await poolOf('stubborn')
    const command = `trap 'echo SIGTERM >> ${stubbornLog()}' TERM; echo start >> ${stubbornLog()}; while :; do sleep 0.2; done`
    const long = { command, env: { MARK: stubborn }, timeout: '1h' }
    toCancel = await world.start('cancelWhenTold', [
      { pool: 'stubborn', long, after: { command: 'echo on' } },
    ])
    await waitUntil('the job that is to be cancelled runs', () => lines(stubbornLog()).length > 0)
    for (const { pool, does } of stops) {
      await waitUntil(`${does} of ${pool} is done and not reported`, () =>
        first.stopped.some((stop) => stop.pool === pool),
      )
    }
    await killed(first.child)
    second = await startWorker({ twice: true })
  })

  test.each(Object.keys(CASES))('%s: another worker takes over, nothing is doubled or lost', async (what) => {
    await rest[what]!()
    await expectNothingLeft(pools[what]!)
  })

  test('a cancel afterwards kills a job of an hour that ignores SIGTERM, and the sandbox goes on', async () => {
    await takenUpAgain(toCancel, second)
    await toCancel.signal('finish')
    expect(await toCancel.result()).toMatchObject({ heard: 'the cancel', after: { stdout: 'on\n' } })
    expect(processWith(stubborn)).toEqual([])
    expect(lines(stubbornLog())).toEqual(['start', 'SIGTERM'])
    await expectNothingLeft(pools.stubborn!)
    // Its own pod, and a standby in place of it.
    expect(lines(filesOf('stubborn').pods)).toHaveLength(2)
  })

  test('all kinds of effects and jobs carried out twice change nothing', async () => {
    const pool = await poolOf('twice', { budget: 4, keepAliveMs: 300 })
    const mark = marker()
    const [held, lost, byToken, once, late] = await Promise.all([
      holderOf(world, 'twice', { caller: 'held' }),
      holderOf(world, 'twice', { caller: 'lost' }),
      world.start<JobResult>('byToken', [{ pool: 'twice', job: { command: told('twice', 'token') } }]),
      startRunJob('twice', told('twice', 'once'), 'once'),
      holderOf(world, 'twice', { caller: 'late', acquireTimeout: '1s' }),
    ])
    await held.job(told('twice', 'first'))
    await lost.job('sleep 3600', { env: { MARK: mark } })
    expect((await held.nth(1)).result.stdout).toBe('first\n')
    expect((await byToken.result()).stdout).toBe('token\n')
    expect(((await once.result()) as JobResult).stdout).toBe('once\n')
    await waitUntil('the long job runs', () => processWith(mark).length > 0)
    await lost.handle.terminate('test')
    await waitUntil('the long job is gone', () => processWith(mark).length === 0)
    await pool.until('the held lease is recalled', (s) => s.ends.recalled! >= 1)
    await held.job(told('twice', 'second'))
    expect((await held.nth(2)).result.stdout).toBe('second\n')
    await pool.handle.signal(SIGNAL.resize, { v: 1, budget: 0 })
    await late.job(told('twice', 'never'))
    expect(await late.outcome(1)).toMatchObject({ code: 'QueueTimeout' })
    for (const holder of [held, late]) await holder.finish()
    await expectNothingLeft(pool)
    expect(lines(filesOf('twice').jobs).sort()).toEqual(['first', 'once', 'second', 'token'])
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
  await killAll()
  const first = await startWorker()
  const pool = await poolOf('uncollected', { keepAliveMs: 300 })
  const holder = await holderOf(world, 'uncollected')
  await holder.job(`${told('uncollected', 'job')}; sleep 0.5; ${told('uncollected', 'end')}`)
  await started('uncollected', 'job')
  await killed(first.child)
  await started('uncollected', 'end')
  // The pool is served again, the job is not attached to: the pod looks idle, and is asked.
  const drain: Stop = {
    pool: 'uncollected',
    does: 'drain',
    when: 'after',
    // It knows of the job by now: that is not why it is refused.
    asked: { useSeq: 1 },
    answer: { drained: false },
  }
  const second = await startWorker({
    stops: [{ pool: 'uncollected', does: 'run', when: 'before' }, drain],
  })
  await waitUntil('the job is tried again, and the pod was asked', () =>
    ['run', 'drain'].every((what) => second.stopped.some(({ does }) => does === what)),
  )
  await killed(second.child)
  await startWorker()
  expect((await holder.nth(1)).result.stdout).toBe('job\nend\n')
  expect(lines(filesOf('uncollected').jobs)).toEqual(['job', 'end'])
  expect((await pool.status()).ends).toMatchObject({ podLost: 0, failed: 0 })
  await holder.finish()
  await expectNothingLeft(pool)
})

describe('a request that comes again', () => {
  let pool: PoolHandle
  let listener: WorkflowHandle
  let holder: LeaseRequest['holder']
  const heard = () => listener.query<{ grants: Grant[]; ends: LeaseEnd[] }>('heard')
  const of = async (leaseId: string) => {
    const { grants, ends } = await heard()
    const mine = (one: { leaseId: string }) => one.leaseId === leaseId
    return { grants: grants.filter(mine), ends: ends.filter(mine) }
  }

  beforeAll(async () => {
    await killAll()
    await world.startWorker()
    pool = await poolOf('again', { budget: 3, standby: 1, keepAliveMs: 600_000 })
    listener = await world.start('listener', [])
    const { runId } = await listener.describe()
    holder = { workflowId: listener.workflowId, firstExecutionRunId: runId, runId }
  })
  afterAll(() => listener?.signal('finish'))

  const request = (leaseId: string): LeaseRequest => ({
    v: 1,
    leaseId,
    holder,
    leaseWorkflowId: holder.workflowId,
    caller: leaseId,
    reuseTag: '',
    slot: leaseId,
    tenant: '',
    priority: 0,
    requestedAtMs: Date.now(),
    deadlineMs: Date.now() + 600_000,
    replyTo: 'signal',
    pinMs: 0,
  })
  const send = (asked: LeaseRequest) => pool.handle.signal(SIGNAL.request, asked)
  async function granted(asked: LeaseRequest): Promise<Grant> {
    await send(asked)
    return await waitUntil('the grant', async () => (await of(asked.leaseId)).grants[0] ?? null)
  }
  /** Sends it again and waits until that is answered: with `ended`, and no grant beside the one of before. */
  async function expectEnded(asked: LeaseRequest): Promise<void> {
    const before = (await of(asked.leaseId)).ends.length
    await send(asked)
    await waitUntil('the answer', async () => (await of(asked.leaseId)).ends.length > before)
    const { grants, ends } = await of(asked.leaseId)
    expect(ends.at(-1)).toMatchObject({ end: 'failed', problem: { code: 'LeaseRevoked' } })
    expect(grants).toHaveLength(1)
  }
  async function continueAsNew(): Promise<void> {
    const { runId } = await pool.handle.describe()
    await pool.handle.executeUpdate('firepool.upgrade')
    await waitUntil('a new run', async () => (await pool.handle.describe()).runId !== runId)
  }

  test('after a release, a recall and continue-as-new is answered with its end, a live one with the same grant', async () => {
    const released = request(randomUUID())
    await granted(released)
    await pool.handle.signal(SIGNAL.release, { v: 1, leaseId: released.leaseId })
    await pool.until('released', (s) => s.ends.released === 1)
    await expectEnded(released)

    const recalled = request(randomUUID())
    await granted(recalled)
    await pool.handle.signal(SIGNAL.drain, { v: 1 })
    await waitUntil('recalled', async () => (await of(recalled.leaseId)).ends[0]?.end === 'recalled')
    await pool.handle.signal(SIGNAL.resume, { v: 1 })
    await expectEnded(recalled)

    const live = request(randomUUID())
    const grant = await granted(live)
    await send(live)
    await waitUntil('its second answer', async () => (await of(live.leaseId)).grants.length === 2)
    await continueAsNew()
    await expectEnded(released)
    await expectEnded(recalled)
    await send(live)
    await waitUntil('its third answer', async () => (await of(live.leaseId)).grants.length === 3)
    for (const again of (await of(live.leaseId)).grants) expect(again).toMatchObject({ ...grant })
    const { grants, leases } = await pool.status()
    expect(grants.warm + grants.standby + grants.cold).toBe(3)
    expect(leases).toBe(1)
    await pool.handle.signal(SIGNAL.release, { v: 1, leaseId: live.leaseId })
    await expectNothingLeft(pool)
  })
})

describe('more jobs at once than a Temporal worker takes by default (100)', () => {
  const PODS = 6
  /** One runs and the others wait in the runner: each of them occupies a slot of the worker. */
  const JOBS_OF_POD = 17

  beforeAll(async () => {
    await killAll()
    await world.startWorker()
  })

  test('hold up neither pods nor drains nor the jobs of others', async () => {
    const crowded = await poolOf('crowded', { budget: PODS + 1, standby: 1, maxPods: PODS + 3 })
    const crowds = await Promise.all(
      Array.from({ length: PODS }, (_, n) =>
        world.start('crowd', [
          { pool: 'crowded', caller: `crowd-${n}`, jobs: JOBS_OF_POD, job: { command: 'sleep 3600' } },
        ]),
      ),
    )
    const taken = async () => {
      const described = await Promise.all(crowds.map((handle) => handle.describe()))
      return described.flatMap(({ raw }) => raw.pendingActivities ?? []).filter(({ state }) => state === 2)
        .length
    }
    await waitUntil('a worker has all of them', async () => (await taken()) === PODS * JOBS_OF_POD)
    expect(PODS * JOBS_OF_POD).toBeGreaterThan(100)

    await runsNext('crowded', 'other')
    const beside = await poolOf('beside', { keepAliveMs: 300 })
    const holder = await holderOf(world, 'beside')
    await holder.job(told('beside', 'job'))
    await holder.nth(1)
    await beside.until('its lease was drained', (s) => s.ends.recalled === 1)
    await holder.finish()
    await expectNothingLeft(beside)
    expect(await taken()).toBe(PODS * JOBS_OF_POD)

    for (const handle of crowds) await handle.terminate('over')
    await expectNothingLeft(crowded)
  })
})
