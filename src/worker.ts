/** The composition root: one process that serves Firepool's three task queues. */
import { join } from 'node:path'
import { Client, Connection } from '@temporalio/client'
import type { DataConverter } from '@temporalio/common'
import { type ActivityInterceptorsFactory, NativeConnection, Worker } from '@temporalio/worker'
import { createBrokerActivities, createDeliveryActivities, createJobActivities } from './activities/index.js'
import { workflowBundle } from './bundle.js'
import { checkNamespace } from './client/client.js'
import { QUEUE, TOKEN_AUDIENCE } from './contract/names.js'
import { convertersWith, refuseUndecodable } from './data-converter.js'
import type { KubernetesBackend } from './kubernetes/index.js'
import { createLocalBackend, type LocalBackend } from './local/index.js'
import type { Metric } from './metrics.js'
import type { ServerSettings } from './server/connection.js'
import { ensureSearchAttributes } from './server/search-attributes.js'
import type { Caller } from './token/callers.js'
import { type ClusterTokens, serveClusterTokens } from './token/cluster-endpoint.js'
import { serveTokens } from './token/endpoint.js'
import { createSigner, loadKeys, type Signer } from './token/token.js'
import { UntimedWorker } from './untimed-worker.js'

export { type ConnectionSettings, type ServerSettings, serverFromEnvironment } from './server/connection.js'
export { ConnectionSettingsError } from './server/settings-error.js'

/** The server, as `serverFromEnvironment` reads it from the standard environment and profile file; and how to serve it. */
export interface FirepoolWorkerOptions extends ServerSettings {
  /** a folder of this machine: the broker's key, and of local pods the registry and their files */
  dir: string
  /** where the pods are; default: processes of this machine */
  backend?: 'local' | KubernetesOptions
  /** the folder of the broker's key, e.g. a mounted Secret that all workers share; default `keys` in `dir` */
  keysDir?: string
  /** of local pods: the folder in which they find secrets, a file for each. Pods of a cluster have theirs mounted by the profile */
  secretsDir?: string
  /** jobs that may run at once under this worker; default 1,000: a slot is held while a job runs */
  jobSlots?: number
  /** workflows kept in memory; default 2,000 */
  cachedWorkflows?: number
  /** codecs that encrypt what the server stores; callers and clients need the same. Only `payloadCodecs` are used */
  dataConverter?: DataConverter
  /** interceptors of your own around Firepool's activities, e.g. one that goes on with a trace that headers carry */
  activityInterceptors?: ActivityInterceptorsFactory[]
  log?: (line: string) => void
}

/** Pods of a cluster: how to reach it, and in which namespaces they may be. See docs/kubernetes.md. */
export interface KubernetesOptions {
  kind: 'kubernetes'
  /** a kubeconfig file; else KUBECONFIG, ~/.kube/config, or the service account of the pod that the worker is */
  kubeconfig?: string
  /** of the kubeconfig */
  context?: string
  /** the first is that of profiles that name none; default: the context's */
  namespaces?: readonly string[]
  /** serves tokens of leases to callers' own workers in the cluster, for short jobs; default: nobody gets any there */
  tokens?: ClusterTokenSettings
}

export interface ClusterTokenSettings {
  /** 0 is a free one */
  port: number
  /** service accounts that may ask */
  callers: readonly Caller[]
  /** a folder with tls.crt and tls.key; null is plain HTTP, where the network is encrypted by other means */
  tlsFolder: string | null
}

export interface FirepoolWorker {
  readonly client: Client
  readonly backend: LocalBackend | KubernetesBackend
  /** why some search attributes are not there, if so */
  readonly searchAttributes: string
  /** Why it does not serve, for a readiness probe; empty when it does. The first call begins to watch the pods. */
  notReady(): string[]
  /** What there is to count, for Prometheus. */
  metrics(): Metric[]
  /** resolves when the worker has stopped; rejects when it failed */
  readonly done: Promise<void>
  /** Lets running activities go (their jobs live on in their pods) and ends. */
  shutdown(): Promise<void>
}

/** How long running activities may take to detach at shutdown, ms. */
const GRACE_MS = 1_000

/**
 * Connects and starts polling.
 * @throws KubernetesSettingsError; FirepoolUnavailableError when the server has no such namespace or refuses us; and when the server cannot be reached, the folder cannot be used, or the data converter has more than codecs
 */
