/**
 * Records test/histories anew: `npm run record-histories`. Real runs on a real server, each scenario checked to have
 * taken the path that its history is there for.
 *
 * Recording replaces what older releases recorded. Once a release is out, keep its files and record beside them: with the
 * argument `shards`, `rollout`, `together`, `seats`, `silent` or `paused` only those of pools with shards, of a change of template, of jobs given at
 * once, of a pool under the newest core, of a pool that says nothing, or of a shard that is told to pause by hand, are recorded,
 * beside the others. pool-template-before, pool-shard-paused and pool-seat-sets cannot be recorded any more: they are a change of template as
 * version 1 of the core made it, a shard that obeyed, and a pool under version 3 of the core.
 */
import type { History } from '@temporalio/common/lib/proto-utils.js'
import { createFirepoolClient } from '../../dist/client/index.js'
import { type LeaseEnd, shardOfCaller } from '../../dist/contract/index.js'
import type { Ran } from './callers.js'
import { historyText, type JsonHistory, published, writeHistories } from './histories.js'
import { holderOf, marker } from './holder.js'
import { makeWorld, type PoolHandle, processWith, waitUntil } from './world.js'

const POOL = 'recorded'
const KEEP_ALIVE_MS = 3_000

/** Written all at once at the end: a scenario that failed leaves the old ones. */
const recorded = new Map<string, JsonHistory>()
const only = process.argv[2]
const world = await makeWorld({ plugin: true })
try {
  if (only === undefined || only === 'shards') await shards()
  if (only === undefined || only === 'rollout') await rollout()
  if (only === undefined || only === 'together') await together()
  if (only === undefined || only === 'seats') await seats()
  if (only === undefined || only === 'silent') await silent()
  if (only === undefined || only === 'paused') await paused()
  if (only === undefined) await whole()
  writeHistories(recorded, only !== undefined)
  console.error(`recorded: ${[...recorded.keys()].sort().join(', ')}`)
} finally {
  await world.close()
}

/** A pool that is whole, and all that its callers may meet. */
async function whole(): Promise<void> {
  const pool = await world.pool(POOL, { budget: 2, standby: 1, keepAliveMs: KEEP_ALIVE_MS })
  const firstRun = (await pool.handle.describe()).runId
  await grants(pool)
  await recall(pool)
  await pool.handle.executeUpdate('firepool.upgrade')
  await waitUntil('the pool continued as new', async () => (await pool.handle.describe()).runId !== firstRun)
  await cancelled(pool)
  await lost(pool)
  await revoked(pool)
  await runJobs(pool)
  await shortJobs()
  await pins()
  await sessions()
  await refused()
  await pool.until('all is free', (s) => s.leases === 0 && s.effectsInFlight === 0)
  await pool.handle.executeUpdate('firepool.delete', { args: [{ v: 1, force: true }] })
  await pool.handle.result()
  await record(
    'pool-continued-as-new',
    pool.handle.workflowId,
    'EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW',
    firstRun,
  )
  await record('pool-carried-and-deleted', pool.handle.workflowId, 'EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED')
}

/** A broken template, over which the pool continues as new, and a good one. */
async function rollout(): Promise<void> {
  const spec = { v: 1, name: 'rolled', budget: 1, standby: 1, keepAliveMs: KEEP_ALIVE_MS }
  const pool = await world.pool('rolled', spec)
  const { runId } = await pool.handle.describe()
  const apply = (command: string) =>
    pool.handle.signal('firepool.apply', { ...spec, profile: { prepare: ['/bin/sh', '-c', command] } })
  const jobs = [{ command: 'true' }]
  const loop = (caller: string) =>
    world.start<Ran[]>('loop', [{ pool: 'rolled', caller, jobs, release: true }])
  await apply('exit 3')
  await pool.until('it has stopped', (s) => s.rollout?.stopped !== undefined)
  await (await loop('meanwhile')).result()
  await pool.handle.executeUpdate('firepool.upgrade')
  await waitUntil('the pool continued as new', async () => (await pool.handle.describe()).runId !== runId)
  await apply('true')
  await pool.until('all are of the new one', (s) => s.rollout === undefined && s.standby.ready === 1)
  await (await loop('afterwards')).result()
  await pool.handle.executeUpdate('firepool.delete', { args: [{ v: 1, force: true }] })
  await pool.handle.result()
  await record('pool-rollout', pool.handle.workflowId, 'firepool-rollout', runId)
  await record('pool-rolled', pool.handle.workflowId, 'EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED')
}

