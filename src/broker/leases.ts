import { type Problem, problem, SEAT_SET_SICK } from '../contract/errors.js'
import type { Grant, HitClass, LeaseEndReason, LeaseRequest, Release } from '../contract/lease.js'
import { LIMIT, TIMEOUT } from '../contract/limits.js'
import { poolOfShard } from '../contract/shards.js'
import { keepEarlyToken, takeEarlyToken } from './early-tokens.js'
import { holderKey, slotKey, tombstoneKey } from './keys.js'
import { drainPod, movePod, removePod, setKeepAlive } from './pods.js'
import {
  hasRoomForNotices,
  hasRoomForPods,
  hasRoomForTombstones,
  refuseAtAdmission,
  waitReason,
  waitRemedy,
} from './policy/admission.js'
import { firstKeepAliveDeadline, idleDeadline, isStale } from './policy/keep-alive.js'
import { hasWarmPod } from './policy/placement.js'
import { setIsSick } from './sick-sets.js'
import { leaseBytes, tokenBytes } from './size.js'
import type { GrantedLease, Lease, Pod, PoolState, WaitingLease } from './state.js'
import { assert, issue, type Turn, wakeAt } from './turn.js'

/** A request: answered again when known (F2), superseding an older one of the same holder (rule 6), else queued. */
export function request(turn: Turn, asked: LeaseRequest): void {
  const { state, now } = turn
  const known = state.leases.get(asked.leaseId)
  if (known) {
    if (known.kind === 'granted') deliver(turn, known)
    return
  }
  if (state.tombstones.has(tombstoneKey(asked.leaseId))) {
    tellEnded(
      turn,
      asked,
      problem('LeaseRevoked', `lease ${asked.leaseId} has ended already; ask again with a new leaseId`),
    )
    return
  }
  const key = slotKey(asked, asked.slot)
  const older = state.index.byHolder.get(holderKey(asked.holder.workflowId, key))
  if (older !== undefined) {
    if (state.leases.get(older)!.request.requestedAtMs > asked.requestedAtMs) {
      // Signals overtake each other: this one is of an earlier run, and nobody waits for its grant any more.
      bury(turn, asked.leaseId, asked.deadlineMs)
      const why = 'a younger request of the same workflow and slot came before it'
      tellEnded(turn, asked, problem('LeaseRevoked', `request ${asked.leaseId} came late: ${why}`))
      return
    }
    endLease(turn, older, 'superseded', { notify: true, advance: false })
  }
  const claims = (state.index.slots.get(key)?.claim ?? null) === null
  const warm = claims && hasWarmPod(state, asked, asked.slot)
  const refusal = refuseAtAdmission(state, asked, warm, now)
  if (refusal) {
    bury(turn, asked.leaseId, asked.deadlineMs)
    tellEnded(turn, asked, refusal)
    if (claims) advanceSlot(turn, key)
    return
  }
  const lease: WaitingLease = {
    kind: 'waiting',
    request: asked,
    arrival: state.nextArrival++,
    arrivedAt: now,
    bytes: leaseBytes(asked),
    token: null,
    claims,
  }
  state.leases.set(asked.leaseId, lease)
  state.index.addLease(lease)
  setToken(turn, lease, takeEarlyToken(state, asked.leaseId))
  wakeAt(turn, asked.deadlineMs, 'request', asked.leaseId)
  if (claims) turn.newClaims.push(asked.leaseId)
}

/** Gives a pod to a waiting lease: a new epoch, bound and delivered by one effect. */
export function grant(turn: Turn, lease: Lease, pod: Pod, hit: HitClass): void {
  const { state, now } = turn
  assert(
    lease.kind === 'waiting' && lease.claims,
    () => `lease ${lease.request.leaseId} does not wait for a pod`,
  )
  const asked = lease.request
  const epoch = pod.epoch + 1
  state.index.removeLease(lease)
  const granted: GrantedLease = {
    kind: 'granted',
    request: asked,
    arrival: lease.arrival,
    arrivedAt: lease.arrivedAt,
    bytes: lease.bytes,
    token: lease.token,
    pod: pod.pod,
    epoch,
    grantedAt: now,
    hit,
    delivery: 'sending',
  }
  state.leases.set(asked.leaseId, granted)
  state.index.addLease(granted)
  movePod(turn, pod, 'grant', {
    owner: pod.owner ?? { caller: asked.caller, reuseTag: asked.reuseTag },
    slot: asked.slot,
    tenant: pod.owner === null && pod.set !== null ? asked.tenant : pod.tenant,
    leaseId: asked.leaseId,
    epoch,
    keepAliveAt: 0,
    reserved: false,
    heldSince: pod.heldSince >= 0 ? pod.heldSince : now,
  })
  state.counters.grants[hit]++
  const announceAt = announceDeadline(granted)
  if (announceAt !== null) wakeAt(turn, announceAt, 'announce', asked.leaseId)
  deliver(turn, granted)
}

