import type { Effect } from './effect.js'
import type { PoolEvent } from './event.js'
import { ownerKey } from './keys.js'
import { seatsHeld, seatsTaken } from './policy/seat-sets.js'
import type { PoolState } from './state.js'
import type { PodKind } from './transitions.js'

interface PodMemory {
  kind: PodKind
  epoch: number
  owner: string | null
  draining: boolean
  keepAliveAt: number
  reserved: boolean
  slot: string | null
}

/** What the invariants about history need to know of the steps before; grows with leases and effects, not with time. */
export class Memory {
  lastStepAt = 0
  /** a template did start once; version 1 of the core forgot it with the next one */
  proven = false
  held = 0
  /** as seatsHeld() counts them */
  seats = 0
  /** as seatsTaken() does */
  taken = 0
  /** pods after the last step */
  pods = new Map<string, PodMemory>()
  /** requests that waited after the last step */
  waiting = new Set<string>()
  /** lease -> pod/epoch, of every grant ever */
  readonly grants = new Map<string, string>()
  /** pod/epoch -> lease */
  readonly holders = new Map<string, string>()
  readonly ended = new Set<string>()
  readonly pinned = new Set<string>()
  /** generation -> the template of its first pod */
  readonly templates = new Map<number, string>()
  readonly issued = new Set<string>()
  readonly closed = new Set<string>()
  /** drain effect -> its pod */
  readonly drains = new Map<string, string>()
  private live = new Set<string>()
  private readonly started = new Set<string>()
  private doubleStarts: string[] = []

  learn(seen: {
    events: readonly PoolEvent[]
    effects: readonly Effect[]
    now: number
    state: PoolState
  }): void {
    const { state, events } = seen
    this.lastStepAt = state.lastStepAt
    if (state.coreVersion > 1 && state.proven) this.proven = true
    this.learnPods(state)
    this.learnLeases(state)
    for (const effect of seen.effects) {
      this.issued.add(effect.id)
      if (effect.kind === 'create' && !this.templates.has(effect.order.generation))
        this.templates.set(effect.order.generation, JSON.stringify(effect.order.profile))
      if (effect.kind === 'drain') this.drains.set(effect.id, effect.pod)
    }
    for (const event of events) {
      if (event.kind === 'result' && this.issued.has(event.id) && !state.effects.has(event.id))
        this.closed.add(event.id)
      // Said to be over before it began, or told that it will not be.
      if ((event.kind === 'release' || event.kind === 'request') && !state.leases.has(idOf(event)))
        this.ended.add(idOf(event))
    }
  }

  jobStarted(pod: string, jobId: string): void {
    const key = `${pod} ${jobId}`
    if (this.started.has(key)) this.doubleStarts.push(`job ${jobId} started twice on ${pod}`)
    this.started.add(key)
  }

  takeDoubleStarts(): string[] {
    const doubles = this.doubleStarts
    this.doubleStarts = []
    return doubles
  }

  private learnPods(state: PoolState): void {
    this.pods = new Map()
    this.seats = seatsHeld(state)
    this.taken = seatsTaken(state)
    this.held = 0
    for (const pod of state.pods.values()) {
      if (pod.heldSince >= 0) this.held++
      this.pods.set(pod.pod, {
        kind: pod.kind,
        epoch: pod.epoch,
        owner: pod.owner ? ownerKey(pod.owner) : null,
        draining: pod.kind === 'draining',
        keepAliveAt: pod.keepAliveAt,
        reserved: pod.reserved,
        slot: pod.slot,
      })
    }
  }

  private learnLeases(state: PoolState): void {
    for (const leaseId of this.live) if (!state.leases.has(leaseId)) this.ended.add(leaseId)
    this.live = new Set(state.leases.keys())
    this.waiting = new Set()
    for (const [leaseId, lease] of state.leases) {
      if (lease.request.pinMs > 0) this.pinned.add(leaseId)
      if (lease.kind === 'waiting') this.waiting.add(leaseId)
      if (lease.kind !== 'granted') continue
      this.grants.set(leaseId, `${lease.pod}/${lease.epoch}`)
      this.holders.set(`${lease.pod}/${lease.epoch}`, leaseId)
    }
  }
}

function idOf(event: Extract<PoolEvent, { kind: 'request' | 'release' }>): string {
  return event.kind === 'request' ? event.request.leaseId : event.release.leaseId
}
