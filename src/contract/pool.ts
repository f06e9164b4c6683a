import type { Problem } from './errors.js'

/** What a pod of this pool is. Everything the backend needs, nothing about callers. */
export interface Profile {
  backend: 'local'
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
}

/** Query `firepool.status`. */
export interface PoolStatus {
  v: 1
  pool: string
  coreVersion: number
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
  leased: { leaseId: string; caller: string; slot: string; pod: string; epoch: number; sinceMs: number }[]
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
