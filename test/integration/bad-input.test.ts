import { randomUUID } from 'node:crypto'
import { statSync } from 'node:fs'
import { WorkflowFailedError, WorkflowUpdateFailedError } from '@temporalio/client'
import { ApplicationFailure, defaultPayloadConverter } from '@temporalio/common'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import {
  ACTIVITY,
  LIMIT,
  type Problem,
  poolWorkflowId,
  QUEUE,
  SIGNAL,
  UPDATE,
  WORKFLOW,
} from '../../dist/contract/index.js'
import type { Ran } from '../support/callers.js'
import { badTasks, runsOf } from '../support/flood.js'
import { holderOf } from '../support/holder.js'
import { CALLER_QUEUE, makeWorld, type World, waitUntil } from '../support/world.js'

let world: World
beforeAll(async () => {
  world = await makeWorld()
})
afterAll(() => world?.close())

/** The Problem in a failed workflow or update. */
async function failure(work: Promise<unknown>): Promise<Problem> {
  try {
    await work
  } catch (error) {
    let cause: unknown = error
    while (cause instanceof WorkflowFailedError || cause instanceof WorkflowUpdateFailedError)
      cause = cause.cause
    if (cause instanceof ApplicationFailure) return cause.details?.[0] as Problem
    throw error
  }
  throw new Error('it did not fail')
}

/** firepool.runJob with whatever is given. */
function runJob(input: unknown, workflowId = `run-${Math.random().toString(36).slice(2)}`) {
  return world.client.workflow.execute(WORKFLOW.runJob, {
    workflowId,
    taskQueue: QUEUE.workflows,
    args: [input],
    workflowExecutionTimeout: '2m',
  })
}

async function rawSignal(
  workflowId: string,
  signalName: string,
  payload: { metadata?: Record<string, Uint8Array>; data?: Uint8Array },
) {
  await world.client.workflowService.signalWorkflowExecution({
    namespace: world.client.options.namespace,
    workflowExecution: { workflowId },
    signalName,
    input: { payloads: [payload] },
  })
}

const bytes = (text: string) => new TextEncoder().encode(text)

const RAW: [string, Parameters<typeof rawSignal>[2]][] = [
  ['broken JSON', { metadata: { encoding: bytes('json/plain') }, data: bytes('{"v": 1, ') }],
  ['an unknown encoding', { metadata: { encoding: bytes('binary/alien') }, data: bytes('???') }],
  ['no metadata', { data: bytes('{}') }],
  ['nothing at all', {}],
]

describe('poison signals', () => {
  test.each(RAW)('%s never wedges a pool: counted, named, dropped (F26)', async (name, payload) => {
    const poolName = `poison-${RAW.findIndex(([n]) => n === name)}`
    const pool = await world.pool(poolName)
    const signals = ['request', 'release', 'token', 'setBudget', 'resize', 'apply'].map(
      (s) => `firepool.${s}`,
    )
    for (const signal of signals) await rawSignal(poolWorkflowId(poolName), signal, payload)
    const status = await pool.until('all were counted', (s) => s.poison.count === signals.length)
    expect(status.poison.last).toContain('firepool.apply')
    const handle = await world.start<Ran[]>('loop', [{ pool: poolName, jobs: [{ command: 'echo on' }] }])
    expect((await handle.result())[0]!.result.stdout).toBe('on\n')
  })

  test('garbage that can be decoded is poison as well', async () => {
    const pool = await world.pool('garbage')
    const garbage = [
      null,
      7,
      'x',
      [],
      {},
      { v: 2 },
      { v: 1, leaseId: '../..' },
      { v: 1, batch: [null, 3] },
      { v: 1, batch: 'no' },
    ]
    for (const payload of garbage) await pool.handle.signal('firepool.request', payload)
    await pool.until('all were counted', (s) => s.poison.count === garbage.length + 1)
    await pool.handle.signal('firepool.nobodyKnowsThis', { v: 1 })
    const handle = await world.start<Ran[]>('loop', [{ pool: 'garbage', jobs: [{ command: 'echo on' }] }])
    expect((await handle.result())[0]!.result.stdout).toBe('on\n')
  })

  test('a lease and a runJob survive garbage, also raw', async () => {
    const pool = await world.pool('lease-poison', { budget: 1 })
    const holder = await holderOf(world, 'lease-poison')
    await holder.job('echo 1')
    await holder.nth(1)
    const [lease] = (await pool.status()).leased
    const id = await waitUntil('the lease workflow is listed', async () => {
      for await (const { workflowId } of world.client.workflow.list({
        query: 'WorkflowType="firepool.lease" AND ExecutionStatus="Running"',
      })) {
        if (workflowId.endsWith(lease!.leaseId)) return workflowId
      }
      return null
    })
    for (const signal of ['firepool.grant', 'firepool.ended']) {
      for (const [, payload] of RAW) await rawSignal(id, signal, payload)
      await world.client.workflow.getHandle(id).signal(signal, { v: 1, leaseId: 'other', end: 7 })
    }
    const job = runJob(
      { v: 1, pool: 'lease-poison', caller: 'b', job: { command: 'echo 2' } },
      'poisoned-run',
    )
    await pool.until('it waits', (s) => s.queue.capacity === 1)
    for (const [, payload] of RAW) await rawSignal('poisoned-run', 'firepool.grant', payload)
    await holder.job('echo 3')
    await holder.nth(2)
    await pool.handle.signal('firepool.resize', { v: 1, budget: 2 })
    expect(await job).toMatchObject({ stdout: '2\n' })
    await holder.finish()
  })
})

