import type { Effect, EffectResult, Owner } from '../broker/effect.js'
import type { PoolEvent } from '../broker/index.js'
import type { Grant } from '../contract/lease.js'
import { type Random, random } from '../demo/random.js'
import type { Clock } from './clock.js'
import type { Holders } from './holders.js'
import { drawMs, type Latencies } from './latencies.js'
import { SimulatedPod } from './pod.js'

type Of<K extends Effect['kind']> = Extract<Effect, { kind: K }>

/** Carries out what a pool orders, and answers as the activities and the backend do, after the time that it takes. */
export class Cluster {
  /** that are there, starting or ready, by name */
  readonly pods = new Map<string, SimulatedPod>()
  private readonly starts: Random
  private readonly others: Random

  constructor(
    private readonly clock: Clock,
    private readonly latencies: Latencies,
    private readonly holders: Holders,
    private readonly send: (event: PoolEvent) => void,
    seed: string | number,
  ) {
    this.starts = random(`cold starts ${seed}`)
    this.others = random(`other latencies ${seed}`)
  }

  carryOut(effect: Effect): void {
    switch (effect.kind) {
      case 'create':
        this.create(effect)
        return
      case 'delete':
        this.delete(effect)
        return
      case 'drain':
        this.onPod(effect, (pod, now) => ({ ...pod.drain(effect, now), kind: 'drained' }))
        return
      case 'revoke':
        this.onPod(effect, (pod) => pod.revoke(effect.epoch))
        return
      case 'deliver':
        this.deliver(effect)
        return
      case 'announce':
        this.later(() => {
          const isThere = this.holders.has(effect.grant.leaseId)
          this.answer(effect, { kind: isThere ? 'announced' : 'holderGone' })
        })
        return
      case 'notify':
        this.later(() => {
          this.holders.get(effect.end.leaseId)?.ended(effect.end)
          this.answer(effect, { kind: 'notified' })
        })
        return
      case 'describe':
        this.later(() => {
          const closed = effect.leases.filter(({ leaseId }) => !this.holders.has(leaseId))
          this.answer(effect, { kind: 'described', closed: closed.map(({ leaseId }) => leaseId) })
        })
        return
      case 'shard':
        throw new Error('the simulator has no shards')
    }
  }

  /**
   * Gives a pod to its grant's holder, by whoever does that: the pool's delivery, or the holder itself.
   * @returns the pod's use counter; null when there is no such pod, or it refuses
   */
  bind(grant: Grant, owner: Owner): number | null {
    return this.pods.get(grant.pod)?.bind(grant, owner, this.clock.now) ?? null
  }

  /** How long a grant takes on its way: a pod that serves for the first time is promoted. */
  grantMs({ epoch }: Grant): number {
    return epoch === 1 ? this.draw('promotion') : this.messageMs()
  }

  messageMs(): number {
    return this.draw('message')
  }

  draw(latency: keyof Latencies): number {
    return drawMs(this.latencies[latency], latency === 'coldStart' ? this.starts : this.others)
  }

  private create(effect: Of<'create'>): void {
    const { pod: name, generation } = effect.order
    this.answer(effect, { kind: 'created' }, 2 * this.messageMs())
    const pod = new SimulatedPod(name, this.clock.now)
    this.pods.set(name, pod)
    this.clock.after(this.draw('coldStart'), () => {
      if (!this.pods.has(name)) return
      const ready = {
        pod: name,
        generation,
        phase: 'ready',
        address: `http://${name}`,
        incarnation: name,
      } as const
      this.send({ kind: 'observed', asOfMs: this.clock.now, full: false, pods: [ready] })
    })
  }

  /** The pod is of no use from now on, and its GPU is another's when it is handed back. */
  private delete(effect: Of<'delete'>): void {
    this.pods.delete(effect.pod)
    this.answer(effect, { kind: 'deleted' }, this.draw('handBack'))
  }

  private onPod(effect: Of<'drain' | 'revoke'>, ask: (pod: SimulatedPod, now: number) => EffectResult): void {
    this.later(() => {
      const pod = this.pods.get(effect.pod)
      this.answer(effect, pod ? ask(pod, this.clock.now) : { kind: 'podLost', reason: 'Gone' })
    })
  }

  private deliver(effect: Of<'deliver'>): void {
    const { grant, owner } = effect
    this.clock.after(this.grantMs(grant), () => {
      const useSeq = this.bind(grant, owner)
      const holder = this.holders.get(grant.leaseId)
      if (useSeq === null) this.answer(effect, { kind: 'podLost', reason: 'Gone' })
      else if (!holder) this.answer(effect, { kind: 'holderGone' })
      else {
        holder.granted(grant)
        this.answer(effect, { kind: 'delivered', useSeq })
      }
    })
  }

  private later(run: () => void): void {
    this.clock.after(this.messageMs(), run)
  }

  private answer({ id }: Effect, result: EffectResult, afterMs = this.messageMs()): void {
    this.clock.after(afterMs, () => this.send({ kind: 'result', id, result }))
  }
}
