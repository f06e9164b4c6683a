import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import type { Client, WorkflowHandle } from '@temporalio/client'
import { DefaultLogger, NativeConnection, Runtime, Worker } from '@temporalio/worker'
import type { PoolInput, PoolSpec, PoolStatus } from '../../dist/contract/index.js'
import { checkPoolSpec, poolWorkflowId, QUERY, QUEUE, UPDATE, WORKFLOW } from '../../dist/contract/index.js'
import { type DevServer, startDevServer } from '../../dist/server/dev-server.js'
import { type FirepoolWorker, startFirepoolWorker } from '../../dist/worker.js'

export const CALLER_QUEUE = 'callers'

// A test's output is for what went wrong.
Runtime.install({ logger: new DefaultLogger('ERROR') })

export interface World {
  server: DevServer
  firepool: FirepoolWorker
  client: Client
  dir: string
  /** Creates a pool and waits until its standbys are ready. */
  pool(
    name: string,
    spec?: Partial<PoolSpec> & Record<string, unknown>,
    input?: Partial<PoolInput>,
  ): Promise<PoolHandle>
  start<T>(
    workflow: string,
    args: unknown[],
    options?: Record<string, unknown>,
  ): Promise<WorkflowHandle & { result(): Promise<T> }>
  close(): Promise<void>
}

export interface PoolHandle {
  name: string
  handle: WorkflowHandle
  status(): Promise<PoolStatus>
  until(what: string, check: (status: PoolStatus) => boolean): Promise<PoolStatus>
}

/** A generous limit for hangs: tests assert the order of events, never durations. */
const HANG_MS = 90_000

export async function waitUntil<T>(
  what: string,
  read: () => Promise<T | null | false> | T | null | false,
  hangMs = HANG_MS,
): Promise<T> {
  const end = Date.now() + hangMs
  for (;;) {
    const value = await read()
    if (value !== null && value !== false) return value
    if (Date.now() > end) throw new Error(`did not happen within ${hangMs} ms: ${what}`)
    await new Promise((resolve) => setTimeout(resolve, 25))
  }
}

export interface WorldOptions {
  uiPort?: number
  dbFile?: string
  /** file of the callers' workflows; default test/support/callers.ts */
  workflows?: string
  server?: DevServer
}

/** Everything real: a Temporal server, Firepool's worker, pods as processes, and a worker for the callers. */
export async function makeWorld(options: WorldOptions = {}): Promise<World> {
  const dir = await mkdtemp(join(tmpdir(), 'firepool-test-'))
  const server =
    options.server ??
    (await startDevServer({
      logFile: join(dir, 'server.log'),
      ...(options.uiPort !== undefined ? { uiPort: options.uiPort } : {}),
      ...(options.dbFile !== undefined ? { dbFile: options.dbFile } : {}),
      onProgress: (progress) => process.stderr.write(`${JSON.stringify(progress)}\n`),
    }))
  const firepool = await startFirepoolWorker({
    address: server.address,
    namespace: server.namespace,
    dir: join(dir, 'firepool'),
  })
  const connection = await NativeConnection.connect({ address: server.address })
  const worker = await Worker.create({
    connection,
    namespace: server.namespace,
    taskQueue: CALLER_QUEUE,
    workflowsPath: options.workflows ?? fileURLToPath(new URL('./callers.ts', import.meta.url)),
    bundlerOptions: {
      logger: { trace() {}, debug() {}, info() {}, log() {}, warn: console.error, error: console.error },
    },
  })
  const running = worker.run()
  const { client } = firepool

  return {
    server,
    firepool,
    client,
    dir,
    async pool(name, given = {}, input = {}) {
      const checked = checkPoolSpec({ v: 1, name, budget: 4, standby: 1, ...given })
      if (checked.problem) throw new Error(checked.problem.message)
      const handle = await client.workflow.start(WORKFLOW.pool, {
        workflowId: poolWorkflowId(name),
        taskQueue: QUEUE.workflows,
        args: [{ v: 1, spec: checked.value, ...input } satisfies PoolInput],
      })
      const status = () => handle.query<PoolStatus>(QUERY.status)
      const until = async (what: string, check: (status: PoolStatus) => boolean) => {
        let last: PoolStatus | null = null
        try {
          return await waitUntil(what, async () => {
            last = await status()
            return check(last) ? last : null
          })
        } catch (error) {
          throw new Error(`${(error as Error).message}; the pool's last status: ${JSON.stringify(last)}`)
        }
      }
      const pool = { name, handle: client.workflow.getHandle(poolWorkflowId(name)), status, until }
      await pool.until('standbys are ready', (s) => s.standby.ready >= s.standby.target)
      return pool
    },
    async start(workflow, args, more = {}) {
      return (await client.workflow.start(workflow, {
        workflowId: `${workflow}-${Math.random().toString(36).slice(2)}`,
        taskQueue: CALLER_QUEUE,
        args,
        ...more,
      })) as never
    },
    async close() {
      worker.shutdown()
      await running
      await connection.close()
      for await (const { workflowId } of client.workflow.list({
        query: `WorkflowType="${WORKFLOW.pool}" AND ExecutionStatus="Running"`,
      })) {
        await client.workflow
          .getHandle(workflowId)
          .executeUpdate(UPDATE.delete, { args: [{ v: 1, force: true }] })
          .catch(() => undefined)
      }
      await firepool.backend.stopAll()
      await firepool.shutdown()
      if (!options.server) await server.stop()
      await rm(dir, { recursive: true, force: true })
    },
  }
}