/** When a lease's own workflow is told which pod it has; null when its holder is that workflow, which knows. */
export function announceDeadline({ request, grantedAt }: GrantedLease): number | null {
  return request.leaseWorkflowId === request.holder.workflowId ? null : grantedAt + TIMEOUT.announceMs
}

/** Tells a lease that is held for a while which pod it has. */
export function announce(turn: Turn, lease: GrantedLease): void {
  const { leaseWorkflowId } = lease.request
  issue(turn, { kind: 'announce', leaseWorkflowId, grant: grantOf(turn.state, lease) })
}

/** A granted lease as its holder knows it. */
export function grantOf(state: PoolState, lease: GrantedLease): Grant {
  const pod = state.pods.get(lease.pod)!
  return {
    v: 1,
    leaseId: lease.request.leaseId,
    pool: state.spec.name,
    pod: pod.pod,
    address: pod.address,
    incarnation: pod.incarnation,
    epoch: lease.epoch,
    hit: lease.hit,
    waitedMs: lease.grantedAt - lease.arrivedAt,
  }
}

/** Sends the grant of a granted lease (again): the same pod and epoch each time. */
export function deliver(turn: Turn, lease: GrantedLease): void {
  const { state } = turn
  const { request: asked } = lease
  if (turn.answered.has(asked.leaseId)) {
    answer(turn, lease)
    return
  }
  if (asked.replyTo === 'token' && lease.token === null && lease.delivery !== 'delivered') {
    awaitToken(turn, lease)
  } else if (lease.delivery !== 'delivered') {
    lease.delivery = 'sending'
  }
  issue(turn, {
    kind: 'deliver',
    grant: grantOf(state, lease),
    owner: { caller: asked.caller, reuseTag: asked.reuseTag },
    ...(state.coreVersion >= 4 && asked.tenant !== '' ? { tenant: asked.tenant } : {}),
    holder: asked.holder,
    replyTo: asked.replyTo,
    token: lease.token,
  })
}

/** The grant waits for the next token of firepool.awaitLease, until the request's deadline. */
export function awaitToken(turn: Turn, lease: GrantedLease): void {
  lease.delivery = 'needsToken'
  // Planned again: the entry made with the request was dropped when it was outdated.
  wakeAt(turn, Math.max(turn.now, lease.request.deadlineMs), 'request', lease.request.leaseId)
}

export interface EndOptions {
  problem?: Problem
  /** tell the lease workflow; false when it is the one who said so */
  notify?: boolean
  /** nothing runs under the lease's epoch: no revoke is needed */
  clean?: boolean
  /** nobody comes back for the pod: it is not kept warm */
  retire?: boolean
  /** what becomes of the pod: kept for its owner (default), already drained, or lost */
  pod?: 'keep' | 'drained' | 'lost'
  /** let the next waiter have the slot; false when the caller of this function takes it at once */
  advance?: boolean
}

/** Ends a lease, whatever its state. A tombstone remains: it is never granted again (I12). */
export function endLease(turn: Turn, leaseId: string, end: LeaseEndReason, options: EndOptions = {}): void {
  const { state } = turn
  const lease = state.leases.get(leaseId)
  if (!lease) return
  state.index.removeLease(lease)
  state.leases.delete(leaseId)
  bury(turn, leaseId, lease.request.deadlineMs)
  state.counters.ends[end]++
  if (options.notify || (lease.token !== null && lease.kind === 'waiting')) {
    const { token } = lease
    issue(turn, {
      kind: 'notify',
      leaseWorkflowId: options.notify ? lease.request.leaseWorkflowId : null,
      token: lease.kind === 'granted' && lease.delivery === 'delivered' ? null : token,
      end: { v: 1, leaseId, end, ...(options.problem ? { problem: options.problem } : {}) },
    })
  }
  if (lease.kind === 'granted') settlePod(turn, lease, options)
  if (options.advance !== false) advanceSlot(turn, slotKey(lease.request, lease.request.slot))
}

