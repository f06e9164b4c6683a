import type { HitClass } from '../contract/lease.js'
import { TIMEOUT } from '../contract/limits.js'
import type { Counters, PoolSpec } from '../contract/pool.js'
import { earlyBytes } from './early-tokens.js'
import type { Effect } from './effect.js'
import { Index } from './index-of-state.js'
import { announceDeadline } from './leases.js'
import { effectBytes } from './size.js'
import {
  type Breaker,
  CORE_VERSION,
  type Lease,
  type Mode,
  OLDEST_CORE_VERSION,
  type Pod,
  type PoolState,
  type Rollout,
  type ShardPlace,
  type ShardRecord,
} from './state.js'
import type { PodKind } from './transitions.js'

/** Rows instead of objects: the names of the fields would be half of a state that must stay small. */
type PodRow = [
  pod: string,
  kind: PodKind,
  generation: number,
  createdAt: number,
  since: number,
  epoch: number,
  address: string,
  incarnation: string,
  useSeq: number,
  ackedAt: number,
  caller: string | null,
  reuseTag: string,
  slot: string | null,
  leaseId: string | null,
  keepAliveAt: number,
  heldSince: number,
  startBy: number,
  oldAt: number,
  /** its place among the pods of its kind: first in, first served */
  place: number,
  /** 1: it is; not there in states of earlier releases */
  reserved?: 0 | 1,
  /** of a pod in a seat set alone */
  set?: number,
  tenant?: string,
]

type LeaseRow = [
  leaseId: string,
  holder: [workflowId: string, firstExecutionRunId: string, runId: string],
  leaseWorkflowId: string,
  caller: string,
  reuseTag: string,
  slot: string,
  tenant: string,
  priority: number,
  requestedAtMs: number,
  deadlineMs: number,
  replyTo: 'signal' | 'token',
  arrival: number,
  arrivedAt: number,
  bytes: number,
  token: string | null,
  state /** its place among the claims, or 0 when it waits for its slot */:
    | [place: number]
    | [
        pod: string,
        epoch: number,
        grantedAt: number,
        hit: HitClass,
        delivery: 'sending' | 'needsToken' | 'delivered',
      ],
  /** not there in states of earlier releases */
  pinMs?: number,
]

type SavedEffect = Effect & { retryAt: number }

/** A pool's state as plain JSON, for continue-as-new. */
export interface Snapshot {
  coreVersion: number
  uid: string
  spec: PoolSpec
  generation: number
  /** these three are not there in states of version 1 that an earlier release wrote */
  generations?: number
  proven?: boolean
  rollout?: Rollout | null
  mode: Mode
  operator: PoolState['operator']
  fleet: PoolState['fleet']
  next: [pod: number, effect: number, arrival: number]
  /** fired: not there in states of earlier releases */
  at: [lastStep: number, describe: number, shrink: number, fired?: number]
  describeCursor: number
  pods: PodRow[]
  leases: LeaseRow[]
  tombstones: [string, number][]
  earlyTokens: [string, string, number][]
  /** orders of pods without the profile: it is the spec's, and a hundred copies of it would not fit */
  effects: SavedEffect[]
  breaker: Breaker
  counters: Counters
  poison: PoolState['poison']
  /** not there when no set is sick, nor in states of earlier releases */
  sick?: [set: number, until: number, pauseMs: number][]
  sickWhy?: string
  /** of a head: index, what is known of it, and the routes */
  shards?: [index: number, record: ShardRecord][]
  routes?: number
  /** of another shard */
  shard?: ShardPlace
}

