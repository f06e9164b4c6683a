import { randomUUID } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { WithStartWorkflowOperation, type Workflow, WorkflowUpdateFailedError } from '@temporalio/client'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { createFirepoolClient, type FirepoolClient, FirepoolError } from '../../dist/client/index.js'
import {
  type JobResult,
  QUEUE,
  SESSION_UPDATE,
  type SessionRun,
  WORKFLOW,
} from '../../dist/contract/index.js'
import { marker } from '../support/holder.js'
import { makeWorld, processWith, type World, waitUntil } from '../support/world.js'

/** firepool.session: a pod held for services that have no workflow of their own. */

let world: World
let firepool: FirepoolClient
beforeAll(async () => {
  world = await makeWorld()
  firepool = createFirepoolClient({ client: world.client })
})
afterAll(() => world?.close())

const problemOf = (promise: Promise<unknown>) =>
  promise.then(
    () => null,
    (error: unknown) => (error instanceof FirepoolError ? error.problem : error),
  )

describe('a session', () => {
  test('holds one pod over its jobs, and gives it back when it is told to end', async () => {
    const pool = await world.pool('held')
    const session = firepool.session('held', { caller: 'svc' })
    const first = await session.run({ command: 'echo 1 >> f; cat f' })
    const second = await session.run({ command: 'echo 2 >> f; cat f' })
    expect(second).toMatchObject({ stdout: '1\n2\n', pod: first.pod, epoch: first.epoch })
    expect((await pool.status()).leases).toBe(1)
    await session.end()
    await pool.until('released, warm', (s) => s.leases === 0 && s.pods.idle === 1)
    expect(await world.client.workflow.getHandle(session.workflowId).result()).toEqual({
      v: 1,
      end: 'ended',
      jobs: 2,
    })
    expect(await session.run({ command: 'cat f' })).toMatchObject({ stdout: '1\n2\n', pod: first.pod })
    await session.end()
  })

  test('is shared by all who name the same caller and slot; jobs run one after the other', async () => {
    await world.pool('shared', { budget: 2, standby: 1 })
    const [one, two] = [1, 2].map(() => firepool.session('shared', { caller: 'svc' }))
    const results = await Promise.all(
      Array.from({ length: 8 }, (_, i) =>
        (i % 2 ? one! : two!).run({ command: `echo ${i} >> f; sleep 0.1; wc -l < f` }),
      ),
    )
    expect(new Set(results.map(({ pod }) => pod)).size).toBe(1)
    expect(results.map(({ stdout }) => Number(stdout)).sort()).toEqual([1, 2, 3, 4, 5, 6, 7, 8])
    await one!.end()
  })

  test('ends by itself when nobody used it for its ttl', async () => {
    const pool = await world.pool('ttl')
    const session = firepool.session('ttl', { caller: 'svc', ttl: '2s' })
    await session.run({ command: 'sleep 4' })
    await pool.until('released', (s) => s.leases === 0 && s.pods.idle === 1)
    expect(await world.client.workflow.getHandle(session.workflowId).result()).toMatchObject({
      end: 'expired',
      jobs: 1,
    })
  })

  test('what is asked again under one key is run once and answered again, also a failure of its own', async () => {
    await world.pool('keys')
    const session = firepool.session('keys', { caller: 'svc' })
    const job = { command: 'echo x >> f; cat f' }
    const both = await Promise.all([session.run(job, { key: 'a' }), session.run(job, { key: 'a' })])
    expect([...both, await session.run(job, { key: 'a' })].map(({ stdout }) => stdout)).toEqual([
      'x\n',
      'x\n',
      'x\n',
    ])
    expect(await problemOf(session.run({ command: 'cat f' }, { key: 'a' }))).toMatchObject({
      code: 'InvalidRequest',
      details: { reason: 'DigestMismatch' },
    })
    const late = { command: 'echo y >> g; cat g; sleep 60', timeout: '500ms' }
    for (let i = 0; i < 2; i++)
      expect(await problemOf(session.run(late, { key: 'b' }))).toMatchObject({ code: 'JobTimeout' })
    expect((await session.run({ command: 'cat g' })).stdout).toBe('y\n')
    await session.end()
  })

  test('continues as new without a caller noticing, and remembers its answers', async () => {
    await world.pool('renew')
    const session = firepool.session('renew', { caller: 'svc' })
    const file = join(world.dir, marker())
    const job = { command: `echo x >> ${file}` }
    const first = await session.run(job, { key: 'once' })
    const handle = world.client.workflow.getHandle(session.workflowId)
    const { runId } = await handle.describe()
    await handle.signal('firepool.renewSession')
    await waitUntil('a new run', async () => (await handle.describe()).runId !== runId)
    expect(await session.run(job, { key: 'once' })).toEqual(first)
    expect((await session.run({ command: 'true' })).pod).toBe(first.pod)
    expect(readFileSync(file, 'utf8')).toBe('x\n')
    await session.end()
  })

  test('a cancel or a termination of it kills what runs, tells who waits, and leaves no lease', async () => {
    const pool = await world.pool('ends')
    for (const how of ['cancel', 'terminate'] as const) {
      const mark = marker()
      const session = firepool.session('ends', { caller: how })
      const waiting = problemOf(session.run({ command: 'sleep 3600', env: { MARK: mark } }))
      await waitUntil('it runs', () => processWith(mark).length > 0)
      await world.client.workflow.getHandle(session.workflowId)[how]()
      expect(await waiting).toMatchObject({ code: how === 'cancel' ? 'Cancelled' : 'PodLost' })
      await pool.until('no lease is left', (s) => s.leases === 0)
      await waitUntil('the job is gone', () => processWith(mark).length === 0)
    }
  })

  test.each([{ ttl: '-1s' }, { ttl: '25h' }, { foo: 1 }, { onPodLost: 'x' }, { v: 2 }, null])(
    'that is started wrongly by another SDK says so to who sent its first job: %j',
    async (wrong) => {
      const startWorkflowOperation = new WithStartWorkflowOperation(WORKFLOW.session, {
        workflowId: `wrong-${randomUUID()}`,
        taskQueue: QUEUE.workflows,
        workflowIdConflictPolicy: 'FAIL',
        args: [wrong && { v: 1, pool: 'nobody-asks', ...wrong }],
      })
      const run = world.client.workflow.executeUpdateWithStart<Workflow, JobResult, [SessionRun]>(
        SESSION_UPDATE.run,
        { startWorkflowOperation, args: [{ v: 1, job: { command: 'true' } }] },
      )
      const error = await run.catch((e: unknown) => e)
      expect(error).toBeInstanceOf(WorkflowUpdateFailedError)
      const { cause } = error as WorkflowUpdateFailedError
      expect(cause).toMatchObject({
        type: 'InvalidRequest',
        details: [{ code: 'InvalidRequest', origin: 'caller' }],
      })
      const handle = await startWorkflowOperation.workflowHandle()
      await expect(handle.result()).rejects.toMatchObject({ cause: { type: 'InvalidRequest' } })
    },
  )

  test('failures are typed: a pool that is not there, bad jobs and options', async () => {
    expect(await problemOf(firepool.session('nowhere').run({ command: 'true' }))).toMatchObject({
      code: 'PoolNotFound',
    })
    await world.pool('typed', { budget: 0, standby: 0 })
    const session = firepool.session('typed', { caller: 'x', acquireTimeout: 300 })
    expect(await problemOf(session.run({ command: [] }))).toMatchObject({ code: 'InvalidRequest' })
    expect(await problemOf(session.run({ command: 'true' }, { key: 'a b' }))).toMatchObject({
      code: 'InvalidRequest',
    })
    expect(() => firepool.session('typed', { ttl: -1 })).toThrow(FirepoolError)
    expect(() => firepool.session('typed', { calller: 'x' } as never)).toThrow(/did you mean 'caller'/)
    // Nothing started: the same key may be asked again.
    for (let i = 0; i < 2; i++)
      expect(await problemOf(session.run({ command: 'true' }, { key: 'k' }))).toMatchObject({
        code: 'QueueTimeout',
      })
    await session.end()
  })
})
