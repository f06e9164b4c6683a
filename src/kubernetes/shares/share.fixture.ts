import {
  checkPoolSpec,
  type GpuProvider,
  type GpuShare,
  type KubernetesProfile,
  type PodOrder,
  type SeatSetPlace,
} from '../../contract/index.js'

/** A profile's gpu of each provider, with every field that it has. */
export const FULL: Readonly<Record<GpuProvider, Partial<GpuShare>>> = {
  'device-plugin': { count: 2, resource: 'nvidia.com/gpu', isolation: 'hardware' },
  'time-slicing': { resource: 'nvidia.com/gpu.shared', colocation: true, idle: 'park', agent: true },
  mps: { resource: 'nvidia.com/gpu.shared', colocation: true, isolation: 'limits' },
  mig: { resource: 'nvidia.com/mig-1g.10gb', isolation: 'hardware' },
  kai: { share: 0.25, queue: 'rl', scheduler: 'kai-scheduler', colocation: true },
  hami: {
    memoryBytes: 2 ** 33,
    cores: 30,
    scheduler: 'hami-scheduler',
    colocation: true,
    isolation: 'limits',
  },
  dra: { count: 1, seatSet: 4, deviceClass: 'gpu.nvidia.com', colocation: true, idle: 'park', agent: true },
}

/** An order for a pod that has its GPU by this provider, as the contract lets it pass. */
export function gpuOrder(
  provider: GpuProvider,
  {
    gpu = {},
    seatSet,
    ...profile
  }: { gpu?: Partial<GpuShare>; seatSet?: SeatSetPlace; template?: object } = {},
): PodOrder & { profile: KubernetesProfile & { gpu: GpuShare } } {
  const own = { backend: 'kubernetes', image: 'firepool:1', ...profile }
  const spec = {
    v: 1,
    name: 'h200',
    budget: 8,
    profile: { ...own, gpu: { provider, ...FULL[provider], ...gpu } },
  }
  const checked = checkPoolSpec(spec)
  if (checked.problem) throw new Error(checked.problem.message)
  return {
    pod: `h200-1a2b3c-${provider}`,
    pool: 'h200',
    generation: 3,
    profile: checked.value.profile as KubernetesProfile & { gpu: GpuShare },
    lifetimeMs: 600_000,
    startTimeoutMs: 30_000,
    ...(seatSet ? { seatSet } : {}),
  }
}
