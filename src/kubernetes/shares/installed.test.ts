import { expect, test } from 'vitest'
import type { GpuProvider } from '../../contract/index.js'
import { notInstalled } from './installed.js'
import { gpuOrder } from './share.fixture.js'
import type { ClusterFacts, NodeFacts } from './share.js'

const EMPTY: ClusterFacts = { nodes: [], apis: [], deviceClasses: [], queues: [], csiDrivers: [] }
const AGENT = { csiDrivers: ['node.firepool.dev'] }

const node = (allocatable: NodeFacts['allocatable'], more: Partial<NodeFacts> = {}): NodeFacts => ({
  name: 'n',
  labels: {},
  annotations: {},
  allocatable,
  ...more,
})
const missing = (provider: GpuProvider, facts: Partial<ClusterFacts>) =>
  notInstalled(gpuOrder(provider).profile.gpu, { ...EMPTY, ...facts })
const sharing = (strategy: string) => ({ labels: { 'nvidia.com/gpu.sharing-strategy': strategy } })

test.each<[GpuProvider, string]>([
  [
    'device-plugin',
    'looked for a node with nvidia.com/gpu to allocate (not there); install the NVIDIA device plugin',
  ],
  ['time-slicing', 'a node with nvidia.com/gpu.shared to allocate (not there)'],
  ['mps', 'a node with nvidia.com/gpu.shared to allocate (not there)'],
  ['mig', 'a node with nvidia.com/mig-1g.10gb to allocate (not there)'],
  ['kai', 'the API scheduling.run.ai/v2 (not there), the queue rl (not there); install the KAI scheduler'],
  [
    'hami',
    'a node with nvidia.com/gpu to allocate (not there), on such a node the annotation hami.io/node-nvidia-register (not there)',
  ],
  ['dra', 'the API resource.k8s.io/v1 (not there), the DeviceClass gpu.nvidia.com (not there)'],
])('an empty cluster has no %s, and the message says what was looked for', (provider, said) => {
  const lacking = missing(provider, {})
  expect(lacking?.reason).toBe('GpuProviderMissing')
  expect(lacking?.message).toContain(said)
  expect(lacking?.message).toMatch(
    new RegExp(`what provider ${provider} of profile.gpu needs; .+, or change profile.gpu$`),
  )
})

test.each<[GpuProvider, Partial<ClusterFacts>]>([
  ['device-plugin', { nodes: [node({}), node({ 'nvidia.com/gpu': '8' })] }],
  ['device-plugin', { nodes: [node({ 'nvidia.com/gpu': '8' }, sharing('none'))] }],
  ['time-slicing', { nodes: [node({ 'nvidia.com/gpu.shared': '40' }, sharing('time-slicing'))], ...AGENT }],
  ['mps', { nodes: [node({ 'nvidia.com/gpu.shared': '40' }, sharing('mps'))] }],
  ['mig', { nodes: [node({ 'nvidia.com/mig-1g.10gb': '7' })] }],
  ['kai', { apis: ['scheduling.run.ai/v2'], queues: ['rl'] }],
  [
    'hami',
    { nodes: [node({ 'nvidia.com/gpu': '80' }, { annotations: { 'hami.io/node-nvidia-register': 'x' } })] },
  ],
  ['dra', { apis: ['resource.k8s.io/v1'], deviceClasses: ['gpu.nvidia.com'], ...AGENT }],
])('%s is found in %j', (provider, facts) => {
  expect(missing(provider, facts)).toBeNull()
})

test.each<[GpuProvider, Partial<ClusterFacts>, string]>([
  // Its GPUs are all given away for ever, or the plugin sees none.
  ['device-plugin', { nodes: [node({ 'nvidia.com/gpu': '0' })] }, 'nvidia.com/gpu to allocate (not there)'],
  [
    'mps',
    { nodes: [node({ 'nvidia.com/gpu.shared': '40' }, sharing('time-slicing'))] },
    'to allocate (there), on such a node the label nvidia.com/gpu.sharing-strategy=mps (not there)',
  ],
  [
    'device-plugin',
    { nodes: [node({ 'nvidia.com/gpu': '40' }, sharing('time-slicing'))] },
    'gpu.sharing-strategy=none (not there)',
  ],
  ['kai', { apis: ['scheduling.run.ai/v2'], queues: ['other'] }, '(there), the queue rl (not there)'],
  ['hami', { nodes: [node({ 'nvidia.com/gpu': '8' })] }, '(there), on such a node the annotation'],
  ['dra', { apis: ['resource.k8s.io/v1beta1'] }, 'the API resource.k8s.io/v1 (not there)'],
  [
    'dra',
    { apis: ['resource.k8s.io/v1'], deviceClasses: ['gpu.nvidia.com'] },
    'the DeviceClass gpu.nvidia.com (there), the CSIDriver node.firepool.dev (not there); install the node agent on the GPU nodes',
  ],
  ['dra', { apis: ['resource.k8s.io/v1'], deviceClasses: null, nodes: null, csiDrivers: null }, ''],
])('%s in %j', (provider, facts, said) => {
  const lacking = missing(provider, facts)
  if (said === '') expect(lacking).toBeNull()
  else expect(lacking?.message).toContain(said)
})
