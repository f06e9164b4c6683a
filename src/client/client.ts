import { randomUUID } from 'node:crypto'
import { isDeepStrictEqual } from 'node:util'
import { type Client, type WorkflowHandle, WorkflowIdConflictPolicy } from '@temporalio/client'
import { WorkflowExecutionAlreadyStartedError } from '@temporalio/common'
import {
  ACQUIRE_OPTIONS,
  type Checked,
  checkAcquire,
  checkJob,
  checkOnPodLost,
  checkOptionalVersion,
  checkPoolName,
  checkPoolSpec,
  checkResize,
  checkSpecNames,
  FirepoolError,
  invalid,
  isRecord,
  type JobResult,
  LIMIT,
  livePool,
  type Page,
  type PageRequest,
  type PodRow,
  type PoolInput,
  type PoolSpec,
  type PoolStatus,
  poolOfShard,
  poolWorkflowId,
  problem,
  QUERY,
  QUEUE,
  type QueueRow,
  type Resize,
  type Routes,
  type RunJobInput,
  refuseUnknownNames,
  routesIn,
  shown,
  UPDATE,
  utf8Bytes,
  WORKFLOW,
} from '../contract/index.js'
import { acceptedValue, endedByTemporal, meaningOf, poolNotFound } from './errors.js'
import { encodingOf } from './payload.js'
import { isPolled } from './pollers.js'
import { openSession, type Session, type SessionOptions } from './session.js'
import { askShards, lastShardOf, pageOfAll, wholeStatus } from './shards.js'
import { specInForce } from './spec-history.js'
import { FirepoolUnavailableError, notAuthorized, stuck, unreadable } from './unavailable.js'
import { lookAtWait, type Waiting, watchWait } from './waiting.js'

/** How long a pool may take to answer; it answers in milliseconds unless no worker runs. */
const ANSWER_MS = 10_000
/** Pools asked at once by listPools. */
const LIST_PARALLEL = 8
/** A pool that is being deleted is looked at this often. */
const DELETE_LOOK_MS = 250

export interface FirepoolClientOptions {
  /** connected, with the namespace to use */
  client: Client
  /** how long a pool may take to answer, ms; default 10,000 */
  answerMs?: number
}

/** A pool spec with everything optional that has a default. */
export type PoolSpecInput = Pick<PoolSpec, 'name' | 'budget'> &
  Partial<Omit<PoolSpec, 'profile'>> & {
    profile?: Partial<PoolSpec['profile']>
  }

export interface Applied {
  outcome: 'created' | 'changed' | 'unchanged'
  /** the spec in force, every default filled in */
  spec: PoolSpec
  /** of a pool that was there */
  status?: PoolStatus
}

/** A pool in a list. A pool whose worker does not answer is listed all the same. */
export interface PoolEntry {
  pool: string
  status: PoolStatus | null
  /** why there is no status */
  error?: Error
}

export interface DeleteOptions {
  /** delete it even when callers hold or wait for pods: their jobs are killed */
  force?: boolean
  /** called now and then while its pods end */
  onProgress?: (status: PoolStatus) => void
  /** stops waiting; the deletion goes on */
  signal?: AbortSignal
}

export interface RunJobOptions {
  /** default 'firepool-run-{uuid}' */
  workflowId?: string
  /** aborting cancels the job; the promise settles when it has really ended */
  signal?: AbortSignal
  /** called when the workflow has been started */
  onStarted?: (workflowId: string) => void
  /** called when the job has waited for about a second, and again whenever the reason or its place changes */
  onWaiting?: (waiting: Waiting) => void
}

/**
 * What a TypeScript service asks of Firepool. Every method rejects with FirepoolError (a typed Problem, e.g.
 * PoolNotFound or InvalidRequest), with FirepoolUnavailableError when nobody answers, or with the Temporal client's
 * own error when that says it best.
 */
