import type { Owner } from './effect.js'

/** Keys carry the lengths of their parts, so that no choice of names makes two callers share one. */

/** Key of a caller and its environment: pods are reused within it. */
export function ownerKey(owner: Owner): string {
  return `${owner.caller.length}:${owner.caller}${owner.reuseTag}`
}

/** Key of one of a caller's parallel leases. */
export function slotKey(owner: Owner, slot: string): string {
  return `${owner.caller.length}:${owner.reuseTag.length}:${owner.caller}${owner.reuseTag}${slot}`
}

/** Key of what a new request of the same workflow supersedes (rule 6). */
export function holderKey(workflowId: string, slot: string): string {
  return `${workflowId.length}:${workflowId}${slot}`
}

/** A lease id is random, so a prefix of 48 bits stands for it among 20,000 tombstones. */
export function tombstoneKey(leaseId: string): string {
  return leaseId.replaceAll('-', '').slice(0, 12)
}
