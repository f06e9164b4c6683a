import type { SeatSet, SeenPod } from './share.js'

/** Seat sets of pods, by where the knowledge comes from. Two pods are on the same GPUs exactly when their sets have the same id. */

/** The GPUs that a claim was given: who names the claim has them, and nobody else. */
export function seatOfClaim({ node, claims }: SeenPod, name: (claim: string) => boolean): SeatSet | null {
  const claim = claims.find((one) => name(one.name))
  if (node === undefined || claim === undefined || claim.devices.length === 0) return null
  const gpus = claim.devices.map(({ driver, pool, device }) => `${driver}/${pool}/${device}`)
  return { id: `claim/${claim.uid}`, node, gpus: gpus.sort(), from: 'claim' }
}

/** The GPUs that a pod sees. Known when it runs, and not before. */
export function seatOfReport({ node, reported }: SeenPod): SeatSet | null {
  return seatOfGpus(node, reported, 'report')
}

/** Of GPUs by their UUIDs: a pod that has them by a pin and one that reports them have the same seats. */
export function seatOfGpus(
  node: string | undefined,
  uuids: readonly string[],
  from: 'pin' | 'report',
): SeatSet | null {
  if (node === undefined || uuids.length === 0) return null
  const gpus = [...new Set(uuids)].sort()
  return { id: `gpu/${gpus.join(',')}`, node, gpus, from }
}
