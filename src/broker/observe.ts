import type { ObservedPod } from '../contract/backend.js'
import type { PoolEvent } from './event.js'
import { losePod, startFailed } from './losses.js'
import { acknowledge, movePod, podReady, retirePod } from './pods.js'
import { setIsSick } from './sick-sets.js'
import type { Pod } from './state.js'
import { issue, type Turn } from './turn.js'

/** A scheduler names every node that it refused. */
const NOTE_CHARS = 300

/**
 * What the backend reports. A full report also tells by omission: a pod that it does not name is gone, unless its
 * create was acknowledged after the report was ordered (deciding from a stale list made 90,000 pods elsewhere, F1).
 */
export function observed(turn: Turn, event: Extract<PoolEvent, { kind: 'observed' }>): void {
  for (const seen of event.pods) observePod(turn, seen)
  if (!event.full) return
  const named = new Set(event.pods.map((seen) => seen.pod))
  for (const pod of [...turn.state.pods.values()]) {
    if (named.has(pod.pod) || pod.ackedAt < 0 || pod.ackedAt >= event.asOfMs) continue
    observePod(turn, { pod: pod.pod, generation: pod.generation, phase: 'gone' })
  }
}

function observePod(turn: Turn, seen: ObservedPod): void {
  const pod = turn.state.pods.get(seen.pod)
  if (!pod) {
    if (seen.phase !== 'gone') removeOrphan(turn, seen.pod)
    return
  }
  if (seen.phase !== 'gone') acknowledge(turn, pod)
  if (seen.phase === 'ready') {
    ready(turn, pod, seen.address ?? '', seen.incarnation ?? '')
    if (seen.retire !== undefined)
      retirePod(turn, pod, { reason: seen.retire, message: (seen.message ?? '').slice(0, NOTE_CHARS) })
    return
  }
  if (seen.phase === 'starting') {
    noteStart(pod, seen)
    return
  }
  const gone = seen.phase === 'gone'
  const reason = seen.reason ?? (gone ? 'Deleted' : 'Failed')
  // One that was to go already, perhaps for this very reason, says nothing new.
  if (pod.oldAt > turn.now) setIsSick(turn, pod, reason, seen.message ?? '')
  if (pod.kind === 'deleting') {
    if (gone) movePod(turn, pod, 'gone')
    return
  }
  if (pod.kind === 'starting')
    startFailed(turn, pod, reason, seen.message ?? 'no further word from the backend', gone)
  else losePod(turn, pod, reason, gone, seen.message)
}

/** What a pod that starts waits for, when the backend knows: shown while it starts, and no part of a decision. */
function noteStart(pod: Pod, { reason, message }: ObservedPod): void {
  if (pod.kind !== 'starting') return
  if (reason === undefined) delete pod.note
  else pod.note = { reason, message: (message ?? '').slice(0, NOTE_CHARS) }
}

function ready(turn: Turn, pod: Pod, address: string, incarnation: string): void {
  if (pod.kind === 'starting') {
    podReady(turn, pod, address, incarnation)
    return
  }
  // A runner that restarted knows nothing of its epoch and jobs: another pod under the same name.
  if (pod.kind !== 'deleting' && pod.incarnation !== incarnation) losePod(turn, pod, 'Restarted', false)
}

/** A pod of this pool that the pool does not know: left over from an earlier life, or from a create that was given up. */
function removeOrphan(turn: Turn, name: string): void {
  for (const effect of turn.state.effects.values()) {
    if (effect.kind === 'delete' && effect.pod === name) return
  }
  issue(turn, { kind: 'delete', pod: name })
}
