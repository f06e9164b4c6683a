import type { LeaseRequest } from '../contract/lease.js'
import type { Effect } from './effect.js'
import type { Pod } from './state.js'

/** Numbers, punctuation and short words of a row in a snapshot; texts are counted one by one. */
const POD_ROW = 186
/** Of a pod in a seat set: its number and its tenant's punctuation. */
const SET_ROW = 8
const LEASE_ROW = 246
const EFFECT_ROW = 80
/** A task token of the server has about 400 bytes, in base64 a third more: the lease of who waits by token has room for one. */
const TOKEN_ROOM = 600

/**
 * Sizes in a snapshot, in bytes of UTF-8 JSON, from above: admission stops before a carried state can grow so large
 * that the server terminates the workflow. A test compares them with real snapshots.
 */
export function leaseBytes(asked: LeaseRequest): number {
  const { holder } = asked
  const ids = textBytes(holder.workflowId) + textBytes(holder.firstExecutionRunId) + textBytes(holder.runId)
  const names = textBytes(asked.caller) + textBytes(asked.reuseTag) + textBytes(asked.slot)
  // The id stands in the pod's row as well, once the lease is granted.
  const rest = 2 * textBytes(asked.leaseId) + textBytes(asked.leaseWorkflowId) + textBytes(asked.tenant)
  return LEASE_ROW + ids + names + rest + (asked.replyTo === 'token' ? TOKEN_ROOM : 0)
}

/** What a lease's token takes beyond the room that its lease has for it. */
export function tokenBytes({ replyTo }: LeaseRequest, token: string | null): number {
  const bytes = textBytes(token ?? '')
  return replyTo === 'token' ? Math.max(0, bytes - TOKEN_ROOM) : bytes
}

export function podBytes(pod: Pod): number {
  const own = textBytes(pod.pod) + textBytes(pod.address) + textBytes(pod.incarnation)
  const owner = pod.owner === null ? 0 : textBytes(pod.owner.caller) + textBytes(pod.owner.reuseTag)
  const set = pod.set === null ? 0 : SET_ROW + textBytes(pod.tenant)
  return POD_ROW + own + owner + set + textBytes(pod.slot ?? '')
}

/** The same at each attempt. A pod's profile is not written with each order (see snapshot.ts). */
export function effectBytes(effect: Effect): number {
  const slim: Record<string, unknown> = { ...effect, attempt: 0, retryAt: 0 }
  if (effect.kind === 'create') slim.order = { ...effect.order, profile: null }
  if (effect.kind === 'shard') slim.order = { ...effect.order, spec: { ...effect.order.spec, profile: null } }
  return EFFECT_ROW + jsonBytes(JSON.stringify(slim))
}

/** UTF-8 of a text that is JSON already. */
export function jsonBytes(json: string): number {
  let bytes = json.length
  for (let i = 0; i < json.length; i++) if (json.charCodeAt(i) >= 0x80) bytes += 2
  return bytes
}

/** From above: what JSON escapes, and UTF-8 at three bytes for each UTF-16 unit beyond U+07FF. */
export function textBytes(text: string): number {
  let bytes = 0
  for (let i = 0; i < text.length; i++) {
    const unit = text.charCodeAt(i)
    if (unit < 0x20 || (unit >= 0xd800 && unit < 0xe000)) bytes += 6
    else if (unit === 0x22 || unit === 0x5c) bytes += 2
    else if (unit < 0x80) bytes += 1
    else bytes += unit < 0x800 ? 2 : 3
  }
  return bytes
}
