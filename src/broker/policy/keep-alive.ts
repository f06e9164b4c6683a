import type { Pod, PoolState } from '../state.js'

/** A pod that should go at its next idle moment is asked this often while it is in use. */
export const STALE_ASK_MS = 5_000
/** A drain is never asked more often than this: a pod that is used all the time answers "not idle" each time. */
const MIN_ASK_MS = 500

/** A grant is on its way: asked sooner than this, a pod with a short keep-alive would be drained before its first job comes. */
const FIRST_JOB_MS = 2_000

/** When the pool first asks the pod of a lease whose grant was just delivered. */
export function firstKeepAliveDeadline(state: PoolState, pod: Pod, now: number): number {
  return isStale(state, pod, now) ? now : now + Math.max(FIRST_JOB_MS, state.spec.keepAliveMs)
}

/** A pod that serves its lease but nothing after it: too old, of an earlier template, or of a pool that is emptied. */
export function isStale(state: PoolState, pod: Pod, now: number): boolean {
  if (state.mode === 'draining' || state.mode === 'deleting') return true
  return pod.generation !== state.generation || now >= pod.oldAt
}

/** When the pool asks a pod of a held lease to drain, given how long it has been idle (the runner's own measure). */
export function keepAliveDeadline(state: PoolState, pod: Pod, idleMs: number, now: number): number {
  const keepAliveMs = isStale(state, pod, now)
    ? Math.min(STALE_ASK_MS, state.spec.keepAliveMs)
    : state.spec.keepAliveMs
  return now + Math.max(MIN_ASK_MS, keepAliveMs - idleMs)
}
