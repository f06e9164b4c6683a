import { Heap } from './heap.js'
import { holderKey, ownerKey, slotKey } from './keys.js'
import { podBytes } from './size.js'
import type { Lease, Pod } from './state.js'
import type { PodKind } from './transitions.js'

export type DeadlineKind =
  | 'request'
  | 'announce'
  | 'keepAlive'
  | 'start'
  | 'lifetime'
  | 'tombstone'
  | 'token'
  | 'effect'
  | 'pool'

export interface Deadline {
  at: number
  kind: DeadlineKind
  id: string
}

/** A claim in the queue: higher priority first, then order of arrival. */
export interface QueueEntry {
  priority: number
  arrival: number
  leaseId: string
}

interface SlotEntry {
  /** the lease that has the slot: granted, or first in line and waiting for a pod */
  claim: string | null
  /** others, in queue order; stale entries are skipped */
  waiters: Heap<QueueEntry>
  waiting: number
}

/** Pods of one generation that are not on their way out. */
export interface GenerationPods {
  pods: number
  readonly starting: ReadonlySet<string>
  readonly standby: ReadonlySet<string>
}

/** Pods of one seat set. A set without pods is not there: its claim is no pod's, and holds no GPUs. */
export interface SetPods {
  /** all of them, also those on their way out */
  pods: number
  /** with a caller, until they are gone */
  callers: number
  /** starting or standby */
  spare: number
  readonly standby: ReadonlySet<string>
  /** of pods with a caller */
  readonly tenants: ReadonlyMap<string, number>
}

const NO_PODS: GenerationPods = { pods: 0, starting: new Set(), standby: new Set() }

const queueOrder = (a: QueueEntry, b: QueueEntry) =>
  a.priority !== b.priority ? a.priority > b.priority : a.arrival < b.arrival

/** A total order: what is due at the same moment fires in the same order before and after a restore. */
function dueBefore(a: Deadline, b: Deadline): boolean {
  if (a.at !== b.at) return a.at < b.at
  return a.kind !== b.kind ? a.kind < b.kind : a.id < b.id
}

const KINDS: PodKind[] = ['starting', 'standby', 'promoting', 'leased', 'idle', 'draining', 'deleting']

/**
 * What `step` needs to find in O(log n): derived from pods and leases, rebuilt after a restore, compared with
 * them by an invariant. Sets keep their order of insertion, so each is ordered by `since`.
 */
export class Index {
  readonly byKind: Record<PodKind, Set<string>>
  /** pods that hold a seat: everything from the first grant until gone */
  held = 0
  /** those of them that are being deleted */
  heldLeaving = 0
  /** generations that have pods: one, or two or three while a new template rolls */
  readonly generations = new Map<number, GenerationPods & { starting: Set<string>; standby: Set<string> }>()
  readonly sets = new Map<number, SetPods & { standby: Set<string>; tenants: Map<string, number> }>()
  /** pods that hold a seat and are in no set */
  heldAlone = 0
  readonly idleByOwner = new Map<string, Set<string>>()
  readonly idleBySlot = new Map<string, Set<string>>()
  /** leases that wait for a pod, by owner: a pod that becomes idle serves them first */
  readonly claimsByOwner = new Map<string, Set<string>>()
  /** and how many, by tenant */
  readonly claimsByTenant = new Map<string, number>()
  readonly slots = new Map<string, SlotEntry>()
  readonly claims = new Set<string>()
  readonly byHolder = new Map<string, string>()
  readonly queue = new Heap<QueueEntry>(queueOrder)
  readonly deadlines = new Heap<Deadline>(dueBefore)
  /** requests that wait, for a pod or for their slot */
  waiting = 0
  /** bytes in a snapshot, from above */
  leaseBytes = 0
  podBytes = 0
  earlyBytes = 0
  effectBytes = 0

  constructor() {
    this.byKind = Object.fromEntries(KINDS.map((kind) => [kind, new Set<string>()])) as Record<
      PodKind,
      Set<string>
    >
  }

  addPod(pod: Pod): void {
    this.byKind[pod.kind].add(pod.pod)
    this.podBytes += podBytes(pod)
    this.addToGeneration(pod)
    this.addToSet(pod)
    if (pod.heldSince >= 0) {
      this.held++
      if (pod.set === null) this.heldAlone++
      if (pod.kind === 'deleting') this.heldLeaving++
    }
    if (pod.kind !== 'idle') return
    if (!pod.reserved) add(this.idleByOwner, ownerKey(pod.owner!), pod.pod)
    add(this.idleBySlot, slotKey(pod.owner!, pod.slot!), pod.pod)
  }

