import { TIMEOUT } from '../contract/limits.js'
import type { DeliverEffect, DrainEffect, Effect, EffectResult } from './effect.js'
import { awaitToken, endLease, grantNotFetched, setToken } from './leases.js'
import { losePod, startFailed } from './losses.js'
import { acknowledge, movePod, removePod, setKeepAlive } from './pods.js'
import { firstKeepAliveDeadline, isStale, keepAliveDeadline } from './policy/keep-alive.js'
import { shardAnswered } from './shards.js'
import type { GrantedLease, Pod, PoolState } from './state.js'
import { closeEffect, type Turn, wakeAt } from './turn.js'

/** The longest pause between two attempts of one effect. */
const MAX_RETRY_MS = 30_000
/** A notice that nobody takes in this many attempts is dropped: the holder's own time-outs speak then. */
const NOTIFY_ATTEMPTS = 20

/** The result of an effect. Only the first one for an id counts (I8). */
export function settle(turn: Turn, id: string, result: EffectResult): void {
  const { state } = turn
  const effect = state.effects.get(id)
  if (!effect) return
  if (result.kind === 'undone') {
    // In its pause already: this is the same word a second time.
    if (effect.retryAt === 0) undone(turn, effect)
    return
  }
  closeEffect(state, effect)
  switch (effect.kind) {
    case 'create':
      if (result.kind === 'created') created(turn, effect.order.pod, result.problem)
      return
    case 'delete': {
      const pod = state.pods.get(effect.pod)
      if (pod?.kind === 'deleting') movePod(turn, pod, 'gone')
      return
    }
    case 'drain':
      drainAnswered(turn, effect, result)
      return
    case 'deliver':
      deliverAnswered(turn, effect, result)
      return
    case 'describe':
      if (result.kind === 'described') holdersGone(turn, result.closed)
      return
    case 'revoke':
      if (result.kind === 'podLost') lostUnderEffect(turn, effect.pod, effect.epoch, result.reason)
      return
    case 'announce':
      // Its death watch is gone, so nobody would release it when its holder ends.
      if (result.kind === 'holderGone') holdersGone(turn, [effect.grant.leaseId])
      return
    case 'notify':
      return
    case 'shard':
      shardAnswered(turn, effect, result)
      return
  }
}

function created(turn: Turn, name: string, failure: { reason: string; message: string } | undefined): void {
  const pod = turn.state.pods.get(name)
  if (!pod) return
  acknowledge(turn, pod)
  if (failure && pod.kind === 'starting') startFailed(turn, pod, failure.reason, failure.message, false)
}

function drainAnswered(turn: Turn, effect: DrainEffect, result: EffectResult): void {
  const { state, now } = turn
  const pod = state.pods.get(effect.pod)
  if (pod?.kind !== 'draining' || pod.epoch !== effect.epoch) return
  if (result.kind === 'podLost') {
    losePod(turn, pod, result.reason, false)
    return
  }
  if (result.kind !== 'drained') return
  const lease = pod.leaseId === null ? null : (state.leases.get(pod.leaseId) as GrantedLease)
  const overdue = lease?.delivery === 'needsToken' && now >= lease.request.deadlineMs
  if (result.drained) {
    if (lease) {
      const end = overdue || lease.request.pinMs > 0 ? 'expired' : 'recalled'
      endLease(turn, lease.request.leaseId, end, { notify: true, pod: 'drained' })
    } else {
      removePod(turn, pod)
    }
    return
  }
  if (!lease) {
    releasedUnderDrain(turn, pod, result.useSeq)
    return
  }
  // It was used, so somebody did get the grant.
  if (overdue) lease.delivery = 'delivered'
  movePod(turn, pod, 'refused', { useSeq: result.useSeq })
  setKeepAlive(turn, pod, keepAliveDeadline(state, pod, result.idleMs, now))
}

/** The lease ended while the runner was asked, and the runner refused: the pod stays with its caller after all. */
function releasedUnderDrain(turn: Turn, pod: Pod, useSeq: number): void {
  const { state, now } = turn
  if (isStale(state, pod, now)) {
    removePod(turn, pod)
    return
  }
  movePod(turn, pod, 'release', { useSeq })
  setKeepAlive(turn, pod, now + state.spec.keepAliveMs)
}

function deliverAnswered(turn: Turn, effect: DeliverEffect, result: EffectResult): void {
  const { state, now } = turn
  const { grant } = effect
  if (result.kind === 'podLost') {
    lostUnderEffect(turn, grant.pod, grant.epoch, result.reason)
    return
  }
  const lease = state.leases.get(grant.leaseId)
  if (lease?.kind !== 'granted' || lease.epoch !== grant.epoch || lease.pod !== grant.pod) return
  if (result.kind === 'holderGone') {
    endLease(turn, grant.leaseId, 'released')
    return
  }
  const pod = state.pods.get(grant.pod)!
  if (pod.kind === 'promoting') {
    movePod(turn, pod, 'delivered', result.kind === 'delivered' ? { useSeq: result.useSeq } : {})
    setKeepAlive(turn, pod, firstKeepAliveDeadline(state, pod, now))
  }
  if (result.kind === 'tokenGone') {
    tokenGone(turn, lease, effect.token)
  } else if (
    lease.delivery !== 'delivered' &&
    (lease.request.replyTo === 'signal' || effect.token !== null)
  ) {
    lease.delivery = 'delivered'
    // Its keep-alive begins when the holder has the grant.
    if (pod.kind === 'leased') setKeepAlive(turn, pod, firstKeepAliveDeadline(state, pod, now))
  }
  if (lease.delivery === 'needsToken' && now >= lease.request.deadlineMs) grantNotFetched(turn, lease)
}