export async function startFirepoolWorker(options: FirepoolWorkerOptions): Promise<FirepoolWorker> {
  const { namespace, dir, jobSlots = 1_000, cachedWorkflows = 2_000, log } = options
  const server = connectionOf(options)
  const converters = convertersWith(options.dataConverter, log)
  const keys = loadKeys(options.keysDir ?? join(dir, 'keys'))
  const signer = createSigner(keys)
  const backend = await createBackend(options, keys.publicKeyBase64)
  const clusterTokens = await openClusterTokens(options, backend, signer)
  const connection = await Connection.connect(server)
  const client = new Client({ connection, namespace, dataConverter: converters.client })
  // Asked first for a clear error: the core of the SDK answers a wrong namespace with a dump of its own.
  await checkNamespace(client)
  const report = await ensureSearchAttributes(connection, namespace)
  const native = await NativeConnection.connect(server)
  const shared = {
    connection: native,
    namespace,
    dataConverter: converters.worker,
    interceptors: { activity: [refuseUndecodable, ...(options.activityInterceptors ?? [])] },
    shutdownGraceTime: GRACE_MS,
    shutdownForceTime: 10 * GRACE_MS,
  }
  const workers = await Promise.all([
    UntimedWorker.create({
      ...shared,
      taskQueue: QUEUE.workflows,
      workflowBundle: await workflowBundle(converters.encoded),
      activities: createDeliveryActivities({ client, signer, backend }),
      maxCachedWorkflows: cachedWorkflows,
    }),
    Worker.create({
      ...shared,
      taskQueue: QUEUE.jobs,
      activities: createJobActivities({ client, signer, backend }),
      maxConcurrentActivityTaskExecutions: jobSlots,
    }),
    Worker.create({
      ...shared,
      taskQueue: QUEUE.broker,
      activities: createBrokerActivities({ client, signer, backend }),
      maxConcurrentActivityTaskExecutions: 500,
    }),
  ])
  const stopTokens = await serveTokens(dir, signer).catch((error: Error) => {
    log?.(`short jobs run as every job does, because tokens cannot be served: ${error.message}`)
    return () => Promise.resolve()
  })
  const running = Promise.all(workers.map((worker) => worker.run()))
  const stopAll = () => {
    for (const worker of workers) if (worker.getState() === 'RUNNING') worker.shutdown()
  }
  // One failed worker takes the others with it: a process that serves a part of the queues is worse than none.
  running.catch(stopAll)
  const done = running.then(
    () => undefined,
    (error: unknown) => Promise.reject(error),
  )
  const closed = done.finally(async () => {
    await clusterTokens?.close()
    backend.close()
    await stopTokens()
    await native.close()
    // The client's connection is left open: closed under a call that waits for its next attempt it throws out of a timer
    // and ends the process. It does not keep the process alive.
  })
  closed.catch(() => undefined)
  let isStopping = false
  const notReady = () => (isStopping ? ['it is stopping'] : reasonsNotToServe(workers, backend))
  return {
    client,
    backend,
    searchAttributes: report.reason ?? '',
    notReady,
    metrics: () => metricsOf(notReady().length === 0, backend, clusterTokens),
    done: closed,
    async shutdown() {
      isStopping = true
      stopAll()
      await closed
    },
  }
}

function reasonsNotToServe(workers: readonly Worker[], backend: LocalBackend | KubernetesBackend): string[] {
  const queues = workers.filter((worker) => worker.getState() !== 'RUNNING')
  const pods = 'problem' in backend ? backend.problem() : null
  return [
    ...queues.map((worker) => `the worker of ${worker.options.taskQueue} is ${worker.getState()}`),
    ...(pods === null ? [] : [pods]),
  ]
}

function metricsOf(
  isReady: boolean,
  backend: LocalBackend | KubernetesBackend,
  clusterTokens: ClusterTokens | undefined,
): Metric[] {
  return [
    {
      name: 'firepool_worker_ready',
      help: '1 when this worker serves all of its task queues and knows its pods.',
      type: 'gauge',
      samples: [[{}, isReady ? 1 : 0]],
    },
    ...('metrics' in backend ? backend.metrics() : []),
    ...(clusterTokens?.metrics() ?? []),
  ]
}

/** The cluster's client is loaded for its pods alone: local ones run on a Node that it does not. */
async function createBackend(
  { dir, secretsDir, backend = 'local', log }: FirepoolWorkerOptions,
  brokerPublicKey: string,
): Promise<LocalBackend | KubernetesBackend> {
  const shared = { brokerPublicKey, ...(log ? { log } : {}) }
  if (backend === 'local')
    return createLocalBackend({ dir, ...shared, ...(secretsDir === undefined ? {} : { secretsDir }) })
  const { createKubernetesBackend } = await import('./kubernetes/index.js')
  const { kind: _, tokens: __, ...cluster } = backend
  return createKubernetesBackend({ ...cluster, ...shared })
}

/** Whoever asked for it gets it, or no worker: its callers would be slower, and nobody would know why. */
async function openClusterTokens(
  { backend: options, log }: FirepoolWorkerOptions,
  backend: LocalBackend | KubernetesBackend,
  signer: Signer,
): Promise<ClusterTokens | undefined> {
  const tokens = typeof options === 'object' ? options.tokens : undefined
  if (tokens === undefined || !('userOf' in backend)) return undefined
  const userOf = (token: string) => backend.userOf(token, TOKEN_AUDIENCE)
  return serveClusterTokens({ ...tokens, userOf, signer, ...(log ? { log } : {}) })
}

/** The same for both kinds of connection. */
function connectionOf({ address, tls, apiKey, metadata }: ServerSettings) {
  return {
    address,
    ...(tls === undefined ? {} : { tls }),
    ...(apiKey === undefined ? {} : { apiKey }),
    ...(metadata === undefined ? {} : { metadata }),
  }
}