/** A pool of two shards that continues as new, loses one while a caller waits there, and is deleted. */
async function shards(): Promise<void> {
  const firepool = createFirepoolClient({ client: world.client })
  const spec = { name: 'split', budget: 2, keepAliveMs: KEEP_ALIVE_MS }
  await firepool.applyPool({ ...spec, shards: 2 })
  const routes = (n: number) =>
    waitUntil(`requests go to ${n} shards`, async () => {
      const { shards } = await firepool.describePool('split')
      return (shards?.routes ?? 1) === n && (shards?.all ?? 1) === n
    })
  await routes(2)
  const head = world.client.workflow.getHandle('pool/split')
  const { runId } = await head.describe()
  await head.executeUpdate('firepool.upgrade')
  await waitUntil('the head continued as new', async () => (await head.describe()).runId !== runId)
  const callers = Array.from({ length: 40 }, (_, i) => `kim${i}`).filter(
    (name) => shardOfCaller(name, 2) === 1,
  )
  const mark = marker()
  const holder = await holderOf(world, 'split', { caller: callers[0]! })
  await holder.job('sleep 5', { env: { MARK: mark } })
  await waitUntil('the job runs', () => processWith(mark).length > 0)
  const waiter = await holderOf(world, 'split', { caller: callers[1]! })
  await waiter.job('true')
  await waitUntil('it waits', async () => (await firepool.describePool('split')).queue.capacity === 1)
  await firepool.applyPool({ ...spec, shards: 1 })
  await waiter.nth(1)
  for (const each of [waiter, holder]) {
    await each.finish()
    await each.handle.result()
  }
  await routes(1)
  await firepool.deletePool('split', { force: true })
  await record('lease-moved', await leaseOf(callers[1]!, 'released'), 'ShardMoved')
  await record('pool-head-continued', head.workflowId, 'firepool.tellShards', runId)
  await record('pool-head-deleted', head.workflowId, 'firepool.tellShards')
  await record('pool-shard-left', 'pool/split.1', 'EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED')
}

/** A pool that takes whatever it is told and says nothing: its callers end by themselves. */
async function silent(): Promise<void> {
  const pool = await world.start('listener', [], { workflowId: 'pool/deaf' })
  const holder = await holderOf(world, 'deaf', { caller: 'kay', acquireTimeout: '1s' })
  const job = { command: 'true' }
  const once = await world.client.workflow.start('firepool.runJob', {
    workflowId: 'run-job-silent',
    taskQueue: 'firepool-workflows',
    args: [{ pool: 'deaf', caller: 'lee', acquireTimeout: '1s', job }],
  })
  await holder.job('true')
  await holder.outcome(1)
  await holder.finish()
  await holder.handle.result()
  await once.result().catch(() => undefined)
  await pool.signal('finish', 'complete')
  await record('caller-silent', holder.handle.workflowId, '"PoolSilent')
  await record('run-job-silent', once.workflowId, '"PoolSilent')
}

/** A shard that an operator tells to pause by hand, and its caller then. */
async function paused(): Promise<void> {
  const firepool = createFirepoolClient({ client: world.client })
  const spec = { name: 'halves', budget: 2, standby: 2, keepAliveMs: KEEP_ALIVE_MS, shards: 2 }
  await firepool.applyPool(spec)
  await waitUntil('both serve', async () => {
    const { shards, standby } = await firepool.describePool('halves')
    return shards?.routes === 2 && standby.ready === 2
  })
  const shard = world.client.workflow.getHandle('pool/halves.1')
  await shard.signal('firepool.pause')
  await shard.signal('firepool.setBudget', { v: 1, budget: 0, expiresAtMs: Date.now() + 3_600_000 })
  const caller = Array.from({ length: 40 }, (_, i) => `kim${i}`).find((name) => shardOfCaller(name, 2) === 1)
  const holder = await holderOf(world, 'halves', { caller })
  await holder.job('true')
  await holder.nth(1)
  await holder.finish()
  await holder.handle.result()
  await firepool.deletePool('halves', { force: true })
  await record('pool-shard-refuses', shard.workflowId, 'firepool-head-alone')
}

