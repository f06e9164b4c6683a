/**
 * GPUs of a pool's pods in a cluster, and what each way of sharing one can do. The numbers and words of a mechanism are those of its public
 * documentation (docs/gpu-sharing.md has the addresses); what follows from them for standbys and parking is Firepool's own.
 */

/** How a pod gets its GPU. Each is a module of src/kubernetes/shares. */
export const GPU_PROVIDERS = ['device-plugin', 'time-slicing', 'mps', 'mig', 'kai', 'hami', 'dra'] as const
export type GpuProvider = (typeof GPU_PROVIDERS)[number]

/** From nothing to what no job can get past. */
export const ISOLATIONS = ['none', 'limits', 'hardware'] as const
export type Isolation = (typeof ISOLATIONS)[number]

/** What a pod does with its GPU in a pause of its caller: keep it, give it up, or give it up with its memory moved to the host. */
export const GPU_IDLES = ['hold', 'park', 'checkpoint'] as const
export type GpuIdle = (typeof GPU_IDLES)[number]

/** Whose pods may be in one seat set: those of one tenant at a time, or everybody's. */
export const GPU_TRUSTS = ['tenant', 'shared'] as const
export type GpuTrust = (typeof GPU_TRUSTS)[number]

/** Nodes have 1, 2, 4 or 8 GPUs, and sets of other sizes would leave some of them to nobody. */
export const GPU_COUNTS = [1, 2, 4, 8] as const
export type GpuCount = (typeof GPU_COUNTS)[number]

/** The GPUs of a profile's pods, every default filled in. */
export interface GpuShare {
  provider: GpuProvider
  /** GPUs (or shares, or slices) of one pod's jobs */
  count: GpuCount
  /** GPUs of one seat set: its pods see all of them, and jobs get `count` of them for as long as they run */
  seatSet: GpuCount
  /** pods without a caller, and parked ones, stand on a GPU that another pod uses */
  colocation: boolean
  /** at least this between pods on one GPU */
  isolation: Isolation
  idle: GpuIdle
  /** who may be in one seat set together */
  trust: GpuTrust
  /**
   * what part of the time a caller's job has its GPUs, the hand-back included: (job + hand-back) / (job + pause), from 0.01 to 1. It bounds
   * how many parked pods are in one seat set
   */
  duty: number
  /** the node agent grants the GPUs to each job (node-agent/README.md); its pods have the agent's volume */
  agent: boolean
  /** of a share: device memory of each GPU, bytes; null: by `share`, or not said */
  memoryBytes: number | null
  /** of a share: part of each GPU's memory, in hundredths from 0.01 to 1 */
  share: number | null
  /** of a share: part of each GPU's compute, percent */
  cores: number | null
  /** the extended resource that pods ask for */
  resource: string | null
  /** whose scheduler places the pods */
  scheduler: string | null
  /** the scheduler's queue that they are charged to */
  queue: string | null
  /** the DeviceClass that claims ask for */
  deviceClass: string | null
  /** which devices of the class, in CEL */
  selector: string | null
}

/** Which seat set of its pool a pod is in. */
export interface SeatSetPlace {
  /** from 0 in each pool */
  index: number
  /** the GPUs that make it, where the provider pins pods to GPUs */
  gpus?: string[]
}

/** Fields of a profile's `gpu` that only some providers have. */
export type ShareField =
  | 'memoryBytes'
  | 'share'
  | 'cores'
  | 'resource'
  | 'scheduler'
  | 'queue'
  | 'deviceClass'
  | 'selector'

/** What a provider can do. Data alone: checks, documents and seats are derived from it. */
export interface GpuCapabilities {
  /** whether pods get onto one GPU: never, whatever is on it, or only those that name the same claim */
  colocation: 'never' | 'always' | 'byClaim'
  /** between pods on one GPU; where there are never two, what keeps others off it */
  isolation: Isolation
  /** the memory that a pod may use: not bounded, or fixed when it is bound to a node and never larger again */
  cap: 'none' | 'fixedAtBind'
  /** what says which GPU a pod has: its claim and a pin guarantee it before it starts, a report says it afterwards */
  seatFrom: 'claim' | 'pin' | 'report'
  /** pods on one GPU; null: the administrator's number, or what the shares leave room for */
  maxSharers: number | null
  counts: readonly GpuCount[]
  seatSets: readonly GpuCount[]
  /** why an idle pod cannot give its GPU to another pod and take it back; null: it can */
  noParking: string | null
  fields: readonly ShareField[]
}

