import { LIMIT, TIMEOUT } from '../contract/limits.js'
import type { ShardOrder } from '../contract/pool.js'
import { poolOfShard } from '../contract/shards.js'
import { takeEarlyToken } from './early-tokens.js'
import type { Effect } from './effect.js'
import type { PoolEvent } from './event.js'
import type { Deadline, QueueEntry } from './index-of-state.js'
import {
  announce,
  announceDeadline,
  endLease,
  grant,
  offerToken,
  release,
  renew,
  request,
  requestExpired,
} from './leases.js'
import { refuseWhileSick, startFailed } from './losses.js'
import { observed } from './observe.js'
import { drainPod, removePod, setKeepAlive, unreserve } from './pods.js'
import { budgetShare, ownBudget } from './policy/budget.js'
import { pinOf, STALE_ASK_MS } from './policy/keep-alive.js'
import { dispensableStandby, leaseForIdle, standbyFor, warmPodFor } from './policy/placement.js'
import { replenish } from './policy/replenish.js'
import { ruleOf } from './policy/seat-rule.js'
import { placesLeft, setsKept } from './policy/seat-sets.js'
import { changeTemplate, createPods, roll } from './rollout.js'
import { retryEffect, settle } from './settle.js'
import { isNews, leave, tellShards } from './shards.js'
import { forgetSick } from './sick-sets.js'
import type { GrantedLease, Pod, PoolState } from './state.js'
import { assert, issue, type Turn, wakeAt } from './turn.js'

/** While the budget is exceeded, busy pods are asked to drain this often. */
const SHRINK_MS = 2_000

/**
 * The only door to a pool's state: all that happened since the last call goes in, everything to be done comes out.
 * Deterministic: the same state, events and time give the same result. Costs O(changes x log n).
 *
 * @param now ms since the epoch; a step back is treated as no progress
 * @returns the same state object, changed in place, and the effects to carry out
 */
export function step(
  state: PoolState,
  events: PoolEvent[],
  now: number,
): { state: PoolState; effects: Effect[] } {
  const gapMs = now - state.lastStepAt
  const turn: Turn = {
    state,
    now: Math.max(now, state.lastStepAt),
    effects: [],
    newClaims: [],
    newIdle: [],
    answered: new Set(),
  }
  // 1. inbox
  for (const event of events) take(turn, event)
  // 2. deadlines; after a long gap the inbox that piled up goes first, and nothing in it is late by our fault
  if (gapMs <= TIMEOUT.clockGapMs || events.length === 0) expire(turn)
  else wakeAt(turn, turn.now, 'pool', 'gap')
  // 3. requests meet pods
  serve(turn)
  // 4. the stock follows demand, target and budget
  shape(turn)
  // 5. the other shards of the pool get their parts
  tellShards(turn)
  // 6. the backstop against holders that vanished
  describeHolders(turn)
  state.lastStepAt = turn.now
  assert(state.index.held >= 0 && state.index.leaseBytes >= 0, () => 'counts went below zero')
  return { state, effects: turn.effects }
}

/** When `step` wants to be called even if nothing happens, ms since the epoch; null: never. */
export function nextDeadline(state: PoolState): number | null {
  const { deadlines } = state.index
  for (;;) {
    const top = deadlines.peek()
    if (!top) return null
    if (isLive(state, top)) return top.at
    deadlines.pop()
  }
}

function take(turn: Turn, event: PoolEvent): void {
  const { state } = turn
  switch (event.kind) {
    case 'request':
      if (event.answered) turn.answered.add(event.request.leaseId)
      request(turn, event.request)
      return
    case 'release':
      release(turn, event.release)
      return
    case 'renew':
      renew(turn, event.leaseId)
      return
    case 'token':
      offerToken(turn, event.leaseId, event.token)
      return
    case 'result':
      settle(turn, event.id, event.result)
      return
    case 'observed':
      observed(turn, event)
      return
    case 'setBudget':
      state.fleet = { budget: event.budget, expiresAt: event.expiresAtMs }
      wakeAt(turn, event.expiresAtMs, 'pool', 'fleet')
      return
    case 'resize':
      if (event.budget !== undefined) state.operator.budget = event.budget
      if (event.standby !== undefined) state.operator.standby = event.standby
      shed(turn)
      return
    case 'mode':
      setMode(turn, event.mode)
      return
    case 'apply':
      if (event.spec.name !== state.spec.name) {
        // A pool cannot be renamed: its workflow id and its pods carry the name.
        poison(turn, 'firepool.apply', `it is for pool ${event.spec.name}`)
        return
      }
      applySpec(turn, event.spec)
      return
    case 'shard':
      takeOrder(turn, event.order)
      return
    case 'poison':
      poison(turn, event.name, event.reason)
      return
  }
}

