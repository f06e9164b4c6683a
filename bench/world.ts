import { fork } from 'node:child_process'
import { once } from 'node:events'
import { mkdtemp, rm } from 'node:fs/promises'
import http from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { inspect } from 'node:util'
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
import { Cleanup } from '../dist/demo/cleanup.js'
import { type ForcedEnd, forceEnd } from '../dist/demo/force.js'
import { listenForEnd, unlessAborted } from '../dist/demo/interruption.js'
import { startDevServer } from '../dist/server/dev-server.js'
import { type KubernetesOptions, startFirepoolWorker } from '../dist/worker.js'
import { obtainProductionParts, TEMPORAL_VERSION } from '../test/support/production-parts.js'
import { startProductionServer } from '../test/support/production-server.js'

export const log = (text: string) => process.stderr.write(`${text}\n`)

/** What a benchmark stands on: a dev server, Firepool's worker, a caller's worker, a bare HTTP server that starts programs. */
export interface BenchWorld {
  client: Client
  serverPid: number
  /** of the Temporal server */
  server: string
  /** host:port of it */
  address: string
  /** for what a benchmark starts by itself */
  cleanup: Cleanup
  signal: AbortSignal
  /** Firepool's state folder */
  dir: string
}

/**
 * Everything that is compared alternates within one run, so that what the machine does meanwhile hits all alike. However
 * it ends (Ctrl-C and SIGTERM too), all that it started is stopped and removed; a second Ctrl-C kills it.
 * @param caller more for the callers' worker, which has the workflows of workflows.ts and the task queue `bench`
 * @param cluster where the pods are; without it they are processes of this machine
 * @param production on a server with PostgreSQL instead of a dev server; what is missing of it is built first, in minutes
 * @throws Interrupted after a signal
 */
export function withBenchWorld<T>(
  work: (world: BenchWorld) => Promise<T>,
  caller: CallerOptions = () => ({}),
  production = false,
  cluster?: ClusterOf,
): Promise<T> {
  return withCleanup((ends) => openWorld({ ...ends, caller, production, cluster }), work)
}

/** How what is started is ended. */
export interface Ends {
  cleanup: Cleanup
  force: ForcedEnd
  signal: AbortSignal
}

/**
 * However it ends, all that was given to `cleanup` is undone.
 * @param open is waited for, also after a signal: it looks at the signal between its steps, and starts nothing more
 * @param work is left to itself then
 * @throws Interrupted after a signal
 */
export async function withCleanup<World, T>(
  open: (ends: Ends) => Promise<World>,
  work: (world: World) => Promise<T>,
): Promise<T> {
  const cleanup = new Cleanup()
  const force: ForcedEnd = {}
  const end = listenForEnd(() => {
    forceEnd(force)
    process.exit(1)
  })
  // What was under way when all is being stopped fails, in whatever turn: it must not keep the rest from being stopped.
  const crashed = (error: Error) => {
    if (!cleanup.started) end.abort(error)
  }
  process.on('uncaughtException', crashed)
  try {
    const world = await open({ cleanup, force, signal: end.signal })
    return await unlessAborted(end.signal, work(world))
  } catch (error) {
    throw end.signal.aborted ? end.signal.reason : error
  } finally {
    interrupted = end.signal.aborted
    if (interrupted) log('stopping everything (Ctrl-C again kills)')
    for (const left of await cleanup.run()) log(`could not ${left}`)
    process.off('uncaughtException', crashed)
    end.close()
  }
}

/** Starts a cluster for the pods, and undoes it by `cleanup`. */
export type ClusterOf = (cleanup: Cleanup, signal: AbortSignal) => Promise<KubernetesOptions>

type CallerOptions = (dir: string, bare: () => Promise<unknown>) => Partial<WorkerOptions>

interface WorldParts extends Ends {
  caller: CallerOptions
  production: boolean
  cluster: ClusterOf | undefined
}

