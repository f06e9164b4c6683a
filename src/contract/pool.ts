import type { Problem } from './errors.js'
import type { GpuShare } from './gpu.js'
import type { HitClass, LeaseEndReason } from './lease.js'

/** What a pod of this pool is. Everything the backend needs, nothing about callers. */
export type Profile = LocalProfile | KubernetesProfile

/** Pods as processes of the worker's machine. */
export interface LocalProfile extends JobSurroundings {
  backend: 'local'
}

/** Pods of a Kubernetes cluster. */
export interface KubernetesProfile extends JobSurroundings {
  backend: 'kubernetes'
  /** where the pods are; null: the namespace of the worker */
  namespace: string | null
  /** of the runner's container: Node and the package, and what jobs need */
  image: string
  /** merged over safe defaults; a container named `runner` is the one that jobs run in */
  template: PodTemplate
  /** how each pod gets its GPUs; null: none, or what the template asks for by itself */
  gpu: GpuShare | null
  /** the image of each new generation is pulled on all nodes that may run its pods, before they need it */
  prePull: boolean
}

/** A part of a pod as Kubernetes writes it, as far as a pool may say it (check-template.ts). */
export interface PodTemplate {
  metadata?: { labels?: Record<string, string>; annotations?: Record<string, string> }
  spec?: Record<string, unknown>
}

/** What jobs find in any pod, and how it starts. */
export interface JobSurroundings {
  /** environment of every job in this pool */
  env: Record<string, string>
  /** an imitated cold start, uniform between min and max ms; everything printed from it says so */
  startDelay: { minMs: number; maxMs: number } | null
  /** what the system should hold each pod to; null: no limit asked */
  limits: {
    /** address space of one job process, bytes */
    memoryBytes: number | null
    /** CPU seconds of one job process */
    cpuSeconds: number | null
    openFiles: number | null
    processes: number | null
    /** largest file one job process may write, bytes */
    fileBytes: number | null
  }
  /** argv run once in the work folder before the pod is Ready: the slow common part of every job */
  prepare: string[] | null
  /** names of the secrets that jobs may take into their environment (JobSpec.secretEnv); absent: none */
  secrets?: string[]
  /** an interpreter that jobs are forked from; absent: none (a profile that says none must stay the text that it was) */
  preload?: Preload
}

/** A Python interpreter that each pod starts after `prepare` and has the modules imported in before it is Ready. */
export interface Preload {
  /** as jobs write it: those whose argv begins with it, and goes on with FILE.py, -c or -m, are forked from it */
  python: string
  /** imported in this order */
  imports: string[]
  /** 'package.module:function', called with a random integer in each forked job, as random, numpy and torch are seeded */
  seeds: string[]
}

/** A pool as the broker knows it: every default filled in, every bound checked (see pool-file.ts for what users write). */
export interface PoolSpec {
  v: 1
  name: string
  /** GPUs (seats) that pods with a caller may hold */
  budget: number
  /** what the pool may grant when its fleet budget has expired */
  guarantee: number
  /** started pods without a caller to keep ready */
  standby: number
  /** all pods, standbys and pods on their way included */
  maxPods: number
  queueLimit: number
  keepAliveMs: number
  podStartMs: number
  podLifetimeMs: number
  /** pool workflows that share the work: callers, stock and budget are split between them */
  shards: number
  profile: Profile
}

/** Signal/update `firepool.resize`: the operator's word. null takes the override back. */
export interface Resize {
  v: 1
  budget?: number | null
  standby?: number | null
}

/** Signal/update `firepool.setBudget`: the fleet's word, good until it expires. */
export interface SetBudget {
  v: 1
  budget: number
  /** ms since the epoch */
  expiresAtMs: number
}

/** Input of the workflow `firepool.pool`. */
export interface PoolInput {
  v: 1
  spec: PoolSpec
  /** set by continue-as-new only: a snapshot as broker/state.ts writes it */
  carried?: unknown
  /** continue as new after so many signals or history events; default LIMIT.continueSignals, LIMIT.continueEvents */
  continueAfter?: { signals: number; events: number }
  /** of a shard: the order that it starts with */
  order?: ShardOrder
  /** the last shard that was seen when the pool was started anew: its head had been terminated */
  lastShard?: number
}

/** Query `firepool.status`. */
export interface PoolStatus {
  v: 1
  pool: string
  coreVersion: number
  /** of the pool's present template; one goes back to the number before when the template before comes again */
  generation: number
  mode: 'running' | 'paused' | 'draining' | 'deleting'
  budget: {
    inForce: number
    held: number
    spec: number
    operator: number | null
    fleet: number | null
    fleetExpiresAtMs: number | null
    guarantee: number
  }
  standby: { target: number; ready: number }
  pods: Record<'starting' | 'standby' | 'promoting' | 'leased' | 'idle' | 'draining' | 'deleting', number>
  leases: number
  queue: { capacity: number; slotBusy: number; limit: number; oldestWaitMs: number }
  breaker: { open: boolean; failures: number; retryAtMs: number | null; last: Problem | null }
  /** of a pool whose pods share the GPUs of a node */
  seatSets?: SeatSetsStatus
  /** absent when all pods are of the newest generation */
  rollout?: RolloutStatus
  /** what starting pods wait for, by reason, when that is more than time; absent when nothing is known */
  starting?: { reason: string; message: string; pods: number }[]
  grants: Record<'warm' | 'standby' | 'cold', number>
  ends: Record<string, number>
  podsCreated: number
  /** leases ended by reconcile because their holder had gone: 0 in a healthy fleet (failure F22) */
  leaked: number
  /** inputs that could not be read, dropped and counted (failure F26) */
  poison: { count: number; last: string | null }
  /** milliseconds that pods were held for callers so far (leased, idle or draining) */
  heldPodMs: number
  effectsInFlight: number
  /** why this pool sets no search attributes, with what to do; absent when it does, or does not know yet */
  searchAttributes?: string
  leased: { leaseId: string; caller: string; slot: string; pod: string; epoch: number; sinceMs: number }[]
  /** of a pool with shards: its numbers above are those of shard 0 in the query's answer, of all of them in the client's */
  shards?: ShardsStatus
}