/** An input that cannot be acted on is counted and named in status, and dropped. */
function poison({ state }: Turn, name: string, reason: string): void {
  state.poison.count++
  state.poison.last = `${name}: ${reason}`.slice(0, 300)
}

function setMode(turn: Turn, mode: PoolState['mode']): void {
  const { state } = turn
  // A pool that is being deleted has told its callers so.
  if (state.mode === 'deleting') return
  state.mode = mode
  if (mode === 'running') {
    turn.newClaims.push(...state.index.claims)
    return
  }
  if (mode === 'paused') return
  for (const kind of ['standby', 'idle'] as const) {
    for (const name of [...state.index.byKind[kind]]) removePod(turn, state.pods.get(name)!)
  }
  for (const name of [...state.index.byKind.leased]) {
    const pod = state.pods.get(name)!
    if (pinOf(state, pod) === 0) setKeepAlive(turn, pod, turn.now)
  }
  if (mode !== 'deleting') return
  for (const name of [...state.index.byKind.starting]) removePod(turn, state.pods.get(name)!)
  const why = {
    code: 'PoolNotFound',
    origin: 'caller',
    message: `pool ${poolOfShard(state.spec.name)} was deleted`,
  } as const
  for (const leaseId of [...state.leases.keys()])
    endLease(turn, leaseId, 'failed', { problem: why, notify: true })
}

/** What the head wants of this shard. Only what is news is acted on: the same order comes again and again. */
function takeOrder(turn: Turn, order: ShardOrder): void {
  const { state } = turn
  if (!isNews(state, order)) return
  const { index, by, seq, leaving, cap, spec, fleet, mode } = order
  const left = state.shard?.leaving === true
  state.shard = { index, by, seq, leaving, cap }
  // An operator's word goes to the whole pool.
  state.operator = { budget: null, standby: null }
  state.fleet = fleet
  if (fleet) wakeAt(turn, fleet.expiresAt, 'pool', 'fleet')
  if (JSON.stringify(spec) !== JSON.stringify(state.spec)) applySpec(turn, spec)
  if (mode !== state.mode) setMode(turn, mode)
  if (leaving && !left) leave(turn)
}

/** A new spec. Only a new profile makes a new generation (F11). */
function applySpec(turn: Turn, spec: PoolState['spec']): void {
  const { state } = turn
  if (state.mode === 'deleting') return
  const before = state.spec.profile
  state.spec = spec
  if (JSON.stringify(spec.profile) !== JSON.stringify(before)) changeTemplate(turn, before)
  // A shorter keep-alive holds for standbys that are there: wake up for them.
  for (const name of state.index.byKind.standby)
    wakeAt(turn, state.pods.get(name)!.since + spec.keepAliveMs, 'keepAlive', name)
  shed(turn)
}

/** Standbys beyond the need leave at once when somebody lowered the target. */
function shed(turn: Turn): void {
  for (let { excess } = replenish(turn.state, turn.now); excess > 0; excess--) {
    const pod = dispensableStandby(turn.state, turn.now)
    if (!pod) return
    removePod(turn, pod)
  }
}

function expire(turn: Turn): void {
  forgetSick(turn)
  const { deadlines } = turn.state.index
  turn.state.firedAt = turn.now
  for (;;) {
    const top = deadlines.peek()
    if (!top || top.at > turn.now) return
    deadlines.pop()
    if (isLive(turn.state, top)) fire(turn, top)
  }
}

/** Entries are never taken out of the heap when plans change; an outdated one is recognised here. */
export function isLive(state: PoolState, deadline: Deadline): boolean {
  const { kind, id, at } = deadline
  switch (kind) {
    case 'request': {
      const lease = state.leases.get(id)
      return lease?.kind === 'waiting' || (lease?.kind === 'granted' && lease.delivery === 'needsToken')
    }
    case 'announce': {
      const lease = state.leases.get(id)
      return lease?.kind === 'granted' && announceDeadline(lease) === at
    }
    case 'keepAlive': {
      const pod = state.pods.get(id)
      if (pod?.kind === 'standby') return pod.since + state.spec.keepAliveMs === at
      return (pod?.kind === 'leased' || pod?.kind === 'idle') && pod.keepAliveAt === at
    }
    case 'start':
      return state.pods.get(id)?.kind === 'starting'
    case 'lifetime':
      return state.pods.has(id)
    case 'tombstone':
      return state.tombstones.get(id) === at
    case 'token':
      return state.earlyTokens.get(id)?.expiresAt === at
    case 'effect':
      return state.effects.get(id)?.retryAt === at
    case 'pool':
      return true
  }
}

