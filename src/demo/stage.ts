import { randomBytes } from 'node:crypto'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { Client, Connection, type WorkflowHandle } from '@temporalio/client'
import {
  DefaultLogger,
  makeTelemetryFilterString,
  NativeConnection,
  Runtime,
  Worker,
} from '@temporalio/worker'
import { demoBundle } from '../bundle.js'
import {
  checkPoolSpec,
  type PoolInput,
  type PoolStatus,
  poolWorkflowId,
  QUERY,
  QUEUE,
  UPDATE,
  WORKFLOW,
} from '../contract/index.js'
import { serverOnPurpose } from '../server/connection.js'
import { openServer, type TemporalServer } from '../server/dev-server.js'
import { whyUnreachable } from '../server/diagnosis.js'
import type { Progress } from '../server/resolve.js'
import { type FirepoolWorker, startFirepoolWorker } from '../worker.js'
import { createDemoActivities } from './activities.js'
import type { Cleanup } from './cleanup.js'
import type { ForcedEnd } from './force.js'
import type { Problem } from './humaneval.js'
import { unlessAborted } from './interruption.js'
import { DEMO_QUEUE_PREFIX } from './names.js'
import { enterSharedFolder, otherWorker, type SharedFolder } from './shared-server.js'

/** Starting a pod of this machine takes under a second; the limit is for a machine that is busy. */
const POOL_READY_MS = 120_000
/** A pool on somebody else's server may take this long to give its pods up. */
const POOL_DELETE_MS = 20_000
const LOOK_MS = 100
const RUN_ID_BYTES = 3

export interface StageOptions {
  cleanup: Cleanup
  signal: AbortSignal
  onServerProgress: (progress: Progress) => void
  env: NodeJS.ProcessEnv
  /** filled as things are made: what a forced end kills and removes */
  force: ForcedEnd
}

/** A pool of the demo. */
export interface DemoPool {
  name: string
  status(): Promise<PoolStatus>
}

/** Everything that the loops play on: a server, Firepool's worker, and a worker for the loops themselves. */
export class Stage {
  /** in every name that the demo gives: two demos on one server do not meet */
  readonly runId = randomBytes(RUN_ID_BYTES).toString('hex')
  readonly queue = `${DEMO_QUEUE_PREFIX}-${this.runId}`
  /** aborted when the demo is to end or a part of the stage has failed */
  readonly signal: AbortSignal
  /** who starts the pods, for people */
  podsBy = ''
  private readonly broken = new AbortController()
  private firepool: FirepoolWorker | null = null
  private readonly loops: WorkflowHandle[] = []

  private constructor(
    readonly server: TemporalServer,
    readonly client: Client,
    private readonly options: StageOptions,
  ) {
    this.signal = AbortSignal.any([options.signal, this.broken.signal])
  }

  /** Opens a stage; whatever it makes is undone by `options.cleanup`, also when this throws. */
  static async open(options: StageOptions): Promise<Stage> {
    const { cleanup, signal, env } = options
    quietRuntime(cleanup)
    const folder = await demoFolder(options)
    const server = await openServer({
      logFile: join(folder.dir, 'server.log'),
      uiPort: 0,
      onProgress: options.onServerProgress,
      signal,
      env,
    })
    cleanup.add('stop the Temporal server', () => server.stop())
    options.force.serverPid = server.pid
    signal.throwIfAborted()
    const { address } = server
    const connection = await Connection.connect({ address, ...server.connection }).catch(
      async (error: Error) => {
        const why = await whyUnreachable(address, server.connection)
        throw new Error(`no Temporal server answers at ${address}: ${why ?? error.message}`)
      },
    )
    // Never closed: a call of this client that waits for its next attempt would then throw out of a timer and end the
    // process in the middle of the cleanup. It ends with the process.
    const client = new Client({ connection, namespace: server.namespace })
    const stage = new Stage(server, client, options)
    await stage.startFirepool(folder, connection)
    signal.throwIfAborted()
    return stage
  }

  private async startFirepool(folder: DemoFolder, connection: Connection): Promise<void> {
    const { address, namespace } = this.server
    const settings = { address, namespace, ...this.server.connection }
    const other = folder.shared ? await otherWorker(connection, namespace, folder.shared.pids()) : null
    if (other) {
      this.podsBy = `the Firepool worker that serves this server already (${other})`
      return
    }
    const dir = join(folder.dir, 'firepool')
    const firepool = await startFirepoolWorker({ ...settings, dir })
    this.firepool = firepool
    this.podsBy = 'a Firepool worker in this process'
    if (!folder.shared) this.options.cleanup.add('stop the pods', () => firepool.backend.stopAll())
    this.options.cleanup.add('stop the Firepool worker', () => firepool.shutdown())
    firepool.done.catch((error: Error) => this.fail(`the Firepool worker failed: ${error.message}`))
  }