/** Whatever it makes is undone by `cleanup`, also when it throws. */
async function openWorld(parts: WorldParts): Promise<BenchWorld> {
  const { cleanup, force, signal, caller } = parts
  const dir = await mkdtemp(join(tmpdir(), 'firepool-bench-'))
  force.dir = dir
  cleanup.add('remove the temporary folder', () => rm(dir, { recursive: true, force: true, maxRetries: 5 }))
  const server = await startServer(parts, dir)
  force.serverPid = server.pid
  cleanup.add('stop the Temporal server', () => server.stop())
  signal.throwIfAborted()
  const { address, namespace } = server
  const bare = bareActivity(await startBareServer(cleanup, signal))
  const firepoolDir = join(dir, 'firepool')
  const backend = await parts.cluster?.(cleanup, signal)
  const place = { address, namespace, dir: firepoolDir, ...(backend ? { backend } : {}) }
  const firepool = await startFirepoolWorker(place)
  // Pods last: a pool whose worker still runs would start new ones in their place. Those of a cluster go with it.
  if (!backend) cleanup.add('stop the pods', () => firepool.backend.stopAll())
  cleanup.add("stop Firepool's worker", () => firepool.shutdown())
  signal.throwIfAborted()
  const connection = await NativeConnection.connect({ address })
  cleanup.add('close the connection', () => connection.close())
  const common = { connection, namespace }
  await startWorker(parts, {
    ...common,
    taskQueue: 'bench',
    workflowsPath: fileURLToPath(new URL('./workflows.ts', import.meta.url)),
    ...caller(firepoolDir, bare),
  })
  await startWorker(parts, {
    ...common,
    taskQueue: 'bench-activities',
    activities: { postBare: bare },
    maxConcurrentActivityTaskExecutions: 1_000,
  })
  signal.throwIfAborted()
  const { pid: serverPid, description } = server
  return {
    client: firepool.client,
    serverPid,
    server: description,
    address,
    dir: firepoolDir,
    cleanup,
    signal,
  }
}

async function startServer({ production, signal }: WorldParts, dir: string) {
  if (!production) return startDevServer({ logFile: join(dir, 'server.log'), signal })
  const server = await startProductionServer(await obtainProductionParts())
  // In a group of its own; the database is ended by who keeps both.
  const description = `Temporal server ${TEMPORAL_VERSION} on PostgreSQL`
  return { ...server, pid: server.pids.temporal, description }
}

/** A worker of callers that is to stop is left to itself after this. */
const FORCE_MS = 3_000

/** Local activities of a loop make one long workflow task of it: an interruption does not wait for its end. */
export async function startWorker(
  { cleanup, signal }: Pick<Ends, 'cleanup' | 'signal'>,
  options: WorkerOptions,
): Promise<void> {
  const worker = await Worker.create({ ...options, shutdownForceTime: FORCE_MS })
  const running = worker.run()
  running.catch(() => undefined)
  cleanup.add(`stop the worker of ${options.taskQueue}`, () => {
    if (worker.getState() === 'RUNNING') worker.shutdown()
    return running.catch((error: unknown) => {
      if (!signal.aborted) throw error
    })
  })
}

/** @returns its port */
async function startBareServer(cleanup: Cleanup, signal: AbortSignal): Promise<number> {
  // In a group of its own, so that a Ctrl-C reaches only us; it ends when we do.
  const bareServer = fork(fileURLToPath(new URL('./bare-server.mjs', import.meta.url)), { detached: true })
  cleanup.add('stop the bare server', () => {
    if (bareServer.connected) bareServer.disconnect()
  })
  const [port] = (await once(bareServer, 'message', { signal })) as [number]
  return port
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
    const { standby, shards } = await handle.query<PoolStatus>(QUERY.status)
    if (standby.ready >= standby.target && (shards?.routes ?? 1) === checked.value.shards) return
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

/** What fails because all is being stopped is no news. */
let interrupted = false

export function quiet(): void {
  const logger = new DefaultLogger('ERROR', ({ level, message, meta }) => {
    if (!interrupted) process.stderr.write(`[${level}] ${message} ${inspect(meta)}\n`)
  })
  // Forwarded: by itself the SDK's core writes to standard output, into the JSON of --json.
  const logging = { forward: {}, filter: makeTelemetryFilterString({ core: 'ERROR', other: 'ERROR' }) }
  // By itself the SDK would end its workers at the first signal, before the pods are stopped.
  Runtime.install({ logger, shutdownSignals: [], telemetryOptions: { logging } })
}