export interface FirepoolClient {
  /** Creates a pool, or gives the one of that name a new spec. */
  applyPool(spec: PoolSpecInput): Promise<Applied>
  listPools(): Promise<PoolEntry[]>
  /** Names of all pools, sorted. Needs no worker. */
  poolNames(): Promise<string[]>
  describePool(name: string): Promise<PoolStatus>
  /** the spec in force; an operator's resize stands in the status, not here */
  poolSpec(name: string): Promise<PoolSpec>
  pods(name: string, page?: PageRequest): Promise<Page<PodRow>>
  queue(name: string, page?: PageRequest): Promise<Page<QueueRow>>
  resizePool(name: string, resize: Omit<Resize, 'v'>): Promise<PoolStatus>
  pausePool(name: string): Promise<PoolStatus>
  resumePool(name: string): Promise<PoolStatus>
  drainPool(name: string): Promise<PoolStatus>
  /** Resolves when its last pod is gone. */
  deletePool(name: string, options?: DeleteOptions): Promise<void>
  /** Runs one job; a non-zero exit is a result, not an error. */
  runJob(input: RunJobInput, options?: RunJobOptions): Promise<JobResult>
  /**
   * A pod held for a service without a workflow of its own: started by its first job, given back when nobody used it
   * for its ttl. Costs nothing by itself.
   */
  session(pool: string, options?: SessionOptions): Session
  /** Whether a worker serves Firepool's workflows. True may be a minute old, false is certain. */
  hasWorker(): Promise<boolean>
}

export function createFirepoolClient(options: FirepoolClientOptions): FirepoolClient {
  return new TemporalFirepoolClient(options.client, options.answerMs ?? ANSWER_MS)
}

/**
 * Whether the server lets us in and has the client's namespace, by the namespace's description: it knows also one that was created a
 * moment ago, which other calls may not know for some seconds.
 * @throws FirepoolUnavailableError
 */
export async function checkNamespace(client: Client): Promise<void> {
  const { namespace } = client.options
  try {
    await client.workflowService.describeNamespace({ namespace })
  } catch (error) {
    throw await new TemporalFirepoolClient(client, ANSWER_MS).explained(error, '')
  }
}

class TemporalFirepoolClient implements FirepoolClient {
  /** pools that this client can read */
  private readonly readable = new Set<string>()

  constructor(
    private readonly client: Client,
    private readonly answerMs: number,
  ) {}

  async applyPool(given: PoolSpecInput): Promise<Applied> {
    if (!isRecord(given)) acceptedValue(checkPoolSpec(given))
    acceptedValue(checkSpecNames({ ...given }))
    const spec = acceptedValue(checkPoolSpec({ ...given, v: given.v ?? 1 }))
    if (await this.startPool(spec)) return { outcome: 'created', spec }
    const before = await this.poolSpec(spec.name)
    const isSame = isDeepStrictEqual(before, spec)
    const status = isSame
      ? await this.describePool(spec.name)
      : await this.update(spec.name, UPDATE.apply, spec)
    if (status.mode === 'deleting') {
      throw new FirepoolError(
        problem('InvalidRequest', `pool ${spec.name} is being deleted; apply it again when it is gone`),
      )
    }
    return { outcome: isSame ? 'unchanged' : 'changed', spec, status }
  }

  /** @returns false when the pool is there already */
  private async startPool(spec: PoolSpec): Promise<boolean> {
    try {
      const lastShard = await lastShardOf(this.client, spec.name)
      await this.client.workflow.start(WORKFLOW.pool, {
        workflowId: poolWorkflowId(spec.name),
        taskQueue: QUEUE.workflows,
        workflowIdConflictPolicy: WorkflowIdConflictPolicy.FAIL,
        args: [{ v: 1, spec, ...(lastShard > 0 ? { lastShard } : {}) } satisfies PoolInput],
      })
      return true
    } catch (error) {
      if (error instanceof WorkflowExecutionAlreadyStartedError) return false
      throw await this.explained(error, spec.name)
    }
  }

  async poolNames(): Promise<string[]> {
    const names: string[] = []
    const prefix = poolWorkflowId('')
    try {
      const query = `WorkflowType = '${WORKFLOW.pool}' AND ExecutionStatus = 'Running'`
      for await (const { workflowId } of this.client.workflow.list({ query })) {
        const name = workflowId.slice(prefix.length)
        // Shards belong to their pool.
        if (workflowId.startsWith(prefix) && poolOfShard(name) === name) names.push(name)
      }
    } catch (error) {
      throw await this.explained(error, '')
    }
    return names.sort()
  }

  async listPools(): Promise<PoolEntry[]> {
    const names = await this.poolNames()
    const entries: PoolEntry[] = []
    for (let at = 0; at < names.length; at += LIST_PARALLEL) {
      const some = names.slice(at, at + LIST_PARALLEL).map((pool) => this.entry(pool))
      for (const entry of await Promise.all(some)) if (entry) entries.push(entry)
    }
    return entries
  }

