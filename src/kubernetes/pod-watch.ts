import type { ObservedPod } from '../contract/index.js'
import { Counter, type Metric } from '../metrics.js'
import type { Connection } from './connection.js'
import { FailedLogs } from './failed-logs.js'
import { forbidden } from './kube-error.js'
import { ListWatch, type ListWatchOptions } from './list-watch.js'
import { podSelector } from './names.js'
import type { Node, ObjectMeta, Pod } from './objects.js'
import { type NodeState, nodeState, observedPod, ownNames, wantsLog } from './observed-pod.js'
import { ReadyProbe } from './ready-probe.js'
import { corePath, type Requests } from './requests.js'
import { SeatMounts } from './shares/seat-mounts.js'
import { SetPlaces } from './shares/set-places.js'

/** Twice as long as a quiet watch is believed: by then it has been listed anew, or the API server does not answer. */
const STALE_MS = 60_000
/** Start time-outs are looked at this often. */
const LOOK_MS = 500
/** Names of nodes that went; the cluster itself takes the pods of one away within minutes. */
const GONE_NODES_MAX = 10_000
/** More than can be deleted while one answer is on its way. */
const WENT_LATELY_MAX = 1_000
/**
 * What was heard longer ago is not trusted. A quiet cluster is asked anew after half a minute of silence (idleMs of ListWatch); a worker
 * that is away from its API server for three times that is of no use to new pods.
 */
const TRUSTED_MS = 90_000

interface Watch {
  pool: string
  onChange: (pod: ObservedPod) => void
  /** what it was told last about each pod, as text */
  told: Map<string, string>
}

export interface PodWatchOptions {
  namespaces: readonly string[]
  broker: string
  log: (line: string) => void
  timing?: Pick<ListWatchOptions, 'idleMs' | 'resyncMs' | 'backoffMs'>
  /** asks a runner who it is; replaced where pods have no runner */
  askRunner?: (address: string) => Promise<unknown>
}

/** All pods of this deployment in the worker's namespaces, seen together with their nodes and runners. */
export class PodWatch {
  readonly #lists = new Map<string, ListWatch<Pod>>()
  /** pods by their names in Firepool: each lease and each delete asks for one of thousands */
  readonly #byOwnName = new Map<string, Pick<ObjectMeta, 'namespace' | 'uid'>>()
  readonly #nodes: ListWatch<Node>
  /** nodes by name: a pod names its node so */
  readonly #byName = new Map<string, Node>()
  /** nodes that were here and are not: one that was never heard of may only be new */
  readonly #goneNodes = new Set<string>()
  readonly #probe: ReadyProbe
  readonly #logs: FailedLogs
  readonly #mounts: SeatMounts
  readonly #places = new SetPlaces()
  readonly #requests: Requests
  readonly #log: (line: string) => void
  readonly #watches = new Set<Watch>()
  readonly #removed = new Map<string, Set<() => void>>()
  /** a watch may be faster than the answer to the delete */
  readonly #wentLately = new Set<string>()
  #timer: NodeJS.Timeout | undefined
  #started = false
  #isStale = false

  constructor(connection: Connection, requests: Requests, options: PodWatchOptions) {
    this.#requests = requests
    this.#log = options.log
    this.#probe = new ReadyProbe((uid) => this.#look(uid), options.askRunner)
    this.#logs = new FailedLogs(requests, (uid) => this.#look(uid))
    this.#mounts = new SeatMounts(requests, (uid) => this.#look(uid))
    const shared = { ...options.timing, log: options.log }
    for (const namespace of options.namespaces) {
      const list = new ListWatch<Pod>(
        connection,
        requests,
        {
          ...shared,
          resource: 'pods',
          namespace,
          path: corePath(namespace, 'pods'),
          selector: podSelector(options.broker),
        },
        { changed: (pod) => this.#seen(pod), gone: (pod) => this.#gone(pod) },
      )
      this.#lists.set(namespace, list)
    }
    this.#nodes = new ListWatch<Node>(
      connection,
      requests,
      { ...shared, resource: 'nodes', path: '/api/v1/nodes' },
      {
        changed: (node) => this.#node(node.metadata.name, node),
        gone: (node) => this.#node(node.metadata.name),
      },
    )
  }

