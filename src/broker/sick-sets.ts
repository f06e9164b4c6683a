import { SEAT_LOST, SEAT_SET_SICK } from '../contract/errors.js'
import { TIMEOUT } from '../contract/limits.js'
import { removePod, retirePod } from './pods.js'
import { ruleOf } from './policy/seat-rule.js'
import { isSick } from './policy/sick-sets.js'
import type { Pod } from './state.js'
import { type Turn, wakeAt } from './turn.js'

/** Of what a node's agent says of its GPUs: it goes into histories, and is kept. */
const WHY_CHARS = 300

/**
 * A pod of a seat set ended, or was given back, because no job gets its GPUs there; the pool keeps off that set for a while. Pods
 * of others on it have the same GPUs: those without a lease go at once, and the others when their leases leave them alone, so that
 * whoever comes back gets a pod elsewhere. When all have gone, the set's claim may be given other GPUs.
 *
 * @param reason of the pod's end: any other one says nothing of its set
 */
export function setIsSick(turn: Turn, pod: Pod, reason: string, why: string): void {
  const { state, now } = turn
  const rule = ruleOf(state)
  if (state.coreVersion < 4 || !rule || pod.set === null || isSick(state, pod.set, now)) return
  // Of several seats the others may serve on; when too few are left, the next job says so.
  if (!(reason === SEAT_SET_SICK || (reason === SEAT_LOST && rule.seats === 1))) return
  const before = state.sick.get(pod.set)?.pauseMs
  const pauseMs = before === undefined ? TIMEOUT.sickSetMs : Math.min(TIMEOUT.breakerMaxMs, 2 * before)
  const until = now + pauseMs
  state.sick.set(pod.set, { until, pauseMs })
  state.sickWhy = why.slice(0, WHY_CHARS)
  for (const at of [until, until + pauseMs]) wakeAt(turn, at, 'pool', 'sick')
  const note = { reason: SEAT_SET_SICK, message: state.sickWhy }
  for (const other of [...state.pods.values()]) {
    if (other.set !== pod.set) continue
    if (other.kind === 'starting') removePod(turn, other)
    retirePod(turn, other, note)
    // What is still seen of one on its way out is about now, and not about the set's next try.
    other.oldAt = Math.min(other.oldAt, now)
  }
}

/** Forgets sets that nothing was said of for as long as they were kept off: the next time is the first again. */
export function forgetSick({ state, now }: Turn): void {
  for (const [set, { until, pauseMs }] of state.sick) if (now >= until + pauseMs) state.sick.delete(set)
}