/** A copy of the state that shares nothing with it. */
export function snapshot(state: PoolState): Snapshot {
  const places = new Map<string, number>()
  for (const kind of Object.values(state.index.byKind)) numberInto(places, kind)
  const claims = new Map<string, number>()
  numberInto(claims, state.index.claims)
  return copyOf({
    coreVersion: state.coreVersion,
    uid: state.uid,
    spec: state.spec,
    generation: state.generation,
    generations: state.generations,
    proven: state.proven,
    ...(state.rollout ? { rollout: state.rollout } : {}),
    mode: state.mode,
    operator: state.operator,
    fleet: state.fleet,
    next: [state.nextPod, state.nextEffect, state.nextArrival],
    at: [state.lastStepAt, state.describeAt, state.shrinkAt, state.firedAt],
    describeCursor: state.describeCursor,
    pods: [...state.pods.values()].map((pod) => podRow(pod, places.get(pod.pod) ?? 0)),
    leases: [...state.leases.values()].map((lease) => leaseRow(lease, placeOf(lease, claims))),
    tombstones: [...state.tombstones],
    earlyTokens: [...state.earlyTokens].map(([id, early]) => [id, early.token, early.expiresAt]),
    effects: [...state.effects.values()].map((effect) => withProfile(effect, null)),
    breaker: state.breaker,
    counters: state.counters,
    poison: state.poison,
    ...(state.sick.size > 0
      ? {
          sick: [...state.sick].map(([set, { until, pauseMs }]) => [set, until, pauseMs]),
          sickWhy: state.sickWhy,
        }
      : {}),
    ...(state.shards.size > 0 ? { shards: [...state.shards], routes: state.routes } : {}),
    ...(state.shard ? { shard: state.shard } : {}),
  })
}

/**
 * The state of a snapshot, with its index rebuilt.
 * @param coreVersion to go on under, the snapshot's or a newer one
 * @returns the state, and the effects that were in flight: the driver carries them out again under their ids
 * @throws when the snapshot is of a core this code does not have
 */
export function restore(
  saved: Snapshot,
  coreVersion = saved.coreVersion,
): { state: PoolState; effects: Effect[] } {
  if (!(saved.coreVersion >= OLDEST_CORE_VERSION && saved.coreVersion <= CORE_VERSION)) {
    throw new Error(
      `Firepool broker has no core of version ${saved.coreVersion}, only ${OLDEST_CORE_VERSION} to ${CORE_VERSION}; start a worker of the release that wrote this pool's state`,
    )
  }
  const from: Snapshot = copyOf(saved)
  const state: PoolState = {
    coreVersion,
    uid: from.uid,
    // An earlier release knew no shards.
    spec: { ...from.spec, shards: from.spec.shards ?? 1 },
    generation: from.generation,
    generations: from.generations ?? from.generation,
    // Not known of an earlier release's: its template is worth keeping until another one has proven itself.
    proven: from.proven ?? true,
    rollout: from.rollout ?? null,
    mode: from.mode,
    operator: from.operator,
    fleet: from.fleet,
    nextPod: from.next[0],
    nextEffect: from.next[1],
    nextArrival: from.next[2],
    lastStepAt: from.at[0],
    firedAt: from.at[3] ?? from.at[0],
    describeAt: from.at[1],
    describeCursor: from.describeCursor,
    shrinkAt: from.at[2],
    pods: new Map(from.pods.map((row) => [row[0], podOf(row)])),
    leases: new Map(from.leases.map((row) => [row[0], leaseOf(row)])),
    tombstones: new Map(from.tombstones),
    earlyTokens: new Map(from.earlyTokens.map(([id, token, expiresAt]) => [id, { token, expiresAt }])),
    effects: new Map(
      from.effects.map((effect) => [effect.id, withProfile(effect, profileFor(effect, from))]),
    ),
    breaker: from.breaker,
    counters: from.counters,
    poison: from.poison,
    sick: new Map((from.sick ?? []).map(([set, until, pauseMs]) => [set, { until, pauseMs }])),
    sickWhy: from.sickWhy ?? '',
    shards: new Map(from.shards ?? []),
    routes: from.routes ?? 1,
    shard: from.shard ?? null,
    index: new Index(),
  }
  const places = new Map<string, number>()
  for (const row of from.pods) places.set(row[0], row[18])
  for (const row of from.leases) if (row[15].length === 1) places.set(row[0], row[15][0])
  rebuildIndex(state, places)
  const effects = [...state.effects.values()]
    .filter((e) => e.retryAt === 0)
    .map(({ retryAt: _, ...effect }) => effect)
  return { state, effects }
}

