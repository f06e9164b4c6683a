import {
  type Backend,
  type KubernetesProfile,
  type LeaseNote,
  type ObservedPod,
  otherBackend,
  type PodOrder,
} from '../contract/index.js'
import type { Metric } from '../metrics.js'
import { Anchors } from './anchors.js'
import { type Connection, type ConnectionOptions, connectToCluster } from './connection.js'
import { forbidden, KubeError, refusalOf } from './kube-error.js'
import { brokerId, LABEL, podSelector } from './names.js'
import { Notes } from './notes.js'
import type { Pod, PodBody } from './objects.js'
import { ownNames } from './observed-pod.js'
import { pagesOf } from './pages.js'
import { podBody } from './pod-template.js'
import { PodWatch, type PodWatchOptions } from './pod-watch.js'
import { corePath, Requests } from './requests.js'
import { Rights } from './rights.js'
import { Shares } from './shares/shares.js'
import { userOfToken } from './token-review.js'

/** A pod that is deleted is waited for this long in one go; the effect is then tried again, and finds it gone or still going. */
const REMOVE_MS = 20_000
/** Should the watch be dead, the pod is asked for itself after this, and then after twice as long each time. */
const ASK_MS = 2_000

export interface KubernetesBackendOptions extends ConnectionOptions {
  /** where this worker's pods are; the first is that of profiles that name none. Default: the context's */
  namespaces?: readonly string[]
  /** base64 of the broker's raw 32-byte Ed25519 public key */
  brokerPublicKey: string
  log?: (line: string) => void
  timing?: NonNullable<PodWatchOptions['timing']> & {
    /** for how long a right that was never heard of is waited for, before it is said to be missing; default 10 s */
    rightMs?: number
  }
  /** asks a runner who it is; replaced where pods have no runner */
  askRunner?: NonNullable<PodWatchOptions['askRunner']>
}

export interface KubernetesBackend extends Backend {
  readonly namespaces: readonly string[]
  /** how old what is known of the pods may be, ms */
  ageMs(): number
  /** Why what is known of the pods cannot be trusted, with a remedy; null when it can. The first call begins to watch. */
  problem(): string | null
  /** What is known of the pods, and what was asked of the API server. */
  metrics(): Metric[]
  /**
   * The user whom the API server takes a token for, when it is for this audience; else null.
   * @throws Error that names a missing right, or says that there is no answer
   */
  userOf(token: string, audience: string): Promise<string | null>
  /** Removes all pods (of one pool, if given). @returns how many there were */
  stopAll(pool?: string): Promise<number>
  /** Ends all watches; the pods live on. */
  close(): void
}

type Created = Awaited<ReturnType<Backend['create']>>[number]

/**
 * Pods of a Kubernetes cluster. Nothing of them is kept here: a worker that starts finds all of its deployment's pods by their labels.
 * @throws KubernetesSettingsError when there is no client or no cluster to connect to
 */
export async function createKubernetesBackend(options: KubernetesBackendOptions): Promise<KubernetesBackend> {
  return new ClusterBackend(await connectToCluster(options), options)
}

class ClusterBackend implements KubernetesBackend {
  readonly namespaces: readonly string[]
  readonly #connection: Connection
  readonly #requests: Requests
  /** apart: however many ask for tokens, pods are ordered as before */
  readonly #reviews: Requests
  readonly #pods: PodWatch
  readonly #anchors: Anchors
  readonly #notes: Notes
  readonly #shares: Shares
  readonly #broker: string
  readonly #brokerPublicKey: string

