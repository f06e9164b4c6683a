import { describe, expect, test } from 'vitest'
import { GPU_CAPABILITIES, GPU_PROVIDERS, type GpuProvider, type SeatSetPlace } from '../../contract/index.js'
import { podBody } from '../pod-template.js'
import { claimsOf } from './pod-gpus.js'
import { SHARE_PROVIDERS } from './providers.js'
import { seenPod } from './seen-pod.js'
import { gpuOrder } from './share.fixture.js'
import type { SeenPod } from './share.js'

const PLACE = {
  namespace: 'pools',
  broker: 'b0b0b0b0b0',
  brokerPublicKey: 'KEY',
  owner: { name: 'o', uid: 'u' },
}

interface Spec {
  schedulerName?: string
  resourceClaims?: object[]
  containers: { name: string; resources: { limits: Record<string, string>; claims?: object[] } }[]
}

/** What the pod has that one without a GPU does not. */
function added(provider: GpuProvider, options: Parameters<typeof gpuOrder>[1] = {}) {
  const { metadata, spec } = podBody(gpuOrder(provider, options), PLACE)
  const { schedulerName, resourceClaims, containers } = spec as unknown as Spec
  const { limits, claims } = containers[0]!.resources
  const ours = (of: Record<string, string> = {}) =>
    Object.fromEntries(
      Object.entries(of).filter(([name]) => !/^(firepool\.dev|app\.kubernetes\.io)\//.test(name)),
    )
  return {
    labels: ours(metadata.labels),
    annotations: ours(metadata.annotations),
    limits: Object.fromEntries(Object.entries(limits).filter(([name]) => name.includes('/'))),
    ...(schedulerName ? { schedulerName } : {}),
    ...(resourceClaims ? { resourceClaims, claims } : {}),
  }
}

describe.each(GPU_PROVIDERS)('provider %s', (provider) => {
  const share = SHARE_PROVIDERS[provider]

  test('declares what it can do, says what it looks for, and how it is had', () => {
    expect(share.capabilities).toBe(GPU_CAPABILITIES[provider])
    const { gpu } = gpuOrder(provider).profile
    const blind = { nodes: null, apis: null, deviceClasses: null, queues: null, csiDrivers: null }
    const all = share.lookedFor(gpu, blind)
    expect(all.length).toBeGreaterThan(0)
    expect(all.every(({ found }) => found === 'unknown')).toBe(true)
    expect(share.looksAt.length).toBeGreaterThan(0)
    expect(share.install).toMatch(/install/)
  })

  test('asks for a GPU in the runner alone, and the same at each try', () => {
    const order = gpuOrder(provider, {
      template: { spec: { containers: [{ name: 'side', image: 'proxy' }] } },
    })
    const { spec } = podBody(order, PLACE)
    const { containers } = spec as unknown as Spec
    expect(containers.map(({ name }) => name)).toEqual(['runner', 'side'])
    expect(JSON.stringify(containers[1])).not.toMatch(/nvidia|claims/)
    expect(podBody(order, PLACE)).toEqual(podBody(order, PLACE))
  })

  test('says nothing of seats before anything is known, and forms them from where it says that it does', () => {
    const { gpu } = gpuOrder(provider).profile
    const nothing: SeenPod = { gpu, node: 'n', annotations: {}, claims: [], reported: [] }
    expect(share.seatOf(nothing)).toBeNull()
    const uuids = Array.from({ length: gpu.count }, (_, i) => `GPU-${i}`)
    const devices = [{ driver: 'gpu.nvidia.com', pool: 'n', device: 'gpu-0' }]
    const all = {
      claim: { claims: [{ name: 'firepool-gpus', uid: 'c', devices }] },
      pin: { annotations: { 'nvidia.com/use-gpuuuid': uuids.join(',') } },
      report: { reported: uuids },
    }
    const { seatFrom } = share.capabilities
    expect(share.seatOf({ ...nothing, ...all[seatFrom] })).toMatchObject({ from: seatFrom, node: 'n' })
    // What runs nowhere holds nothing.
    expect(share.seatOf({ ...nothing, ...all[seatFrom], node: undefined })).toBeNull()
  })
})

describe('in the pod', () => {
  test.each<[GpuProvider, object, object]>([
    ['device-plugin', {}, { limits: { 'nvidia.com/gpu': '2' } }],
    ['device-plugin', { gpu: { resource: 'amd.com/gpu', count: 8 } }, { limits: { 'amd.com/gpu': '8' } }],
    ['time-slicing', {}, { limits: { 'nvidia.com/gpu.shared': '1' } }],
    ['mps', {}, { limits: { 'nvidia.com/gpu.shared': '1' } }],
    ['mig', {}, { limits: { 'nvidia.com/mig-1g.10gb': '1' } }],
    [
      'kai',
      {},
      {
        labels: { 'kai.scheduler/queue': 'rl' },
        annotations: { 'gpu-fraction': '0.25' },
        schedulerName: 'kai-scheduler',
        limits: {},
      },
    ],
    [
      'kai',
      { gpu: { share: null, memoryBytes: 2000 * 2 ** 20, count: 2 } },
      { annotations: { 'gpu-memory': '2000', 'gpu-fraction-num-devices': '2' } },
    ],
    [
      'hami',
      {},
      {
        annotations: {},
        limits: { 'nvidia.com/gpu': '1', 'nvidia.com/gpumem': '8192', 'nvidia.com/gpucores': '30' },
        schedulerName: 'hami-scheduler',
      },
    ],
    [
      'hami',
      { gpu: { memoryBytes: null, share: 0.29, cores: null }, seatSet: { index: 0, gpus: ['GPU-a'] } },
      {
        annotations: { 'nvidia.com/use-gpuuuid': 'GPU-a' },
        limits: { 'nvidia.com/gpu': '1', 'nvidia.com/gpumem-percentage': '29' },
      },
    ],
    [
      'dra',
      { seatSet: { index: 2 } },
      {
        resourceClaims: [
          { name: 'firepool-gpus', resourceClaimName: 'firepool-h200-b0b0b0b0-e8b746c3-set-2' },
        ],
        claims: [{ name: 'firepool-gpus' }],
        limits: {},
      },
    ],
    [
      'dra',
      {},
      {
        resourceClaims: [
          { name: 'firepool-gpus', resourceClaimTemplateName: 'firepool-h200-b0b0b0b0-0ae18873' },
        ],
      },
    ],
  ])('%s with %j', (provider, options, expected) => {
    expect(added(provider, options)).toMatchObject(expected)
  })

  test('what the template has of its own stays', () => {
    const own = {
      metadata: { labels: { team: 'a' } },
      spec: {
        resourceClaims: [{ name: 'nic', resourceClaimTemplateName: 'nic' }],
        containers: [{ name: 'runner', resources: { limits: { cpu: '4' }, claims: [{ name: 'nic' }] } }],
      },
    }
    const { metadata, spec } = podBody(gpuOrder('dra', { template: own }), PLACE)
    expect(metadata.labels).toMatchObject({ team: 'a' })
    const { resourceClaims, containers } = spec as unknown as Spec
    expect(resourceClaims).toMatchObject([{ name: 'nic' }, { name: 'firepool-gpus' }])
    expect(containers[0]!.resources).toMatchObject({
      limits: { cpu: '4' },
      claims: [{ name: 'nic' }, { name: 'firepool-gpus' }],
    })
  })
})

describe('claims', () => {
  test('are those of the template before where they ask for the same', () => {
    const nameOf = (generation: number, deviceClass: string) =>
      claimsOf(
        { ...gpuOrder('dra', { gpu: { deviceClass }, seatSet: { index: 1 } }), generation },
        'b0b0b0b0b0',
      )[0]?.metadata.name
    expect(nameOf(4, 'a')).toBe(nameOf(3, 'a'))
    expect(nameOf(4, 'b')).not.toBe(nameOf(3, 'a'))
  })

  const claims = (seatSet?: SeatSetPlace, gpu: object = {}) =>
    claimsOf(gpuOrder('dra', { gpu, ...(seatSet ? { seatSet } : {}) }), 'b0b0b0b0b0')

  test('of a set has the GPUs of the set; pods of one set name one, those of another another', () => {
    const [claim] = claims({ index: 0 }, { selector: 'true' })
    expect(claim).toMatchObject({
      apiVersion: 'resource.k8s.io/v1',
      kind: 'ResourceClaim',
      metadata: { name: 'firepool-h200-b0b0b0b0-1eab5e32-set-0', labels: { 'firepool.dev/pool': 'h200' } },
    })
    const exactly = {
      deviceClassName: 'gpu.nvidia.com',
      allocationMode: 'ExactCount',
      count: 4,
      selectors: [{ cel: { expression: 'true' } }],
    }
    expect(claim!.spec).toEqual({ devices: { requests: [{ name: 'gpu', exactly }] } })
    expect(claims({ index: 1 })[0]!.metadata.name).not.toBe(claim!.metadata.name)
  })

  test('of a pod that shares with nobody come from a template, with as many GPUs as its jobs get', () => {
    const [template] = claims()
    expect(template).toMatchObject({ kind: 'ResourceClaimTemplate' })
    expect(template!.spec).toMatchObject({
      spec: { devices: { requests: [{ exactly: { count: 1 } }] } },
    })
  })

  test('are of dra alone', () => {
    for (const provider of GPU_PROVIDERS.filter((one) => one !== 'dra'))
      expect(claimsOf(gpuOrder(provider), 'b'), provider).toEqual([])
  })
})

describe('seats', () => {
  const seat = (provider: GpuProvider, seen: Partial<SeenPod>, gpu: object = {}) =>
    SHARE_PROVIDERS[provider].seatOf({
      gpu: gpuOrder(provider, { gpu }).profile.gpu,
      node: 'n',
      annotations: {},
      claims: [],
      reported: [],
      ...seen,
    })

  test('pods that report the same GPUs are on one set, in whatever order they say them', () => {
    const one = seat('device-plugin', { reported: ['GPU-b', 'GPU-a'] })
    expect(one).toEqual({ id: 'gpu/GPU-a,GPU-b', node: 'n', gpus: ['GPU-a', 'GPU-b'], from: 'report' })
    expect(seat('device-plugin', { reported: ['GPU-a', 'GPU-b'] })?.id).toBe(one?.id)
    expect(seat('device-plugin', { reported: ['GPU-a', 'GPU-c'] })?.id).not.toBe(one?.id)
  })

  test('a pod that is pinned is where it is pinned to, and one on the same GPU without a pin is beside it', () => {
    const pinned = seat('hami', { annotations: { 'nvidia.com/use-gpuuuid': 'GPU-a' } })
    expect(pinned).toMatchObject({ gpus: ['GPU-a'], from: 'pin' })
    const given = { 'hami.io/vgpu-devices-allocated': 'GPU-a,NVIDIA,8192,30:;' }
    expect(seat('hami', { annotations: given })).toMatchObject({ id: pinned?.id, from: 'report' })
  })

  test('a pin that leaves a choice is no pin', () => {
    const annotations = {
      'nvidia.com/use-gpuuuid': 'GPU-a,GPU-b',
      'hami.io/vgpu-devices-allocated': 'GPU-b,NVIDIA,8192,30:;',
    }
    expect(seat('hami', { annotations })).toMatchObject({ gpus: ['GPU-b'], from: 'report' })
  })

  test('a claim says it of a set and of a template, and only our own counts', () => {
    const { gpu } = gpuOrder('dra').profile
    const devices = ['gpu-1', 'gpu-0'].map((device) => ({ driver: 'd', pool: 'n', device }))
    const claim = (name: string, results: typeof devices) => ({
      metadata: { name, uid: `uid-${name}`, resourceVersion: '1' },
      status: { allocation: { devices: { results } } },
    })
    const claims = new Map([
      ['set-0', claim('set-0', devices)],
      ['made', claim('made', devices)],
      ['nic', claim('nic', devices)],
    ])
    const pod = (resourceClaims: object[], status: object = {}) =>
      seenPod(
        {
          metadata: { name: 'p', uid: 'u', resourceVersion: '1' },
          spec: { nodeName: 'n', resourceClaims: resourceClaims as [] },
          status,
        },
        gpu,
        claims,
      )
    const { seatOf } = SHARE_PROVIDERS.dra
    const nic = { name: 'nic', resourceClaimName: 'nic' }
    const shared = pod([nic, { name: 'firepool-gpus', resourceClaimName: 'set-0' }])
    const gpus = ['d/n/gpu-0', 'd/n/gpu-1']
    expect(seatOf(shared)).toEqual({ id: 'claim/uid-set-0', node: 'n', gpus, from: 'claim' })
    const own = pod([{ name: 'firepool-gpus', resourceClaimTemplateName: 't' }], {
      resourceClaimStatuses: [{ name: 'firepool-gpus', resourceClaimName: 'made' }],
    })
    expect(seatOf(own)).toMatchObject({ id: 'claim/uid-made', gpus })
    expect(seatOf(pod([nic]))).toBeNull()
  })
})
