import { fork } from 'node:child_process'
import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { Client, Connection } from '@temporalio/client'
import { bundleWorkflowCode, DefaultLogger } from '@temporalio/worker'
import {
  checkPoolSpec,
  type PoolStatus,
  poolWorkflowId,
  QUERY,
  QUEUE,
  WORKFLOW,
} from '../dist/contract/index.js'
import { startDevServer } from '../dist/server/dev-server.js'
import { round } from './report.js'
import type { BenchWorld } from './world.js'

const POOL = 'held'
const AT_ONCE = 20
/** A lease is told its pod after 10 s: then nothing more comes. */
const SETTLE_MS = 15_000
const LOOK_MS = 500
const MIB = 1_024 * 1_024

/**
 * Memory (RSS) of a worker that keeps many held leases and their pool, against one that keeps as many idle workflows in the
 * same cache: each in a process of its own, on a server of its own. The pods are only said to be there, and the callers are
 * nobody: neither takes memory of Firepool's worker.
 */
export async function heldMemory({ cleanup, dir, signal }: BenchWorld, count: number) {
  const server = await startDevServer({ logFile: join(dir, 'held.log'), signal })
  cleanup.add('stop the server of the held leases', () => server.stop())
  const client = new Client({ connection: await Connection.connect({ address: server.address }) })
  // Bundled here: what bundling takes is no memory of a workflow.
  const bundle = join(dir, 'idle.js')
  const workflowsPath = fileURLToPath(new URL('./idle.ts', import.meta.url))
  await writeFile(
    bundle,
    (await bundleWorkflowCode({ workflowsPath, logger: new DefaultLogger('ERROR') })).code,
  )
  const idle = await rssWith(bundle, server.address, cleanup, signal, async () => {
    await inBatches(count, (n) =>
      client.workflow.start('idle', { workflowId: `idle-${n}`, taskQueue: 'idle', args: [] }),
    )
    // Each has had its first task when nothing is left to be done.
    await until(async () => {
      const { workflowExecutionInfo } = await client.workflow
        .getHandle(`idle-${count - 1}`)
        .describe()
        .then((d) => d.raw)
      return Number(workflowExecutionInfo?.historyLength ?? 0) >= 4
    }, signal)
  })
  const held = await rssWith('leases', server.address, cleanup, signal, async () => {
    const spec = checkPoolSpec({
      v: 1,
      name: POOL,
      budget: count,
      maxPods: count,
      standby: 0,
      keepAliveMs: '10h',
    })
    const pool = await client.workflow.start(WORKFLOW.pool, {
      workflowId: poolWorkflowId(POOL),
      taskQueue: QUEUE.workflows,
      args: [{ v: 1, spec: spec.value }],
    })
    await inBatches(count, (n) => {
      const leaseId = randomUUID()
      const holder = { workflowId: `agent-${n}`, firstExecutionRunId: randomUUID(), runId: randomUUID() }
      const input = {
        v: 1,
        pool: POOL,
        leaseId,
        holder,
        caller: `agent-${n}`,
        replyTo: 'signal',
        acquireTimeout: '1h',
      }
      return client.workflow.start(WORKFLOW.lease, {
        workflowId: `lease/${POOL}/agent-${n}/0/${leaseId}`,
        taskQueue: QUEUE.workflows,
        args: [input],
      })
    })
    await until(async () => (await pool.query<PoolStatus>(QUERY.status)).leases === count, signal)
  })
  return {
    count,
    ratio: round(held / idle),
    rssMiB: { idle: round(idle / MIB, 1), held: round(held / MIB, 1) },
  }
}

/** @returns bytes of a worker of leases, or of the workflows of a bundle, once it keeps what `fill` gives it */
async function rssWith(
  what: string,
  address: string,
  cleanup: BenchWorld['cleanup'],
  signal: AbortSignal,
  fill: () => Promise<void>,
): Promise<number> {
  const child = fork(fileURLToPath(new URL('./held-worker.ts', import.meta.url)), [address, what], {
    execArgv: ['--expose-gc', '--import', 'tsx'],
    // Standard output is for --json; a Ctrl-C reaches only us, and it ends when we do.
    stdio: ['ignore', 2, 2, 'ipc'],
    detached: true,
  })
  const stop = () => {
    if (child.connected) child.disconnect()
  }
  cleanup.add(`stop the worker of ${what}`, stop)
  const ended = once(child, 'exit').then(([code]) =>
    Promise.reject(new Error(`the worker of ${what} ended (${code})`)),
  )
  ended.catch(() => undefined)
  await Promise.race([once(child, 'message', { signal }), ended])
  await Promise.race([fill(), ended])
  await sleep(SETTLE_MS, undefined, { signal })
  child.send('rss')
  const [rss] = (await Promise.race([once(child, 'message', { signal }), ended])) as [number]
  stop()
  return rss
}

async function inBatches(count: number, start: (n: number) => Promise<unknown>): Promise<void> {
  for (let at = 0; at < count; at += AT_ONCE)
    await Promise.all(Array.from({ length: Math.min(AT_ONCE, count - at) }, (_, i) => start(at + i)))
}

async function until(check: () => Promise<boolean>, signal: AbortSignal): Promise<void> {
  while (!(await check().catch(() => false))) await sleep(LOOK_MS, undefined, { signal })
}