  /** null: it ended since it was listed */
  private async entry(pool: string): Promise<PoolEntry | null> {
    try {
      return { pool, status: await this.describePool(pool) }
    } catch (error) {
      if (error instanceof FirepoolError && error.problem.code === 'PoolNotFound') return null
      return { pool, status: null, error: error instanceof Error ? error : new Error(String(error)) }
    }
  }

  describePool(name: string): Promise<PoolStatus> {
    return this.query(name, async (handle) => this.whole(await handle.query<PoolStatus>(QUERY.status)))
  }

  /** The status of the whole pool, by that of its head. */
  private async whole(head: PoolStatus): Promise<PoolStatus> {
    if (!head.shards) return head
    return wholeStatus(
      head,
      await askShards<PoolStatus>(this.client, head.pool, othersOf(head.shards), QUERY.status),
    )
  }

  poolSpec(name: string): Promise<PoolSpec> {
    return this.query(name, async (handle, runId) => {
      const spec = await specInForce(this.client, handle.workflowId, runId)
      if (!spec)
        throw new Error(
          `the history of ${handle.workflowId} holds no spec that can be read; was it started by Firepool, and is this client's payload codec that of its worker?`,
        )
      return spec
    })
  }

  pods(name: string, page: PageRequest = {}): Promise<Page<PodRow>> {
    return this.rows<PodRow>(name, QUERY.pods, page)
  }

  queue(name: string, page: PageRequest = {}): Promise<Page<QueueRow>> {
    return this.rows<QueueRow>(name, QUERY.queue, page)
  }

  private rows<Row>(name: string, query: string, page: PageRequest): Promise<Page<Row>> {
    return this.query(name, (handle, _, memo) =>
      pageOfAll<Row>(routesIn(memo).all, page, async (shard, part) => {
        if (shard === 0) return handle.query<Page<Row>, [PageRequest]>(query, part)
        const [other] = await askShards<Page<Row>>(this.client, name, [shard], query, part)
        return other?.answer ?? null
      }),
    )
  }

  async resizePool(name: string, resize: Omit<Resize, 'v'>): Promise<PoolStatus> {
    acceptedValue(refuseUnknownNames('a resize', 'field', { ...resize }, ['v', 'budget', 'standby']))
    return this.update(name, UPDATE.resize, { v: 1, ...acceptedValue(checkResize(resize)) })
  }

  pausePool(name: string): Promise<PoolStatus> {
    return this.update(name, UPDATE.pause, { v: 1 })
  }

  resumePool(name: string): Promise<PoolStatus> {
    return this.update(name, UPDATE.resume, { v: 1 })
  }

  drainPool(name: string): Promise<PoolStatus> {
    return this.update(name, UPDATE.drain, { v: 1 })
  }

  async deletePool(name: string, options: DeleteOptions = {}): Promise<void> {
    acceptedValue(refuseUnknownNames('deletePool', 'option', { ...options }, DELETE_OPTIONS))
    const { force = false, onProgress, signal } = options ?? {}
    if (!force) await this.refuseLive(name)
    // Not as an argument of onProgress?.(): without it nothing would be asked for.
    const deleting = await this.update(name, UPDATE.delete, { v: 1, force })
    onProgress?.(deleting)
    while (!signal?.aborted) {
      await new Promise((resolve) => setTimeout(resolve, DELETE_LOOK_MS))
      try {
        const status = await this.describePool(name)
        // Applied anew by somebody as soon as it was gone.
        if (status.mode !== 'deleting') return
        onProgress?.(status)
      } catch (error) {
        if (error instanceof FirepoolError && error.problem.code === 'PoolNotFound') return
        throw error
      }
    }
  }

  /** The head of a pool with shards knows what the others held a while ago; here they are asked. A whole pool knows itself. */
  private async refuseLive(name: string): Promise<void> {
    const { shards, leases, queue, mode } = await this.describePool(name)
    const live = livePool(name, leases, queue.capacity + queue.slotBusy)
    if (shards && mode !== 'deleting' && live) throw new FirepoolError(live)
  }