function settlePod(turn: Turn, lease: GrantedLease, options: EndOptions): void {
  const { state, now } = turn
  const pod = state.pods.get(lease.pod)
  if (!pod || pod.leaseId !== lease.request.leaseId) return
  pod.leaseId = null
  if (options.pod === 'lost') return
  if (options.pod === 'drained') {
    removePod(turn, pod)
    return
  }
  if (!options.clean) {
    issue(turn, { kind: 'revoke', pod: pod.pod, address: pod.address, epoch: pod.epoch })
  }
  if (options.retire || isStale(state, pod, now)) {
    removePod(turn, pod)
    return
  }
  // Under a drain the pod may be closed already: it serves again when the runner has refused.
  if (pod.kind === 'draining') return
  movePod(turn, pod, 'release', { reserved: lease.request.pinMs > 0 })
  setKeepAlive(turn, pod, idleDeadline(state, pod, now))
}

/** The pin counts from now on again. A lease that is not held, or not pinned, has nothing to renew. */
export function renew(turn: Turn, leaseId: string): void {
  const { state, now } = turn
  const lease = state.leases.get(leaseId)
  if (lease?.kind !== 'granted' || lease.request.pinMs === 0) return
  const pod = state.pods.get(lease.pod)!
  // Under a drain its time was up before the renewal came: what the runner answers counts.
  if (pod.kind === 'leased') setKeepAlive(turn, pod, now + lease.request.pinMs)
}

/** A release by name. One that names another grant than the lease has is late, and ignored (F20). */
export function release(turn: Turn, said: Release): void {
  const { state, now } = turn
  const lease = state.leases.get(said.leaseId)
  if (!lease) {
    bury(turn, said.leaseId, now)
    takeEarlyToken(state, said.leaseId)
    return
  }
  if (lease.kind === 'granted') {
    const named = said.pod !== undefined || said.epoch !== undefined
    if (named && (said.pod !== lease.pod || said.epoch !== lease.epoch)) return
    if (said.sick !== undefined) setIsSick(turn, state.pods.get(lease.pod)!, SEAT_SET_SICK, said.sick)
  }
  endLease(turn, said.leaseId, 'released', { clean: said.clean === true, retire: said.retire === true })
}

/** The newest token of firepool.awaitLease: a token dies with its attempt, so only the newest counts. */
export function offerToken(turn: Turn, leaseId: string, token: string): void {
  const { state } = turn
  const lease = state.leases.get(leaseId)
  if (lease) {
    // One of extreme length: its attempt offers another later, when there may be room.
    if (tokenBytes(lease.request, token) > 0 && !hasRoomForPods(state)) return
    setToken(turn, lease, token)
    if (lease.kind === 'granted') deliver(turn, lease)
    return
  }
  if (state.tombstones.has(tombstoneKey(leaseId))) {
    if (!hasRoomForNotices(state)) return
    const over = problem(
      'LeaseRevoked',
      `lease ${leaseId} has ended; the result of its lease workflow says why`,
    )
    issue(turn, {
      kind: 'notify',
      leaseWorkflowId: null,
      token,
      end: { v: 1, leaseId, end: 'failed', problem: over },
    })
    return
  }
  // Its attempt offers another one when this one is not kept.
  if (hasRoomForPods(state)) keepEarlyToken(turn, leaseId, token)
}

/** The lease's newest token; null when it is used up. */
export function setToken(turn: Turn, lease: Lease, token: string | null): void {
  const bytes = tokenBytes(lease.request, token) - tokenBytes(lease.request, lease.token)
  lease.token = token
  lease.bytes += bytes
  turn.state.index.leaseBytes += bytes
}