  /** Begins to watch; later calls change nothing. */
  start(): void {
    if (this.#started) return
    this.#started = true
    for (const list of this.#lists.values()) list.start()
    this.#nodes.start()
    this.#timer = setInterval(() => this.#lookAtAll(), LOOK_MS)
    this.#timer.unref()
  }

  close(): void {
    clearInterval(this.#timer)
    for (const list of this.#lists.values()) list.stop()
    this.#nodes.stop()
    this.#probe.close()
    this.#watches.clear()
  }

  /** How old what is known of the pods may be, ms: of the namespace that was heard of longest ago. */
  ageMs(): number {
    return Math.max(...[...this.#lists.values()].map((list) => list.ageMs()))
  }

  /** The age of what is known by namespace, and the pods of all of them by pool and phase. */
  metrics(): Metric[] {
    const counts = new Counter()
    for (const pod of this.#pods()) {
      const seen = this.observe(pod, false)
      if (seen !== undefined) counts.add({ pool: ownNames(pod)?.pool ?? '', phase: seen.phase })
    }
    return [
      {
        name: 'firepool_pod_watch_age_seconds',
        help: 'Since the API server last said anything of the pods in a namespace; +Inf before it said anything.',
        type: 'gauge',
        samples: [...this.#lists].map(([namespace, list]) => [{ namespace }, list.ageMs() / 1_000]),
      },
      {
        name: 'firepool_pods',
        help: 'Pods of this deployment as this worker sees them, by pool (shards apart) and phase. All workers see the same pods.',
        type: 'gauge',
        samples: counts.samples(),
      },
    ]
  }

  /** Why what is known cannot be trusted: a missing right by name, or silence; null when it can. */
  problem(): string | null {
    for (const [namespace, list] of this.#lists) {
      if (list.problem?.status === 403) return forbidden(list.problem)
      if (list.ageMs() <= TRUSTED_MS) continue
      const why = list.problem === null ? '' : `: ${list.problem.message}`
      const since = list.isSynced ? `for ${Math.round(list.ageMs() / 1_000)} s` : 'yet'
      return `nothing was heard of the pods in namespace ${namespace} ${since}${why}`
    }
    return null
  }

  /** The pod by its name in Firepool, as it was last seen. */
  find(name: string): Pod | undefined {
    const { namespace, uid } = this.#byOwnName.get(name) ?? {}
    return uid === undefined ? undefined : this.#lists.get(namespace ?? '')?.store.get(uid)
  }

  isKnown(pod: Pod): boolean {
    return this.#lists.get(pod.metadata.namespace ?? '')?.store.get(pod.metadata.uid) !== undefined
  }

  /** Resolves when the pod was seen to go, also a moment ago; or after `ms`. @returns whether it was seen */
  async gone(uid: string, ms: number): Promise<boolean> {
    if (this.#wentLately.has(uid)) return true
    const waiters = this.#removed.get(uid) ?? new Set()
    this.#removed.set(uid, waiters)
    let wake = () => {}
    let timer: NodeJS.Timeout | undefined
    await new Promise<void>((resolve) => {
      wake = resolve
      waiters.add(wake)
      timer = setTimeout(resolve, ms)
    })
    clearTimeout(timer)
    waiters.delete(wake)
    if (waiters.size === 0) this.#removed.delete(uid)
    return this.#wentLately.has(uid)
  }

  /** What a pod means, with what is known of its node and its runner. @param withLog false: nobody reads why it failed */
  observe(pod: Pod, withLog = true): ObservedPod | undefined {
    const names = ownNames(pod)
    if (names === undefined) return undefined
    const serverNowMs = this.#requests.serverNowMs()
    const facts = {
      node: this.nodeOf(pod),
      identity: this.#probe.identityOf(pod),
      serverNowMs,
      seatMount: this.#mounts.of(pod, serverNowMs),
      log: withLog && wantsLog(pod) ? this.#logs.of(pod) : undefined,
    }
    return observedPod(pod, names, facts)
  }

  /** Without the right to look at nodes a lost one is learnt from the pods that the cluster takes away. */
  nodeOf(pod: Pod): NodeState {
    const name = pod.spec.nodeName
    if (name === undefined || !this.#nodes.isSynced || this.#nodes.problem !== null) return 'unknown'
    return this.#stateOf(name)
  }

  /** See Backend.watch. */
  watch(pool: string, onChange: (pod: ObservedPod) => void): () => void {
    this.start()
    const watch: Watch = { pool, onChange, told: new Map() }
    this.#watches.add(watch)
    // In a turn of its own: the caller has not got its way out yet.
    setImmediate(() => {
      for (const pod of this.#pods()) if (ownNames(pod)?.pool === pool) this.#tell(pod)
    })
    return () => this.#watches.delete(watch)
  }

  *#pods(): Generator<Pod> {
    for (const list of this.#lists.values()) yield* list.store.all()
  }

  #seen(pod: Pod): void {
    const names = ownNames(pod)
    const { namespace, uid } = pod.metadata
    if (names) this.#byOwnName.set(names.pod, namespace === undefined ? { uid } : { namespace, uid })
    this.#tell(pod)
  }

  #gone(pod: Pod): void {
    const { uid } = pod.metadata
    this.#probe.forget(uid)
    this.#logs.forget(uid)
    for (const wake of this.#removed.get(uid) ?? []) wake()
    this.#wentLately.add(uid)
    dropOldest(this.#wentLately, WENT_LATELY_MAX)
    const names = ownNames(pod)
    // Another one may have its name by now.
    if (names && this.#byOwnName.get(names.pod)?.uid === uid) this.#byOwnName.delete(names.pod)
    if (names) this.#tellAll(names.pool, { pod: names.pod, generation: names.generation, phase: 'gone' })
  }

  #node(name: string, node?: Node): void {
    const before = this.#stateOf(name)
    if (node) {
      this.#byName.set(name, node)
      this.#goneNodes.delete(name)
    } else {
      this.#byName.delete(name)
      this.#goneNodes.add(name)
      // Nodes come and go under new names for ever.
      dropOldest(this.#goneNodes, GONE_NODES_MAX)
    }
    // A node's status changes all the time, what it means for its pods seldom.
    if (this.#stateOf(name) === before) return
    for (const pod of this.#pods()) if (pod.spec.nodeName === name) this.#tell(pod)
  }

  #stateOf(name: string): NodeState {
    const node = this.#byName.get(name)
    if (node !== undefined) return nodeState(node)
    return this.#goneNodes.has(name) ? 'lost' : 'unknown'
  }

  #look(uid: string): void {
    for (const list of this.#lists.values()) {
      const pod = list.store.get(uid)
      if (pod) this.#tell(pod)
    }
  }

  /** An operator sees that a worker decides on old facts before it shows in its pools. */
  #sayAge(): void {
    const ageMs = this.ageMs()
    // Before the first list there is nothing that could be old; why there is none is said where it fails.
    const isStale = ageMs > STALE_MS && Number.isFinite(ageMs)
    if (isStale === this.#isStale) return
    this.#isStale = isStale
    this.#log(
      isStale
        ? `nothing was heard of the pods for ${Math.round(ageMs / 1_000)} s: what is known of them may be old`
        : 'the pods are heard of again',
    )
  }

  /** Only time changes what a starting pod means: whether it took too long. */
  #lookAtAll(): void {
    this.#sayAge()
    if (this.#watches.size === 0) return
    for (const pod of this.#pods()) if (!this.#probe.isKnown(pod)) this.#tell(pod)
  }

  #tell(pod: Pod): void {
    const names = ownNames(pod)
    if (names === undefined || !this.#isWatched(names.pool)) return
    const seen = this.observe(pod)
    // Its log goes with its failure: it is told when that has been read.
    if (seen === undefined || (seen.phase === 'failed' && wantsLog(pod) && this.#logs.of(pod) === undefined))
      return
    if (seen.phase === 'ready') this.#sayMove(pod)
    this.#tellAll(names.pool, seen)
  }

  /** An operator sees that what was on one node is on another now. */
  #sayMove(pod: Pod): void {
    const identity = this.#probe.identityOf(pod)
    const moved = this.#places.seen(pod, identity?.kind === 'known' ? (identity.gpus ?? []) : [])
    if (moved !== null) this.#log(moved)
  }

  #isWatched(pool: string): boolean {
    for (const watch of this.#watches) if (watch.pool === pool) return true
    return false
  }

  #tellAll(pool: string, seen: ObservedPod): void {
    const { pod, phase, generation, address, incarnation, reason, retire } = seen
    const text = `${phase} ${generation} ${address} ${incarnation} ${reason} ${retire}`
    for (const watch of [...this.#watches]) {
      if (watch.pool !== pool) continue
      const before = watch.told.get(pod)
      if (phase === 'gone' ? before === undefined : before === text) continue
      if (phase === 'gone') watch.told.delete(pod)
      else watch.told.set(pod, text)
      try {
        watch.onChange({ ...seen })
      } catch (error) {
        this.#log(`watch of pool ${pool}: its callback threw: ${(error as Error).message}`)
      }
    }
  }
}

function dropOldest(names: Set<string>, most: number): void {
  for (const name of names) {
    if (names.size <= most) return
    names.delete(name)
  }
}
