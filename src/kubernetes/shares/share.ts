import type { GpuCapabilities, GpuShare, PodOrder } from '../../contract/index.js'

/** What a mechanism of sharing GPUs has in a cluster: pure, and the same for each. */
export interface GpuShareProvider {
  readonly capabilities: GpuCapabilities
  /** What this mechanism needs in a pod. */
  podParts(order: ShareOrder): PodParts
  /** Objects that a pod's parts name and that must be there, with names of their own that are the same at each try. */
  claims(order: ShareOrder): ClaimBody[]
  /** Which GPUs the pod has, and whose they may be as well; null: not known yet. */
  seatOf(seen: SeenPod): SeatSet | null
  /** What of the cluster `lookedFor` has to be told. */
  readonly looksAt: readonly Subject[]
  /** What has to be in the cluster, each with whether it was found there. */
  lookedFor(gpu: GpuShare, facts: ClusterFacts): Looked[]
  /** What somebody does who has not found it. */
  readonly install: string
}

/** A pod's order as far as its GPUs depend on it. */
export interface ShareOrder extends Pick<PodOrder, 'pool' | 'seatSet'> {
  gpu: GpuShare
  /** of brokerId() */
  broker: string
}

/** What is merged into a pod. */
export interface PodParts {
  labels?: Record<string, string>
  annotations?: Record<string, string>
  schedulerName?: string
  resourceClaims?: { name: string; resourceClaimName?: string; resourceClaimTemplateName?: string }[]
  /** of the runner's container: extended resources, whose requests are their limits */
  limits?: Record<string, string>
  /** of the runner's container: names of resourceClaims */
  claims?: { name: string }[]
}

/** A ResourceClaim or ResourceClaimTemplate without its owner. */
export interface ClaimBody {
  apiVersion: 'resource.k8s.io/v1'
  kind: 'ResourceClaim' | 'ResourceClaimTemplate'
  metadata: { name: string; labels: Record<string, string> }
  spec: Record<string, unknown>
}

/** A device of a claim's allocation (status.allocation.devices.results). */
export interface AllocatedDevice {
  driver: string
  pool: string
  device: string
}

/** What is known of a pod that runs, as far as its GPUs are concerned. */
export interface SeenPod {
  gpu: GpuShare
  node: string | undefined
  annotations: Readonly<Record<string, string>>
  /** the claims that the pod has, each with what it was given; empty while nothing is */
  claims: readonly { name: string; uid: string; devices: readonly AllocatedDevice[] }[]
  /** UUIDs that the pod itself sees; empty: it has not said */
  reported: readonly string[]
}

/** GPUs of one node, each of which is a seat; pods of the same id share them. */
export interface SeatSet {
  id: string
  node: string
  /** UUIDs, or the names that the driver of a claim has for its devices; in order */
  gpus: string[]
  from: 'claim' | 'pin' | 'report'
}

export type Subject = 'nodes' | 'apis' | 'deviceClasses' | 'queues' | 'csiDrivers'

/** What a worker has read of a cluster. A part that it may not look at, or has not, is null. */
export interface ClusterFacts {
  nodes: readonly NodeFacts[] | null
  /** groups with their versions, e.g. 'resource.k8s.io/v1' */
  apis: readonly string[] | null
  deviceClasses: readonly string[] | null
  /** of KAI */
  queues: readonly string[] | null
  csiDrivers: readonly string[] | null
}

export interface NodeFacts {
  name: string
  labels: Readonly<Record<string, string>>
  annotations: Readonly<Record<string, string>>
  /** quantities as the API has them */
  allocatable: Readonly<Record<string, string>>
}

export interface Looked {
  /** e.g. 'a node with nvidia.com/gpu to allocate' */
  what: string
  found: 'yes' | 'no' | 'unknown'
}

/** @param holds undefined when nobody may look */
export function looked(what: string, holds: boolean | undefined): Looked {
  return { what, found: holds === undefined ? 'unknown' : holds ? 'yes' : 'no' }
}

/** Nodes that have some of an extended resource to give; undefined when nobody may look. */
export function nodesWith(resource: string, { nodes }: ClusterFacts): readonly NodeFacts[] | undefined {
  return nodes?.filter(({ allocatable }) => Number(allocatable[resource] ?? 0) > 0)
}
