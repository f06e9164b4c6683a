import type { GpuShare } from '../../contract/index.js'
import type { KubeObject, Pod } from '../objects.js'
import type { AllocatedDevice, SeenPod } from './share.js'

/** A claim as the API server has it, as far as it says who has which device. */
export interface ResourceClaim extends KubeObject {
  status?: { allocation?: { devices?: { results?: AllocatedDevice[] } } }
}

/** A pod with the claims that it names. */
export interface ClaimedPod extends Omit<Pod, 'spec' | 'status'> {
  spec: Pod['spec'] & { resourceClaims?: { name: string; resourceClaimName?: string }[] }
  status?: Pod['status'] & { resourceClaimStatuses?: { name: string; resourceClaimName?: string }[] }
}

/**
 * A pod of the cluster with its claims as seats are formed from it. Pure.
 * @param claims of the pod's namespace, by their names
 * @param reported UUIDs that the pod itself sees; empty: it has not said
 */
export function seenPod(
  pod: ClaimedPod,
  gpu: GpuShare,
  claims: ReadonlyMap<string, ResourceClaim>,
  reported: readonly string[] = [],
): SeenPod {
  const { resourceClaims = [], nodeName } = pod.spec
  // A claim that was made from a template has its name in the pod's status alone.
  const made = new Map(pod.status?.resourceClaimStatuses?.map((of) => [of.name, of.resourceClaimName]))
  return {
    gpu,
    node: nodeName,
    annotations: pod.metadata.annotations ?? {},
    reported,
    claims: resourceClaims.flatMap(({ name, resourceClaimName }) => {
      const claim = claims.get(resourceClaimName ?? made.get(name) ?? '')
      if (claim === undefined) return []
      return [{ name, uid: claim.metadata.uid, devices: claim.status?.allocation?.devices?.results ?? [] }]
    }),
  }
}