  async runJob(input: RunJobInput, options: RunJobOptions = {}): Promise<JobResult> {
    acceptedValue(refuseUnknownNames('runJob', 'option', { ...options }, RUN_OPTIONS))
    const { signal, onStarted, onWaiting, ...given } = options ?? {}
    const workflowId = given.workflowId ?? `firepool-run-${randomUUID()}`
    checkRunJob(input, workflowId)
    if (signal?.aborted) {
      const why = 'the job was cancelled before it began; run it if it is still wanted'
      throw new FirepoolError(problem('Cancelled', why))
    }
    await this.checkCodec(input.pool)
    const handle = await this.startJob(input, workflowId)
    onStarted?.(workflowId)
    const over = new AbortController()
    if (onWaiting) void watchWait(() => this.waitOf(input.pool, workflowId), onWaiting, over.signal)
    const cancel = () => void handle.cancel().catch(() => undefined)
    if (signal?.aborted) cancel()
    signal?.addEventListener('abort', cancel, { once: true })
    try {
      return await handle.result()
    } catch (error) {
      const meaning = meaningOf(error)
      if (meaning.kind === 'problem') throw new FirepoolError(meaning.problem)
      const ended = endedByTemporal(error, workflowId)
      if (ended) throw new FirepoolError(ended)
      throw await this.explained(error, input.pool)
    } finally {
      over.abort()
      signal?.removeEventListener('abort', cancel)
    }
  }

  private waitOf(pool: string, workflowId: string): Promise<Waiting | null> {
    return this.client.withDeadline(Date.now() + this.answerMs, () =>
      lookAtWait(this.client, this, pool, workflowId),
    )
  }

  private async startJob(
    input: RunJobInput,
    workflowId: string,
  ): Promise<WorkflowHandle<() => Promise<JobResult>>> {
    try {
      return await this.client.workflow.start<(input: RunJobInput) => Promise<JobResult>>(WORKFLOW.runJob, {
        workflowId,
        taskQueue: QUEUE.workflows,
        args: [{ v: 1, ...input }],
      })
    } catch (error) {
      if (error instanceof WorkflowExecutionAlreadyStartedError) {
        throw new FirepoolError(
          problem(
            'InvalidRequest',
            `workflow ${workflowId} runs already; give each job a workflow id of its own`,
          ),
        )
      }
      throw await this.explained(error, input.pool)
    }
  }

  session(pool: string, options: SessionOptions = {}): Session {
    return openSession(this.client, pool, options, {
      before: () => this.checkCodec(pool),
      explain: (error) => this.explained(error, pool),
    })
  }

  async hasWorker(): Promise<boolean> {
    try {
      return await this.client.withDeadline(Date.now() + this.answerMs, () =>
        isPolled(this.client, QUEUE.workflows),
      )
    } catch (error) {
      throw await this.explained(error, '')
    }
  }

  /** A query would be answered by a pool that was deleted as well, from its history: so it is looked at first. */
  private query<T>(
    name: string,
    ask: (handle: WorkflowHandle, runId: string, memo: unknown) => Promise<T>,
  ): Promise<T> {
    return this.asking(name, async (handle) => {
      const { status, runId, memo } = await handle.describe()
      if (status.name === 'COMPLETED') throw poolNotFound(name, `pool '${name}' was deleted`)
      if (status.name !== 'RUNNING')
        throw poolNotFound(name, `workflow ${handle.workflowId} has ended (${status.name.toLowerCase()})`)
      return ask(handle, runId, memo)
    })
  }

  private async update(name: string, update: string, payload: unknown): Promise<PoolStatus> {
    await this.checkCodec(name)
    return this.asking(name, async (handle) =>
      this.whole(await handle.executeUpdate<PoolStatus, [unknown]>(update, { args: [payload] })),
    )
  }

  /**
   * Before anything is asked of a pool for the first time: a client without the codec of its worker would leave its words in the clear in
   * the histories of those who encrypt, have them acted upon, and not understand the answer.
   */
  private async checkCodec(pool: string): Promise<void> {
    if (this.readable.has(pool)) return
    const handle = this.client.workflow.getHandle(poolWorkflowId(pool))
    try {
      // It has the pool's memo, which is decoded.
      await this.client.withDeadline(Date.now() + this.answerMs, () => handle.describe())
      this.readable.add(pool)
    } catch (error) {
      const encoding = encodingOf(error)
      if (encoding !== null) throw unreadable(pool, encoding)
      // A codec with other keys. Whatever else is wrong is said by what is asked next.
      if (meaningOf(error).kind === 'unknown') throw error
    }
  }

