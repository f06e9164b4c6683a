import { readFileSync } from 'node:fs'
import { parseAllDocuments } from 'yaml'
import {
  checkPoolSpec,
  type KubernetesProfile,
  type ObservedPod,
  type PodOrder,
} from '../../dist/contract/index.js'
import {
  createKubernetesBackend,
  type KubernetesBackend,
  type KubernetesBackendOptions,
} from '../../dist/kubernetes/index.js'
import { generateKeys } from '../../dist/token/token.js'
import { type ControlPlane, type ControlPlaneOptions, startControlPlane } from './control-plane.js'
import { PLAYED_BY, WORKER_ACCOUNT } from './control-plane-objects.js'
import type { KubeObject } from './kube-api.js'
import { waitUntil } from './wait.js'

/** A control plane and backends on it, as workers have them: with the rights of the worker's account and no more. */

const BASE = 'base/rbac.yaml'
/** what pools with GPUs need beside it */
export const GPU_RIGHTS = 'samples/gpu-rights.yaml'

/** The rights that users are told to give a worker, and that these tests live with. @param more files with more of them */
export function rulesOf(kind: 'Role' | 'ClusterRole', more: readonly string[] = []): KubeObject[] {
  return [BASE, ...more].flatMap((file) => objectsOf(file).find((object) => object.kind === kind)!.rules)
}

function objectsOf(file: string): KubeObject[] {
  const url = new URL(`../../deploy/kubernetes/${file}`, import.meta.url)
  return parseAllDocuments(readFileSync(url, 'utf8')).map((document) => document.toJS())
}

/** What the Deployment says to Node and to the C library of a worker, by variable: its memory depends on it. */
export function workerRuntime(): Record<string, string> {
  const deployment = objectsOf('base/worker.yaml').find(({ kind }) => kind === 'Deployment')!
  const env: { name: string; value?: string }[] = deployment.spec.template.spec.containers[0].env
  return Object.fromEntries(
    env.flatMap(({ name, value }) =>
      name.startsWith('FIREPOOL_') || value === undefined ? [] : [[name, value]],
    ),
  )
}

const RBAC = '/apis/rbac.authorization.k8s.io/v1'

/** Shorter than in production: a test does not wait for half a minute to learn that a watch is dead. */
export const QUICK = { idleMs: 3_000, resyncMs: 60_000, backoffMs: 100, rightMs: 1_000 }

/** kwok's pods have no runner: this stands for one that answers. */
const runnerOfKwok = async () => ({ v: 1, pod: '', incarnation: 'kwok' })

export const brokerPublicKey = generateKeys().publicKeyBase64

export async function startCluster(options: ControlPlaneOptions = {}): Promise<ControlPlane> {
  const cluster = await startControlPlane({ workerRules: rulesOf('Role'), ...options })
  await allowNodes(cluster)
  return cluster
}

/** Gives the worker's account what it may see of the whole cluster. */
export async function allowNodes(
  { api, namespace }: ControlPlane,
  more: readonly string[] = [],
): Promise<void> {
  const group = 'rbac.authorization.k8s.io'
  const metadata = { name: 'firepool-nodes' }
  await api.post(`${RBAC}/clusterroles`, {
    apiVersion: `${group}/v1`,
    kind: 'ClusterRole',
    metadata,
    rules: rulesOf('ClusterRole', more),
  })
  await api.post(`${RBAC}/clusterrolebindings`, {
    apiVersion: `${group}/v1`,
    kind: 'ClusterRoleBinding',
    metadata,
    roleRef: { apiGroup: group, kind: 'ClusterRole', name: metadata.name },
    subjects: [{ kind: 'ServiceAccount', name: WORKER_ACCOUNT, namespace }],
  })
}

let serial = 0

/** An order of a pod on kwok's nodes. @param does of the stages, without their prefix: { fail: 'OOMKilled' } */
export function orderOf(
  does: Record<string, string> = {},
  change: {
    spec?: KubeObject
    pool?: string
    profile?: object
    startTimeoutMs?: number
    generation?: number
  } = {},
): PodOrder & { profile: KubernetesProfile } {
  const { pool = 'kwok', spec = {}, profile = {}, startTimeoutMs = 60_000, generation = 1 } = change
  const annotations = Object.fromEntries(
    Object.entries(does).map(([key, value]) => [`firepool.test/${key}`, value]),
  )
  const template = {
    metadata: { annotations },
    spec: { nodeSelector: { [PLAYED_BY.label]: PLAYED_BY.kwok }, ...spec },
  }
  const checked = checkPoolSpec({
    v: 1,
    name: pool,
    budget: 1,
    profile: { backend: 'kubernetes', image: 'registry.test/none:1', template, ...profile },
  })
  if (checked.problem) throw new Error(checked.problem.message)
  return {
    pod: `${pool}-${process.pid}-${++serial}`,
    pool,
    generation,
    profile: checked.value.profile as KubernetesProfile,
    lifetimeMs: 3_600_000,
    startTimeoutMs,
  }
}

/** A backend that remembers what it saw. */
export class Observer {
  readonly seen: ObservedPod[] = []
  private readonly stops: (() => void)[] = []

  private constructor(
    readonly backend: KubernetesBackend,
    /** what it wrote to its log */
    readonly lines: string[],
  ) {}

  static async open(
    kubeconfig: string,
    options: Partial<KubernetesBackendOptions> = {},
    pools: readonly string[] = ['kwok'],
  ): Promise<Observer> {
    const lines: string[] = []
    const backend = await createKubernetesBackend({
      kubeconfig,
      brokerPublicKey,
      askRunner: runnerOfKwok,
      timing: QUICK,
      log: (line) => lines.push(line),
      ...options,
    })
    const observer = new Observer(backend, lines)
    for (const pool of pools) observer.stops.push(backend.watch(pool, (pod) => observer.seen.push(pod)))
    return observer
  }

  /** The last that was seen of a pod. */
  last(pod: string): ObservedPod | undefined {
    return this.seen.findLast((seen) => seen.pod === pod)
  }

  async until(pod: string, what: string, is: (seen: ObservedPod) => boolean): Promise<ObservedPod> {
    await waitUntil(`pod ${pod} is ${what}; it is ${JSON.stringify(this.last(pod))}`, () => {
      const last = this.last(pod)
      return last !== undefined && is(last)
    })
    return this.last(pod)!
  }

  ready(pod: string): Promise<ObservedPod> {
    return this.until(pod, 'ready', ({ phase }) => phase === 'ready')
  }

  failed(pod: string): Promise<ObservedPod> {
    return this.until(pod, 'failed', ({ phase }) => phase === 'failed')
  }

  close(): void {
    for (const stop of this.stops) stop()
    this.backend.close()
  }
}
