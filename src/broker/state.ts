import type { Problem } from '../contract/errors.js'
import type { HitClass, LeaseRequest } from '../contract/lease.js'
import type { Counters, PoolSpec, Profile, ShardCap, ShardReport } from '../contract/pool.js'
import type { Effect, Owner } from './effect.js'
import { Index } from './index-of-state.js'
import type { PodKind } from './transitions.js'

/**
 * Version of `step`'s behaviour. A run keeps its version and moves on only at continue-as-new. Version 4 keeps off seat
 * sets that are sick, and tries the newest template first where no other starts; version 3 places pods on seat sets; version 2 rolls a new template step by step; version 1 deleted all unused pods of the earlier one at once.
 */
export const CORE_VERSION = 4
/** The oldest version that this code still has: runs of releases before go on under it. */
export const OLDEST_CORE_VERSION = 1

export interface Pod {
  pod: string
  kind: PodKind
  generation: number
  createdAt: number
  /** when it entered this kind */
  since: number
  /** the last epoch granted on it; only grows (I1) */
  epoch: number
  address: string
  incarnation: string
  /** as last heard from the runner */
  useSeq: number
  /** when the pool first knew that it exists; -1 before: an observation ordered earlier cannot know the pod */
  ackedAt: number
  /** set at the first grant, never changed (I2) */
  owner: Owner | null
  slot: string | null
  /** the seat set that it is in (policy/seat-sets.ts), from 0; null: it has GPUs of its own, or none */
  set: number | null
  /** of its first caller, in a set; '' before */
  tenant: string
  /** the lease on it, in promoting, leased and draining; null in draining when it was released meanwhile */
  leaseId: string | null
  /** when the pool acts on its idleness (leased, idle); 0: no deadline */
  keepAliveAt: number
  /** idle, and kept for its slot alone: its last lease was pinned (TIMEOUT.pinGraceMs) */
  reserved: boolean
  /** when it became somebody's: the seat is held from then on; -1: never */
  heldSince: number
  /** fails to start when not Ready by then; told to the backend with the order, so a new spec does not change it */
  startBy: number
  /** too old from then on; the pod itself knows, as above */
  oldAt: number
  /** for people: what it waits for while it starts, or why it goes after its lease; not carried over, the next observation says it */
  note?: { reason: string; message: string }
}

interface LeaseBase {
  request: LeaseRequest
  /** order of arrival, unique */
  arrival: number
  arrivedAt: number
  /** bytes in a snapshot */
  bytes: number
  /** the newest one offered by firepool.awaitLease */
  token: string | null
}

export interface WaitingLease extends LeaseBase {
  kind: 'waiting'
  /** true: it has the slot and waits for a pod; false: another holder has the slot (SlotBusy) */
  claims: boolean
}

export interface GrantedLease extends LeaseBase {
  kind: 'granted'
  pod: string
  epoch: number
  grantedAt: number
  hit: HitClass
  delivery: 'sending' | 'needsToken' | 'delivered'
}

export type Lease = WaitingLease | GrantedLease

export interface Breaker {
  failures: number
  /** creation stops until then; null: closed */
  openUntil: number | null
  backoffMs: number
  last: Problem | null
}

/** What pods of one generation are made of, and how their starts go. */
export interface Template {
  generation: number
  profile: Profile
  breaker: Breaker
  /** of the profile in a snapshot */
  bytes: number
}

/** A change of template under way: pods of earlier generations serve until those of the newest have taken their places. */
export interface Rollout {
  /**
   * the last template whose pods did start: more of them are made while pods of the newest do not start, so that a broken
   * template cannot starve a pool. At most one is kept, because a profile may be as large as a spec. Null: there is none
   */
  template: Template | null
}

/** What the head of a pool knows of one of its other shards. */
export interface ShardRecord {
  /** what it may have or has, whichever of the orders on their way it took: nobody else may have it */
  cap: ShardCap
  /** the order that it has, as a key; '' while one is on its way, or might have been lost */
  told: string
  /** the effect on its way */
  effect: string | null
  /** it is told again then in any case */
  at: number
  /** it runs, and takes requests */
  open: boolean
  report: ShardReport | null
}