/** A request that nobody could serve in time, or a grant that nobody fetched. */
export function requestExpired(turn: Turn, lease: Lease): void {
  const { state, now } = turn
  if (lease.kind === 'granted') {
    if (lease.delivery === 'needsToken') grantNotFetched(turn, lease)
    return
  }
  const reason = waitReason(state, lease, now)
  const waitedMs = now - lease.arrivedAt
  const pool = poolOfShard(state.spec.name)
  let why: Problem
  if (reason === 'SlotBusy') {
    const slot = state.index.slots.get(slotKey(lease.request, lease.request.slot))
    const holder = slot?.claim ? state.leases.get(slot.claim)?.request.holder.workflowId : undefined
    why = problem(
      'SlotBusy',
      `slot '${lease.request.slot}' of this caller in pool ${pool} is held by workflow ${holder ?? 'unknown'}; give parallel leases different slots`,
      { reason, waitedMs },
    )
  } else {
    const position = queuePosition(turn, lease)
    why = problem(
      'QueueTimeout',
      `no pod of pool ${pool} within ${waitedMs} ms: ${reason}, ${position.text} in the queue; ${waitRemedy(state, reason, position.at, now)}`,
      { reason, waitedMs, position: position.at },
    )
  }
  endLease(turn, lease.request.leaseId, 'failed', { problem: why, notify: true })
}

/** The sender gets the grant as the answer to its update, and binds the pod itself before its job. */
function answer(turn: Turn, lease: GrantedLease): void {
  const { state, now } = turn
  const pod = state.pods.get(lease.pod)!
  lease.delivery = 'delivered'
  if (pod.kind !== 'promoting') return
  movePod(turn, pod, 'delivered')
  setKeepAlive(turn, pod, firstKeepAliveDeadline(state, pod, now))
}

/**
 * Nobody took the grant by a token that the pool knows to be good. A token may still have been used, its answer
 * lost: the runner is asked, and a pod that was used is not taken away.
 */
export function grantNotFetched(turn: Turn, lease: GrantedLease): void {
  const pod = turn.state.pods.get(lease.pod)!
  if (pod.kind === 'draining') return
  if (pod.kind === 'leased') drainPod(turn, pod)
  else endLease(turn, lease.request.leaseId, 'expired', { notify: true })
}

/** Counting everybody ahead would cost O(n) for each of n time-outs; this many are counted. */
const POSITION_COUNTED = 200

function queuePosition(turn: Turn, lease: WaitingLease): { at: number; text: string } {
  let ahead = 0
  let seen = 0
  for (const id of turn.state.index.claims) {
    if (++seen > POSITION_COUNTED) return { at: ahead + 1, text: `at or behind position ${ahead + 1}` }
    const other = turn.state.leases.get(id)!
    const { priority } = other.request
    if (
      priority > lease.request.priority ||
      (priority === lease.request.priority && other.arrival < lease.arrival)
    )
      ahead++
  }
  return { at: ahead + 1, text: `at position ${ahead + 1}` }
}

/** The slot is free: the next waiter claims it. */
function advanceSlot(turn: Turn, key: string): void {
  const { state } = turn
  const slot = state.index.slots.get(key)
  if (!slot || slot.claim !== null) return
  for (;;) {
    const entry = slot.waiters.pop()
    if (!entry) return
    const lease = state.leases.get(entry.leaseId)
    if (lease?.kind !== 'waiting' || lease.claims) continue
    state.index.removeLease(lease)
    lease.claims = true
    state.index.addLease(lease)
    turn.newClaims.push(entry.leaseId)
    return
  }
}

/** Leaves a tombstone until the request's own deadline plus a margin; the oldest go when there are too many. */
export function bury(turn: Turn, leaseId: string, deadlineMs: number): void {
  const { tombstones } = turn.state
  const key = tombstoneKey(leaseId)
  // A late release of a lease that ended long before its deadline must not shorten its tombstone.
  const until = Math.max(Math.max(deadlineMs, turn.now) + TIMEOUT.tombstoneMarginMs, tombstones.get(key) ?? 0)
  tombstones.delete(key)
  tombstones.set(key, until)
  wakeAt(turn, until, 'tombstone', key)
  for (const oldest of tombstones.keys()) {
    if (tombstones.size <= LIMIT.tombstones && hasRoomForTombstones(turn.state)) return
    tombstones.delete(oldest)
  }
}

function tellEnded(turn: Turn, asked: LeaseRequest, why: Problem): void {
  const token = takeEarlyToken(turn.state, asked.leaseId)
  if (!hasRoomForNotices(turn.state)) return
  issue(turn, {
    kind: 'notify',
    leaseWorkflowId: asked.leaseWorkflowId,
    token,
    end: { v: 1, leaseId: asked.leaseId, end: 'failed', problem: why },
  })
}
