import { type SeatSetRule, seatSetRule } from '../../contract/seat-set.js'
import type { PoolState } from '../state.js'

/** The rule of the pool's present profile; null for a pool without seat sets. Version 2 of the core knew none. */
export function ruleOf({ coreVersion, spec }: Pick<PoolState, 'coreVersion' | 'spec'>): SeatSetRule | null {
  return coreVersion < 3 ? null : seatSetRule(spec.profile)
}