  removePod(pod: Pod): void {
    this.byKind[pod.kind].delete(pod.pod)
    this.podBytes -= podBytes(pod)
    this.removeFromGeneration(pod)
    this.removeFromSet(pod)
    if (pod.heldSince >= 0) {
      this.held--
      if (pod.set === null) this.heldAlone--
      if (pod.kind === 'deleting') this.heldLeaving--
    }
    if (pod.kind !== 'idle') return
    if (!pod.reserved) remove(this.idleByOwner, ownerKey(pod.owner!), pod.pod)
    remove(this.idleBySlot, slotKey(pod.owner!, pod.slot!), pod.pod)
  }

  ofGeneration(generation: number): GenerationPods {
    return this.generations.get(generation) ?? NO_PODS
  }

  private addToGeneration({ pod, kind, generation }: Pod): void {
    if (kind === 'deleting') return
    let own = this.generations.get(generation)
    if (!own) {
      own = { pods: 0, starting: new Set(), standby: new Set() }
      this.generations.set(generation, own)
    }
    own.pods++
    if (kind === 'starting' || kind === 'standby') own[kind].add(pod)
  }

  private removeFromGeneration({ pod, kind, generation }: Pod): void {
    if (kind === 'deleting') return
    const own = this.generations.get(generation)!
    own.pods--
    if (kind === 'starting' || kind === 'standby') own[kind].delete(pod)
    if (own.pods === 0) this.generations.delete(generation)
  }

  private addToSet({ pod, kind, set, heldSince, tenant }: Pod): void {
    if (set === null) return
    let own = this.sets.get(set)
    if (!own) {
      own = { pods: 0, callers: 0, spare: 0, standby: new Set(), tenants: new Map() }
      this.sets.set(set, own)
    }
    own.pods++
    if (kind === 'starting' || kind === 'standby') own.spare++
    if (kind === 'standby') own.standby.add(pod)
    if (heldSince < 0) return
    own.callers++
    count(own.tenants, tenant, 1)
  }

  private removeFromSet({ pod, kind, set, heldSince, tenant }: Pod): void {
    if (set === null) return
    const own = this.sets.get(set)!
    own.pods--
    if (kind === 'starting' || kind === 'standby') own.spare--
    own.standby.delete(pod)
    if (heldSince >= 0) {
      own.callers--
      count(own.tenants, tenant, -1)
    }
    if (own.pods === 0) this.sets.delete(set)
  }

  addLease(lease: Lease): void {
    const { request } = lease
    this.leaseBytes += lease.bytes
    const key = slotKey(request, request.slot)
    this.byHolder.set(holderKey(request.holder.workflowId, key), request.leaseId)
    const slot = this.slotOf(key)
    if (lease.kind === 'granted') {
      slot.claim = request.leaseId
      return
    }
    this.waiting++
    const entry = { priority: request.priority, arrival: lease.arrival, leaseId: request.leaseId }
    if (lease.claims) {
      slot.claim = request.leaseId
      this.claims.add(request.leaseId)
      add(this.claimsByOwner, ownerKey(request), request.leaseId)
      count(this.claimsByTenant, request.tenant, 1)
      this.queue.push(entry)
    } else {
      slot.waiters.push(entry)
      slot.waiting++
    }
  }

  removeLease(lease: Lease): void {
    const { request } = lease
    this.leaseBytes -= lease.bytes
    const key = slotKey(request, request.slot)
    const holder = holderKey(request.holder.workflowId, key)
    if (this.byHolder.get(holder) === request.leaseId) this.byHolder.delete(holder)
    const slot = this.slotOf(key)
    if (slot.claim === request.leaseId) slot.claim = null
    if (lease.kind === 'waiting') {
      this.waiting--
      if (lease.claims) {
        this.claims.delete(request.leaseId)
        remove(this.claimsByOwner, ownerKey(request), request.leaseId)
        count(this.claimsByTenant, request.tenant, -1)
      } else {
        slot.waiting--
      }
    }
    if (slot.claim === null && slot.waiting === 0) this.slots.delete(key)
  }

  slotOf(key: string): SlotEntry {
    let slot = this.slots.get(key)
    if (!slot) {
      slot = { claim: null, waiters: new Heap(queueOrder), waiting: 0 }
      this.slots.set(key, slot)
    }
    return slot
  }
}

function count(counts: Map<string, number>, key: string, change: 1 | -1): void {
  const now = (counts.get(key) ?? 0) + change
  if (now === 0) counts.delete(key)
  else counts.set(key, now)
}

function add(map: Map<string, Set<string>>, key: string, value: string): void {
  const set = map.get(key)
  if (set) set.add(value)
  else map.set(key, new Set([value]))
}

function remove(map: Map<string, Set<string>>, key: string, value: string): void {
  const set = map.get(key)
  if (!set) return
  set.delete(value)
  if (set.size === 0) map.delete(key)
}
