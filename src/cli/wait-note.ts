import type { Waiting } from '../client/index.js'
import { formatMs, isWaitReason, type PoolStatus, QUEUE, type WaitReason } from '../contract/index.js'
import { cut } from './terminal.js'

/**
 * Why a job waits, where it stands, and what would let it go on, in one line.
 * @param now ms since the epoch
 */
export function waitNote(waiting: Waiting, now: number): string {
  if (waiting.for === 'worker') {
    const what = waiting.taskQueue === QUEUE.workflows ? 'workflow' : 'job'
    return `waiting for a worker that takes the ${what}: look whether firepool worker (or firepool dev) runs, and whether its --job-slots are all in use`
  }
  if (waiting.for === 'answer') return `waiting for pool ${waiting.pool} to answer: ${waiting.why}`
  const { row, total, status } = waiting
  const left = formatMs(Math.max(0, row.deadlineMs - now))
  const place = `${row.reason}, place ${row.position} of ${total} in the queue, gives up in ${left}`
  const because = isWaitReason(row.reason) ? BECAUSE[row.reason](status, now) : ''
  return `waiting for a pod of ${status.pool} (${place})${because ? `: ${because}` : ''}`
}

/** The end of a log may be part of a message. */
const MESSAGE_CHARS_MAX = 300

/** What is the matter; what helps. */
const BECAUSE: Record<WaitReason, (status: PoolStatus, now: number) => string> = {
  BudgetExhausted: ({ pool, budget, pods }) => {
    if (budget.inForce === 0) return `the budget is 0; raise it with firepool pool resize ${pool} --budget N`
    const idle = pods.idle > 0 ? ` (${pods.idle} idle, kept for their callers)` : ''
    return `all ${budget.inForce} of the budget are held${idle}; one comes free when a lease and its keep-alive have ended, or raise it with firepool pool resize ${pool} --budget N`
  },
  PodStarting: ({ pods }) =>
    pods.starting + pods.promoting > 0
      ? `${pods.starting + pods.promoting} on the way to be ready; it goes on when one is`
      : 'no pod is free, and none can be started before another one has ended; if that lasts, raise maxPods in the pool file and apply it',
  PodStartFailed: ({ pool, breaker }, now) => {
    const why = cut((breaker.last?.message ?? 'no reason known').replace(/\s+/g, ' '), MESSAGE_CHARS_MAX)
    const again =
      breaker.retryAtMs === null ? '' : `, next try in ${formatMs(Math.max(0, breaker.retryAtMs - now))}`
    return `pods do not start (${why}${again}); mend the profile and apply it: firepool pool apply -f FILE, and look at firepool pool describe ${pool}`
  },
  SlotBusy: () =>
    'another lease of this caller has the slot; it goes on when that one ends, or run it with another --slot',
  PoolPaused: ({ pool }) => `an operator paused the pool; it goes on after firepool pool resume ${pool}`,
  PoolDraining: ({ pool }) => `an operator drains the pool; it goes on after firepool pool resume ${pool}`,
  PoolDeleting: () => 'the pool is being deleted; use another one, or apply it again when it is gone',
}