/** Where the pods of a pool with seat sets are. */
export interface SeatSetsStatus {
  /** jobs that run on a set at one time */
  seats: number
  /** pods with a caller in a set, at most */
  pods: number
  /** sets that the budget allows now */
  allowed: number
  /** sets that have pods, the first 64 */
  rows: {
    set: number
    /** pods with a caller */
    callers: number
    /** pods that start, and standbys */
    spare: number
    /** of those callers, the first 8 */
    tenants: string[]
  }[]
  /** sets on which no job got its GPUs: they have no new pods for a while; absent when there are none */
  sick?: {
    /** the first 64 */
    sets: number[]
    /** what was said of the last of them */
    why: string
  }
}

/** A change of template under way. */
export interface RolloutStatus {
  /** the generation that served before, and serves until pods of `to` have taken its places */
  from: number
  to: number
  /** pods of all earlier generations, but for those on their way out */
  oldPods: number
  /** pods of `to` that did start */
  newReady: number
  /** a pod of `to` was Ready: earlier pods go, each when another one stands in its place or its lease has ended */
  proven: boolean
  /** why pods of `to` do not start: nothing is replaced, and `from` serves on */
  stopped?: Problem
}

export interface ShardsStatus extends Routes {
  /** as many as there should be: no more than the budget has seats */
  wanted: number
  /** of the whole pool */
  budget: number
  standby: number
  queueLimit: number
  /** one for each shard that answered, in the client's answer */
  rows?: ShardRow[]
}

/** One shard of a pool, as the client shows it. */
export interface ShardRow
  extends Pick<PoolStatus, 'mode' | 'standby' | 'pods' | 'leases' | 'queue' | 'grants'> {
  shard: number
  /** its name: its workflow is `pool/{name}`, its pods and grants carry it */
  name: string
  budget: { inForce: number; held: number }
}

/** A row of query `firepool.pods`. */
export interface PodRow {
  pod: string
  state: string
  caller: string | null
  slot: string | null
  epoch: number
  generation: number
  address: string | null
  /** since when it is in this state, ms since the epoch */
  sinceMs: number
  /** when the pool asks it to drain, ms since the epoch */
  keepAliveAtMs: number | null
  /** its lease is pinned, or it is kept for the slot of one that was */
  pinned: boolean
  /** its seat set, in a pool that has some */
  set?: number
  /** what it waits for while it starts, when that is more than time: reason and message; or why nobody gets it after its lease */
  note?: string
}

/** A row of query `firepool.queue`. */
export interface QueueRow {
  position: number
  leaseId: string
  caller: string
  slot: string
  tenant: string
  priority: number
  waitedMs: number
  deadlineMs: number
  reason: string
}

/** Argument of the paged queries. */
export interface PageRequest {
  offset?: number
  limit?: number
}

export interface Page<Row> {
  v: 1
  rows: Row[]
  total: number
  /** offset of the next page, or null */
  next: number | null
}

/** Where requests of a pool go. */
export interface Routes {
  /** requests are routed over shards 0..routes-1 */
  routes: number
  /** shards 0..all-1 may hold leases: some of them may be on their way out */
  all: number
}

/** What a shard may have at most, while others have not let go of what is to be theirs. */
export interface ShardCap {
  seats: number
  pods: number
}

/** Argument of update `firepool.shard`: all that the head wants of a shard. The last one counts, a repeated one changes nothing. */
export interface ShardOrder {
  v: 1
  index: number
  /** the head's life, and the order's number in it: what comes late is known by it */
  by: string
  seq: number
  /** of the head's profile */
  generation: number
  /** its part of the whole, under its own name */
  spec: PoolSpec
  mode: PoolStatus['mode']
  /** it takes no requests any more, and ends when it holds nothing */
  leaving: boolean
  fleet: { budget: number; expiresAt: number } | null
  cap: ShardCap
}

/** Answer of update `firepool.shard`. */
export interface ShardReport {
  v: 1
  /** seats held now */
  held: number
  pods: number
  leases: number
  waiting: number
  /** of its life: a shard that was terminated and started anew counts from zero again. An earlier release has neither */
  uid?: string
  counted?: Counters
}

/** What a pool has counted in its life; the same as in its status. */
export interface Counters {
  grants: Record<HitClass, number>
  ends: Record<LeaseEndReason, number>
  podsCreated: number
  podsLost: number
  leaked: number
  /** pod-milliseconds held by pods that are gone */
  heldPodMs: number
  /** inputs that could not be acted on, of shards that left or of the shard that says so */
  poison?: number
}
