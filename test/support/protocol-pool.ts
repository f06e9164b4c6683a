import type { Effect, EffectResult } from '../../src/broker/effect.js'
import {
  createState,
  nextDeadline,
  type PoolEvent,
  type PoolState,
  restore,
  type Snapshot,
  snapshot,
  step,
} from '../../src/broker/index.js'
import { Monitor } from '../../src/broker/invariants.js'
import { ownerKey } from '../../src/broker/keys.js'
import type { Grant, LeaseEnd } from '../../src/contract/lease.js'
import type { PoolSpec } from '../../src/contract/pool.js'
import type { Network } from './protocol-network.js'
import { type JobStart, ModelPod } from './protocol-pod.js'
import type { Simulation } from './simulation.js'

/** Where the pool's messages go. Each answers whether somebody was there. */
export interface Holders {
  grantToRun(runId: string, grant: Grant): boolean
  isLeaseOpen(leaseWorkflowId: string): boolean
  endToLease(leaseWorkflowId: string, end: LeaseEnd): void
  complete(token: string, what: { grant: Grant } | { end: LeaseEnd }): boolean
  isOpen(runId: string, leaseWorkflowId: string): boolean
}

/** The pool's side of the protocol: the real `step`, a driver whose workers are killed, and pods with real fences. */
export class ModelPool {
  state: PoolState
  readonly monitor: Monitor
  readonly pods = new Map<string, ModelPod>()
  /** pods that died or restarted by a fault of the test, or were deleted by the pool */
  readonly lost = new Set<string>()
  readonly ends = new Map<string, string>()
  holders!: Holders
  onStart: (start: JobStart) => void = () => undefined
  steps = 0
  private inbox: PoolEvent[] = []
  private stepPlanned = false
  private alarmAt = Number.POSITIVE_INFINITY
  private life = 0

  constructor(
    private readonly sim: Simulation,
    private readonly network: Network,
    spec: PoolSpec,
    private readonly startMs: number,
  ) {
    this.state = createState(spec, 'abc123', sim.now)
    this.monitor = new Monitor(this.state)
    this.wake()
    this.observeAll()
  }

  send(event: PoolEvent): void {
    this.inbox.push(event)
    this.wake()
  }

  /** Continue-as-new, in the middle of anything. */
  restart(): void {
    const { state, effects } = restore(JSON.parse(JSON.stringify(snapshot(this.state))) as Snapshot)
    this.state = state
    this.life++
    this.alarmAt = Number.POSITIVE_INFINITY
    this.carryOut(effects)
    this.wake()
  }

  /** A fault: the pod is gone, fails, or its runner restarts. */
  harm(name: string, how: 'failed' | 'gone' | 'restart'): void {
    const pod = this.pods.get(name)
    if (!pod || (how === 'restart' && pod.phase !== 'ready')) return
    this.lost.add(name)
    pod.die(how)
    this.report(pod)
    if (how === 'gone') this.pods.delete(name)
  }

  private wake(): void {
    if (this.stepPlanned) return
    this.stepPlanned = true
    this.sim.at(1, () => this.step())
  }

  private step(): void {
    this.stepPlanned = false
    const events = this.inbox.splice(0)
    const { now } = this.sim
    const { effects } = step(this.state, events, now)
    this.steps++
    const broken = this.monitor.observe({ events, effects, now, state: this.state })
    if (broken.length > 0) throw new Error(broken.map((v) => `${v.id}: ${v.text}`).join('\n'))
    for (const effect of effects)
      if (effect.kind === 'notify') this.ends.set(effect.end.leaseId, effect.end.end)
    this.carryOut(effects)
    const next = nextDeadline(this.state)
    if (next === null || next >= this.alarmAt) return
    this.alarmAt = next
    this.sim.at(next - now, () => {
      if (this.alarmAt <= this.sim.now) this.alarmAt = Number.POSITIVE_INFINITY
      this.wake()
    })
  }

  private carryOut(effects: Effect[]): void {
    const { life } = this
    for (const effect of effects)
      this.network.effect(
        () => this.execute(effect),
        (result) => {
          if (life === this.life) this.send({ kind: 'result', id: effect.id, result })
        },
      )
  }

