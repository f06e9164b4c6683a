import { shareOf } from '../../contract/shards.js'
import type { PoolState } from '../state.js'
import { ruleOf } from './seat-rule.js'

/**
 * How many shards this pool should have: as the spec says, but no more than there are seats. A shard without a seat would let
 * its callers wait for ever, beside free seats of others. A fleet budget that expired changes nothing here: nothing is
 * drained for it.
 */
export function shardCount(state: PoolState): number {
  const { spec, operator, fleet } = state
  if (spec.shards === 1) return 1
  const own = operator.budget ?? spec.budget
  const seats = Math.min(own, fleet?.budget ?? own)
  return Math.max(1, Math.min(spec.shards, Math.floor(seats / (ruleOf(state)?.seats ?? 1))))
}

/** This entity's part of a number of the whole pool. What a shard knows is its own part already. */
export function ownShare(state: PoolState, whole: number): number {
  const shards = shardCount(state)
  return shards === 1 ? whole : shareOf(whole, shards, 0)
}

/**
 * What the other shards of a pool may have or still have of its seats and pods. While this is more than their part, the
 * rest must do with less than its own: the whole is never exceeded because it is split anew.
 */
export function othersHave({ shards }: PoolState): { seats: number; pods: number } {
  const sum = { seats: 0, pods: 0 }
  for (const { cap } of shards.values()) {
    sum.seats += cap.seats
    sum.pods += cap.pods
  }
  return sum
}

/** How many pods this entity may have now. */
export function podsAllowed(state: PoolState): number {
  const { maxPods } = state.spec
  if (state.shard) return Math.min(maxPods, state.shard.cap.pods)
  if (state.shards.size === 0) return ownShare(state, maxPods)
  return Math.max(0, Math.min(ownShare(state, maxPods), maxPods - othersHave(state).pods))
}
