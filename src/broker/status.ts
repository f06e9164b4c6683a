import { problem } from '../contract/errors.js'
import type { Acquired } from '../contract/lease.js'
import { LIMIT } from '../contract/limits.js'
import type {
  Page,
  PageRequest,
  PodRow,
  PoolStatus,
  QueueRow,
  RolloutStatus,
  Routes,
  ShardsStatus,
} from '../contract/pool.js'
import { grantOf } from './leases.js'
import { waitReason } from './policy/admission.js'
import { budgetInForce, wholeBudget } from './policy/budget.js'
import { pinOf } from './policy/keep-alive.js'
import { standbyOfWhole, standbyTarget } from './policy/replenish.js'
import { earlierPods, isStopped } from './policy/rollout.js'
import { ruleOf } from './policy/seat-rule.js'
import { seatsHeld, setsAllowed } from './policy/seat-sets.js'
import { ownShare, shardCount } from './policy/shares.js'
import { sickSets } from './policy/sick-sets.js'
import { startNotes } from './starting.js'
import type { Lease, PoolState } from './state.js'
import type { PodKind } from './transitions.js'

/** Leases named in status; the rest is in the paged queries. */
const STATUS_LEASES = 50
/** Seat sets named there, and tenants of one. */
const STATUS_SETS = 64
const STATUS_TENANTS = 8

/** The answer to firepool.status: numbers derived from the state at this moment, nothing kept beside it (F15). */
export function statusOf(state: PoolState, now: number): PoolStatus {
  const { index } = state
  const pods = Object.fromEntries(
    Object.entries(index.byKind).map(([kind, set]) => [kind, set.size]),
  ) as Record<PodKind, number>
  const waiting = [...state.leases.values()].filter((lease) => lease.kind === 'waiting')
  const notes = startNotes(state)
  const rollout = rolloutOf(state)
  let heldPodMs = state.counters.heldPodMs
  for (const pod of state.pods.values()) if (pod.heldSince >= 0) heldPodMs += now - pod.heldSince
  return {
    v: 1,
    pool: state.spec.name,
    coreVersion: state.coreVersion,
    generation: state.generation,
    mode: state.mode,
    budget: {
      inForce: budgetInForce(state, now).seats,
      held: seatsHeld(state),
      spec: state.spec.budget,
      operator: state.operator.budget,
      fleet: state.fleet?.budget ?? null,
      fleetExpiresAtMs: state.fleet?.expiresAt ?? null,
      guarantee: state.spec.guarantee,
    },
    standby: { target: standbyTarget(state), ready: pods.standby },
    pods,
    leases: state.leases.size - waiting.length,
    queue: {
      capacity: index.claims.size,
      slotBusy: waiting.length - index.claims.size,
      limit: ownShare(state, state.spec.queueLimit),
      oldestWaitMs: waiting.reduce((most, lease) => Math.max(most, now - lease.arrivedAt), 0),
    },
    breaker: {
      open: state.breaker.openUntil !== null && now < state.breaker.openUntil,
      failures: state.breaker.failures,
      retryAtMs: state.breaker.openUntil,
      last: state.breaker.last,
    },
    ...seatSetsOf(state, now),
    ...(rollout ? { rollout } : {}),
    ...(notes.length > 0 ? { starting: notes } : {}),
    grants: { ...state.counters.grants },
    ends: { ...state.counters.ends },
    podsCreated: state.counters.podsCreated,
    leaked: state.counters.leaked,
    poison: { ...state.poison },
    heldPodMs,
    effectsInFlight: state.effects.size,
    leased: grantedRows(state),
    ...(state.spec.shards > 1 || state.shards.size > 0 ? { shards: shardsOf(state, now) } : {}),
  }
}

function seatSetsOf(state: PoolState, now: number): Pick<PoolStatus, 'seatSets'> {
  const rule = ruleOf(state)
  if (!rule) return {}
  const rows = [...state.index.sets].sort(([a], [b]) => a - b).slice(0, STATUS_SETS)
  const sick = sickSets(state, now)
  return {
    seatSets: {
      seats: rule.seats,
      pods: rule.pods,
      allowed: setsAllowed(state, rule, now),
      rows: rows.map(([set, { callers, spare, tenants }]) => ({
        set,
        callers,
        spare,
        tenants: [...tenants.keys()].slice(0, STATUS_TENANTS),
      })),
      ...(sick.length > 0 ? { sick: { sets: sick.slice(0, STATUS_SETS), why: state.sickWhy } } : {}),
    },
  }
}

