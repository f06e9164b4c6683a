import { fork } from 'node:child_process'
import { mkdtemp, rm } from 'node:fs/promises'
import http from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import type { Client } from '@temporalio/client'
import {
  DefaultLogger,
  makeTelemetryFilterString,
  NativeConnection,
  Runtime,
  Worker,
  type WorkerOptions,
} from '@temporalio/worker'
import {
  checkPoolSpec,
  type PoolStatus,
  poolWorkflowId,
  QUERY,
  QUEUE,
  WORKFLOW,
} from '../dist/contract/index.js'
import { startDevServer } from '../dist/server/dev-server.js'
import { startFirepoolWorker } from '../dist/worker.js'

export const log = (text: string) => process.stderr.write(`${text}\n`)

/** What a benchmark stands on: a dev server, Firepool's worker, a caller's worker, a bare HTTP server that starts programs. */
export interface BenchWorld {
  client: Client
  serverPid: number
  /** of the Temporal server */
  server: string
  /** Firepool's state folder */
  dir: string
}

/**
 * Everything that is compared alternates within one run, so that what the machine does meanwhile hits all alike.
 * @param caller more for the callers' worker, which has the workflows of workflows.ts and the task queue `bench`
 */
export async function withBenchWorld<T>(
  work: (world: BenchWorld) => Promise<T>,
  caller: (dir: string, bare: () => Promise<unknown>) => Partial<WorkerOptions> = () => ({}),
): Promise<T> {
  const dir = await mkdtemp(join(tmpdir(), 'firepool-bench-'))
  const server = await startDevServer({ logFile: join(dir, 'server.log') })
  const bareServer = fork(fileURLToPath(new URL('./bare-server.mjs', import.meta.url)))
  const port = await new Promise<number>((resolve) => bareServer.once('message', (p) => resolve(p as number)))
  const firepoolDir = join(dir, 'firepool')
  const firepool = await startFirepoolWorker({
    address: server.address,
    namespace: server.namespace,
    dir: firepoolDir,
  })
  const connection = await NativeConnection.connect({ address: server.address })
  const common = { connection, namespace: server.namespace }
  const bare = bareActivity(port)
  const workers = await Promise.all([
    Worker.create({
      ...common,
      taskQueue: 'bench',
      workflowsPath: fileURLToPath(new URL('./workflows.ts', import.meta.url)),
      ...caller(firepoolDir, bare),
    }),
    Worker.create({
      ...common,
      taskQueue: 'bench-activities',
      activities: { postBare: bare },
      maxConcurrentActivityTaskExecutions: 1_000,
    }),
  ])
  const running = workers.map((worker) => worker.run())
  try {
    const { client } = firepool
    return await work({ client, serverPid: server.pid, server: server.description, dir: firepoolDir })
  } finally {
    for (const worker of workers) worker.shutdown()
    await Promise.all(running)
    // Pods last: a pool whose worker still runs would start new ones in their place.
    await firepool.shutdown()
    await firepool.backend.stopAll()
    await connection.close()
    bareServer.disconnect()
    await server.stop()
    await rm(dir, { recursive: true, force: true })
  }
}

/** The bare side: the same client side as Firepool's, without anything of Firepool. */
function bareActivity(port: number) {
  const agent = new http.Agent({ keepAlive: true, noDelay: true })
  return () =>
    new Promise((resolve, reject) => {
      const request = http.request({ host: '127.0.0.1', port, method: 'POST', agent }, (response) => {
        let text = ''
        response.on('data', (chunk) => {
          text += chunk
        })
        response.on('end', () => resolve(JSON.parse(text)))
      })
      request.on('error', reject)
      request.end('{}')
    })
}

/** Starts a pool and waits for its standbys. */
export async function createPool(client: Client, name: string, spec: Record<string, unknown>): Promise<void> {
  const checked = checkPoolSpec({ v: 1, name, keepAliveMs: '10m', ...spec })
  if (checked.problem) throw new Error(checked.problem.message)
  const handle = await client.workflow.start(WORKFLOW.pool, {
    workflowId: poolWorkflowId(name),
    taskQueue: QUEUE.workflows,
    args: [{ v: 1, spec: checked.value }],
  })
  for (;;) {
    const { standby } = await handle.query<PoolStatus>(QUERY.status)
    if (standby.ready >= standby.target) return
    await new Promise((resolve) => setTimeout(resolve, 100))
  }
}

let runs = 0

/** Runs a workflow of workflows.ts to its end. */
export async function run(client: Client, workflow: string, args: unknown[]) {
  const handle = await client.workflow.start(workflow, {
    workflowId: `${workflow}-${++runs}`,
    taskQueue: 'bench',
    args,
  })
  await handle.result()
  return handle
}

export function quiet(): void {
  // Forwarded: by itself the SDK's core writes to standard output, into the JSON of --json.
  const logging = { forward: {}, filter: makeTelemetryFilterString({ core: 'ERROR', other: 'ERROR' }) }
  Runtime.install({ logger: new DefaultLogger('ERROR'), telemetryOptions: { logging } })
}