/** Of a shard that is not the head: what the head's last order says beside spec, mode and fleet budget. */
export interface ShardPlace {
  index: number
  by: string
  seq: number
  leaving: boolean
  cap: ShardCap
}

/** A seat set on which no job got its GPUs. */
export interface SickSet {
  /** it has no new pods until then */
  until: number
  /** for how long that was; when it is told again within as long after it, it is twice as long */
  pauseMs: number
}

export type Mode = 'running' | 'paused' | 'draining' | 'deleting'

/**
 * All that a pool knows. `step` owns it and changes it in place; nobody else keeps a reference.
 * `index` is derived from the rest and never stored.
 */
export interface PoolState {
  coreVersion: number
  /** distinguishes the pods of this life of the pool from those of an earlier one */
  uid: string
  spec: PoolSpec
  /** of the spec's profile; going back to the template before makes its generation the newest again */
  generation: number
  /** numbers of generations given so far: none is given twice */
  generations: number
  /** a pod of this generation was Ready */
  proven: boolean
  /** null in version 1, and when every pod is of the newest generation */
  rollout: Rollout | null
  mode: Mode
  operator: { budget: number | null; standby: number | null }
  fleet: { budget: number; expiresAt: number } | null
  nextPod: number
  nextEffect: number
  nextArrival: number
  lastStepAt: number
  /** what was due until then has happened; before lastStepAt when the inbox went first after a long pause */
  firedAt: number
  describeAt: number
  /** arrival of the last lease described */
  describeCursor: number
  shrinkAt: number
  pods: Map<string, Pod>
  leases: Map<string, Lease>
  /** short key of an ended lease -> when it may be forgotten */
  tombstones: Map<string, number>
  /** tokens offered before their request came: leaseId -> token and expiry */
  earlyTokens: Map<string, { token: string; expiresAt: number }>
  effects: Map<string, Effect & { retryAt: number }>
  breaker: Breaker
  counters: Counters
  poison: { count: number; last: string | null }
  /** by their numbers; none before version 4 */
  sick: Map<number, SickSet>
  /** what was said of the last one */
  sickWhy: string
  /** of a head: the other shards that there are, by their index */
  shards: Map<number, ShardRecord>
  /** of a head: requests are routed over so many shards */
  routes: number
  /** of another shard; null in a head, and in a pool that is whole */
  shard: ShardPlace | null
  index: Index
}

export function closedBreaker(): Breaker {
  return { failures: 0, openUntil: null, backoffMs: 0, last: null }
}

/** A new pool without pods. `uid`: 6-12 characters [a-z0-9], from the driver: the core has no randomness. */
export function createState(
  spec: PoolSpec,
  uid: string,
  now: number,
  coreVersion: number = CORE_VERSION,
): PoolState {
  return {
    coreVersion,
    uid,
    spec,
    generation: 1,
    generations: 1,
    proven: false,
    rollout: null,
    mode: 'running',
    operator: { budget: null, standby: null },
    fleet: null,
    nextPod: 1,
    nextEffect: 1,
    nextArrival: 1,
    lastStepAt: now,
    firedAt: now,
    describeAt: 0,
    describeCursor: 0,
    shrinkAt: 0,
    pods: new Map(),
    leases: new Map(),
    tombstones: new Map(),
    earlyTokens: new Map(),
    effects: new Map(),
    breaker: closedBreaker(),
    counters: {
      grants: { warm: 0, standby: 0, cold: 0 },
      ends: { released: 0, recalled: 0, expired: 0, podLost: 0, superseded: 0, failed: 0 },
      podsCreated: 0,
      podsLost: 0,
      leaked: 0,
      heldPodMs: 0,
    },
    poison: { count: 0, last: null },
    sick: new Map(),
    sickWhy: '',
    shards: new Map(),
    routes: 1,
    shard: null,
    index: new Index(),
  }
}
