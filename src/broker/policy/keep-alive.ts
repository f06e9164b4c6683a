import { TIMEOUT } from '../../contract/limits.js'
import type { Pod, PoolState } from '../state.js'
import { replacesEarlier } from './rollout.js'

/** A pod that should go at its next idle moment is asked this often while it is in use. */
export const STALE_ASK_MS = 5_000
/** A drain is never asked more often than this: a pod that is used all the time answers "not idle" each time. */
const MIN_ASK_MS = 500

/** A grant is on its way: asked sooner than this, a pod with a short keep-alive would be drained before its first job comes. */
const FIRST_JOB_MS = 2_000

/** How long the lease on this pod may stay unused before it expires, ms; 0: it is not pinned. */
export function pinOf(state: PoolState, pod: Pod): number {
  return (pod.leaseId === null ? undefined : state.leases.get(pod.leaseId))?.request.pinMs ?? 0
}

/** When a pod that its lease left idle goes, or is no longer for its slot alone. */
export function idleDeadline(state: PoolState, pod: Pod, now: number): number {
  return now + (pod.reserved ? TIMEOUT.pinGraceMs : state.spec.keepAliveMs)
}

/** When the pool first asks the pod of a lease whose grant was just delivered. */
export function firstKeepAliveDeadline(state: PoolState, pod: Pod, now: number): number {
  const pinMs = pinOf(state, pod)
  if (pinMs > 0) return now + pinMs
  if (!isStale(state, pod, now)) return now + Math.max(FIRST_JOB_MS, state.spec.keepAliveMs)
  // A warm pod of an earlier template was granted for once more, so it is to be of use.
  return state.rollout ? now + FIRST_JOB_MS : now
}

/** A pod that serves its lease but nothing after it: too old, of an earlier template, or of a pool that is emptied. */
export function isStale(state: PoolState, pod: Pod, now: number): boolean {
  if (isSpent(state, pod, now)) return true
  return pod.generation !== state.generation && (state.rollout === null || replacesEarlier(state))
}

/** The same for other reasons than its template. */
export function isSpent(state: PoolState, pod: Pod, now: number): boolean {
  return state.mode === 'draining' || state.mode === 'deleting' || now >= pod.oldAt
}

/** When the pool asks a pod of a held lease to drain, given how long it has been idle (the runner's own measure). */
export function keepAliveDeadline(state: PoolState, pod: Pod, idleMs: number, now: number): number {
  return now + Math.max(MIN_ASK_MS, idleAllowed(state, pod, now) - idleMs)
}

/** How long the pod of a held lease may be idle. What is pinned is not asked before its time, however stale its pod is. */
function idleAllowed(state: PoolState, pod: Pod, now: number): number {
  const pinMs = pinOf(state, pod)
  if (pinMs > 0) return pinMs
  const { keepAliveMs } = state.spec
  return isStale(state, pod, now) ? Math.min(STALE_ASK_MS, keepAliveMs) : keepAliveMs
}
