import { afterAll, beforeAll, describe, expect, inject, test } from 'vitest'
import { WORKFLOW } from '../../dist/contract/index.js'
import type { Ran } from '../support/callers.js'
import { holderOf, marker } from '../support/holder.js'
import { createNamespace } from '../support/production-server.js'
import { makeWorld, type PoolHandle, processWith, type World, waitUntil } from '../support/world.js'

/** On PostgreSQL and 64 shards, with Firepool's worker in a process of its own: what README.md promises of each end. */

const NAMESPACE = 'release'

let world: World
beforeAll(async () => {
  const { address, parts } = inject('production')
  await createNamespace(parts, address, NAMESPACE)
  world = await makeWorld({ workerProcess: true, server: { address, namespace: NAMESPACE } })
})
afterAll(() => world?.close())

type Holder = Awaited<ReturnType<typeof holderOf>>

interface End {
  name: string
  /** while a job runs, which then is killed; else after one */
  midJob?: true
  start?: Record<string, unknown>
  end(holder: Holder): Promise<unknown>
  /** how the caller comes again, if not by another workflow */
  again?: typeof nextRun
}

const ENDS: End[] = [
  { name: 'complete', end: (holder) => holder.finish('complete') },
  { name: 'fail', end: (holder) => holder.finish('fail') },
  { name: 'continue-as-new', end: (holder) => holder.finish('continue'), again: nextRun },
  { name: 'cancel', midJob: true, end: (holder) => holder.handle.cancel() },
  { name: 'terminate', midJob: true, end: (holder) => holder.handle.terminate('test') },
  {
    name: 'run-time-out',
    midJob: true,
    // Long enough for the jobs before it, on a machine that does something else as well.
    start: { workflowRunTimeout: '12s' },
    end: async () => undefined,
  },
]

/** Leaves a file, and a process in a session of its own; it has left the job's group when the job ends. */
const DAEMON =
  "setsid sh -c 'echo kept > kept; exec sleep 3600' > /dev/null 2>&1 & until [ -s kept ]; do sleep 0.01; done"

/** Runs one command as this caller, in a workflow of its own. */
async function once(pool: string, caller: string, command: string): Promise<Ran> {
  const jobs = [{ command }]
  const handle = await world.start<Ran[]>('loop', [{ pool, caller, jobs, release: true }])
  const [ran] = await handle.result()
  return ran!
}

/** The same, in the next run of a workflow that has continued as new; it ends then. */
async function nextRun(_pool: string, _caller: string, command: string, { handle }: Holder): Promise<Ran> {
  const next = world.client.workflow.getHandle(handle.workflowId)
  await next.signal('job', { command })
  const ran = await waitUntil('the next run has run its job', async () => {
    const [first] = await next.query<Ran[]>('ran')
    return first ?? null
  })
  await next.signal('finish', 'complete')
  return ran
}

const released = (pool: PoolHandle) =>
  pool.until('zero leases, nobody waits', (s) => s.leases === 0 && s.queue.capacity === 0)

describe('a caller that holds a pod ends', () => {
  test.each(ENDS)(
    '$name: zero leases, nothing runs, its files are there for it and for nobody else',
    async (how) => {
      const pool = await world.pool(how.name, { budget: 2 })
      const mark = marker()
      const env = { MARK: mark }
      const ann = await holderOf(world, pool.name, { caller: 'ann' }, how.start)
      await ann.job(DAEMON, { env })
      const { pod } = await ann.nth(1)
      expect(processWith(mark).length).toBe(1)
      let expected = 'kept\n'
      if (how.midJob) {
        await ann.job('echo begun >> kept; sleep 3600; echo done >> kept', { env })
        expected += 'begun\n'
        await waitUntil('the second job has begun', () => processWith(mark).length > 2)
      }
      await how.end(ann)
      await released(pool)
      await waitUntil('what ran under the lease is gone', () => processWith(mark).length === 0)
      await pool.until('the pod stays with its caller', (s) => s.pods.idle === 1)

      const stranger = await once(pool.name, 'bob', 'cat kept')
      expect(stranger.pod).not.toBe(pod)
      expect(stranger.result).toMatchObject({ exitCode: 1, stdout: '' })
      const again = await (how.again ?? once)(pool.name, 'ann', 'cat kept', ann)
      expect(again).toMatchObject({ pod, hit: 'warm', result: { exitCode: 0, stdout: expected } })
      await released(pool)
    },
  )
})

test('no lease workflow is left on the server, and pools are found by what our worker registered there', async () => {
  const until = (what: string, query: string, count: number) =>
    waitUntil(what, async () => (await world.client.workflow.count(query)).count === count)
  const running = 'ExecutionStatus = "Running"'
  await until('no lease workflow runs', `WorkflowType = "${WORKFLOW.lease}" AND ${running}`, 0)
  // Pools tell their page late, and this one has had the time.
  const idle = `FirepoolPool = "${ENDS[0]!.name}" AND FirepoolLeased = 0 AND ${running}`
  await until('a pool by its name and state', idle, 1)
})
