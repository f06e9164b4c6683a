import { type Problem, problem, SEAT_SET_SICK, shardMoved } from '../../contract/errors.js'
import type { LeaseRequest } from '../../contract/lease.js'
import { LIMIT } from '../../contract/limits.js'
import { poolOfShard } from '../../contract/shards.js'
import { startNotes } from '../starting.js'
import type { Lease, PoolState } from '../state.js'
import { type BudgetInForce, budgetInForce } from './budget.js'
import { earlierServes } from './rollout.js'
import { ruleOf } from './seat-rule.js'
import { isPlaceFor, placesLeft, setsAllowed, setsInForce } from './seat-sets.js'
import { ownShare, podsAllowed } from './shares.js'
import { sickSets } from './sick-sets.js'

/** A tombstone in a snapshot, and everything that does not grow, but for the spec. */
const TOMBSTONE_BYTES = 34
const FIXED_BYTES = 4_000
/** What a head keeps of another shard. */
const SHARD_BYTES = 2_000
/** Of a seat set that is sick, and what was said of the last one, from above for all that JSON escapes. */
const SICK_BYTES = 48
const SICK_WHY_BYTES = 2_000
/** Of the template before, beside its profile: numbers, and the last failure of a start. */
const TEMPLATE_BYTES = 2_500

/** Bytes that a snapshot of this state takes beside its spec, from above (see size.ts). O(1). */
export function stateBytes(state: PoolState): number {
  const { leaseBytes, podBytes, effectBytes, earlyBytes } = state.index
  const tombstones = state.tombstones.size * TOMBSTONE_BYTES
  const shards = state.shards.size * SHARD_BYTES
  const earlier = state.rollout?.template ? TEMPLATE_BYTES + state.rollout.template.bytes : 0
  const sick = state.sick.size > 0 ? state.sick.size * SICK_BYTES + SICK_WHY_BYTES : 0
  return FIXED_BYTES + leaseBytes + podBytes + effectBytes + earlyBytes + tombstones + shards + earlier + sick
}

/** What a pod and its grant on the way add to a state, beside the lease; from above for names that are not extreme. */
const POD_ROOM_BYTES = 500

/** Room that pods will need for those who wait already: a request without room for its pod would wait in vain. */
function owedToPods(state: PoolState, now: number): number {
  const { claims, held } = state.index
  const room = Math.min(placesLeft(state, now), Math.max(0, podsAllowed(state) - held))
  return Math.min(claims.size, room) * POD_ROOM_BYTES
}

/** A pod for somebody who waits: what it takes must leave room for notices, or those who are refused would not hear of it. */
export function hasRoomForPods(state: PoolState): boolean {
  return stateBytes(state) <= LIMIT.admissionBytes + (LIMIT.stateBytes - LIMIT.admissionBytes) / 5
}

/**
 * What has ended is remembered in what leases and pods leave: past this the oldest ends are forgotten, or there would be no
 * room to tell those who are refused. What is on its way counts not: it is over in a moment.
 */
export function hasRoomForTombstones(state: PoolState): boolean {
  const lasting = stateBytes(state) - state.index.effectBytes
  return lasting <= LIMIT.admissionBytes + (LIMIT.stateBytes - LIMIT.admissionBytes) / 4
}

const NOTICES_BELOW_BYTES = (LIMIT.admissionBytes + LIMIT.stateBytes) / 2
/** The notice to somebody who was refused, from above for ids that are not extreme. */
const REFUSAL_BYTES = 1_000

/** A notice for somebody whom the pool does not know: not when a flood of them would overfill the state. */
export function hasRoomForNotices(state: PoolState): boolean {
  return stateBytes(state) <= NOTICES_BELOW_BYTES
}

/**
 * How many requests may be taken at once, so that each that is refused hears of it. Without an effect under way there is
 * nothing to wait for that would make more room.
 */
export function roomForRequests(state: PoolState): number {
  const room = Math.floor((NOTICES_BELOW_BYTES - stateBytes(state)) / REFUSAL_BYTES)
  return room <= 0 && state.effects.size === 0 ? Number.POSITIVE_INFINITY : Math.max(0, room)
}

/** Why this request is refused at the door, or null. `warm`: a pod of its own is idle, so it need not queue. */
export function refuseAtAdmission(
  state: PoolState,
  request: LeaseRequest,
  warm: boolean,
  now: number,
): Problem | null {
  const pool = poolOfShard(state.spec.name)
  if (state.mode === 'deleting') {
    return problem('PoolNotFound', `pool ${pool} is being deleted; ask another pool`)
  }
  if (request.deadlineMs <= now) {
    return problem(
      'QueueTimeout',
      `the request for pool ${pool} came after its own deadline; raise acquireTimeout or look at the delay of the pool's workers`,
    )
  }
  if (state.shard?.leaving) return shardMoved(pool)
  if (stateBytes(state) + owedToPods(state, now) > LIMIT.admissionBytes) {
    return problem(
      'QueueFull',
      `pool ${pool} has no room for more state (${state.leases.size} leases); use shorter ids, more pools, or try again later`,
    )
  }
  if (warm) return null
  const { waiting } = state.index
  const limit = ownShare(state, state.spec.queueLimit)
  if (waiting >= limit) {
    return problem(
      'QueueFull',
      `${waiting} requests wait already in pool ${state.spec.name}, its limit is ${limit}; raise the budget (firepool pool resize), the queueLimit, or try again later`,
      { position: waiting + 1 },
    )
  }
  return breakerRefusal(state, now)
}