function fire(turn: Turn, { kind, id, at }: Deadline): void {
  const { state } = turn
  switch (kind) {
    case 'request':
      requestExpired(turn, state.leases.get(id)!)
      return
    case 'announce':
      announce(turn, state.leases.get(id) as GrantedLease)
      return
    case 'keepAlive':
      keepAliveEnded(turn, state.pods.get(id)!)
      return
    case 'start':
      startFailed(
        turn,
        state.pods.get(id)!,
        'StartTimeout',
        'not Ready in time, and the backend said nothing',
        false,
      )
      return
    case 'lifetime':
      lifetimeEnded(turn, state.pods.get(id)!)
      return
    case 'tombstone':
      state.tombstones.delete(id)
      return
    case 'token':
      takeEarlyToken(state, id)
      return
    case 'effect':
      retryEffect(turn, id, at)
      return
    case 'pool':
      // Waking up is all: budget, breaker and the round of descriptions look at the time themselves.
      return
  }
}

/** An idle pod goes; a held one is asked. */
function keepAliveEnded(turn: Turn, pod: Pod): void {
  // A standby's turn comes in `shape`, which knows what is left over once everybody was served.
  if (pod.kind === 'standby') return
  if (pod.kind === 'idle') {
    if (pod.reserved) unreserve(turn, pod)
    else removePod(turn, pod)
    return
  }
  const lease = pod.leaseId === null ? undefined : turn.state.leases.get(pod.leaseId)
  if (lease?.kind === 'granted' && lease.delivery !== 'delivered' && turn.now < lease.request.deadlineMs) {
    // Its holder is between two tokens: the grant waits for the next one until the request's deadline.
    setKeepAlive(turn, pod, lease.request.deadlineMs)
    return
  }
  drainPod(turn, pod)
}

function lifetimeEnded(turn: Turn, pod: Pod): void {
  if (pod.kind === 'standby' || pod.kind === 'idle') removePod(turn, pod)
  else if (pod.kind === 'leased' && pinOf(turn.state, pod) === 0)
    setKeepAlive(turn, pod, Math.min(pod.keepAliveAt, turn.now + STALE_ASK_MS))
}

function serve(turn: Turn): void {
  const { state } = turn
  if (state.mode !== 'running') return
  for (const leaseId of turn.newClaims) {
    const lease = state.leases.get(leaseId)
    if (lease?.kind !== 'waiting' || !lease.claims) continue
    const pod = warmPodFor(state, lease)
    if (pod) grant(turn, lease, pod, 'warm')
  }
  for (const name of turn.newIdle) {
    const pod = state.pods.get(name)
    if (pod?.kind !== 'idle') continue
    const lease = leaseForIdle(state, pod)
    if (lease) grant(turn, lease, pod, 'warm')
  }
  serveQueue(turn)
  refuseWhileSick(turn)
}

/** Standbys go to the queue in its order, as far as the budget lets pods belong to callers (I4). */
function serveQueue(turn: Turn): void {
  const { state, now } = turn
  const { queue, byKind, claims } = state.index
  const passed: QueueEntry[] = []
  // A tenant without a standby in a set of its own, or in one that is free, has none for the rest of this turn.
  const without = new Set<string>()
  while (claims.size > passed.length && byKind.standby.size > 0 && placesLeft(state, now) > 0) {
    const entry = queue.pop()
    assert(entry !== undefined, () => 'a claim is not in the queue')
    const lease = state.leases.get(entry.leaseId)
    if (lease?.kind !== 'waiting' || !lease.claims) continue
    const { tenant } = lease.request
    const pod = without.has(tenant) ? null : standbyFor(state, lease, now)
    if (pod) {
      // Ready before the request came: it did not wait for a start.
      grant(turn, lease, pod, pod.since <= lease.arrivedAt ? 'standby' : 'cold')
    } else {
      without.add(tenant)
      passed.push(entry)
    }
  }
  for (const entry of passed) queue.push(entry)
}