describe('a pool whose workflow is cancelled', () => {
  test('goes on: it says how to delete it, serves its callers, takes orders, and ends when it is deleted', async () => {
    const pool = await world.pool('cancelled', { keepAliveMs: 500 })
    const holder = await holderOf(world, 'cancelled')
    await holder.job('echo 1')
    await holder.nth(1)
    await pool.handle.cancel()
    const { poison } = await pool.until('it has heard of it', (s) => s.poison.count === 1)
    expect(poison.last).toBe(
      'cancel: a pool does not end by it; delete it with firepool pool delete cancelled',
    )
    await pool.until('an idle lease is recalled as ever', (s) => s.ends.recalled === 1)
    await holder.job('echo 2')
    expect((await holder.nth(2)).result.stdout).toBe('2\n')
    // By the update, which acts outside of the main loop.
    expect(await runJob({ v: 1, pool: 'cancelled', job: { command: 'echo 3' } })).toMatchObject({
      stdout: '3\n',
    })
    await holder.finish()
    // What is on its way is carried over.
    await pool.handle.executeUpdate(UPDATE.upgrade)
    await pool.handle.executeUpdate(UPDATE.delete, { args: [{ v: 1, force: true }] })
    expect(await pool.handle.result()).toMatchObject({ end: 'deleted' })
    expect(badTasks(await runsOf(world, poolWorkflowId('cancelled')))).toEqual({ forceClosed: 0, others: [] })
  })
})

describe('a grant that cannot be decoded, to the workflow of a caller', () => {
  test('is dropped while the caller lives, and the real one is taken', async () => {
    const pool = await world.pool('raw-grant', { budget: 0 })
    const holder = await holderOf(world, 'raw-grant')
    await holder.job('echo 1')
    await pool.until('it waits', (s) => s.queue.capacity === 1)
    for (const [, payload] of RAW) await rawSignal(holder.handle.workflowId, SIGNAL.grant, payload)
    await pool.handle.signal('firepool.resize', { v: 1, budget: 1 })
    expect((await holder.nth(1)).result.stdout).toBe('1\n')
    for (const [, payload] of RAW) await rawSignal(holder.handle.workflowId, SIGNAL.grant, payload)
    await holder.job('echo 2')
    expect((await holder.nth(2)).result.stdout).toBe('2\n')
    await holder.finish()
    expect(badTasks(await runsOf(world, holder.handle.workflowId))).toEqual({ forceClosed: 0, others: [] })
  })

  test.each(RAW)('that comes before its first workflow task: %s', async (name, payload) => {
    const pool = `early-grant-${RAW.findIndex(([n]) => n === name)}`
    await world.pool(pool)
    const workflowId = `early-grant-${randomUUID()}`
    const input = defaultPayloadConverter.toPayload({ pool, jobs: [{ command: 'echo on' }] })!
    await world.client.workflowService.signalWithStartWorkflowExecution({
      namespace: world.client.options.namespace,
      workflowId,
      workflowType: { name: 'loop' },
      taskQueue: { name: CALLER_QUEUE },
      requestId: randomUUID(),
      input: { payloads: [input] },
      signalName: SIGNAL.grant,
      signalInput: { payloads: [payload] },
    })
    const ran = (await world.client.workflow.getHandle(workflowId).result()) as Ran[]
    expect(ran[0]!.result.stdout).toBe('on\n')
    expect(badTasks(await runsOf(world, workflowId))).toEqual({ forceClosed: 0, others: [] })
  })
})