/**
 * While the breaker is open and no standby is left nothing can be served: fail at once, with the reason (F7). But for a
 * rollout: pods of the template before are made then.
 */
export function breakerRefusal(state: PoolState, now: number): Problem | null {
  const { openUntil, last, failures } = state.breaker
  if (openUntil === null || now >= openUntil || state.index.byKind.standby.size > 0) return null
  if (earlierServes(state, now)) return null
  const reason = last?.details?.reason ?? 'unknown'
  return problem(
    'PodStartFailed',
    `pods of pool ${poolOfShard(state.spec.name)} do not start (${failures} failures in a row, the last: ${last?.message.slice(0, 300) ?? 'unknown'}); mend the profile and apply it again`,
    { reason, failures },
  )
}

/** Why no seat set of the budget may have a pod; null when one may, be it full, or when there is none at all. */
export function sickRefusal(state: PoolState, now: number): Problem | null {
  const rule = state.sick.size > 0 ? ruleOf(state) : null
  const allowed = rule ? setsAllowed(state, rule, now) : 0
  if (!rule || allowed === 0 || setsInForce(state, rule, now).length > 0) return null
  const which = allowed === 1 ? 'The seat set' : `All ${allowed} seat sets`
  return problem(
    'SeatUnavailable',
    `${which} of pool ${poolOfShard(state.spec.name)} cannot give a job its GPUs, and the job has not started: ${state.sickWhy} Try again in a minute, or mend the GPUs that are named.`,
    { reason: SEAT_SET_SICK },
  )
}

/** Why a lease waits, for the UI, for status and for the message of its time-out. */
export function waitReason(state: PoolState, lease: Lease, now: number): string {
  if (lease.kind === 'waiting' && !lease.claims) return 'SlotBusy'
  if (state.mode !== 'running') return `Pool${state.mode[0]!.toUpperCase()}${state.mode.slice(1)}`
  if (state.breaker.openUntil !== null && !earlierServes(state, now)) return 'PodStartFailed'
  return isPlaceFor(state, lease, now) ? 'PodStarting' : 'BudgetExhausted'
}

/**
 * What would have helped a lease that waited in vain, by the reason that it waited for.
 * @param position its place in the queue, from 1
 */
export function waitRemedy(state: PoolState, reason: string, position: number, now: number): string {
  const name = poolOfShard(state.spec.name)
  switch (reason) {
    case 'PoolPaused':
    case 'PoolDraining':
      return `an operator stopped the pool: firepool pool resume ${name}`
    case 'PoolDeleting':
      return 'the pool is being deleted: ask another one'
    case 'PodStartFailed':
      return `pods do not start: mend the profile and apply it (firepool pool describe ${name} says why)`
    case 'BudgetExhausted':
      return budgetRemedy(state, budgetInForce(state, now), now)
    default:
      return startRemedy(state, position, now)
  }
}

function budgetRemedy(state: PoolState, { seats, reason }: BudgetInForce, now: number): string {
  const pool = poolOfShard(state.spec.name)
  const raise = `raise it (firepool pool resize ${pool} --budget N, or the fleet's)`
  const rule = ruleOf(state)
  if (seats < (rule?.seats ?? 1)) return `the budget is ${seats} (${reason}): ${raise}`
  if (rule) {
    const sets = Math.floor(seats / rule.seats)
    const sick = sickSets(state, now).length
    const whose = `${rule.shared ? 'are full' : "are full, or other tenants'"}${sick > 0 ? `, or sick (${sick}: ${state.sickWhy})` : ''}`
    return `all ${sets} seat sets of the budget of ${seats} ${whose} (${reason}): ${raise}, or acquireTimeout`
  }
  return `all ${seats} of the budget are held (${reason}): ${raise}, or acquireTimeout`
}

/** A seat was free, though not for everybody; a pod was not. */
function startRemedy(state: PoolState, position: number, now: number): string {
  const { pods } = state
  const maxPods = podsAllowed(state)
  const places = placesLeft(state, now)
  if (position > places)
    return `the ${places} free of the budget of ${budgetInForce(state, now).seats} are for those ahead: raise it, or acquireTimeout`
  const [note] = startNotes(state)
  if (note)
    return `${note.pods} pods start and wait (${note.reason}: ${note.message}): mend that, or raise acquireTimeout`
  return pods.size >= maxPods
    ? `maxPods is ${maxPods}, and as many pods were there or on their way: raise maxPods in the pool file, or acquireTimeout`
    : 'pods take longer to start: raise acquireTimeout, or keep standbys ready'
}