/** Keeps the history of a run, which must contain `proof` (an event type, or a text of a payload). */
async function record(name: string, workflowId: string, proof: string, runId?: string): Promise<void> {
  const handle = world.client.workflow.getHandle(workflowId, runId)
  const history = published((await handle.fetchHistory()) as History)
  if (!historyText(history).includes(proof))
    throw new Error(`the history ${name} does not show ${proof}; record again`)
  recorded.set(name, history)
}

/** One that ends as a local activity, one that goes on as a normal one; replayed by workers with and without the plugin. */
async function shortJobs(): Promise<void> {
  const jobs = [
    { command: 'true', short: true },
    { command: 'sleep 3', short: true },
  ]
  const handle = await world.start('loop', [{ pool: POOL, caller: 'short', jobs, release: true }])
  await handle.result()
  await record('caller-short', handle.workflowId, 'EVENT_TYPE_ACTIVITY_TASK_SCHEDULED')
}

/** A pool that begins with the core that keeps off sick seat sets. */
async function seats(): Promise<void> {
  const pool = await world.pool('seats', { budget: 1, standby: 1, keepAliveMs: KEEP_ALIVE_MS })
  const { runId } = await pool.handle.describe()
  const jobs = [{ command: 'true' }]
  const loop = await world.start<Ran[]>('loop', [{ pool: 'seats', caller: 'uma', jobs, release: true }])
  await loop.result()
  await pool.handle.executeUpdate('firepool.upgrade')
  await waitUntil('the pool continued as new', async () => (await pool.handle.describe()).runId !== runId)
  await pool.handle.executeUpdate('firepool.delete', { args: [{ v: 1, force: true }] })
  await pool.handle.result()
  await record('pool-sick-sets', pool.handle.workflowId, 'firepool-sick-sets', runId)
}

/** Jobs that are given to one sandbox at once: they run one after the other, in order. */
async function together(): Promise<void> {
  await world.pool('together', { budget: 1, standby: 1 })
  const jobs = ['1', '2', '3'].map((n) => ({ command: `echo ${n} >> f; cat f` }))
  const handle = await world.start('together', [{ pool: 'together', caller: 'lea', jobs }])
  await handle.result()
  await record('caller-together', handle.workflowId, 'EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED')
}

/** A pinned lease that is renewed, on a pool of its own that continues as new under it. */
async function pins(): Promise<void> {
  const pool = await world.pool('pins', { budget: 1, keepAliveMs: 0 })
  const { runId } = await pool.handle.describe()
  const handle = await world.start<Ran[]>('pinned', [
    { pool: 'pins', pin: '10s', pauseMs: 3_000, pauses: 2, renews: true },
  ])
  await pool.until('it is held', (s) => s.leases === 1)
  await pool.handle.executeUpdate('firepool.upgrade')
  const [first, last] = await handle.result()
  if (first!.epoch !== last!.epoch) throw new Error('the pinned lease was lost; record again')
  await pool.until('its pod is kept', (s) => s.pods.idle === 1)
  await pool.handle.executeUpdate('firepool.delete', { args: [{ v: 1, force: true }] })
  await pool.handle.result()
  await record('caller-pinned', handle.workflowId, 'firepool.renew')
  await record('pool-pins', pool.handle.workflowId, 'firepool.renew')
  await record(
    'pool-pins-before',
    pool.handle.workflowId,
    'EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW',
    runId,
  )
}

