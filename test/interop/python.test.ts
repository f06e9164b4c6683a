/** A caller in another SDK: the Python of examples/python as it is, and of worker.py for the edges of the contract. */
import { type ChildProcess, spawn } from 'node:child_process'
import { fileURLToPath } from 'node:url'
import type { WorkflowHandle } from '@temporalio/client'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { Grant, JobResult, LeaseEnd, Problem } from '../../dist/contract/index.js'
import { holderOf, marker } from '../support/holder.js'
import { pythonWith } from '../support/python.js'
import { makeWorld, processWith, type World, waitUntil } from '../support/world.js'

const EXAMPLE = fileURLToPath(new URL('../../examples/python', import.meta.url))
const EXAMPLE_QUEUE = 'python-callers'
const EDGE_QUEUE = 'python-edges'

const found = await pythonWith('temporalio')
if ('skip' in found) console.error(`skipped, a Python caller was NOT tested: ${found.skip}`)

interface Step {
  pod: string
  hit: string
  exitCode: number
  stdout: string
}

let world: World
const workers: ChildProcess[] = []

/** Starts a worker and waits until it says that it polls. */
async function startWorker(python: string, script: string): Promise<void> {
  const worker = spawn(python, [script], {
    stdio: ['ignore', 'pipe', 'inherit'],
    env: {
      PATH: process.env.PATH ?? '',
      PYTHONPATH: EXAMPLE,
      PYTHONDONTWRITEBYTECODE: '1',
      TEMPORAL_ADDRESS: world.address,
      TEMPORAL_NAMESPACE: world.server.namespace,
    },
  })
  workers.push(worker)
  await new Promise<void>((resolve, reject) => {
    worker.stdout.once('data', () => resolve())
    worker.once('error', reject)
    worker.once('exit', (code) => reject(new Error(`${script} ended with ${code}`)))
  })
}

