import { isRecord } from '../contract/check.js'
import type { Grant } from '../contract/lease.js'

/** The payload of `firepool.grant`, as far as we rely on it. */
export function grantIn(payload: unknown, leaseId: string): Grant | null {
  if (!isRecord(payload) || payload.v !== 1 || payload.leaseId !== leaseId) return null
  const { pod, address, epoch } = payload
  if (typeof pod !== 'string' || typeof address !== 'string' || typeof epoch !== 'number') return null
  return payload as unknown as Grant
}
