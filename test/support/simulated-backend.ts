import type { DrainEffect, Effect, EffectResult } from '../../src/broker/effect.js'
import type { ObservedPod, PodOrder } from '../../src/contract/backend.js'

/** A pod with its runner, as far as a pool can tell: it starts, is bound, runs something, drains, dies. */
export interface SimulatedPod {
  order: PodOrder
  phase: 'starting' | 'ready' | 'failed'
  reason?: string
  readyAt: number
  address: string
  incarnation: string
  epoch: number
  revoked: number
  useSeq: number
  /** a job runs until then */
  busyUntil: number
  idleSince: number
  drained: boolean
  drains: Map<string, EffectResult>
}

/** The backend and the runners of a simulated world: it does what effects say, at once, and is asked what there is. */
export class SimulatedBackend {
  readonly pods = new Map<string, SimulatedPod>()
  /** pods that had gone since the last look, for partial observations */
  private changed = new Set<string>()
  created = 0
  mostPods = 0
  /** how long a pod starts; NaN: for ever */
  startMs: (order: PodOrder) => number = () => 1_000
  /** why no pods start, or null */
  broken: string | null = null
  /** why pods of this template do not start, or null */
  brokenTemplate: (profile: PodOrder['profile']) => string | null = ({ env }) => env.BROKEN ?? null

  create(order: PodOrder, now: number): EffectResult {
    const existing = this.pods.get(order.pod)
    if (existing) return { kind: 'created' }
    this.created++
    this.pods.set(order.pod, {
      order,
      phase: 'starting',
      readyAt: now + this.startMs(order),
      address: `http://${order.pod}`,
      incarnation: `${order.pod}-a`,
      epoch: 0,
      revoked: 0,
      useSeq: 0,
      busyUntil: 0,
      idleSince: now,
      drained: false,
      drains: new Map(),
    })
    this.mostPods = Math.max(this.mostPods, this.pods.size)
    this.changed.add(order.pod)
    return { kind: 'created' }
  }

  remove(pod: string): EffectResult {
    if (this.pods.delete(pod)) this.changed.add(pod)
    return { kind: 'deleted' }
  }

  /** The pod dies or is deleted by hand. */
  kill(pod: string, how: 'failed' | 'gone', reason = 'Evicted'): void {
    const found = this.pods.get(pod)
    if (!found) return
    if (how === 'gone') this.pods.delete(pod)
    else Object.assign(found, { phase: 'failed', reason })
    this.changed.add(pod)
  }

  /** The runner restarts in place: it forgets everything. */
  restart(pod: string): void {
    const found = this.pods.get(pod)
    if (found?.phase !== 'ready') return
    found.incarnation += 'b'
    Object.assign(found, { epoch: 0, useSeq: 0, busyUntil: 0, drained: false })
    this.changed.add(pod)
  }

  /** Lets time pass. */
  tick(now: number): void {
    for (const pod of this.pods.values()) {
      if (pod.phase !== 'starting' || !(pod.readyAt <= now)) continue
      const why = this.broken ?? this.brokenTemplate(pod.order.profile)
      pod.phase = why === null ? 'ready' : 'failed'
      if (why !== null) pod.reason = why
      this.changed.add(pod.order.pod)
    }
  }

  nextChange(): number | null {
    let next = Number.POSITIVE_INFINITY
    for (const pod of this.pods.values()) if (pod.phase === 'starting') next = Math.min(next, pod.readyAt)
    return Number.isFinite(next) ? next : null
  }

  list(): ObservedPod[] {
    return [...this.pods.values()].map(seen)
  }

  /** What changed since the last call. */
  changes(): ObservedPod[] {
    const rows = [...this.changed].map((name): ObservedPod => {
      const pod = this.pods.get(name)
      return pod ? seen(pod) : { pod: name, generation: 0, phase: 'gone' }
    })
    this.changed = new Set()
    return rows
  }

  /** A caller runs a job under this epoch. */
  use(pod: string, epoch: number, now: number, forMs: number): 'started' | 'LeaseRevoked' | 'PodLost' {
    const found = this.pods.get(pod)
    if (found?.phase !== 'ready') return 'PodLost'
    if (found.epoch !== epoch || found.revoked >= epoch || found.drained) return 'LeaseRevoked'
    found.useSeq++
    found.busyUntil = Math.max(found.busyUntil, now) + forMs
    found.idleSince = found.busyUntil
    return 'started'
  }

  bind(effect: Pick<Extract<Effect, { kind: 'deliver' }>, 'grant' | 'owner'>): EffectResult {
    const { grant } = effect
    const pod = this.pods.get(grant.pod)
    if (pod?.phase !== 'ready') return { kind: 'podLost', reason: 'NotFound' }
    if (pod.incarnation !== grant.incarnation) return { kind: 'podLost', reason: 'Restarted' }
    if (pod.drained || grant.epoch < pod.epoch || grant.epoch <= pod.revoked)
      return { kind: 'podLost', reason: 'BindRefused' }
    pod.epoch = grant.epoch
    return { kind: 'delivered', useSeq: pod.useSeq }
  }

  drain(effect: DrainEffect, now: number): EffectResult {
    const pod = this.pods.get(effect.pod)
    if (pod?.phase !== 'ready') return { kind: 'podLost', reason: 'NotFound' }
    const earlier = pod.drains.get(effect.id)
    if (earlier) return earlier
    const busy = pod.busyUntil > now
    const drained = pod.epoch === effect.epoch && pod.useSeq === effect.useSeq && !busy
    if (drained) pod.drained = true
    const idleMs = busy ? 0 : now - pod.idleSince
    const result: EffectResult = { kind: 'drained', drained, useSeq: pod.useSeq, idleMs }
    pod.drains.set(effect.id, result)
    return result
  }

  revoke(name: string, epoch: number, now: number): EffectResult {
    const pod = this.pods.get(name)
    if (pod?.phase !== 'ready') return { kind: 'podLost', reason: 'NotFound' }
    pod.revoked = Math.max(pod.revoked, epoch)
    if (pod.epoch <= epoch && pod.busyUntil > now) Object.assign(pod, { busyUntil: now, idleSince: now })
    return { kind: 'revoked' }
  }
}

function seen(pod: SimulatedPod): ObservedPod {
  const { phase, order } = pod
  const row: ObservedPod = { pod: order.pod, generation: order.generation, phase }
  if (phase === 'ready') return { ...row, address: pod.address, incarnation: pod.incarnation }
  return phase === 'failed' ? { ...row, reason: pod.reason ?? 'Failed', message: 'as the test wants' } : row
}