function rolloutOf(state: PoolState): RolloutStatus | null {
  const { rollout, generation, index, proven, breaker } = state
  if (rollout === null) return null
  const others = [...index.generations.keys()].filter((of) => of !== generation)
  const own = index.ofGeneration(generation)
  return {
    from: rollout.template?.generation ?? Math.max(...others),
    to: generation,
    oldPods: earlierPods(state),
    newReady: own.pods - own.starting.size,
    proven,
    ...(isStopped(state) && breaker.last ? { stopped: breaker.last } : {}),
  }
}

function shardsOf(state: PoolState, now: number): ShardsStatus {
  return {
    ...routesOf(state),
    wanted: shardCount(state),
    budget: wholeBudget(state, now).seats,
    standby: standbyOfWhole(state),
    queueLimit: state.spec.queueLimit,
  }
}

/** Where requests of this pool go, and which shards may hold leases. */
export function routesOf({ routes, shards }: PoolState): Routes {
  let all = 1
  for (const index of shards.keys()) all = Math.max(all, index + 1)
  return { routes, all }
}

/** What became of a request in the step that took it. */
export function acquired(state: PoolState, leaseId: string): Acquired {
  const lease = state.leases.get(leaseId)
  if (lease?.kind === 'granted') return { v: 1, outcome: 'granted', grant: grantOf(state, lease) }
  if (lease) return { v: 1, outcome: 'waiting' }
  for (const effect of state.effects.values()) {
    if (effect.kind === 'notify' && effect.end.leaseId === leaseId && effect.end.problem)
      return { v: 1, outcome: 'refused', problem: effect.end.problem }
  }
  return {
    v: 1,
    outcome: 'refused',
    problem: problem('LeaseRevoked', `lease ${leaseId} has ended; ask again with a new leaseId`),
  }
}

function grantedRows(state: PoolState): PoolStatus['leased'] {
  const rows: PoolStatus['leased'] = []
  for (const lease of state.leases.values()) {
    if (rows.length >= STATUS_LEASES) break
    if (lease.kind !== 'granted') continue
    const { leaseId, caller, slot } = lease.request
    rows.push({ leaseId, caller, slot, pod: lease.pod, epoch: lease.epoch, sinceMs: lease.grantedAt })
  }
  return rows
}

/** The answer to firepool.pods. */
export function podsPage(state: PoolState, page: PageRequest): Page<PodRow> {
  return paged([...state.pods.values()], page, (pod) => ({
    pod: pod.pod,
    state: pod.kind,
    caller: pod.owner?.caller ?? null,
    slot: pod.slot,
    epoch: pod.epoch,
    generation: pod.generation,
    address: pod.address === '' ? null : pod.address,
    sinceMs: pod.since,
    keepAliveAtMs: pod.keepAliveAt > 0 ? pod.keepAliveAt : null,
    pinned: pod.reserved || pinOf(state, pod) > 0,
    ...(pod.set === null ? {} : { set: pod.set }),
    ...(pod.note ? { note: `${pod.note.reason}: ${pod.note.message}` } : {}),
  }))
}

/** The answer to firepool.queue, in the order in which requests are served; those that wait for a slot come last. */
export function queuePage(state: PoolState, page: PageRequest, now: number): Page<QueueRow> {
  const waiting = [...state.leases.values()].filter((lease) => lease.kind === 'waiting')
  const rank = (lease: Lease) => (lease.kind === 'waiting' && lease.claims ? 0 : 1)
  waiting.sort(
    (a, b) => rank(a) - rank(b) || b.request.priority - a.request.priority || a.arrival - b.arrival,
  )
  return paged(waiting, page, (lease, at) => ({
    position: at + 1,
    leaseId: lease.request.leaseId,
    caller: lease.request.caller,
    slot: lease.request.slot,
    tenant: lease.request.tenant,
    priority: lease.request.priority,
    waitedMs: now - lease.arrivedAt,
    deadlineMs: lease.request.deadlineMs,
    reason: waitReason(state, lease, now),
  }))
}

function paged<T, Row>(all: T[], page: PageRequest, row: (item: T, at: number) => Row): Page<Row> {
  const whole = (n: unknown, most: number, otherwise: number) =>
    typeof n === 'number' && Number.isInteger(n) && n >= 0 ? Math.min(n, most) : otherwise
  const offset = whole(page.offset, all.length, 0)
  const limit = Math.max(1, whole(page.limit, LIMIT.pageRows, LIMIT.pageRows))
  const rows = all.slice(offset, offset + limit).map((item, i) => row(item, offset + i))
  const next = offset + rows.length
  return { v: 1, rows, total: all.length, next: next < all.length ? next : null }
}