/** A session of two runs: renewed between two jobs, told to end. */
async function sessions(): Promise<void> {
  const session = createFirepoolClient({ client: world.client }).session(POOL, { caller: 'session' })
  await session.run({ command: 'true' }, { key: 'one' })
  const handle = world.client.workflow.getHandle(session.workflowId)
  const { runId } = await handle.describe()
  await handle.signal('firepool.renewSession')
  await waitUntil('the session continued as new', async () => (await handle.describe()).runId !== runId)
  await session.run({ command: 'true' }, { key: 'one' })
  await session.run({ command: 'exit 1' })
  await session.end()
  await handle.result()
  await record('session-renewed', session.workflowId, 'EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW', runId)
  await record('session-ended', session.workflowId, 'EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_COMPLETED')
}

/** Id of the lease workflow of a caller that ended so; lease workflows are children, found by their type. */
async function leaseOf(caller: string, end: LeaseEnd['end']): Promise<string> {
  return waitUntil(`a lease of ${caller} that ended ${end}`, async () => {
    const query = 'WorkflowType = "firepool.lease" AND ExecutionStatus = "Completed"'
    for await (const { workflowId } of world.client.workflow.list({ query })) {
      if (!workflowId.includes(`/${caller}-`)) continue
      const notice = (await world.client.workflow.getHandle(workflowId).result()) as LeaseEnd
      if (notice.end === end) return workflowId
    }
    return null
  })
}

/** A grant of each class: standby, then warm; two at once, of which one is cold. */
async function grants(pool: PoolHandle): Promise<void> {
  const jobs = [{ command: 'echo one' }, { command: ['true'] }]
  const loop = (caller: string) => world.start<Ran[]>('loop', [{ pool: POOL, caller, jobs, release: true }])
  const first = await loop('ann')
  await first.result()
  const again = await loop('ann')
  expectHits(await again.result(), ['warm'])
  await pool.until('ann is gone', (s) => s.budget.held === 0 && s.standby.ready === 1)
  const both = await Promise.all(['bob', 'carol'].map(loop))
  expectHits((await Promise.all(both.map((h) => h.result()))).flat(), ['cold', 'standby'])
  await record('caller-loop', first.workflowId, 'EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED')
  await record(
    'lease-released',
    await leaseOf('ann', 'released'),
    'EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED',
  )
}

function expectHits(ran: Ran[], hits: string[]): void {
  const found = [...new Set(ran.map(({ hit }) => hit))].sort()
  if (found.join() !== hits.join())
    throw new Error(`hits were ${found.join()}, not ${hits.join()}; record again`)
}

/** A pause longer than the keep-alive: the lease is recalled, and the next job acquires again. The caller continues as new. */
async function recall(pool: PoolHandle): Promise<void> {
  const holder = await holderOf(world, POOL, { caller: 'dora' })
  const { runId } = await holder.handle.describe()
  await holder.job('true')
  await holder.nth(1)
  await pool.until('recalled', (s) => s.ends.recalled === 1)
  await holder.job('true')
  await holder.nth(2)
  await holder.finish('continue')
  await waitUntil('the next run', async () => {
    const now = await world.client.workflow.getHandle(holder.handle.workflowId).describe()
    return now.runId !== runId
  })
  const next = world.client.workflow.getHandle(holder.handle.workflowId)
  await next.signal('finish', 'complete')
  await record('caller-recalled', holder.handle.workflowId, 'recalled', runId)
  await record('lease-recalled', await leaseOf('dora', 'recalled'), 'firepool.ended')
}

/** A job cancelled by its scope; and a caller cancelled while its job runs, whose close cancels the lease. */
async function cancelled(pool: PoolHandle): Promise<void> {
  const scope = await world.start('cancelOne', [
    { pool: POOL, long: { command: 'sleep 60' }, after: { command: 'true' } },
  ])
  await scope.result()
  await record('caller-cancels-a-job', scope.workflowId, 'EVENT_TYPE_ACTIVITY_TASK_CANCELED')
  const holder = await holderOf(world, POOL, { caller: 'emil' })
  const mark = marker()
  await holder.job('sleep 60', { env: { MARK: mark } })
  await waitUntil('the job runs', () => processWith(mark).length > 0)
  await holder.handle.cancel()
  await pool.until('the cancelled caller let go', (s) => s.leases === 0)
  await record('caller-cancelled', holder.handle.workflowId, 'EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED')
  await record(
    'lease-cancelled',
    await leaseOf('emil', 'released'),
    'EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED',
  )
}

