import type { Pod, PoolState } from '../state.js'

/** A pod that should go at its next idle moment is asked this often while it is in use. */
const STALE_ASK_MS = 5_000
/** A drain is never asked more often than this: a pod that is used all the time answers "not idle" each time. */
const MIN_ASK_MS = 500

/** A pod that serves its lease but nothing after it: too old, of an earlier template, or of a pool that is emptied. */
export function isStale(state: PoolState, pod: Pod, now: number): boolean {
  if (state.mode === 'draining' || state.mode === 'deleting') return true
  return pod.generation !== state.generation || now >= pod.createdAt + state.spec.podLifetimeMs
}

/** When the pool asks a pod of a held lease to drain, given how long it has been idle (the runner's own measure). */
export function keepAliveDeadline(state: PoolState, pod: Pod, idleMs: number, now: number): number {
  const keepAliveMs = isStale(state, pod, now)
    ? Math.min(STALE_ASK_MS, state.spec.keepAliveMs)
    : state.spec.keepAliveMs
  return now + Math.max(MIN_ASK_MS, keepAliveMs - idleMs)
}
