import { TIMEOUT } from '../contract/limits.js'
import type { DeliverEffect, DrainEffect, Effect, EffectResult } from './effect.js'
import { endLease } from './leases.js'
import { losePod, startFailed } from './losses.js'
import { movePod, removePod, setKeepAlive } from './pods.js'
import { isStale, keepAliveDeadline } from './policy/keep-alive.js'
import type { PoolState } from './state.js'
import { type Turn, wakeAt } from './turn.js'

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
    undone(turn, effect)
    return
  }
  state.effects.delete(id)
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
    case 'notify':
      return
  }
}

function created(turn: Turn, name: string, failure: { reason: string; message: string } | undefined): void {
  const pod = turn.state.pods.get(name)
  if (!pod) return
  pod.ackedAt = turn.now
  if (failure && pod.kind === 'starting') startFailed(turn, pod, failure.reason, failure.message, false)
}

function drainAnswered(turn: Turn, effect: DrainEffect, result: EffectResult): void {
  const { state, now } = turn
  const pod = state.pods.get(effect.pod)
  if (pod?.kind !== 'draining' || pod.epoch !== effect.epoch) {
    // The lease ended while the drain was under way: a pod that drained meanwhile serves nobody any more.
    if (pod?.kind === 'idle' && pod.epoch === effect.epoch && result.kind === 'drained' && result.drained)
      removePod(turn, pod)
    return
  }
  if (result.kind === 'podLost') {
    losePod(turn, pod, result.reason, false)
    return
  }
  if (result.kind !== 'drained') return
  if (result.drained) {
    endLease(turn, pod.leaseId!, 'recalled', { notify: true, pod: 'drained' })
    return
  }
  movePod(turn, pod, 'refused', { useSeq: result.useSeq })
  setKeepAlive(turn, pod, keepAliveDeadline(state, pod, result.idleMs, now))
}

function deliverAnswered(turn: Turn, effect: DeliverEffect, result: EffectResult): void {
  const { state, now } = turn
  const { grant } = effect
  const lease = state.leases.get(grant.leaseId)
  if (result.kind === 'podLost') {
    lostUnderEffect(turn, grant.pod, grant.epoch, result.reason)
    return
  }
  if (lease?.kind !== 'granted' || lease.epoch !== grant.epoch || lease.pod !== grant.pod) return
  const pod = state.pods.get(grant.pod)!
  if (result.kind === 'holderGone') {
    endLease(turn, grant.leaseId, 'released')
    return
  }
  if (result.kind === 'tokenGone') {
    if (lease.token === effect.token) {
      lease.token = null
      lease.delivery = 'needsToken'
      if (now >= lease.request.deadlineMs) {
        endLease(turn, grant.leaseId, 'expired', { notify: true })
        return
      }
    }
  } else if (lease.request.replyTo === 'signal' || effect.token !== null) {
    lease.delivery = 'delivered'
  } else if (now >= lease.request.deadlineMs) {
    endLease(turn, grant.leaseId, 'expired', { notify: true })
    return
  }
  if (pod.kind !== 'promoting') return
  movePod(turn, pod, 'delivered', result.kind === 'delivered' ? { useSeq: result.useSeq } : {})
  setKeepAlive(turn, pod, isStale(state, pod, now) ? now : now + state.spec.keepAliveMs)
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
    state.effects.delete(effect.id)
    afterMoot(turn, effect)
    return
  }
  const pauseMs = Math.min(MAX_RETRY_MS, TIMEOUT.effectRetryMs * 2 ** Math.min(10, effect.attempt - 1))
  effect.retryAt = now + (effect.kind === 'drain' ? Math.max(TIMEOUT.drainRetryMs, pauseMs) : pauseMs)
  effect.attempt++
  wakeAt(turn, effect.retryAt, 'effect', effect.id)
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
      return !pod || pod.kind === 'deleting' || pod.epoch !== effect.epoch
    }
    case 'deliver': {
      const lease = state.leases.get(effect.grant.leaseId)
      return lease?.kind !== 'granted' || lease.delivery === 'delivered' || now >= lease.request.deadlineMs
    }
    case 'notify':
      return effect.attempt >= NOTIFY_ATTEMPTS
    case 'describe':
      // The next round describes them again.
      return true
  }
}

/** A grant that could not be delivered before its deadline goes back. */
function afterMoot(turn: Turn, effect: Effect): void {
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
    state.effects.delete(id)
    afterMoot(turn, effect)
    return
  }
  const { retryAt: _, ...plain } = effect
  turn.effects.push(plain)
}