describe('requests', () => {
  test('an unknown pool', async () => {
    const gone = await failure(runJob({ pool: 'nowhere', job: { command: 'true' } }))
    expect(gone).toMatchObject({ code: 'PoolNotFound', origin: 'caller' })
    expect(gone.message).toMatch(/pool apply|pool list/)
    const holder = await holderOf(world, 'nowhere')
    await holder.job('true')
    expect(await holder.outcome(1)).toMatchObject({ code: 'PoolNotFound' })
    await holder.finish()
  })

  test.each([
    ['no object', 'x', /takes \{ pool, caller, job \}/],
    ['a pool of the wrong type', { pool: 7, job: { command: 'true' } }, /pool's name/],
    ['no job', { pool: 'inputs' }, /a job is/],
    [
      'another version',
      { v: 2, pool: 'inputs', job: { command: 'true' } },
      /version 1 of the contract, not 2/,
    ],
    [
      'an unknown onPodLost',
      { pool: 'inputs', job: { command: 'true' }, onPodLost: 'again' },
      /'fail' or 'rerun', not "again"/,
    ],
    ['a command of the wrong type', { pool: 'inputs', job: { command: 5 } }, /command/],
    [
      'a time limit of 0',
      { pool: 'inputs', job: { command: 'true', timeout: 0 } },
      /timeout is 0 ms; it must be between/,
    ],
    ['a negative time limit', { pool: 'inputs', job: { command: 'true', timeout: -5 } }, /between/],
    ['a time limit that is none', { pool: 'inputs', job: { command: 'true', timeout: 'soon' } }, /duration/],
    ['a huge time limit', { pool: 'inputs', job: { command: 'true', timeout: 1e15 } }, /between/],
    [
      'a priority out of bounds',
      { pool: 'inputs', priority: 10, job: { command: 'true' } },
      /priority is 10/,
    ],
    ['a fractional priority', { pool: 'inputs', priority: 1.5, job: { command: 'true' } }, /whole number/],
    [
      'a negative acquireTimeout',
      { pool: 'inputs', acquireTimeout: -1, job: { command: 'true' } },
      /acquireTimeout/,
    ],
    [
      'a caller of 10 kB',
      { pool: 'inputs', caller: 'ü'.repeat(5_000), job: { command: 'true' } },
      /caller has 10000 bytes/,
    ],
    ['a caller with NUL', { pool: 'inputs', caller: 'a\u0000b', job: { command: 'true' } }, /NUL/],
    ['an empty caller', { pool: 'inputs', caller: '', job: { command: 'true' } }, /caller is empty/],
    [
      'a job of 1.5 MB',
      { pool: 'inputs', job: { command: 'true', stdin: 'x'.repeat(1_500_000) } },
      /at most 1000000/,
    ],
    [
      'a path that leaves the work folder',
      { pool: 'inputs', job: { command: 'true', files: [{ path: '../../x', content: '' }] } },
      /work folder|leave/,
    ],
    ['an unknown field of a job', { pool: 'inputs', job: { command: 'true', comand: 'x' } }, /comand/],
  ])('%s is InvalidRequest, with cause and remedy', async (_name, input, text) => {
    await world.pool('inputs').catch(() => undefined)
    const refused = await failure(runJob(input))
    expect(refused).toMatchObject({ code: 'InvalidRequest', origin: 'caller' })
    expect(refused.message).toMatch(text)
  })

  test.each<[string, Record<string, unknown>, RegExp]>([
    [
      'an unknown option',
      { acquireTimeOut: '5s' },
      /no option "acquireTimeOut"; did you mean 'acquireTimeout'\?/,
    ],
    ['a value that is none', { onPodLost: 'again' }, /onPodLost must be 'fail' or 'rerun', not "again"/],
  ])('openPool with %s is InvalidRequest', async (_name, options, text) => {
    const holder = await holderOf(world, 'nowhere', options)
    const refused = await failure(holder.handle.result())
    expect(refused).toMatchObject({ code: 'InvalidRequest', origin: 'caller' })
    expect(refused.message).toMatch(text)
  })

  test('a job that no pod would take acquires none', async () => {
    const pool = await world.pool('untouched')
    const holder = await holderOf(world, 'untouched')
    const wrong = [
      { cwd: '..' },
      { collect: ['/etc/passwd'] },
      { files: [{ path: 'a/../../x', content: '' }] },
      { env: { 'A=B': '1' } },
    ]
    for (const [n, more] of wrong.entries()) {
      const refused = await failure(runJob({ pool: 'untouched', job: { command: 'true', ...more } }))
      await holder.job('true', more)
      for (const problem of [refused, await holder.outcome(n + 1)])
        expect(problem).toMatchObject({ code: 'InvalidRequest', message: expect.stringMatching(/^job\.\w+/) })
    }
    expect((await pool.status()).grants).toEqual({ warm: 0, standby: 0, cold: 0 })
    await holder.finish()
  })

  test('a job of 3 MiB fails typed in the caller, whose workflow goes on', async () => {
    await world.pool('large')
    const handle = await world.start<string>('largeJob', [{ pool: 'large', bytes: 3 * 1024 * 1024 }])
    expect(await handle.result()).toMatch(/^InvalidRequest: the job has 3\d+ bytes/)
  })

  test('callers with slashes, spaces and unicode work, and are told apart', async () => {
    const pool = await world.pool('names', { budget: 8 })
    const callers = [
      'a/b/c',
      'a b c',
      '..',
      'ünï/çødé 日本 🎉',
      '"quoted"|`ticks`',
      'x'.repeat(LIMIT.callerBytes),
    ]
    const pods = new Set<string>()
    for (const caller of callers) {
      const handle = await world.start<Ran[]>('loop', [
        { pool: 'names', caller, jobs: [{ command: 'echo on' }] },
      ])
      pods.add((await handle.result())[0]!.pod)
    }
    expect(pods.size).toBe(callers.length)
    const { rows } = await pool.handle.query<{ rows: { caller: string }[] }>('firepool.pods')
    expect(rows.map((row) => row.caller)).toEqual(expect.arrayContaining(callers))
  })

  test('a command that does not exist', async () => {
    await world.pool('missing')
    const refused = await failure(runJob({ pool: 'missing', job: { command: ['/no/such/program', 'x'] } }))
    expect(refused).toMatchObject({ code: 'InvalidRequest' })
    expect(refused.message).toContain('/no/such/program')
  })

  test('output of 1 GiB: bounded memory, a marker, and the exact bytes in a file', async () => {
    const pool = await world.pool('flood')
    const holder = await holderOf(world, 'flood')
    await holder.job(`head -c ${1024 ** 3} /dev/zero | tr '\\0' x; echo end`)
    const { result } = await holder.nth(1)
    expect(result.output.stdout).toMatchObject({ bytes: 1024 ** 3 + 4, truncated: true })
    expect(result.stdout.length).toBeLessThan(128 * 1024)
    expect(result.stdout.endsWith('end\n')).toBe(true)
    await holder.job(`stat -c %s ${result.output.stdout.file}`)
    expect((await holder.nth(2)).result.stdout).toBe(`${1024 ** 3 + 4}\n`)
    expect((await pool.status()).ends.podLost).toBe(0)
    await holder.finish()
    expect(statSync(world.dir).isDirectory()).toBe(true)
  })
})

describe('pools and budgets', () => {
  test('two pools with one name: the second start is refused, the first goes on', async () => {
    const pool = await world.pool('twice')
    await expect(world.pool('twice')).rejects.toThrow(/already started/i)
    expect((await pool.status()).mode).toBe('running')
  })

  test.each([-1, 1e9, 1.5, 'many', null])('a resize of the budget to %s', async (budget) => {
    const pool = await world.pool('bounds').catch(() => null)
    const handle = pool?.handle ?? world.client.workflow.getHandle(poolWorkflowId('bounds'))
    if (budget === null) {
      await handle.executeUpdate(UPDATE.resize, { args: [{ v: 1, budget }] })
      return
    }
    const refused = await failure(handle.executeUpdate(UPDATE.resize, { args: [{ v: 1, budget }] }))
    expect(refused).toMatchObject({ code: 'InvalidRequest' })
    expect(refused.message).toMatch(/budget/)
  })

  test.each([
    [{ budget: 1e9 }, 'budget is 1000000000'],
    [{ budget: 4, maxPods: 3 }, 'maxPods is 3, less than the budget of 4 needs'],
    [{ budget: 4, profile: { env: { FIREPOOL_POD: 'x' } } }, 'profile.env may not set FIREPOOL_POD'],
  ])('a spec with %j fails the pool at its start, typed', async (change, text) => {
    const start = world.client.workflow.execute(WORKFLOW.pool, {
      workflowId: poolWorkflowId('wrong'),
      taskQueue: QUEUE.workflows,
      args: [{ v: 1, spec: { v: 1, name: 'wrong', ...change } }],
    })
    expect(await failure(start)).toMatchObject({
      code: 'InvalidRequest',
      message: expect.stringContaining(text),
    })
  })

  test('a second workflow of a pool under another id is refused: it would end the pods of the first', async () => {
    const pool = await world.pool('only', { budget: 1, standby: 1 })
    const start = world.client.workflow.execute(WORKFLOW.pool, {
      workflowId: 'mine',
      taskQueue: QUEUE.workflows,
      args: [{ v: 1, spec: { v: 1, name: 'only', budget: 1 } }],
    })
    expect(await failure(start)).toMatchObject({
      code: 'InvalidRequest',
      message: expect.stringMatching(/^this workflow is mine, and that of pool only is pool\/only; start it/),
    })
    expect((await pool.status()).standby.ready).toBe(1)
  })

  test('activities of a pool that somebody completes by hand with nonsense are asked again, and do not wedge it', async () => {
    const pool = await world.pool('forged', { budget: 1, standby: 1 })
    const { workflowId } = pool.handle
    const watching = async () => {
      const { raw } = await pool.handle.describe()
      return raw.pendingActivities?.find(({ activityType }) => activityType?.name === ACTIVITY.observe)
    }
    for (const answer of [null, 'junk', { v: 1, cursor: 5, full: true, pods: [null, { pod: 7 }] }]) {
      const { activityId } = await waitUntil('it watches its pods', async () => (await watching()) ?? null)
      await world.client.activity.complete({ workflowId, activityId: activityId! }, answer)
      await waitUntil('it watches again', async () => {
        const next = await watching()
        return next !== undefined && next.activityId !== activityId
      })
    }
    expect(await runJob({ pool: 'forged', job: { command: 'echo on' } })).toMatchObject({ stdout: 'on\n' })
    await pool.until('its pod is given back', (s) => s.leases === 0)
  })

  test('a token that is none frees the grant for the next one, and the pod for others', async () => {
    const pool = await world.pool('untoken', { budget: 1, standby: 1 })
    const leaseId = randomUUID()
    const holder = { workflowId: pool.handle.workflowId, firstExecutionRunId: 'x', runId: 'x' }
    const lease = await world.client.workflow.start(WORKFLOW.lease, {
      workflowId: `by-hand-${leaseId}`,
      taskQueue: QUEUE.workflows,
      args: [{ pool: 'untoken', leaseId, caller: 'mallory', acquireTimeout: '5s', holder }],
    })
    await pool.handle.signal(SIGNAL.token, { v: 1, leaseId, token: 'AAAA' })
    expect(await lease.result()).toMatchObject({ end: 'expired' })
    await pool.until('nothing is left of it', (s) => s.leases === 0 && s.effectsInFlight === 0)
    expect(await runJob({ pool: 'untoken', job: { command: 'echo on' } })).toMatchObject({ stdout: 'on\n' })
  })

  test('an update that contradicts itself is refused, the pool goes on with what it has', async () => {
    const pool = await world.pool('sense')
    const spec = { v: 1, name: 'sense', budget: 4, maxPods: 3 }
    const refused = await failure(pool.handle.executeUpdate(UPDATE.apply, { args: [spec] }))
    expect(refused).toMatchObject({
      code: 'InvalidRequest',
      message: expect.stringContaining('maxPods is 3'),
    })
    expect((await pool.status()).mode).toBe('running')
  })

  test.each([
    [{ v: 2 }, /version 1 of the contract, not 2/],
    [{ replyTo: 'mail' }, /'signal' or 'token', not "mail"/],
  ])('a lease with %j is InvalidRequest', async (change, text) => {
    const leaseId = randomUUID()
    const holder = { workflowId: 'w', firstExecutionRunId: 'r', runId: 'r' }
    const start = world.client.workflow.execute(WORKFLOW.lease, {
      workflowId: `lease-${leaseId}`,
      taskQueue: QUEUE.workflows,
      args: [{ v: 1, pool: 'inputs', leaseId, holder, ...change }],
    })
    expect((await failure(start)).message).toMatch(text)
  })

  test('a pool with live leases is not deleted without force; with force its jobs are ended', async () => {
    const pool = await world.pool('delete-me')
    const holder = await holderOf(world, 'delete-me')
    await holder.job('true')
    await holder.nth(1)
    const refused = await failure(pool.handle.executeUpdate(UPDATE.delete, { args: [{ v: 1 }] }))
    expect(refused.message).toMatch(/1 live lease and 0 waiting requests.*force/)
    await pool.handle.executeUpdate(UPDATE.delete, { args: [{ v: 1, force: true }] })
    expect(await pool.handle.result()).toMatchObject({ end: 'deleted' })
    await holder.job('true')
    expect(await holder.outcome(2)).toMatchObject({ code: 'PoolNotFound' })
    await holder.finish()
  })
})
