import { randomUUID } from 'node:crypto'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Context } from '@temporalio/activity'
import { Client, Connection } from '@temporalio/client'
import { NativeConnection, Worker } from '@temporalio/worker'
import { effectActivity } from '../../dist/activities/batch.js'
import { workflowBundle } from '../../dist/bundle.js'
import {
  ACTIVITY,
  checkPoolSpec,
  type LeaseEnd,
  type PoolStatus,
  poolWorkflowId,
  QUERY,
  QUEUE,
  UPDATE,
  WORKFLOW,
} from '../../dist/contract/index.js'
import { startDevServer } from '../../dist/server/dev-server.js'
import { badTasks, inputBytes, runsOf } from './flood.js'
import { waitUntil } from './wait.js'

export const randomUuid = () => randomUUID()

interface StubPod {
  pod: string
  generation: number
  phase: 'ready'
  address: string
  incarnation: string
}

interface StubOptions {
  /** what is different in the pool's spec */
  spec?: object
  /** see PoolInput */
  continueAfter?: { signals: number; events: number }
}

const LOOK_MS = 50
const HOUR_MS = 3_600_000
const BATCH = 100

/**
 * A real server and a real pool workflow whose pods are only said to be there: more of them than a machine has room for.
 * `told` is what lease workflows would have heard.
 */
export async function stubBroker(name: string, { spec: more = {}, ...input }: StubOptions = {}) {
  const dir = await mkdtemp(join(tmpdir(), 'firepool-stub-'))
  const server = await startDevServer({ logFile: join(dir, 'server.log') })
  const stub = stubActivities()
  const { told } = stub
  const connection = await NativeConnection.connect({ address: server.address })
  const workers = await Promise.all([
    Worker.create({
      connection,
      taskQueue: QUEUE.workflows,
      workflowBundle: await workflowBundle(),
      activities: stub.delivery,
    }),
    Worker.create({ connection, taskQueue: QUEUE.broker, activities: stub.broker }),
  ])
  const running = Promise.all(workers.map((worker) => worker.run()))
  // A page of a history with thousands of requests is larger than gRPC takes by itself.
  const channelArgs = { 'grpc.max_receive_message_length': 64 * 1024 * 1024 }
  const clientConnection = await Connection.connect({ address: server.address, channelArgs })
  const client = new Client({ connection: clientConnection })
  const roomy = { budget: 2_000, maxPods: 2_000, standby: 0, keepAliveMs: '10h' }
  const spec = checkPoolSpec({ v: 1, name, ...roomy, ...more })
  const workflowId = poolWorkflowId(name)
  await client.workflow.start(WORKFLOW.pool, {
    workflowId,
    taskQueue: QUEUE.workflows,
    args: [{ v: 1, spec: spec.value, ...input }],
  })
  const handle = client.workflow.getHandle(workflowId)
  const asked: string[] = []
  const status = () => handle.query<PoolStatus>(QUERY.status)
  const inBatches = async (signal: string, all: readonly object[], size = BATCH) => {
    for (let at = 0; at < all.length; at += size)
      await handle.signal(signal, { v: 1, batch: all.slice(at, at + size) })
  }
  const pool = {
    async request(count: number, more: { caller?: (id: string) => string; batch?: number } = {}) {
      const requests = Array.from({ length: count }, () => {
        const leaseId = randomUUID()
        asked.push(leaseId)
        const holder = {
          workflowId: `agent-session-${leaseId}`,
          firstExecutionRunId: randomUUID(),
          runId: randomUUID(),
        }
        return {
          v: 1,
          leaseId,
          holder,
          leaseWorkflowId: `lease/${name}/${holder.workflowId.slice(0, 40)}-0123456789ab/0/${leaseId}`,
          caller: more.caller?.(leaseId) ?? holder.workflowId,
          deadlineMs: Date.now() + HOUR_MS,
          replyTo: 'signal',
        }
      })
      await inBatches('firepool.request', requests, more.batch)
    },
    releaseAll: () =>
      inBatches(
        'firepool.release',
        asked.splice(0).map((leaseId) => ({ v: 1, leaseId })),
      ),
    resize: (input: object) => handle.executeUpdate(UPDATE.resize, { args: [{ v: 1, ...input }] }),
    async until(what: string, check: (status: PoolStatus) => boolean) {
      let last: PoolStatus | null = null
      try {
        return await waitUntil(what, async () => {
          last = await status()
          return check(last) ? last : null
        })
      } catch (error) {
        const { leased: _, ...rest } = (last ?? {}) as Partial<PoolStatus>
        throw new Error(`${(error as Error).message}; ${JSON.stringify(rest)}`)
      }
    },
    /** continues it as new; the bytes that it carried over */
    async carriedBytes() {
      const { runId } = await handle.describe()
      await handle.executeUpdate(UPDATE.upgrade)
      await waitUntil('it has continued as new', async () => (await handle.describe()).runId !== runId)
      return inputBytes((await runsOf({ client }, workflowId)).at(-1)!)
    },
    runs: async () => (await runsOf({ client }, workflowId)).length,
    badTasks: async () => badTasks(await runsOf({ client }, workflowId)),
  }
  return {
    pool,
    asked,
    told,
    async close() {
      for (const worker of workers) worker.shutdown()
      await running
      await connection.close()
      await clientConnection.close()
      await server.stop()
      await rm(dir, { recursive: true, force: true })
    },
  }
}

/** The effects of a pool as if they had been carried out: pods are Ready as soon as they are ordered. */
export function stubActivities() {
  const told: LeaseEnd[] = []
  const delivery = {
    [ACTIVITY.deliver]: effectActivity({
      deliver: async () => ({ kind: 'delivered', useSeq: 0 }),
      announce: async () => ({ kind: 'announced' }),
      notify: async ({ end }) => {
        told.push(end)
        return { kind: 'notified' }
      },
    }),
  }
  return { told, delivery, broker: brokerActivities([]) }
}

function brokerActivities(seen: StubPod[]) {
  const gone = new Set<string>()
  return {
    [ACTIVITY.createPods]: effectActivity({
      create: async ({ order: { pod, generation } }) => {
        seen.push({
          pod,
          generation,
          phase: 'ready',
          address: 'http://127.0.0.1:1',
          incarnation: randomUUID(),
        })
        return { kind: 'created' }
      },
    }),
    [ACTIVITY.deletePods]: effectActivity({
      delete: async ({ pod }) => {
        gone.add(pod)
        return { kind: 'deleted' }
      },
    }),
    [ACTIVITY.drainPods]: effectActivity({
      drain: async ({ useSeq }) => ({ kind: 'drained', drained: false, useSeq, idleMs: 0 }),
    }),
    [ACTIVITY.revokeLeases]: effectActivity({ revoke: async () => ({ kind: 'revoked' }) }),
    [ACTIVITY.describeHolders]: effectActivity({ describe: async () => ({ kind: 'described', closed: [] }) }),
    [ACTIVITY.namespaceFeatures]: async () => ({ v: 1, searchAttributes: [] }),
    [ACTIVITY.observe]: async ({ cursor }: { cursor: string | null }) => {
      const context = Context.current()
      while (cursor !== null && Number(cursor) === seen.length) {
        await context.sleep(LOOK_MS)
        context.heartbeat()
      }
      // By what follows the cursor, as the real one does.
      const pods = seen.slice(Number(cursor ?? 0)).filter(({ pod }) => !gone.has(pod))
      return { v: 1, cursor: String(seen.length), full: cursor === null, pods }
    },
  }
}
