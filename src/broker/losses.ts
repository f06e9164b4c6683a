import { type Problem, problem } from '../contract/errors.js'
import { LIMIT, TIMEOUT } from '../contract/limits.js'
import { endLease } from './leases.js'
import { movePod, removePod } from './pods.js'
import { breakerRefusal, sickRefusal } from './policy/admission.js'
import { breakerOf } from './policy/rollout.js'
import type { Pod } from './state.js'
import { type Turn, wakeAt } from './turn.js'

/** Of what a backend says of a lost pod: it goes into histories. */
const SAID_CHARS = 1_000

/** A pod died under us: its lease is told (PodLost), what is left of it is cleaned up. */
export function losePod(turn: Turn, pod: Pod, reason: string, gone: boolean, said?: string): void {
  if (pod.leaseId !== null) {
    const lost = problem(
      'PodLost',
      `pod ${pod.pod} was lost (${reason}); the job may have started there. Run it again if that is safe, or set onPodLost: 'rerun'`,
      // With the end of its log, where the backend has it.
      { pod: pod.pod, epoch: pod.epoch, reason, ...(said ? { said: said.slice(0, SAID_CHARS) } : {}) },
    )
    endLease(turn, pod.leaseId, 'podLost', { problem: lost, notify: true, pod: 'lost' })
  }
  if (pod.kind !== 'deleting') turn.state.counters.podsLost++
  if (gone) movePod(turn, pod, 'gone')
  else removePod(turn, pod)
}

/** A pod that never became Ready: counted by the breaker, which stops creation after a few (F7, F19). */
export function startFailed(turn: Turn, pod: Pod, reason: string, message: string, gone: boolean): void {
  const { state, now } = turn
  // A pod of another template says nothing about this one.
  const breaker = breakerOf(state, pod.generation)
  if (breaker) {
    breaker.failures++
    breaker.last = problem('PodStartFailed', `pod ${pod.pod}: ${reason}: ${message}`.slice(0, 1_000), {
      pod: pod.pod,
      reason,
    })
    // Open already: this pod began to start before, it was no probe, and says nothing new.
    const opens =
      breaker.openUntil === null ? breaker.failures >= LIMIT.breakerFailures : now >= breaker.openUntil
    if (opens) {
      breaker.backoffMs = Math.min(
        TIMEOUT.breakerMaxMs,
        breaker.backoffMs === 0 ? TIMEOUT.breakerMs : breaker.backoffMs * 2,
      )
      breaker.openUntil = now + breaker.backoffMs
      wakeAt(turn, breaker.openUntil, 'pool', 'breaker')
    }
  }
  if (gone) movePod(turn, pod, 'gone')
  else removePod(turn, pod)
  refuseAll(turn, breakerRefusal(state, now))
}

/** While no seat set is well nobody can be served, as while pods do not start: whoever waits may do better elsewhere. */
export function refuseWhileSick(turn: Turn): void {
  refuseAll(turn, sickRefusal(turn.state, turn.now))
}

/** Ends all that wait for a pod. */
function refuseAll(turn: Turn, refusal: Problem | null): void {
  if (refusal === null) return
  for (const leaseId of [...turn.state.index.claims])
    endLease(turn, leaseId, 'failed', { problem: refusal, notify: true })
}
