import { GPU_CAPABILITIES, type GpuProvider, type GpuShare } from '../../contract/index.js'
import { seatOfReport } from './seat.js'
import { type ClusterFacts, type GpuShareProvider, type Looked, looked, nodesWith } from './share.js'

/**
 * The ways of NVIDIA's device plugin: whole GPUs, time-slices, MPS and MIG are all an extended resource that the plugin counts on a node. Which
 * device a pod gets is the kubelet's choice, and is known from the pod alone.
 * https://github.com/NVIDIA/k8s-device-plugin: resources, sharing.timeSlicing and sharing.mps, renameByDefault, the labels of nodes.
 */

/** Says on a node how its GPUs are shared: none, mps or time-slicing. From the plugin's feature discovery, which not every cluster has. */
const STRATEGY_LABEL = 'nvidia.com/gpu.sharing-strategy'
const PLUGIN = 'install the NVIDIA device plugin (or its GPU operator)'

type Way = Extract<GpuProvider, 'device-plugin' | 'time-slicing' | 'mps' | 'mig'>

const HOW: Readonly<Record<Way, { install: string; strategy?: string }>> = {
  'device-plugin': { install: PLUGIN, strategy: 'none' },
  'time-slicing': {
    install: `${PLUGIN} with sharing.timeSlicing and renameByDefault: true in its configuration`,
    strategy: 'time-slicing',
  },
  mps: {
    install: `${PLUGIN} with sharing.mps and renameByDefault: true in its configuration`,
    strategy: 'mps',
  },
  mig: { install: `${PLUGIN} with migStrategy: mixed, on nodes whose GPUs are cut into slices of this size` },
}

export function extendedResource(way: Way): GpuShareProvider {
  const { install, strategy } = HOW[way]
  return {
    capabilities: GPU_CAPABILITIES[way],
    podParts: ({ gpu }) => ({ limits: { [resourceOf(gpu)]: String(gpu.count) } }),
    claims: () => [],
    seatOf: seatOfReport,
    looksAt: ['nodes'],
    lookedFor: (gpu, facts) => nodesThatShare(gpu, facts, strategy),
    install,
  }
}

/** Of a profile that was checked: it has one. */
function resourceOf({ resource }: GpuShare): string {
  return resource ?? 'nvidia.com/gpu'
}

function nodesThatShare(gpu: GpuShare, facts: ClusterFacts, strategy: string | undefined): Looked[] {
  const resource = resourceOf(gpu)
  const nodes = nodesWith(resource, facts)
  const there = looked(`a node with ${resource} to allocate`, nodes && nodes.length > 0)
  if (strategy === undefined || there.found !== 'yes') return [there]
  // Without the label nobody knows; a resource that is not the plugin's never has it.
  const said = nodes!.map(({ labels }) => labels[STRATEGY_LABEL]).filter((value) => value !== undefined)
  if (said.length < nodes!.length) return [there]
  return [there, looked(`on such a node the label ${STRATEGY_LABEL}=${strategy}`, said.includes(strategy))]
}
