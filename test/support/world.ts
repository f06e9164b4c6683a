import { type ChildProcess, fork } from 'node:child_process'
import { readdirSync, readFileSync } from 'node:fs'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { Client, Connection, type WorkflowHandle } from '@temporalio/client'
import type { DataConverter } from '@temporalio/common'
import { DefaultLogger, NativeConnection, Runtime, Worker } from '@temporalio/worker'
import type { PoolInput, PoolStatus } from '../../dist/contract/index.js'
import { checkPoolSpec, poolWorkflowId, QUERY, QUEUE, UPDATE, WORKFLOW } from '../../dist/contract/index.js'
import { createKubernetesBackend } from '../../dist/kubernetes/index.js'
import { createLocalBackend } from '../../dist/local/index.js'
import { FirepoolPlugin } from '../../dist/plugin/index.js'
import { startDevServer, type TemporalServer } from '../../dist/server/dev-server.js'
import { loadKeys } from '../../dist/token/token.js'
import { type FirepoolWorker, type KubernetesOptions, startFirepoolWorker } from '../../dist/worker.js'
import { callersWorkflows } from './callers-bundle.js'
import { isSecondTry } from './second-try.js'
import { waitUntil } from './wait.js'

export { waitUntil }

export const CALLER_QUEUE = 'callers'

// A test's output is for what went wrong.
Runtime.install({ logger: new DefaultLogger('ERROR') })

/** What a world needs of its server. */
export type WorldServer = Pick<TemporalServer, 'address' | 'namespace' | 'stop'> &
  Partial<Pick<TemporalServer, 'uiUrl'>>