  private execute(effect: Effect): EffectResult {
    switch (effect.kind) {
      case 'create':
        return this.create(effect.order)
      case 'delete': {
        const pod = this.pods.get(effect.pod)
        this.lost.add(effect.pod)
        pod?.die('gone')
        this.pods.delete(effect.pod)
        return { kind: 'deleted' }
      }
      case 'drain': {
        const pod = this.pods.get(effect.pod)
        if (!pod?.listens) return { kind: 'podLost', reason: 'refused' }
        const { epoch, useSeq, id } = effect
        const reply = pod.fence.drain({ v: 1, drainId: id, epoch, useSeq }, this.sim.now)
        return { kind: 'drained', drained: reply.drained, useSeq: reply.useSeq, idleMs: reply.idleMs }
      }
      case 'revoke': {
        const pod = this.pods.get(effect.pod)
        if (!pod?.listens) return { kind: 'podLost', reason: 'refused' }
        pod.end(pod.fence.revoke(effect.epoch), 'revoked')
        return { kind: 'revoked' }
      }
      case 'deliver':
        return this.deliver(effect)
      case 'announce':
        return { kind: this.holders.isLeaseOpen(effect.leaseWorkflowId) ? 'announced' : 'holderGone' }
      case 'notify': {
        const { token, leaseWorkflowId, end } = effect
        if (token !== null) this.holders.complete(token, { end })
        if (leaseWorkflowId !== null) this.holders.endToLease(leaseWorkflowId, end)
        return { kind: 'notified' }
      }
      case 'describe': {
        const closed = effect.leases.filter((l) => !this.holders.isOpen(l.holder.runId, l.leaseWorkflowId))
        return { kind: 'described', closed: closed.map((l) => l.leaseId) }
      }
      case 'shard':
        return { kind: 'shardGone' }
    }
  }

  private create(order: Extract<Effect, { kind: 'create' }>['order']): EffectResult {
    if (this.pods.has(order.pod)) return { kind: 'created' }
    const pod = new ModelPod(this.sim, order, (start) => {
      this.monitor.jobStarted(order.pod, start.jobId)
      this.onStart(start)
    })
    this.pods.set(order.pod, pod)
    this.sim.at(this.startMs, () => {
      if (pod.phase !== 'starting') return
      pod.phase = order.profile.env.BROKEN === undefined ? 'ready' : 'failed'
      this.report(pod)
    })
    return { kind: 'created' }
  }

  private deliver(effect: Extract<Effect, { kind: 'deliver' }>): EffectResult {
    const { grant, holder, owner } = effect
    const pod = this.pods.get(grant.pod)
    if (!pod?.listens) return { kind: 'podLost', reason: 'refused' }
    const { epoch, leaseId, incarnation } = grant
    const ownerHash = ownerKey(owner)
    const bound = pod.fence.bind({ v: 1, epoch, leaseId, ownerHash, incarnation }, this.sim.now)
    pod.end({ kill: null, ended: bound.ended }, 'revoked')
    if ('problem' in bound) {
      const { code } = bound.problem
      return code === 'PodLost' ? { kind: 'podLost', reason: code } : { kind: 'undone', reason: code }
    }
    pod.ownerHash = ownerHash
    const { useSeq } = bound.reply
    if (effect.replyTo === 'signal')
      return this.holders.grantToRun(holder.runId, grant)
        ? { kind: 'delivered', useSeq }
        : { kind: 'holderGone' }
    if (effect.token === null) return { kind: 'delivered', useSeq }
    return this.holders.complete(effect.token, { grant })
      ? { kind: 'delivered', useSeq }
      : { kind: 'tokenGone' }
  }

  private report(pod: ModelPod): void {
    const asOfMs = this.sim.now
    const row = pod.seen()
    this.network.later(() => this.send({ kind: 'observed', asOfMs, full: false, pods: [row] }))
  }

  /** Reports that change nothing or are lost are why all pods are listed now and then. */
  private observeAll(): void {
    const asOfMs = this.sim.now
    const pods = [...this.pods.values()].map((pod) => pod.seen())
    this.network.later(() => this.send({ kind: 'observed', asOfMs, full: true, pods }))
    this.sim.at(30_000, () => this.observeAll())
  }
}
