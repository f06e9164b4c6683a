import type { PoolState } from '../state.js'
import { othersHave, ownShare } from './shares.js'

export interface BudgetInForce {
  seats: number
  /** where the number comes from, for status and messages */
  reason: string
}

/** The cap of the whole pool itself, without the fleet's word. */
function wholeOwnBudget(state: PoolState): number {
  return state.operator.budget ?? state.spec.budget
}

/** The same of this entity: its share, when the pool has shards. */
export function ownBudget(state: PoolState): number {
  return ownShare(state, wholeOwnBudget(state))
}

/**
 * How many seats pods with a caller may hold in the whole pool now. The operator's word and the fleet's word are both
 * caps; a fleet budget that expired leaves the guarantee: a dead budget workflow cannot freeze the fleet, nor let it grow.
 */
export function wholeBudget(state: PoolState, now: number): BudgetInForce {
  const own = wholeOwnBudget(state)
  const from = state.operator.budget !== null ? 'the operator set it by resize' : 'the pool file says so'
  if (state.fleet === null) return { seats: own, reason: from }
  if (now >= state.fleet.expiresAt) {
    const seats = Math.min(own, state.spec.guarantee)
    return { seats, reason: 'the fleet budget expired, only the guarantee is left' }
  }
  if (state.fleet.budget < own) return { seats: state.fleet.budget, reason: 'the fleet budget says so' }
  return { seats: own, reason: from }
}

/** This entity's share of it. */
export function budgetShare(state: PoolState, now: number): BudgetInForce {
  const { seats, reason } = wholeBudget(state, now)
  return { seats: ownShare(state, seats), reason }
}

/** What of that share may be held now: not what other shards have not let go of yet. It stops growth, and drains nothing. */
export function budgetInForce(state: PoolState, now: number): BudgetInForce {
  const share = budgetShare(state, now)
  const left = state.shard
    ? state.shard.cap.seats
    : state.shards.size === 0
      ? share.seats
      : Math.max(0, wholeBudget(state, now).seats - othersHave(state).seats)
  if (left >= share.seats) return share
  return { seats: left, reason: 'other shards have not let go of the rest yet' }
}
