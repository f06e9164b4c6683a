import type { Owner } from '../effect.js'
import { ownerKey, slotKey } from '../keys.js'
import type { Lease, Pod, PoolState } from '../state.js'
import { ruleOf } from './seat-rule.js'
import { planSeats, setsAllowed, standbyInSet } from './seat-sets.js'

function first(set: ReadonlySet<string> | undefined): string | undefined {
  return set?.values().next().value
}

/**
 * The warm pod for this lease: one of its own owner, the one of its own slot if it stands (its files are what the
 * caller expects), else the one that has been idle longest.
 */
export function warmPodFor(state: PoolState, lease: Lease): Pod | null {
  const { idleByOwner, idleBySlot } = state.index
  const name =
    first(idleBySlot.get(slotKey(lease.request, lease.request.slot))) ??
    first(idleByOwner.get(ownerKey(lease.request)))
  return name === undefined ? null : state.pods.get(name)!
}

/** The waiting lease that a pod which became idle serves: its own slot's first, else the owner's oldest. */
export function leaseForIdle(state: PoolState, pod: Pod): Lease | null {
  const { claims, claimsByOwner, slots } = state.index
  const sameSlot = slots.get(slotKey(pod.owner!, pod.slot!))?.claim
  if (sameSlot && claims.has(sameSlot)) return state.leases.get(sameSlot)!
  if (pod.reserved) return null
  const oldest = first(claimsByOwner.get(ownerKey(pod.owner!)))
  return oldest === undefined ? null : state.leases.get(oldest)!
}

/** Whether a pod is idle for this slot, or one of the owner's is and not spoken for by an earlier request of the same turn. */
export function hasWarmPod(state: PoolState, owner: Owner, slot: string): boolean {
  const own = first(state.index.idleBySlot.get(slotKey(owner, slot)))
  if (own !== undefined && state.pods.get(own)!.reserved) return true
  const key = ownerKey(owner)
  const idle = state.index.idleByOwner.get(key)?.size ?? 0
  return idle > (state.index.claimsByOwner.get(key)?.size ?? 0)
}

/**
 * The standby for a request, null when there is none where it may go: of the newest template if there is one, and of those the one that
 * has been ready longest.
 */
export function standbyFor(state: PoolState, lease: Lease, now: number): Pod | null {
  const rule = ruleOf(state)
  if (rule) return standbyInSet(state, rule, lease, now)
  const { index, generation } = state
  const name = first(index.ofGeneration(generation).standby) ?? first(index.byKind.standby)
  return name === undefined ? null : state.pods.get(name)!
}

/** The standby that can be done without: the one that has been ready longest, of whatever template, where nobody waits for it. */
export function dispensableStandby(state: PoolState, now: number): Pod | null {
  const rule = ruleOf(state)
  const plan = rule && setsAllowed(state, rule, now) > 0 ? planSeats(state, rule, now) : null
  for (const name of state.index.byKind.standby) {
    const pod = state.pods.get(name)!
    if (!plan || pod.set === null || plan.surplus(pod.set) > 0) return pod
  }
  return null
}