/**
 * Fills an empty index.
 * @param places the order of pods within their kind and of claims, as they were
 */
export function rebuildIndex(state: PoolState, places: Map<string, number>): void {
  const { index } = state
  const place = (id: string) => places.get(id) ?? 0
  const plan = (at: number, kind: Parameters<typeof index.deadlines.push>[0]['kind'], id: string) =>
    index.deadlines.push({ at, kind, id })
  for (const pod of [...state.pods.values()].sort((a, b) => place(a.pod) - place(b.pod))) {
    index.addPod(pod)
    // What was due before has happened; versions before 3 let it happen again.
    if (state.coreVersion < 3 || pod.oldAt > state.firedAt) plan(pod.oldAt, 'lifetime', pod.pod)
    if (pod.kind === 'starting') plan(pod.startBy, 'start', pod.pod)
    if (pod.kind === 'standby') plan(pod.since + state.spec.keepAliveMs, 'keepAlive', pod.pod)
    if (pod.keepAliveAt > 0) plan(pod.keepAliveAt, 'keepAlive', pod.pod)
  }
  const leases = [...state.leases.values()]
  for (const lease of leases.sort((a, b) => place(a.request.leaseId) - place(b.request.leaseId))) {
    index.addLease(lease)
    plan(lease.request.deadlineMs, 'request', lease.request.leaseId)
    const announceAt = lease.kind === 'granted' ? announceDeadline(lease) : null
    // What was due before has been told, or is among the effects.
    if (announceAt !== null && announceAt > state.firedAt) plan(announceAt, 'announce', lease.request.leaseId)
  }
  for (const [key, at] of state.tombstones) plan(at, 'tombstone', key)
  for (const [id, early] of state.earlyTokens) {
    index.earlyBytes += earlyBytes(id, early.token)
    plan(early.expiresAt, 'token', id)
  }
  for (const effect of state.effects.values()) {
    index.effectBytes += effectBytes(effect)
    if (effect.retryAt > 0) plan(effect.retryAt, 'effect', effect.id)
  }
  for (const { at } of state.shards.values()) plan(at, 'pool', 'shards')
  if (state.describeAt > 0) plan(state.describeAt, 'pool', 'describe')
  if (state.fleet) plan(state.fleet.expiresAt, 'pool', 'fleet')
  for (const breaker of [state.breaker, state.rollout?.template?.breaker])
    if (breaker?.openUntil != null) plan(breaker.openUntil, 'pool', 'breaker')
  for (const { until, pauseMs } of state.sick.values())
    for (const at of [until, until + pauseMs]) plan(at, 'pool', 'sick')
  if (state.shrinkAt > 0) plan(state.shrinkAt, 'pool', 'shrink')
  plan(state.lastStepAt + TIMEOUT.effectRetryMs, 'pool', 'restored')
}

function placeOf(lease: Lease, claims: Map<string, number>): number {
  if (lease.kind !== 'waiting' || !lease.claims) return 0
  return claims.get(lease.request.leaseId) ?? Number.MAX_SAFE_INTEGER
}

function numberInto(places: Map<string, number>, ordered: Set<string>): void {
  let place = 0
  for (const id of ordered) places.set(id, ++place)
}

/** An order of a template that is forgotten is given up already, so the present profile does no harm there. */
function profileFor(effect: SavedEffect, { spec, rollout }: Snapshot): PoolSpec['profile'] {
  const template = rollout?.template
  const isEarlier = effect.kind === 'create' && effect.order.generation === template?.generation
  return isEarlier ? template!.profile : spec.profile
}

