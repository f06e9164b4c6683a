/** The composition root: one process that serves Firepool's three task queues. */
import { join } from 'node:path'
import { Client, Connection } from '@temporalio/client'
import type { DataConverter } from '@temporalio/common'
import { NativeConnection, Worker } from '@temporalio/worker'
import { createBrokerActivities, createDeliveryActivities, createJobActivities } from './activities/index.js'
import { workflowBundle } from './bundle.js'
import { QUEUE } from './contract/names.js'
import { convertersWith, refuseUndecodable } from './data-converter.js'
import type { KubernetesBackend } from './kubernetes/index.js'
import { createLocalBackend, type LocalBackend } from './local/index.js'
import type { ServerSettings } from './server/connection.js'
import { ensureSearchAttributes } from './server/search-attributes.js'
import { serveTokens } from './token/endpoint.js'
import { createSigner, loadKeys } from './token/token.js'
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
  /** jobs that may run at once under this worker; default 1,000: a slot is held while a job runs */
  jobSlots?: number
  /** workflows kept in memory; default 2,000 */
  cachedWorkflows?: number
  /** codecs that encrypt what the server stores; callers and clients need the same. Only `payloadCodecs` are used */
  dataConverter?: DataConverter
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
}

export interface FirepoolWorker {
  readonly client: Client
  readonly backend: LocalBackend | KubernetesBackend
  /** why some search attributes are not there, if so */
  readonly searchAttributes: string
  /** Why it does not serve, for a readiness probe; empty when it does. The first call begins to watch the pods. */
  notReady(): string[]
  /** resolves when the worker has stopped; rejects when it failed */
  readonly done: Promise<void>
  /** Lets running activities go (their jobs live on in their pods) and ends. */
  shutdown(): Promise<void>
}

/** How long running activities may take to detach at shutdown, ms. */
const GRACE_MS = 1_000

/**
 * Connects and starts polling.
 * @throws KubernetesSettingsError; and when the server cannot be reached, the folder cannot be used, or the data converter has more than codecs
 */
export async function startFirepoolWorker(options: FirepoolWorkerOptions): Promise<FirepoolWorker> {
  const { namespace, dir, jobSlots = 1_000, cachedWorkflows = 2_000, log } = options
  const server = connectionOf(options)
  const converters = convertersWith(options.dataConverter, log)
  const keys = loadKeys(options.keysDir ?? join(dir, 'keys'))
  const signer = createSigner(keys)
  const backend = await createBackend(options, keys.publicKeyBase64)
  const connection = await Connection.connect(server)
  const client = new Client({ connection, namespace, dataConverter: converters.client })
  const report = await ensureSearchAttributes(connection, namespace)
  const native = await NativeConnection.connect(server)
  const shared = {
    connection: native,
    namespace,
    dataConverter: converters.worker,
    interceptors: { activity: [refuseUndecodable] },
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
    backend.close()
    await stopTokens()
    await native.close()
    // The client's connection is left open: closed under a call that waits for its next attempt it throws out of a timer
    // and ends the process. It does not keep the process alive.
  })
  closed.catch(() => undefined)
  let isStopping = false
  return {
    client,
    backend,
    searchAttributes: report.reason ?? '',
    notReady() {
      if (isStopping) return ['it is stopping']
      const queues = workers.filter((worker) => worker.getState() !== 'RUNNING')
      const pods = 'problem' in backend ? backend.problem() : null
      return [
        ...queues.map((worker) => `the worker of ${worker.options.taskQueue} is ${worker.getState()}`),
        ...(pods === null ? [] : [pods]),
      ]
    },
    done: closed,
    async shutdown() {
      isStopping = true
      stopAll()
      await closed
    },
  }
}

/** The cluster's client is loaded for its pods alone: local ones run on a Node that it does not. */
async function createBackend(
  { dir, backend = 'local', log }: FirepoolWorkerOptions,
  brokerPublicKey: string,
): Promise<LocalBackend | KubernetesBackend> {
  const shared = { brokerPublicKey, ...(log ? { log } : {}) }
  if (backend === 'local') return createLocalBackend({ dir, ...shared })
  const { createKubernetesBackend } = await import('./kubernetes/index.js')
  const { kind: _, ...cluster } = backend
  return createKubernetesBackend({ ...cluster, ...shared })
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