const ONE = [1] as const

/** Sources: see the table of docs/gpu-sharing.md. */
export const GPU_CAPABILITIES: Readonly<Record<GpuProvider, GpuCapabilities>> = {
  'device-plugin': {
    colocation: 'never',
    isolation: 'hardware',
    cap: 'none',
    seatFrom: 'report',
    maxSharers: 1,
    counts: GPU_COUNTS,
    seatSets: ONE,
    noParking: 'no other pod can be on the GPU that it would give up',
    fields: ['resource'],
  },
  'time-slicing': {
    colocation: 'always',
    isolation: 'none',
    cap: 'none',
    seatFrom: 'report',
    maxSharers: null,
    // Two replicas may be of one GPU, and buy no more time.
    counts: ONE,
    seatSets: ONE,
    noParking: null,
    fields: ['resource'],
  },
  mps: {
    colocation: 'always',
    isolation: 'limits',
    cap: 'fixedAtBind',
    seatFrom: 'report',
    maxSharers: null,
    counts: ONE,
    seatSets: ONE,
    noParking:
      'the MPS server owns the device memory of all its clients, so nobody can measure that a pod has given its part up',
    fields: ['resource'],
  },
  mig: {
    colocation: 'never',
    isolation: 'hardware',
    cap: 'fixedAtBind',
    seatFrom: 'report',
    maxSharers: 1,
    // A CUDA program uses one instance at a time.
    counts: ONE,
    seatSets: ONE,
    noParking: 'the slice is its own, and no other pod can be on it',
    fields: ['resource'],
  },
  kai: {
    colocation: 'always',
    isolation: 'none',
    cap: 'none',
    seatFrom: 'report',
    maxSharers: null,
    counts: GPU_COUNTS,
    seatSets: ONE,
    noParking: null,
    fields: ['memoryBytes', 'share', 'scheduler', 'queue'],
  },
  hami: {
    colocation: 'always',
    isolation: 'limits',
    cap: 'fixedAtBind',
    seatFrom: 'pin',
    maxSharers: null,
    counts: GPU_COUNTS,
    seatSets: ONE,
    noParking: null,
    fields: ['memoryBytes', 'share', 'cores', 'scheduler'],
  },
  dra: {
    colocation: 'byClaim',
    isolation: 'none',
    cap: 'none',
    seatFrom: 'claim',
    // status.reservedFor of a ResourceClaim has no more.
    maxSharers: 256,
    counts: GPU_COUNTS,
    seatSets: GPU_COUNTS,
    noParking: null,
    fields: ['deviceClass', 'selector'],
  },
}

/** The providers of which something holds, for messages: "dra", "kai or dra". */
export function providersWith(holds: (capabilities: GpuCapabilities) => boolean): string {
  const names = GPU_PROVIDERS.filter((provider) => holds(GPU_CAPABILITIES[provider]))
  const last = names.at(-1)
  if (last === undefined) return 'no provider'
  return names.length === 1 ? last : `${names.slice(0, -1).join(', ')} or ${last}`
}

const UUID = /(?:MIG-GPU|MIG|GPU)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?:\/\d+\/\d+)?/g
/** 16 GPUs of 7 slices; what says more is no list of a node's devices. */
const UUIDS_MAX = 112

/** The UUIDs of GPUs in a text, once each and in order; where there are slices, theirs alone. */
export function gpuUuids(text: string): string[] {
  const all = [...new Set(text.match(UUID) ?? [])].sort()
  const slices = all.filter((uuid) => uuid.startsWith('MIG-'))
  const uuids = slices.length > 0 ? slices : all
  return uuids.length > UUIDS_MAX ? [] : uuids
}