function withProfile(effect: SavedEffect, profile: PoolSpec['profile'] | null): SavedEffect {
  const kept = profile as PoolSpec['profile']
  if (effect.kind === 'create') return { ...effect, order: { ...effect.order, profile: kept } }
  if (effect.kind !== 'shard') return effect
  return { ...effect, order: { ...effect.order, spec: { ...effect.order.spec, profile: kept } } }
}

function podRow(pod: Pod, place: number): PodRow {
  return [
    pod.pod,
    pod.kind,
    pod.generation,
    pod.createdAt,
    pod.since,
    pod.epoch,
    pod.address,
    pod.incarnation,
    pod.useSeq,
    pod.ackedAt,
    pod.owner?.caller ?? null,
    pod.owner?.reuseTag ?? '',
    pod.slot,
    pod.leaseId,
    pod.keepAliveAt,
    pod.heldSince,
    pod.startBy,
    pod.oldAt,
    place,
    pod.reserved ? 1 : 0,
    ...(pod.set === null ? ([] as const) : ([pod.set, pod.tenant] as const)),
  ]
}

function podOf(row: PodRow): Pod {
  const [
    pod,
    kind,
    generation,
    createdAt,
    since,
    epoch,
    address,
    incarnation,
    useSeq,
    ackedAt,
    caller,
    reuseTag,
  ] = row
  const owner = caller === null ? null : { caller, reuseTag }
  const [slot, leaseId, keepAliveAt, heldSince, startBy, oldAt] = [
    row[12],
    row[13],
    row[14],
    row[15],
    row[16],
    row[17],
  ]
  return {
    pod,
    kind,
    generation,
    createdAt,
    since,
    epoch,
    address,
    incarnation,
    useSeq,
    ackedAt,
    owner,
    slot,
    set: row[20] ?? null,
    tenant: row[21] ?? '',
    leaseId,
    keepAliveAt,
    reserved: row[19] === 1,
    heldSince,
    startBy,
    oldAt,
  }
}

function leaseRow(lease: Lease, place: number): LeaseRow {
  const { request: r } = lease
  const { workflowId, firstExecutionRunId, runId } = r.holder
  return [
    r.leaseId,
    [workflowId, firstExecutionRunId, runId],
    r.leaseWorkflowId,
    r.caller,
    r.reuseTag,
    r.slot,
    r.tenant,
    r.priority,
    r.requestedAtMs,
    r.deadlineMs,
    r.replyTo,
    lease.arrival,
    lease.arrivedAt,
    lease.bytes,
    lease.token,
    lease.kind === 'waiting' ? [place] : [lease.pod, lease.epoch, lease.grantedAt, lease.hit, lease.delivery],
    r.pinMs,
  ]
}

function leaseOf(row: LeaseRow): Lease {
  const [leaseId, holder, leaseWorkflowId, caller, reuseTag, slot, tenant, priority] = row
  const [requestedAtMs, deadlineMs, replyTo] = [row[8], row[9], row[10]]
  const [workflowId, firstExecutionRunId, runId] = holder
  const base = {
    request: {
      v: 1 as const,
      leaseId,
      holder: { workflowId, firstExecutionRunId, runId },
      leaseWorkflowId,
      caller,
      reuseTag,
      slot,
      tenant,
      priority,
      requestedAtMs,
      deadlineMs,
      replyTo,
      pinMs: row[16] ?? 0,
    },
    arrival: row[11],
    arrivedAt: row[12],
    bytes: row[13],
    token: row[14],
  }
  const rest = row[15]
  if (rest.length === 1) return { ...base, kind: 'waiting', claims: rest[0] > 0 }
  const [pod, epoch, grantedAt, hit, delivery] = rest
  return { ...base, kind: 'granted', pod, epoch, grantedAt, hit, delivery }
}

/** Plain JSON only lives here, and the core has no structuredClone: it may run where there is none. */
function copyOf<T>(value: T): T {
  return JSON.parse(JSON.stringify(value)) as T
}