  constructor(connection: Connection, options: KubernetesBackendOptions) {
    const { brokerPublicKey, log = () => {}, namespaces = [] } = options
    this.#connection = connection
    this.#brokerPublicKey = brokerPublicKey
    this.#broker = brokerId(brokerPublicKey)
    this.namespaces = namespaces.length > 0 ? [...new Set(namespaces)] : [connection.namespace]
    const rights = new Rights(undefined, options.timing?.rightMs)
    this.#requests = new Requests(connection, { rights })
    this.#reviews = new Requests(connection, { stats: this.#requests.stats })
    this.#anchors = new Anchors(this.#requests, this.#broker, log)
    this.#shares = new Shares(this.#requests, this.#broker)
    this.#pods = new PodWatch(connection, this.#requests, {
      namespaces: this.namespaces,
      broker: this.#broker,
      log,
      ...(options.timing ? { timing: options.timing } : {}),
      ...(options.askRunner ? { askRunner: options.askRunner } : {}),
    })
    this.#notes = new Notes(this.#requests, (pod) => this.#pods.find(pod), log)
  }

  ageMs(): number {
    return this.#pods.ageMs()
  }

  problem(): string | null {
    this.#pods.start()
    return this.#pods.problem()
  }

  metrics(): Metric[] {
    return [...this.#pods.metrics(), ...this.#requests.stats.metrics()]
  }

  async userOf(token: string, audience: string): Promise<string | null> {
    try {
      return await userOfToken(this.#reviews, token, audience)
    } catch (error) {
      throw error instanceof KubeError && error.status === 403 ? new Error(forbidden(error)) : error
    }
  }

  async create(orders: PodOrder[]): Promise<Created[]> {
    return Promise.all(orders.map((order) => this.#createOne(order)))
  }

  /** What somebody has to mend is a problem of the pod; what a moment may mend is thrown, and the effect tried again. */
  async #createOne(order: PodOrder): Promise<Created> {
    const { pod, profile } = order
    if (profile.backend !== 'kubernetes') return { pod, problem: otherBackend(profile.backend, 'kubernetes') }
    const namespace = profile.namespace ?? this.namespaces[0]!
    if (!this.namespaces.includes(namespace)) return { pod, problem: this.#otherNamespace(namespace) }
    const own = { ...order, profile }
    try {
      const owner = await this.#anchors.of(order.pool, namespace)
      this.#anchors.pull(own, namespace, owner)
      const place = { namespace, broker: this.#broker, brokerPublicKey: this.#brokerPublicKey, owner }
      const body = podBody(own, place)
      const problem = await this.#shares.prepare(own, body)
      return problem ? { pod, problem } : await this.#post(own, body)
    } catch (error) {
      const refusal = error instanceof KubeError ? refusalOf(error) : null
      if (refusal) return { pod, problem: refusal }
      throw error
    }
  }

  async #post(order: PodOrder & { profile: KubernetesProfile }, body: PodBody): Promise<Created> {
    const { pod } = order
    const { name, namespace = '' } = body.metadata
    const asked = { resource: 'pods', namespace, name } as const
    try {
      await this.#requests.text({
        ...asked,
        verb: 'create',
        path: corePath(namespace, 'pods'),
        // What the API server does not know of the template is refused by name, not dropped.
        query: { fieldValidation: 'Strict', fieldManager: 'firepool' },
        body,
      })
      return { pod }
    } catch (error) {
      if (!(error instanceof KubeError && error.status === 409 && error.reason === 'AlreadyExists'))
        throw error
    }
    const found = await this.#requests.json<Pod>({
      ...asked,
      verb: 'get',
      path: corePath(namespace, 'pods', name),
    })
    return this.#adopt(order, body, found)
  }

  /** A pod of that name is there: ours, from an earlier try of this order, or in the way. */
  #adopt({ pod }: PodOrder, body: PodBody, { metadata }: Pod): Created {
    const { labels = {}, ownerReferences = [], name, namespace } = metadata
    const isOurs = [LABEL.broker, LABEL.pool, LABEL.pod, LABEL.generation].every(
      (label) => labels[label] === body.metadata.labels?.[label],
    )
    if (!isOurs) {
      const message = `a pod ${name} that is not of this pool is in namespace ${namespace}; delete it, or use another namespace`
      return { pod, problem: { reason: 'NameTaken', message } }
    }
    const [owner] = body.metadata.ownerReferences as { uid: string }[]
    // Of an anchor that is gone: the cluster is about to delete it, and the name is free then.
    if (!ownerReferences.some(({ uid }) => uid === owner?.uid))
      throw new Error(`pod ${name} is being deleted with the earlier life of its pool`)
    return { pod }
  }

  #otherNamespace(namespace: string): { reason: string; message: string } {
    return {
      reason: 'NamespaceNotServed',
      message: `the profile's pods are in namespace ${namespace}, this worker serves ${this.namespaces.join(', ')}; name it with --kube-namespace, or change profile.namespace`,
    }
  }

  async remove(pods: string[]): Promise<void> {
    this.#pods.start()
    const names = [...new Set(pods)]
    const outcomes = await Promise.allSettled(names.map((pod) => this.#removeOne(pod)))
    const errors = outcomes.flatMap((outcome) =>
      outcome.status === 'rejected' ? [outcome.reason as Error] : [],
    )
    if (errors.length === 0) return
    throw new Error(`${errors.length} of ${names.length} pods could not be removed: ${errors[0]?.message}`)
  }

  async #removeOne(name: string): Promise<void> {
    const known = this.#pods.find(name)
    // What the watch has not brought yet, or not any more, only the API server knows.
    const found = known ? [known] : await this.#lookup(name)
    await Promise.all(found.map((pod) => this.#delete(pod)))
  }

  async #lookup(name: string): Promise<Pod[]> {
    // Long names may share a label.
    return this.#listAll({ pod: name }, (pod) => (ownNames(pod)?.pod === name ? pod : []))
  }

  /** Deletes this very pod, with the grace that its template gives it, and waits until it is gone. */
  async #delete(pod: Pod): Promise<void> {
    const { name, namespace = '', uid, deletionTimestamp } = pod.metadata
    const asked = { resource: 'pods', namespace, name } as const
    const path = corePath(namespace, 'pods', name)
    if (deletionTimestamp === undefined) {
      const isGone = await this.#ended({ ...asked, verb: 'delete', path, body: { preconditions: { uid } } })
      if (isGone) return
    }
    const until = performance.now() + REMOVE_MS
    for (let askMs = ASK_MS; performance.now() < until; askMs *= 2) {
      if (await this.#pods.gone(uid, Math.min(askMs, until - performance.now()))) return
      const [now] = await this.#read(namespace, name)
      if (now === undefined || now.metadata.uid !== uid) return
      // Its node will not end it: what it held is not to be had, and waiting for it would hold its place in the pool for ever.
      if (this.#pods.nodeOf(now) === 'lost') return
    }
    throw new Error(`pod ${name} is still terminating`)
  }

  /** @returns whether there was nothing of that name and uid */
  async #ended(request: Parameters<Requests['text']>[0]): Promise<boolean> {
    try {
      await this.#requests.text(request)
      return false
    } catch (error) {
      if (!(error instanceof KubeError)) throw error
      // 409: another pod has the name by now, the one that was meant is gone.
      if (error.status === 404 || error.status === 409) return true
      if (error.status === 403) throw new Error(forbidden(error))
      throw error
    }
  }

  async #read(namespace: string, name: string): Promise<Pod[]> {
    try {
      const path = corePath(namespace, 'pods', name)
      return [await this.#requests.json<Pod>({ verb: 'get', resource: 'pods', namespace, name, path })]
    } catch (error) {
      if (error instanceof KubeError && error.status === 404) return []
      throw error
    }
  }

  async list(pool: string): Promise<ObservedPod[]> {
    this.#pods.start()
    // From the API server itself: a full report tells by omission, and what the watch has not heard of yet is no omission (F1).
    const observed = await this.#listAll({ pool }, (pod) => this.#pods.observe(pod) ?? [])
    return observed.filter(({ phase }) => phase !== 'gone')
  }

  /**
   * What `take` makes of this deployment's pods in all namespaces that the worker serves. Of thousands of pods no more than one page is in
   * memory at once.
   * @throws Error that names a missing right
   */
  async #listAll<T>(which: { pool?: string; pod?: string }, take: (pod: Pod) => T | T[]): Promise<T[]> {
    const labelSelector = podSelector(this.#broker, which)
    const lists = this.namespaces.map(async (namespace) => {
      const taken: T[] = []
      const request = {
        resource: 'pods',
        namespace,
        path: corePath(namespace, 'pods'),
        query: { labelSelector },
      }
      for await (const { items } of pagesOf<Pod>(this.#requests, request)) taken.push(...items.flatMap(take))
      return taken
    })
    try {
      return (await Promise.all(lists)).flat()
    } catch (error) {
      throw error instanceof KubeError && error.status === 403 ? new Error(forbidden(error)) : error
    }
  }

  watch(pool: string, onChange: (pod: ObservedPod) => void): () => void {
    return this.#pods.watch(pool, onChange)
  }

  annotate(pod: string, lease: LeaseNote): void {
    this.#notes.write(pod, lease)
  }

  async forget(pool: string): Promise<void> {
    await Promise.all(this.namespaces.map((namespace) => this.#anchors.remove(pool, namespace)))
  }

  async stopAll(pool?: string): Promise<number> {
    this.#pods.start()
    const pods = await this.#listAll(pool === undefined ? {} : { pool }, (pod) => pod)
    await Promise.all(pods.map((pod) => this.#delete(pod)))
    return pods.length
  }

  close(): void {
    this.#pods.close()
    this.#connection.close()
  }
}
