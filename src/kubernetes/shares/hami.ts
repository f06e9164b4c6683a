import { GPU_CAPABILITIES, type GpuShare } from '../../contract/index.js'
import { seatOfGpus, seatOfReport } from './seat.js'
import { type GpuShareProvider, looked, nodesWith, type SeenPod } from './share.js'

/**
 * Virtual GPUs by HAMi: a library in front of CUDA holds each pod to its memory and compute, as fixed when it is bound. A pod can be pinned to GPUs
 * by UUID. A standby that shall use a whole GPU later needs memory that is sold several times (devicePlugin.deviceMemoryScaling > 1).
 * https://github.com/Project-HAMi/HAMi: README, docs/config.md, docs/develop/protocol.md, examples/nvidia.
 */

const RESOURCE = 'nvidia.com/gpu'
/** GPUs that the pod may be put on, with commas between. */
const PIN = 'nvidia.com/use-gpuuuid'
/** What the scheduler gave: UUID,type,memory,cores of each device, with a colon behind; a semicolon behind each container. */
const ALLOCATED = 'hami.io/vgpu-devices-allocated'
/** What a node's plugin says of its GPUs. */
const REGISTER = 'hami.io/node-nvidia-register'
const MIB = 2 ** 20

export const hami: GpuShareProvider = {
  capabilities: GPU_CAPABILITIES.hami,
  podParts: ({ gpu, seatSet }) => ({
    annotations: seatSet?.gpus === undefined ? {} : { [PIN]: seatSet.gpus.join(',') },
    limits: {
      [RESOURCE]: String(gpu.count),
      ...memory(gpu),
      ...(gpu.cores === null ? {} : { 'nvidia.com/gpucores': String(gpu.cores) }),
    },
    ...(gpu.scheduler === null ? {} : { schedulerName: gpu.scheduler }),
  }),
  claims: () => [],
  seatOf: (seen) => pinned(seen) ?? seatOfGpus(seen.node, allocated(seen), 'report') ?? seatOfReport(seen),
  looksAt: ['nodes'],
  lookedFor: (_gpu, facts) => {
    const nodes = nodesWith(RESOURCE, facts)
    const registered = nodes?.some(({ annotations }) => annotations[REGISTER] !== undefined)
    return [
      looked(`a node with ${RESOURCE} to allocate`, nodes && nodes.length > 0),
      looked(`on such a node the annotation ${REGISTER}`, registered),
    ]
  },
  install: 'install HAMi, and label its nodes gpu=on',
}

function memory({ memoryBytes, share }: GpuShare): Record<string, string> {
  return memoryBytes === null
    ? { 'nvidia.com/gpumem-percentage': String(Math.round((share ?? 1) * 100)) }
    : { 'nvidia.com/gpumem': String(Math.ceil(memoryBytes / MIB)) }
}

/** A pin to more GPUs than the pod has leaves a choice, and says nothing by itself. */
function pinned({ gpu, node, annotations }: SeenPod) {
  const uuids = (annotations[PIN] ?? '').split(',').filter((uuid) => uuid !== '')
  return uuids.length === gpu.count ? seatOfGpus(node, uuids, 'pin') : null
}

function allocated({ annotations }: SeenPod): string[] {
  const devices = (annotations[ALLOCATED] ?? '').split(/[:;]/)
  return devices.map((device) => device.split(',')[0]!.trim()).filter((uuid) => uuid !== '')
}