  /** Starts the worker of the loops. */
  async startLoops(problems: readonly Problem[]): Promise<void> {
    const { address, namespace } = this.server
    const connection = await NativeConnection.connect({ address, ...this.server.connection })
    const worker = await Worker.create({
      connection,
      namespace,
      taskQueue: this.queue,
      workflowBundle: await demoBundle(),
      activities: createDemoActivities(problems),
      shutdownGraceTime: '1s',
    })
    const running = worker.run()
    running.catch((error: Error) => this.fail(`the worker of the loops failed: ${error.message}`))
    this.options.cleanup.add('stop the worker of the loops', async () => {
      if (worker.getState() === 'RUNNING') worker.shutdown()
      await running.catch(() => undefined)
      await connection.close()
    })
    if (this.server.pid === undefined) {
      this.options.cleanup.add('end the loops', () => this.endLoops())
    }
  }

  /** Creates a pool and waits until its standbys are ready. */
  async createPool(name: string, spec: unknown): Promise<DemoPool> {
    const checked = checkPoolSpec(spec)
    if (checked.problem) throw new Error(checked.problem.message)
    const handle = await this.client.workflow.start(WORKFLOW.pool, {
      workflowId: poolWorkflowId(name),
      taskQueue: QUEUE.workflows,
      args: [{ v: 1, spec: checked.value } satisfies PoolInput],
      staticSummary: `pool ${name} of firepool demo`,
    })
    // A server of our own ends with all that is on it.
    if (this.server.pid === undefined) {
      this.options.cleanup.add(`delete pool ${name}`, () => this.deletePool(name, handle))
    }
    const pool: DemoPool = { name, status: () => handle.query<PoolStatus>(QUERY.status) }
    const endMs = performance.now() + POOL_READY_MS
    for (;;) {
      const status = await unlessAborted(this.signal, pool.status())
      if (status.standby.ready >= status.standby.target) return pool
      const last = status.breaker.last
      if (status.breaker.open && last) throw new Error(`the pods of ${name} do not start: ${last.message}`)
      if (performance.now() > endMs) throw new Error(`pool ${name} was not ready within ${POOL_READY_MS} ms`)
      await sleep(LOOK_MS)
    }
  }

  /** Starts a loop's workflow on the demo's own queue. */
  async startLoop(workflow: string, workflowId: string, input: unknown, summary: string) {
    const handle = await this.client.workflow.start(workflow, {
      workflowId,
      taskQueue: this.queue,
      args: [input],
      staticSummary: summary,
    })
    this.loops.push(handle)
    return handle
  }

  private fail(message: string): void {
    if (!this.options.cleanup.started) this.broken.abort(new Error(message))
  }

  private async endLoops(): Promise<void> {
    // Those that have ended refuse, and that is all right.
    await Promise.all(this.loops.map((loop) => loop.terminate('firepool demo ends').catch(() => undefined)))
  }

  private async deletePool(name: string, handle: WorkflowHandle): Promise<void> {
    const deleted = (async () => {
      await handle.executeUpdate(UPDATE.delete, { args: [{ v: 1, force: true }] })
      await handle.result()
      return true
    })()
    deleted.catch(() => undefined)
    const inTime = await Promise.race([
      deleted.catch(() => false),
      sleep(POOL_DELETE_MS, false, { ref: false }),
    ])
    if (!inTime) await handle.terminate('firepool demo ends').catch(() => undefined)
    await this.firepool?.backend.stopAll(name)
    if (!inTime && !this.firepool) throw new Error(`its pods may still run at ${this.podsBy}`)
  }
}

interface DemoFolder {
  dir: string
  /** set when other demos may use the folder as well */
  shared: SharedFolder | null
}

async function demoFolder({ cleanup, env, force }: StageOptions): Promise<DemoFolder> {
  if (serverOnPurpose(env)) {
    const shared = await enterSharedFolder()
    cleanup.add('leave the shared folder', () => shared.leave())
    return { dir: shared.dir, shared }
  }
  const dir = await mkdtemp(join(tmpdir(), 'firepool-demo-'))
  force.dir = dir
  cleanup.add('remove the temporary folder', () => rm(dir, { recursive: true, force: true, maxRetries: 5 }))
  return { dir, shared: null }
}

/** The SDK would end its workers at the first signal, before the pods are stopped; and its log is for failures only. */
function quietRuntime(cleanup: Cleanup): void {
  const log = new DefaultLogger('ERROR', (entry) => {
    // What fails because all is being stopped is no news.
    if (!cleanup.started) process.stderr.write(`[${entry.level}] ${entry.message}\n`)
  })
  try {
    // By itself the SDK's core writes its warnings to standard output, which is for the result.
    const logging = { forward: {}, filter: makeTelemetryFilterString({ core: 'ERROR', other: 'ERROR' }) }
    Runtime.install({ logger: log, shutdownSignals: [], telemetryOptions: { logging } })
  } catch {
    // Somebody in this process has installed one already, with settings of their own.
  }
}