/**
 * A token dies with its attempt; the next attempt offers another. After a delivery it means nothing: that token was
 * used, and the message was repeated.
 */
function tokenGone(turn: Turn, lease: GrantedLease, token: string | null): void {
  if (lease.delivery === 'delivered' || lease.token !== token) return
  setToken(turn, lease, null)
  awaitToken(turn, lease)
}

/** The runner says that it is not the one that was bound (or is not there): only if it is still about this epoch. */
function lostUnderEffect(turn: Turn, name: string, epoch: number, reason: string): void {
  const pod = turn.state.pods.get(name)
  if (pod && pod.epoch === epoch && pod.kind !== 'deleting') losePod(turn, pod, reason, false)
}

/** Reconcile: these holders are closed, nobody else will release their leases (F5, F22). */
function holdersGone(turn: Turn, closed: string[]): void {
  for (const leaseId of closed) {
    if (!turn.state.leases.has(leaseId)) continue
    turn.state.counters.leaked++
    endLease(turn, leaseId, 'released', { notify: true })
  }
}

/** The driver could not carry it out: again later, under the same id, unless nobody needs it any more. */
function undone(turn: Turn, effect: Effect & { retryAt: number }): void {
  const { state, now } = turn
  if (isMoot(state, effect, now)) {
    closeEffect(state, effect)
    afterMoot(turn, effect)
    return
  }
  const silent = silentPod(state, effect, now)
  if (silent) {
    closeEffect(state, effect)
    losePod(turn, silent, 'Unreachable', false)
    return
  }
  const pauseMs = Math.min(MAX_RETRY_MS, TIMEOUT.effectRetryMs * 2 ** Math.min(10, effect.attempt - 1))
  effect.retryAt = now + (effect.kind === 'drain' ? Math.max(TIMEOUT.drainRetryMs, pauseMs) : pauseMs)
  // A grant that cannot be delivered goes back when its request ends, not after the pause.
  if (effect.kind === 'deliver') {
    const lease = state.leases.get(effect.grant.leaseId)
    if (lease) effect.retryAt = Math.min(effect.retryAt, lease.request.deadlineMs)
  }
  effect.attempt++
  wakeAt(turn, effect.retryAt, 'effect', effect.id)
}

/**
 * The pod of a drain or a bind that cannot be carried out for so long that its runner, which heard from no broker
 * either, has ended itself: nothing may be held for ever because a backend calls a hung pod Ready (F14).
 */
function silentPod(state: PoolState, effect: Effect, now: number): Pod | null {
  if (effect.kind !== 'drain' && effect.kind !== 'deliver') return null
  const pod = state.pods.get(effect.kind === 'drain' ? effect.pod : effect.grant.pod)
  if (pod?.kind !== 'draining' && pod?.kind !== 'promoting') return null
  return now - pod.since >= TIMEOUT.brokerGoneMs ? pod : null
}

function isMoot(state: PoolState, effect: Effect, now: number): boolean {
  switch (effect.kind) {
    case 'create':
      return state.pods.get(effect.order.pod)?.kind !== 'starting'
    case 'delete':
      return !state.pods.has(effect.pod)
    case 'drain': {
      const pod = state.pods.get(effect.pod)
      return pod?.kind !== 'draining' || pod.epoch !== effect.epoch
    }
    case 'revoke': {
      const pod = state.pods.get(effect.pod)
      // Also when the pod has a younger lease by now: what runs under the old epoch is still to be killed.
      return !pod || pod.kind === 'deleting'
    }
    case 'deliver': {
      const lease = state.leases.get(effect.grant.leaseId)
      return lease?.kind !== 'granted' || lease.delivery === 'delivered' || now >= lease.request.deadlineMs
    }
    case 'announce':
      return !state.leases.has(effect.grant.leaseId)
    case 'notify':
      return effect.attempt > NOTIFY_ATTEMPTS
    case 'describe':
      // The next round describes them again.
      return true
    case 'shard':
      // Told again in a moment, and then what is wanted by then.
      return true
  }
}

/** A create that is given up counts as answered; a grant that could not be delivered before its deadline goes back. */
function afterMoot(turn: Turn, effect: Effect): void {
  if (effect.kind === 'create') {
    const pod = turn.state.pods.get(effect.order.pod)
    if (pod) acknowledge(turn, pod)
  }
  if (effect.kind === 'shard') shardAnswered(turn, effect, { kind: 'undone', reason: 'told again' })
  if (effect.kind !== 'deliver') return
  const lease = turn.state.leases.get(effect.grant.leaseId)
  if (lease?.kind === 'granted' && lease.delivery !== 'delivered' && turn.now >= lease.request.deadlineMs) {
    endLease(turn, effect.grant.leaseId, 'expired', { notify: true })
  }
}

/** Hands an effect to the driver again when its pause is over. */
export function retryEffect(turn: Turn, id: string, at: number): void {
  const { state, now } = turn
  const effect = state.effects.get(id)
  if (!effect || effect.retryAt !== at) return
  effect.retryAt = 0
  if (isMoot(state, effect, now)) {
    closeEffect(state, effect)
    afterMoot(turn, effect)
    return
  }
  const { retryAt: _, ...plain } = effect
  turn.effects.push(plain)
}