describe.skipIf('skip' in found)('a caller in Python', () => {
  beforeAll(async () => {
    if ('skip' in found) return
    world = await makeWorld()
    await Promise.all([
      startWorker(found.python, `${EXAMPLE}/worker.py`),
      startWorker(found.python, fileURLToPath(new URL('./worker.py', import.meta.url))),
    ])
  })
  afterAll(async () => {
    for (const worker of workers) worker.kill('SIGKILL')
    await world?.close()
  })

  const agent = (...args: [pool: string, caller: string, commands: string[]]) =>
    world.start<Step[]>('Agent', args, { taskQueue: EXAMPLE_QUEUE })
  const edge = <T>(workflow: string, args: unknown[]) =>
    world.start<T>(workflow, args, { taskQueue: EDGE_QUEUE })

  test('holds one pod for a loop; the end of the workflow is the release; a second one finds the pod warm', async () => {
    const pool = await world.pool('loop')
    const first = await (await agent('loop', 'ann', ['echo kept > f', 'cat f', 'exit 3'])).result()
    expect(first.map(({ stdout, exitCode }: Step) => [stdout, exitCode])).toEqual([
      ['', 0],
      ['kept\n', 0],
      ['', 3],
    ])
    expect(new Set(first.map(({ pod }: Step) => pod)).size).toBe(1)
    expect(first[0]!.hit).toBe('standby')
    await pool.until('the lease is free', (s) => s.leases === 0 && s.pods.idle === 1)
    const second = await (await agent('loop', 'ann', ['cat f'])).result()
    expect(second).toEqual([{ pod: first[0]!.pod, hit: 'warm', exitCode: 0, stdout: 'kept\n' }])
    const other = await (await agent('loop', 'bob', ['cat f'])).result()
    expect(other[0]!.pod).not.toBe(first[0]!.pod)
    const status = await pool.until('all is free', (s) => s.leases === 0)
    expect(status).toMatchObject({ ends: { released: 3 }, leaked: 0 })
  })

  test.each(['terminated', 'cancelled'] as const)(
    '%s in the middle of a job: nothing is left',
    async (how) => {
      const pool = await world.pool(how)
      const mark = marker()
      const handle = await agent(how, 'ann', [`MARK=${mark} sleep 3600; true`])
      await waitUntil('the job runs', () => processWith(mark).length > 0)
      if (how === 'terminated') await handle.terminate('test')
      else await handle.cancel()
      await pool.until('the lease is free', (s) => s.leases === 0 && s.ends.released === 1)
      await waitUntil('the job of an hour is gone', () => processWith(mark).length === 0)
    },
  )

  test('a request that waits is served when a pod frees', async () => {
    const pool = await world.pool('queue', { budget: 1, standby: 0, keepAliveMs: 0 })
    const holder = await holderOf(world, 'queue', { caller: 'ann' })
    await holder.job('true')
    await holder.nth(1)
    const waiting = await agent('queue', 'bob', ['echo served'])
    await pool.until('bob waits', (s) => s.queue.capacity === 1)
    await holder.finish()
    expect(await waiting.result()).toMatchObject([{ hit: 'cold', stdout: 'served\n' }])
  })

  test('a retry of awaitLease offers a new token, the old one is gone; a grant between two attempts is not lost', async () => {
    const pool = await world.pool('tokens', { budget: 1, standby: 0, keepAliveMs: 0 })
    const holder = await holderOf(world, 'tokens')
    await holder.job('true')
    await holder.nth(1)
    const bare = await edge<{ grant: Grant; result: JobResult; end: LeaseEnd }>('Bare', ['tokens', 2, 4])
    await pool.until('it waits', (s) => s.queue.capacity === 1)
    const [old] = await waitUntil('the first token came', () => tokensIn(pool.handle))
    await waitUntil('the first attempt is over, the second not begun', async () => {
      const { raw } = await bare.describe()
      const [activity] = raw.pendingActivities ?? []
      return activity?.attempt === 2 && Number(activity.state) === PENDING_SCHEDULED
    })
    await expect(world.client.activity.complete(Buffer.from(old!, 'base64'), {})).rejects.toThrow(
      /not found/i,
    )
    await holder.finish()
    const { grant, result, end } = await bare.result()
    expect(result).toMatchObject({ stdout: 'bare\n', pod: grant.pod, epoch: grant.epoch })
    expect(end).toEqual({ v: 1, leaseId: grant.leaseId, end: 'released' })
    const tokens = await tokensIn(pool.handle)
    expect(tokens!.length).toBeGreaterThanOrEqual(2)
    expect(new Set(tokens).size).toBe(tokens!.length)
    await pool.until('the lease is free', (s) => s.leases === 0)
  })

  test('one job in one call: a reward is 1 or 0, and none when the tests could not run', async () => {
    const pool = await world.pool('verify')
    const verify = async (name: string, solution: string) =>
      (
        await world.start('Verify', [name, solution, 'assert add(1, 2) == 3'], { taskQueue: EXAMPLE_QUEUE })
      ).result()
    expect(await verify('verify', 'add = lambda a, b: a + b')).toEqual({ reward: 1, why: 'exit code 0' })
    expect(await verify('verify', 'add = lambda a, b: a - b')).toEqual({ reward: 0, why: 'exit code 1' })
    expect(await verify('verify', 'while True: pass')).toEqual({ reward: 0, why: 'JobTimeout' })
    expect(await verify('nowhere', '')).toEqual({ reward: null, why: 'PoolNotFound' })
    expect(await pool.until('all is free', (s) => s.leases === 0)).toMatchObject({
      grants: { standby: 1, warm: 2 },
    })
  })

  describe('failures are typed', () => {
    const call = async (kind: string, name: string, given: unknown) =>
      (await edge<Problem | null>('Call', [kind, name, given])).result()

    test('bad input names the field and the remedy', async () => {
      await world.pool('bad')
      const grant = { leaseId: 'x', pool: 'bad', pod: 'p', address: 'http://127.0.0.1:1', incarnation: 'i' }
      const bad: [string, string, unknown, RegExp][] = [
        ['activity', 'firepool.run', {}, /grant/],
        ['activity', 'firepool.run', null, /grant/],
        ['activity', 'firepool.run', { grant, job: {} }, /grant\.epoch/],
        ['activity', 'firepool.awaitLease', { pool: 'bad', leaseId: 7 }, /leaseId/],
        ['activity', 'firepool.awaitLease', { pool: 'Bad Name', leaseId: 7 }, /pool/],
        ['workflow', 'firepool.lease', { pool: 'bad', leaseId: 'mine' }, /leaseId/],
        ['workflow', 'firepool.lease', null, /pool/],
        ['workflow', 'firepool.runJob', { pool: 'bad' }, /job/],
        [
          'workflow',
          'firepool.runJob',
          { pool: 'bad', job: { comand: 'true' } },
          /no field "comand"; did you mean 'command'/,
        ],
        ['workflow', 'firepool.runJob', { pool: 'bad', job: { command: [] } }, /job\.command/],
        ['workflow', 'firepool.runJob', { pool: 'bad', job: { command: 'true' }, priority: -1 }, /priority/],
      ]
      const problems = await Promise.all(bad.map(([kind, name, given]) => call(kind, name, given)))
      for (const [i, problem] of problems.entries()) {
        const [, name, given, about] = bad[i]!
        expect(problem, `${name} of ${JSON.stringify(given)}`).toMatchObject({
          code: 'InvalidRequest',
          origin: 'caller',
        })
        expect(problem!.message).toMatch(about)
      }
      const noCommand = await edge<Problem>('Job', ['bad', {}, { timeout: '1s' }])
      expect(await noCommand.result()).toMatchObject({
        code: 'InvalidRequest',
        message: expect.stringContaining('command'),
      })
    })

    test('an unknown pool, through each door', async () => {
      const viaSandbox = await edge<Problem>('Job', ['nowhere', {}, { command: 'true' }])
      expect(await viaSandbox.result()).toMatchObject({ code: 'PoolNotFound', origin: 'caller' })
      expect(
        await call('workflow', 'firepool.runJob', { pool: 'nowhere', job: { command: 'true' } }),
      ).toMatchObject({
        code: 'PoolNotFound',
      })
    })

    test('a full pool and a busy slot', async () => {
      const pool = await world.pool('full', { budget: 1, standby: 0 })
      const holder = await holderOf(world, 'full', { caller: 'ann' })
      await holder.job('true')
      await holder.nth(1)
      const late = await edge<Problem>('Job', ['full', { acquireTimeout: '1s' }, { command: 'true' }])
      expect(await late.result()).toMatchObject({
        code: 'QueueTimeout',
        origin: 'infrastructure',
        details: { reason: 'BudgetExhausted', position: 1 },
      })
      const second = await edge<Problem>('Job', [
        'full',
        { caller: 'ann', acquireTimeout: '1s' },
        { command: 'true' },
      ])
      expect(await second.result()).toMatchObject({ code: 'SlotBusy', origin: 'caller' })
      await holder.finish()
      await pool.until('all is free', (s) => s.leases === 0)
    })
  })
})

/** PENDING_ACTIVITY_STATE_SCHEDULED of the API: between two attempts. */
const PENDING_SCHEDULED = 1

/** The tokens that reached a pool so far, from its history; null when there is none yet. */
async function tokensIn(handle: Pick<WorkflowHandle, 'fetchHistory'>): Promise<string[] | null> {
  const { events } = await handle.fetchHistory()
  const tokens = (events ?? []).flatMap(({ workflowExecutionSignaledEventAttributes: signal }) => {
    if (signal?.signalName !== 'firepool.token') return []
    const { batch } = JSON.parse(Buffer.from(signal.input!.payloads![0]!.data!).toString()) as {
      batch: { token: string }[]
    }
    return batch.map(({ token }) => token)
  })
  return tokens.length > 0 ? tokens : null
}
