import type { Owner } from './effect.js'

/** Key of a caller and its environment: pods are reused within it. */
export function ownerKey(owner: Owner): string {
  return `${owner.caller}\u0000${owner.reuseTag}`
}

/** Key of one of a caller's parallel leases. */
export function slotKey(owner: Owner, slot: string): string {
  return `${owner.caller}\u0000${owner.reuseTag}\u0000${slot}`
}

/** A lease id is random, so a prefix of 48 bits stands for it among 20,000 tombstones. */
export function tombstoneKey(leaseId: string): string {
  return leaseId.replaceAll('-', '').slice(0, 12)
}
