import { GPU_CAPABILITIES, type GpuShare } from '../../contract/index.js'
import { seatOfReport } from './seat.js'
import { type GpuShareProvider, looked } from './share.js'

/**
 * Fractions of GPUs by the KAI scheduler: annotations and a queue, no resource. It accounts for memory and bounds nothing: a standby may use
 * the whole GPU once it is promoted. Which GPU a pod gets is the scheduler's choice.
 * https://github.com/kai-scheduler/KAI-Scheduler, docs/gpu-sharing and docs/queues.
 */
export const kai: GpuShareProvider = {
  capabilities: GPU_CAPABILITIES.kai,
  podParts: ({ gpu }) => ({
    labels: { 'kai.scheduler/queue': gpu.queue ?? '' },
    annotations: {
      ...amount(gpu),
      ...(gpu.count === 1 ? {} : { 'gpu-fraction-num-devices': String(gpu.count) }),
    },
    ...(gpu.scheduler === null ? {} : { schedulerName: gpu.scheduler }),
  }),
  claims: () => [],
  seatOf: seatOfReport,
  looksAt: ['apis', 'queues'],
  lookedFor: ({ queue }, { apis, queues }) => [
    looked('the API scheduling.run.ai/v2', apis?.includes('scheduling.run.ai/v2')),
    looked(`the queue ${queue}`, queues?.includes(queue ?? '')),
  ],
  install: 'install the KAI scheduler with global.gpuSharing=true, and create the queue',
}

const MIB = 2 ** 20

/** The memory is a number of MiB, without a unit. */
function amount({ memoryBytes, share }: GpuShare): Record<string, string> {
  return memoryBytes === null
    ? { 'gpu-fraction': String(share) }
    : { 'gpu-memory': String(Math.ceil(memoryBytes / MIB)) }
}
