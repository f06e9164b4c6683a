import type { PoolState } from '../state.js'

export interface BudgetInForce {
  seats: number
  /** where the number comes from, for status and messages */
  reason: string
}

/** The cap of the pool itself, without the fleet's word. */
export function ownBudget(state: PoolState): number {
  return state.operator.budget ?? state.spec.budget
}

/**
 * How many seats pods with a caller may hold now. The operator's word and the fleet's word are both caps; a fleet
 * budget that expired leaves the guarantee: a dead budget workflow cannot freeze the fleet, nor let it grow.
 */
export function budgetInForce(state: PoolState, now: number): BudgetInForce {
  const own = ownBudget(state)
  const from = state.operator.budget !== null ? 'the operator set it by resize' : 'the pool file says so'
  if (state.fleet === null) return { seats: own, reason: from }
  if (now >= state.fleet.expiresAt) {
    const seats = Math.min(own, state.spec.guarantee)
    return { seats, reason: 'the fleet budget expired, only the guarantee is left' }
  }
  if (state.fleet.budget < own) return { seats: state.fleet.budget, reason: 'the fleet budget says so' }
  return { seats: own, reason: from }
}
