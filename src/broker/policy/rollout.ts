import { LIMIT } from '../../contract/limits.js'
import type { Breaker, PoolState } from '../state.js'
import { podsAllowed } from './shares.js'

/** What a change of template allows at a moment; `../rollout.ts` does it. */

/** How starts of this generation go; null for one that nothing is started of any more. */
export function breakerOf(state: PoolState, generation: number): Breaker | null {
  if (generation === state.generation) return state.breaker
  const template = state.rollout?.template
  return template?.generation === generation ? template.breaker : null
}

/** Pods of the newest template do not start, and nothing is replaced by them: earlier ones serve on. */
export function isStopped({ rollout, breaker }: PoolState): boolean {
  return rollout !== null && breaker.openUntil !== null
}

/** Whether pods of the template before may be made, for as long as those of the newest do not start. */
export function earlierServes(state: PoolState, now: number): boolean {
  const template = state.rollout?.template
  if (!template) return false
  const { openUntil } = template.breaker
  return openUntil === null || now >= openUntil
}

/** Pods of other generations than the newest that are not on their way out. */
export function earlierPods({ pods, index, generation }: PoolState): number {
  return pods.size - index.byKind.deleting.size - index.ofGeneration(generation).pods
}

/**
 * Pods of the newest template that start beside as many that serve: one for each LIMIT.surgePercent of the standbys, at least
 * one. Before the first of them is Ready no more than may fail.
 */
export function surge(state: PoolState, standbys: number): number {
  const most = Math.max(1, Math.ceil((standbys * LIMIT.surgePercent) / 100))
  return state.proven ? most : Math.min(most, LIMIT.breakerFailures)
}

/**
 * Whether pods of earlier templates go when nobody holds them: the newest has proven itself and still starts; or there is
 * no room to prove it beside them, and waiting for that would keep the earlier one for ever.
 */
export function replacesEarlier(state: PoolState): boolean {
  if (state.rollout === null || isStopped(state)) return false
  if (state.proven) return true
  return state.index.ofGeneration(state.generation).pods === 0 && state.pods.size >= podsAllowed(state)
}
