import { createHash } from 'node:crypto'
import type { PodOrder } from './contract/index.js'

/** The imitated cold start of this pod, ms: uniform between the profile's bounds, always the same for one name. */
export function startDelayMs(order: PodOrder): number {
  const delay = order.profile.startDelay
  if (!delay) return 0
  const share = createHash('sha256').update(`delay/${order.pod}`).digest().readUInt32BE(0) / 2 ** 32
  return Math.round(delay.minMs + share * (delay.maxMs - delay.minMs))
}
