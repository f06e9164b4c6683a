import type { HitClass } from '../contract/lease.js'
import { TIMEOUT } from '../contract/limits.js'
import type { PoolSpec } from '../contract/pool.js'
import type { Effect } from './effect.js'
import { Index } from './index-of-state.js'
import { START_MARGIN_MS } from './pods.js'
import {
  type Breaker,
  CORE_VERSION,
  type Counters,
  type Lease,
  type Mode,
  type Pod,
  type PoolState,
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
  deadlineMs: number,
  replyTo: 'signal' | 'token',
  arrival: number,
  arrivedAt: number,
  bytes: number,
  token: string | null,
  state:
    | [claims: boolean]
    | [
        pod: string,
        epoch: number,
        grantedAt: number,
        hit: HitClass,
        delivery: 'sending' | 'needsToken' | 'delivered',
      ],
]

/** A pool's state as plain JSON, for continue-as-new. */
export interface Snapshot {
  coreVersion: number
  uid: string
  spec: PoolSpec
  generation: number
  mode: Mode
  operator: PoolState['operator']
  fleet: PoolState['fleet']
  next: [pod: number, effect: number, arrival: number]
  at: [lastStep: number, describe: number, shrink: number]
  describeCursor: number
  pods: PodRow[]
  leases: LeaseRow[]
  tombstones: [string, number][]
  earlyTokens: [string, string, number][]
  effects: (Effect & { retryAt: number })[]
  breaker: Breaker
  counters: Counters
  poison: PoolState['poison']
}

/** A copy of the state that shares nothing with it. */
export function snapshot(state: PoolState): Snapshot {
  return copyOf({
    coreVersion: state.coreVersion,
    uid: state.uid,
    spec: state.spec,
    generation: state.generation,
    mode: state.mode,
    operator: state.operator,
    fleet: state.fleet,
    next: [state.nextPod, state.nextEffect, state.nextArrival],
    at: [state.lastStepAt, state.describeAt, state.shrinkAt],
    describeCursor: state.describeCursor,
    pods: [...state.pods.values()].map(podRow),
    leases: [...state.leases.values()].map(leaseRow),
    tombstones: [...state.tombstones],
    earlyTokens: [...state.earlyTokens].map(([id, early]) => [id, early.token, early.expiresAt]),
    effects: [...state.effects.values()],
    breaker: state.breaker,
    counters: state.counters,
    poison: state.poison,
  })
}

/**
 * The state of a snapshot, with its index rebuilt.
 * @returns the state, and the effects that were in flight: the driver carries them out again under their ids
 * @throws when the snapshot is of a core this code does not have
 */
export function restore(saved: Snapshot): { state: PoolState; effects: Effect[] } {
  if (saved.coreVersion !== CORE_VERSION) {
    throw new Error(
      `Firepool broker has no core of version ${saved.coreVersion}, only ${CORE_VERSION}; start a worker of the release that wrote this pool's state`,
    )
  }
  const from: Snapshot = copyOf(saved)
  const state: PoolState = {
    coreVersion: from.coreVersion,
    uid: from.uid,
    spec: from.spec,
    generation: from.generation,
    mode: from.mode,
    operator: from.operator,
    fleet: from.fleet,
    nextPod: from.next[0],
    nextEffect: from.next[1],
    nextArrival: from.next[2],
    lastStepAt: from.at[0],
    describeAt: from.at[1],
    describeCursor: from.describeCursor,
    shrinkAt: from.at[2],
    pods: new Map(from.pods.map((row) => [row[0], podOf(row)])),
    leases: new Map(from.leases.map((row) => [row[0], leaseOf(row)])),
    tombstones: new Map(from.tombstones),
    earlyTokens: new Map(from.earlyTokens.map(([id, token, expiresAt]) => [id, { token, expiresAt }])),
    effects: new Map(from.effects.map((effect) => [effect.id, effect])),
    breaker: from.breaker,
    counters: from.counters,
    poison: from.poison,
    index: new Index(),
  }
  rebuildIndex(state)
  const effects = [...state.effects.values()]
    .filter((e) => e.retryAt === 0)
    .map(({ retryAt: _, ...effect }) => effect)
  return { state, effects }
}

/** Fills an empty index: sets in the order of `since` and of arrival, and every deadline that is still to come. */
export function rebuildIndex(state: PoolState): void {
  const { index } = state
  const plan = (at: number, kind: Parameters<typeof index.deadlines.push>[0]['kind'], id: string) =>
    index.deadlines.push({ at, kind, id })
  for (const pod of [...state.pods.values()].sort((a, b) => a.since - b.since)) {
    index.addPod(pod)
    plan(pod.createdAt + state.spec.podLifetimeMs, 'lifetime', pod.pod)
    if (pod.kind === 'starting')
      plan(pod.createdAt + state.spec.podStartMs + START_MARGIN_MS, 'start', pod.pod)
    if (pod.kind === 'standby') plan(pod.since + state.spec.keepAliveMs, 'keepAlive', pod.pod)
    if (pod.keepAliveAt > 0) plan(pod.keepAliveAt, 'keepAlive', pod.pod)
  }
  for (const lease of [...state.leases.values()].sort((a, b) => a.arrival - b.arrival)) {
    index.addLease(lease)
    plan(lease.request.deadlineMs, 'request', lease.request.leaseId)
  }
  for (const [key, at] of state.tombstones) plan(at, 'tombstone', key)
  for (const [id, early] of state.earlyTokens) plan(early.expiresAt, 'token', id)
  for (const effect of state.effects.values())
    if (effect.retryAt > 0) plan(effect.retryAt, 'effect', effect.id)
  if (state.describeAt > 0) plan(state.describeAt, 'pool', 'describe')
  if (state.fleet) plan(state.fleet.expiresAt, 'pool', 'fleet')
  if (state.breaker.openUntil !== null) plan(state.breaker.openUntil, 'pool', 'breaker')
  plan(state.lastStepAt + TIMEOUT.effectRetryMs, 'pool', 'restored')
}

function podRow(pod: Pod): PodRow {
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
  const [slot, leaseId, keepAliveAt, heldSince] = [row[12], row[13], row[14], row[15]]
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
    leaseId,
    keepAliveAt,
    heldSince,
  }
}

function leaseRow(lease: Lease): LeaseRow {
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
    r.deadlineMs,
    r.replyTo,
    lease.arrival,
    lease.arrivedAt,
    lease.bytes,
    lease.token,
    lease.kind === 'waiting'
      ? [lease.claims]
      : [lease.pod, lease.epoch, lease.grantedAt, lease.hit, lease.delivery],
  ]
}

function leaseOf(row: LeaseRow): Lease {
  const [leaseId, holder, leaseWorkflowId, caller, reuseTag, slot, tenant, priority, deadlineMs, replyTo] =
    row
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
      deadlineMs,
      replyTo,
    },
    arrival: row[10],
    arrivedAt: row[11],
    bytes: row[12],
    token: row[13],
  }
  const rest = row[14]
  if (rest.length === 1) return { ...base, kind: 'waiting', claims: rest[0] }
  const [pod, epoch, grantedAt, hit, delivery] = rest
  return { ...base, kind: 'granted', pod, epoch, grantedAt, hit, delivery }
}

/** Plain JSON only lives here, and the core has no structuredClone: it may run where there is none. */
function copyOf<T>(value: T): T {
  return JSON.parse(JSON.stringify(value)) as T
}