/** A pod killed under a job: PodLost by default, another start with rerun. */
async function lost(pool: PoolHandle): Promise<void> {
  for (const [caller, options] of [
    ['fred', {}],
    ['gina', { onPodLost: 'rerun' }],
  ] as const) {
    await pool.until('room for one', (s) => s.budget.held < 2 && s.standby.ready === 1)
    const holder = await holderOf(world, POOL, { caller, ...options })
    const mark = marker()
    await holder.job('sleep 4', { env: { MARK: mark } })
    await waitUntil('the job runs', () => processWith(mark).length > 0)
    killPod((await pool.status()).leased[0]!.pod)
    await holder.outcome(1)
    await holder.finish()
    await holder.handle.result()
    await record(`caller-pod-lost${caller === 'gina' ? '-rerun' : ''}`, holder.handle.workflowId, '"PodLost')
  }
  await record('lease-pod-lost', await leaseOf('fred', 'podLost'), 'podLost')
}

/** A pod that died in a pause, before the pool noticed: the run is refused with LeaseRevoked, and the caller acquires again. */
async function revoked(pool: PoolHandle): Promise<void> {
  for (let tries = 1; tries <= 10; tries++) {
    await pool.until('room for one', (s) => s.budget.held < 2 && s.standby.ready === 1)
    const holder = await holderOf(world, POOL, { caller: `hans${tries}` })
    await holder.job('true')
    await holder.nth(1)
    killPod((await pool.status()).leased[0]!.pod)
    await holder.job('true')
    await holder.nth(2)
    await holder.finish()
    await holder.handle.result()
    const { events } = await holder.handle.fetchHistory()
    if (!events?.some((event) => event.activityTaskFailedEventAttributes)) continue
    await record('caller-revoked', holder.handle.workflowId, '"LeaseRevoked')
    return
  }
  throw new Error('the pool was always faster than the caller; record again')
}

function killPod(pod: string): void {
  for (const pid of processWith(`FIREPOOL_POD=${pod}\u0000`)) process.kill(pid, 'SIGKILL')
}

/** firepool.runJob: a result, a job that ran out of time, a lost pod with rerun, a cancel. */
async function runJobs(pool: PoolHandle): Promise<void> {
  const start = (workflowId: string, input: Record<string, unknown>) =>
    world.client.workflow.start('firepool.runJob', {
      workflowId,
      taskQueue: 'firepool-workflows',
      args: [{ pool: POOL, caller: 'ida', ...input }],
    })
  await (await start('run-job', { job: { command: 'echo done' } })).result()
  await record('run-job', 'run-job', 'EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED')
  const slow = await start('run-job-timeout', { job: { command: 'sleep 60', timeout: '200ms' } })
  await slow.result().catch(() => undefined)
  await record('run-job-timeout', 'run-job-timeout', 'JobTimeout')
  const mark = marker()
  const job = { command: 'sleep 4', env: { MARK: mark } }
  const rerun = await start('run-job-rerun', { job, onPodLost: 'rerun' })
  await waitUntil('the job runs', () => processWith(mark).length > 0)
  killPod((await pool.status()).leased[0]!.pod)
  await rerun.result()
  await record('run-job-rerun', 'run-job-rerun', '"PodLost')
  const other = marker()
  const long = await start('run-job-cancelled', { job: { command: 'sleep 60', env: { MARK: other } } })
  await waitUntil('the job runs', () => processWith(other).length > 0)
  await long.cancel()
  await long.result().catch(() => undefined)
  await record('run-job-cancelled', 'run-job-cancelled', 'EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED')
}

/** No such pool: the caller's job fails with the reason. */
async function refused(): Promise<void> {
  const holder = await holderOf(world, 'nowhere', { caller: 'jane' })
  await holder.job('true')
  await holder.outcome(1)
  await holder.finish()
  await holder.handle.result()
  await record('caller-refused', holder.handle.workflowId, 'PoolNotFound')
  await record('lease-failed', await leaseOf('jane', 'failed'), 'PoolNotFound')
}