  private async asking<T>(name: string, ask: (handle: WorkflowHandle) => Promise<T>): Promise<T> {
    const pool = acceptedValue(checkPoolName(name))
    const handle = this.client.workflow.getHandle(poolWorkflowId(pool))
    try {
      return await this.client.withDeadline(Date.now() + this.answerMs, () => ask(handle))
    } catch (error) {
      throw await this.explained(error, pool)
    }
  }

  async explained(error: unknown, pool: string): Promise<unknown> {
    const { namespace } = this.client.options
    const meaning = meaningOf(error)
    switch (meaning.kind) {
      case 'problem':
        return error instanceof FirepoolError ? error : new FirepoolError(meaning.problem)
      case 'poolNotFound':
        return poolNotFound(pool)
      case 'noNamespace':
        return new FirepoolUnavailableError(
          'NoNamespace',
          `the Temporal server has no namespace '${namespace}'`,
          'set TEMPORAL_NAMESPACE, or create it: temporal operator namespace create',
          { cause: error },
        )
      case 'notAuthorized':
        return notAuthorized(`the Temporal server (namespace '${namespace}')`, error)
      case 'noServer':
        return new FirepoolUnavailableError(
          'NoServer',
          `the Temporal server does not answer (${meaning.detail})`,
          'start one with firepool dev, or set TEMPORAL_ADDRESS',
          { cause: error },
        )
      case 'unanswered':
        return this.unanswered(error)
      case 'stuck':
        return error instanceof FirepoolUnavailableError ? error : stuck(poolWorkflowId(pool), error)
      case 'unknown':
        return error
    }
  }

  private async unanswered(error: unknown): Promise<FirepoolUnavailableError> {
    const { namespace } = this.client.options
    const polled = await this.hasWorkerQuietly()
    if (!polled) return noWorker(namespace, error)
    return new FirepoolUnavailableError(
      'NoAnswer',
      `no worker answered within ${this.answerMs / 1_000} s, though one was seen lately`,
      'look whether firepool worker (or firepool dev) still runs; a change that was asked for may still come into force',
      { cause: error },
    )
  }

  private async hasWorkerQuietly(): Promise<boolean> {
    return isPolled(this.client, QUEUE.workflows).catch(() => true)
  }
}

/** Nobody serves Firepool's queues in this namespace. */
export function noWorker(namespace: string, cause?: unknown): FirepoolUnavailableError {
  return new FirepoolUnavailableError(
    'NoWorker',
    `no Firepool worker runs in namespace '${namespace}', so nobody can answer`,
    'start one with firepool worker, or everything with firepool dev',
    cause === undefined ? undefined : { cause },
  )
}

/** The shards beside the head. */
const othersOf = ({ all }: Routes) => Array.from({ length: all - 1 }, (_, i) => i + 1)

const RUN_OPTIONS: readonly (keyof RunJobOptions)[] = ['workflowId', 'signal', 'onStarted', 'onWaiting']
const DELETE_OPTIONS: readonly (keyof DeleteOptions)[] = ['force', 'onProgress', 'signal']
const RUN_JOB_OPTIONS = ['v', 'pool', 'job', 'onPodLost', ...ACQUIRE_OPTIONS]

/** Refused here, before it becomes a payload that the server would refuse in a worse way. */
function checkRunJob(input: RunJobInput, workflowId: unknown): void {
  if (!isRecord(input)) acceptedValue(invalid(`runJob takes { pool, job }, not ${shown(input)}`))
  acceptedValue(checkOptionalVersion(input.v))
  acceptedValue(refuseUnknownNames('runJob', 'option', { ...input }, RUN_JOB_OPTIONS))
  acceptedValue(checkPoolName(input.pool))
  acceptedValue(checkAcquire(input, acceptedValue(checkWorkflowId(workflowId))))
  acceptedValue(checkOnPodLost(input.onPodLost))
  acceptedValue(checkJob(input.job))
}

function checkWorkflowId(value: unknown): Checked<string> {
  const bytes = typeof value === 'string' ? utf8Bytes(value) : 0
  if (bytes > 0 && bytes <= LIMIT.workflowIdBytes) return { value: value as string }
  const found = typeof value === 'string' ? `one of ${bytes} bytes` : shown(value)
  return invalid(`workflowId must be a text of 1 to ${LIMIT.workflowIdBytes} bytes, not ${found}`)
}
