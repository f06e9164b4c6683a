import { LIMIT } from '../../contract/limits.js'
import type { PoolState } from '../state.js'
import { hasRoomForPods } from './admission.js'
import { budgetInForce } from './budget.js'
import { ownShare, podsAllowed } from './shares.js'

export interface Replenishment {
  /** pods to create now */
  create: number
  /** standbys that nobody needs */
  excess: number
  reason: string
}

/** Of the whole pool. */
export function standbyOfWhole(state: PoolState): number {
  return state.operator.standby ?? state.spec.standby
}

/** Of this entity. */
export function standbyTarget(state: PoolState): number {
  return ownShare(state, standbyOfWhole(state))
}

/**
 * How many pods without a caller there should be: one for each request that may get a seat, plus the standby
 * target. What is on its way counts (F16), and so does everything else up to maxPods (F8).
 */
export function replenish(state: PoolState, now: number): Replenishment {
  const { byKind, held, claims } = state.index
  const have = byKind.standby.size + byKind.starting.size
  if (state.mode === 'draining' || state.mode === 'deleting') {
    return { create: 0, excess: byKind.standby.size, reason: `the pool is ${state.mode}` }
  }
  const headroom = Math.max(0, budgetInForce(state, now).seats - held)
  const maxPods = podsAllowed(state)
  // A lowered maxPods leaves room for fewer than the target.
  const others = state.pods.size - have - byKind.deleting.size
  const wanted = Math.min(
    Math.min(claims.size, headroom) + standbyTarget(state),
    Math.max(0, maxPods - others),
  )
  const excess = Math.min(byKind.standby.size, Math.max(0, have - wanted))
  if (state.mode === 'paused') return { create: 0, excess: 0, reason: 'the pool is paused' }
  // A pod costs bytes as well, and its grant more.
  if (!hasRoomForPods(state)) return { create: 0, excess, reason: 'the state is full' }
  const room = Math.min(maxPods - state.pods.size, startsAllowed(state, now) - byKind.starting.size)
  return { create: Math.max(0, Math.min(wanted - have, room)), excess, reason: 'requests and standby target' }
}

/** Pods that may be starting at once: a surge bound; none while the breaker is open, one to probe it. */
function startsAllowed(state: PoolState, now: number): number {
  const { openUntil, failures } = state.breaker
  if (openUntil !== null) return now < openUntil ? 0 : 1
  // After a first failure fewer pods start at once: a broken template must not fail a hundred times in parallel.
  return failures > 0 ? LIMIT.breakerFailures : LIMIT.starting
}