function shape(turn: Turn): void {
  roll(turn)
  createPods(turn)
  retire(turn)
  if (ruleOf(turn.state)) vacate(turn)
  else shrink(turn)
}

/** Standbys that nobody needs leave when they have stood for a keep-alive, at once from a pool that is emptied. */
function retire(turn: Turn): void {
  const { state, now } = turn
  const waits = state.mode === 'running' || state.mode === 'paused' ? state.spec.keepAliveMs : 0
  const { excess, inTheWay } = replenish(state, now)
  for (let n = 1; n <= excess; n++) {
    const pod = dispensableStandby(state, now)
    if (!pod || (n > inTheWay && pod.since + waits > now)) return
    removePod(turn, pod)
  }
}

/** The budget shrank below the seat sets that there are: the last ones are emptied, held pods are asked. */
function vacate(turn: Turn): void {
  const { state, now } = turn
  const kept = setsKept(state, ruleOf(state)!, now)
  const over = [...state.pods.values()].filter(({ set }) => set !== null && set >= kept)
  for (const pod of over) {
    const { kind, reserved } = pod
    if (kind === 'starting' || kind === 'standby' || (kind === 'idle' && !reserved)) removePod(turn, pod)
  }
  askToLeave(
    turn,
    over.filter(({ kind }) => kind === 'leased'),
  )
}

/** The budget shrank below what is held: idle pods go, oldest first; held ones are asked, oldest first (I4). */
function shrink(turn: Turn): void {
  const { state, now } = turn
  // An expired fleet budget stops growth only: what is held above the guarantee leaves by its ordinary keep-alive.
  const expired = state.fleet !== null && now >= state.fleet.expiresAt
  const seats = expired ? ownBudget(state) : budgetShare(state, now).seats
  const { byKind, held, heldLeaving } = state.index
  let over = held - seats - heldLeaving - byKind.draining.size
  if (over <= 0) return
  for (const name of [...byKind.idle]) {
    if (over <= 0) return
    const pod = state.pods.get(name)!
    if (pod.reserved) continue
    removePod(turn, pod)
    over--
  }
  askToLeave(
    turn,
    [...byKind.leased].map((name) => state.pods.get(name)!),
    over,
  )
}

/** Asks pods of held leases to drain, a few times a minute as long as there are any; `most` of them. */
function askToLeave(turn: Turn, pods: Pod[], most = pods.length): void {
  const { state, now } = turn
  if (most <= 0 || now < state.shrinkAt) return
  state.shrinkAt = now + SHRINK_MS
  wakeAt(turn, state.shrinkAt, 'pool', 'shrink')
  // Whoever got a pod in this very step is about to use it: it is asked the next time.
  const asked = pods.filter((pod) => pod.since < now && pinOf(state, pod) === 0).slice(0, most)
  for (const pod of asked) drainPod(turn, pod)
}

function describeHolders(turn: Turn): void {
  const { state, now } = turn
  if (state.leases.size === 0 || now < state.describeAt) return
  if (state.describeAt === 0) {
    state.describeAt = now + TIMEOUT.reconcileMs
    wakeAt(turn, state.describeAt, 'pool', 'describe')
    return
  }
  state.describeAt = now + TIMEOUT.reconcileMs
  wakeAt(turn, state.describeAt, 'pool', 'describe')
  const old = [...state.leases.values()].filter((lease) => now - lease.arrivedAt >= TIMEOUT.reconcileMs)
  old.sort((a, b) => a.arrival - b.arrival)
  const after = old.filter((lease) => lease.arrival > state.describeCursor)
  const round = (after.length > 0 ? after : old).slice(0, LIMIT.describeBatch)
  if (round.length === 0) return
  state.describeCursor = round[round.length - 1]!.arrival
  const leases = round.map(({ request: r }) => ({
    leaseId: r.leaseId,
    holder: r.holder,
    leaseWorkflowId: r.leaseWorkflowId,
  }))
  issue(turn, { kind: 'describe', leases })
}

/** Whether a deleted pool, or a shard that leaves, has nothing left to do: its workflow may end. */
export function isFinished(state: PoolState): boolean {
  if (state.mode !== 'deleting' && state.shard?.leaving !== true) return false
  return [state.pods, state.leases, state.effects, state.shards].every(({ size }) => size === 0)
}
