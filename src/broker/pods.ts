import { TIMEOUT } from '../contract/limits.js'
import { isStale } from './policy/keep-alive.js'
import { breakerOf } from './policy/rollout.js'
import type { Pod, Template } from './state.js'
import { type PodEvent, TRANSITIONS } from './transitions.js'
import { assert, issue, type Turn, wakeAt } from './turn.js'

/** Past podStartMs the backend itself says StartTimeout; this is for a backend that says nothing. */
const START_MARGIN_MS = 10_000

/**
 * Orders a new pod; its name is deterministic, so that a repeated create makes one pod. It has no dot, also in a shard whose
 * name has one: names of pods become host names.
 */
export function createPod(
  turn: Turn,
  { generation, profile }: Pick<Template, 'generation' | 'profile'>,
  set: number | null,
): void {
  const { state, now } = turn
  const { spec } = state
  const name = `${spec.name.replace('.', '-')}-${state.uid}-${state.nextPod++}`
  const pod: Pod = {
    pod: name,
    kind: 'starting',
    generation,
    createdAt: now,
    since: now,
    epoch: 0,
    address: '',
    incarnation: '',
    useSeq: 0,
    ackedAt: -1,
    owner: null,
    slot: null,
    set,
    tenant: '',
    leaseId: null,
    keepAliveAt: 0,
    reserved: false,
    heldSince: -1,
    startBy: now + spec.podStartMs + START_MARGIN_MS,
    oldAt: now + spec.podLifetimeMs,
  }
  state.pods.set(name, pod)
  state.index.addPod(pod)
  state.counters.podsCreated++
  wakeAt(turn, pod.startBy, 'start', name)
  wakeAt(turn, pod.oldAt, 'lifetime', name)
  const order = {
    pod: name,
    pool: spec.name,
    generation,
    profile,
    lifetimeMs: spec.podLifetimeMs,
    startTimeoutMs: spec.podStartMs,
    ...(set === null ? {} : { seatSet: { index: set } }),
  }
  issue(turn, { kind: 'create', order })
}

/** The one door through which a pod changes its kind: by the table, with the index in step. */
export function movePod(turn: Turn, pod: Pod, event: PodEvent, change: Partial<Pod> = {}): void {
  const next = TRANSITIONS[pod.kind][event]
  assert(next !== null, () => `pod ${pod.pod} is ${pod.kind}, ${event} cannot happen there`)
  const { state, now } = turn
  state.index.removePod(pod)
  Object.assign(pod, change)
  if (next === 'end') {
    state.pods.delete(pod.pod)
    if (pod.heldSince >= 0) state.counters.heldPodMs += now - pod.heldSince
    return
  }
  if (next !== 'same') {
    pod.kind = next
    pod.since = now
  }
  state.index.addPod(pod)
  if (pod.kind === 'idle') turn.newIdle.push(pod.pod)
}

/** It serves its lease, but nothing after it: as one that is too old. */
export function retirePod(turn: Turn, pod: Pod, why: { reason: string; message: string }): void {
  if (pod.kind === 'deleting' || pod.oldAt <= turn.now) return
  pod.note = why
  pod.oldAt = turn.now
  wakeAt(turn, turn.now, 'lifetime', pod.pod)
}

export function setKeepAlive(turn: Turn, pod: Pod, at: number): void {
  pod.keepAliveAt = at
  wakeAt(turn, at, 'keepAlive', pod.pod)
}

/**
 * Ends a pod: no lease may be on it any more. One whose create is still under way is deleted when that is answered:
 * a delete that overtook its create would leave a pod that nobody counts (F1).
 */
export function removePod(turn: Turn, pod: Pod): void {
  if (pod.kind === 'deleting') return
  assert(pod.leaseId === null, () => `pod ${pod.pod} is removed under lease ${pod.leaseId}`)
  movePod(turn, pod, 'remove', { keepAliveAt: 0, reserved: false })
  if (pod.ackedAt >= 0) issue(turn, { kind: 'delete', pod: pod.pod })
}

/** The create was answered, or the pod was seen. */
export function acknowledge(turn: Turn, pod: Pod): void {
  if (pod.ackedAt >= 0) return
  pod.ackedAt = turn.now
  if (pod.kind === 'deleting') issue(turn, { kind: 'delete', pod: pod.pod })
}

/** The pin of its last lease is forgotten: the pod serves every slot of its owner for the rest of its keep-alive. */
export function unreserve(turn: Turn, pod: Pod): void {
  const { state, now } = turn
  const leftMs = state.spec.keepAliveMs - TIMEOUT.pinGraceMs
  if (leftMs <= 0 || isStale(state, pod, now)) {
    removePod(turn, pod)
    return
  }
  state.index.removePod(pod)
  pod.reserved = false
  state.index.addPod(pod)
  turn.newIdle.push(pod.pod)
  setKeepAlive(turn, pod, now + leftMs)
}

/** Asks the runner whether the pod may go: only the runner knows if a job came in the last moment (F18). */
export function drainPod(turn: Turn, pod: Pod): void {
  movePod(turn, pod, 'drain', { keepAliveAt: 0 })
  issue(turn, { kind: 'drain', pod: pod.pod, address: pod.address, epoch: pod.epoch, useSeq: pod.useSeq })
}

/** A pod became Ready: a standby, and proof that pods of this template start. */
export function podReady(turn: Turn, pod: Pod, address: string, incarnation: string): void {
  const { state, now } = turn
  movePod(turn, pod, 'ready', { address, incarnation })
  delete pod.note
  const newest = pod.generation === state.generation
  const breaker = breakerOf(state, pod.generation)
  const news = newest && (!state.proven || breaker?.openUntil != null)
  if (breaker) Object.assign(breaker, { failures: 0, openUntil: null, backoffMs: 0 })
  if (newest) state.proven = true
  if (news) hastenIdle(turn)
  wakeAt(turn, now + state.spec.keepAliveMs, 'keepAlive', pod.pod)
  // It took longer to start than it may live.
  if (now >= pod.oldAt) wakeAt(turn, now, 'lifetime', pod.pod)
}

/**
 * Pods of this template start: warm pods of earlier ones are their callers' for a last minute. All at once would send all of
 * these callers to the stock in the same moment; a keep-alive of hours would leave the earlier template in use for hours.
 */
export function hastenIdle(turn: Turn): void {
  const { state, now } = turn
  if (state.rollout === null) return
  const last = now + TIMEOUT.rollIdleMs
  for (const name of state.index.byKind.idle) {
    const pod = state.pods.get(name)!
    if (pod.generation !== state.generation && pod.keepAliveAt > last) setKeepAlive(turn, pod, last)
  }
}
