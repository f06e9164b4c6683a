import { GPU_CAPABILITIES, type GpuShare } from './gpu.js'
import type { Profile } from './pool.js'

/** How the pods of a pool share the GPUs of a node: a SEAT SET is the GPUs that all its pods see, a SEAT those of one job. */
export interface SeatSetRule {
  /** jobs that run on a set at one time */
  seats: number
  /** pods with a caller in a set, at most */
  pods: number
  /** whether callers of several tenants are in one set */
  shared: boolean
}

/** A caller that comes back finds all seats of its set busy at most this often. */
const BUSY_AT_MOST = 0.1
/**
 * Pods of one set: status.reservedFor of a ResourceClaim has 256 entries, and some are for standbys and for pods on their way in
 * and out.
 */
const SET_PODS_MAX = 192

/** @returns null for a profile whose pods each have GPUs of their own, or whose provider places them by itself */
export function seatSetRule(profile: Profile): SeatSetRule | null {
  if (profile.backend !== 'kubernetes' || !profile.gpu) return null
  const { provider, colocation, seatSet, count, trust } = profile.gpu
  if (!colocation || GPU_CAPABILITIES[provider].seatFrom !== 'claim') return null
  const seats = seatSet / count
  return { seats, pods: podsOf(seats, profile.gpu), shared: trust === 'shared' }
}

/** Held seats are one pod's; parked pods take turns on all of them, and suspended ones each on the seat that theirs was suspended on. */
function podsOf(seats: number, { idle, duty }: GpuShare): number {
  if (idle === 'hold') return seats
  if (idle === 'park') return parkedPods(seats, duty)
  return Math.min(SET_PODS_MAX, seats * parkedPods(1, duty))
}

/**
 * How many pods take turns on so many seats: pod n is let in while P(Bin(n - 1, duty) >= seats) <= 0.1, so that whoever comes back
 * finds a seat free nine times of ten. At least as many as there are seats.
 */
export function parkedPods(seats: number, duty: number): number {
  let pods = seats
  while (pods < SET_PODS_MAX && busyChance(pods, seats, duty) <= BUSY_AT_MOST) pods++
  return pods
}

/** P(Bin(others, duty) >= seats), by the terms below it. */
function busyChance(others: number, seats: number, duty: number): number {
  if (duty >= 1) return others >= seats ? 1 : 0
  let term = (1 - duty) ** others
  let below = 0
  for (let k = 0; k < seats && k <= others; k++) {
    below += term
    term *= ((others - k) / (k + 1)) * (duty / (1 - duty))
  }
  return 1 - below
}