export interface World {
  server: WorldServer
  /** address for a worker, a client and tools of their own */
  address: string
  client: Client
  backend: FirepoolWorker['backend']
  /** SIGKILLs Firepool's worker process (only with workerProcess) */
  killWorker(): Promise<void>
  startWorker(): Promise<void>
  dir: string
  /** Creates a pool and waits until its standbys are ready. */
  pool(name: string, spec?: Record<string, unknown>, input?: Partial<PoolInput>): Promise<PoolHandle>
  /** One that runs already. */
  existing(name: string): PoolHandle
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

/** Processes whose environment contains the text. */
export function processWith(text: string): number[] {
  const found: number[] = []
  for (const pid of readdirSync('/proc')) {
    if (!/^\d+$/.test(pid)) continue
    try {
      if (readFileSync(`/proc/${pid}/environ`, 'latin1').includes(text)) found.push(Number(pid))
    } catch {
      // It ended while we looked.
    }
  }
  return found
}

export interface WorldOptions {
  /** run Firepool's worker in a process of its own, which a test may kill */
  workerProcess?: boolean
  uiPort?: number
  /** the server keeps its state in temporal.db of the world's folder */
  serverFile?: boolean
  /** the callers' worker has Firepool's plugin: short jobs are local activities */
  plugin?: boolean
  /** codecs of Firepool's worker and its client, and of the callers' worker */
  dataConverter?: { firepool: DataConverter; callers: DataConverter }
  /** one that runs already, and goes on when the world is closed */
  server?: Pick<WorldServer, 'address' | 'namespace'>
  /** where the pods are; default processes of this machine */
  backend?: KubernetesOptions
}

/** Everything real: a Temporal server, Firepool's worker, pods as processes, and a worker for the callers. */
export async function makeWorld(options: WorldOptions = {}): Promise<World> {
  const dir = await mkdtemp(join(tmpdir(), 'firepool-test-'))
  const server: WorldServer = options.server
    ? { ...options.server, stop: async () => {} }
    : await startDevServer({
        logFile: join(dir, 'server.log'),
        ...(options.uiPort !== undefined ? { uiPort: options.uiPort } : {}),
        ...(options.serverFile ? { dbFile: join(dir, 'temporal.db') } : {}),
        onProgress: (progress) => process.stderr.write(`${JSON.stringify(progress)}\n`),
      })
  const firepoolDir = join(dir, 'firepool')
  const firepool = options.workerProcess
    ? await workerProcess(server.address, server.namespace, firepoolDir, options.backend)
    : await startFirepoolWorker({
        address: server.address,
        namespace: server.namespace,
        dir: firepoolDir,
        ...(options.backend ? { backend: options.backend } : {}),
        ...(options.dataConverter ? { dataConverter: options.dataConverter.firepool } : {}),
      })
  const connection = await NativeConnection.connect({ address: server.address })
  const worker = await Worker.create({
    connection,
    namespace: server.namespace,
    taskQueue: CALLER_QUEUE,
    ...callersWorkflows(!options.plugin && !options.dataConverter),
    ...(options.dataConverter ? { dataConverter: options.dataConverter.callers } : {}),
    plugins: options.plugin ? [new FirepoolPlugin({ dir: firepoolDir })] : [],
  })
  const running = worker.run()
  const { client, backend } = firepool

  const world: World = {
    server,
    address: server.address,
    client,
    backend,
    dir,
    async killWorker() {
      if ('kill' in firepool) await firepool.kill()
    },
    async startWorker() {
      if ('startAgain' in firepool) await firepool.startAgain()
    },
    existing(name) {
      const handle = client.workflow.getHandle(poolWorkflowId(name))
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
      return { name, handle, status, until }
    },
    async pool(name, given = {}, input = {}) {
      const checked = checkPoolSpec({ v: 1, name, budget: 4, standby: 1, ...given })
      if (checked.problem) throw new Error(checked.problem.message)
      await client.workflow.start(WORKFLOW.pool, {
        workflowId: poolWorkflowId(name),
        // What is run once more begins anew: the pods of its first pool are unknown to the next one, which deletes them.
        workflowIdConflictPolicy: isSecondTry() ? 'TERMINATE_EXISTING' : 'FAIL',
        taskQueue: QUEUE.workflows,
        args: [{ v: 1, spec: checked.value, ...input } satisfies PoolInput],
      })
      const pool = world.existing(name)
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
      await backend.stopAll()
      await firepool.shutdown()
      await world.server.stop()
      await rm(dir, { recursive: true, force: true })
    },
  }
  return world
}

/** What a worker process does wrong, and on purpose (see worker-faults.mjs), and where its pods are. */
export interface WorkerFaults {
  backend?: KubernetesOptions
  stops?: Stop[]
  twice?: boolean
  /** jobs that it takes at once */
  jobSlots?: number
}

export interface Stop {
  pool: string
  does: string
  when: 'before' | 'after'
  asked?: Record<string, unknown>
  answer?: Record<string, unknown>
}

/** One more worker of Firepool, in a process of its own that is polling already. */
export function forkWorker(
  address: string,
  namespace: string,
  dir: string,
  faults?: WorkerFaults,
): Promise<ChildProcess> {
  return new Promise((resolve, reject) => {
    const child = fork(fileURLToPath(new URL('./worker-process.mjs', import.meta.url)), [
      address,
      namespace,
      dir,
      ...(faults ? [JSON.stringify(faults)] : []),
    ])
    child.on('message', (message) => {
      if (message === 'ready') resolve(child)
    })
    child.once('exit', (code) => reject(new Error(`the worker process ended with ${code}`)))
  })
}

/** Firepool's worker in a child process, with a client and a view of its pods from here. */
async function workerProcess(address: string, namespace: string, dir: string, cluster?: KubernetesOptions) {
  const connection = await Connection.connect({ address })
  const client = new Client({ connection, namespace })
  const brokerPublicKey = loadKeys(join(dir, 'keys')).publicKeyBase64
  const backend = cluster
    ? await createKubernetesBackend({ ...cluster, brokerPublicKey })
    : createLocalBackend({ dir, brokerPublicKey })
  const start = () => forkWorker(address, namespace, dir, cluster ? { backend: cluster } : undefined)
  let child = await start()
  const kill = async () => {
    if (child.exitCode !== null || child.signalCode !== null) return
    const gone = new Promise((resolve) => child.once('exit', resolve))
    child.kill('SIGKILL')
    await gone
  }
  return {
    client,
    backend,
    kill,
    async startAgain() {
      child = await start()
    },
    async shutdown() {
      await kill()
      backend.close()
      await connection.close()
    },
  }
}
