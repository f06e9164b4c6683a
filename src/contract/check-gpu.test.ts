import { describe, expect, test } from 'vitest'
import { checkPoolSpec, checkSpecNames, readPoolSpec } from './check-spec.js'
import { GPU_CAPABILITIES, GPU_IDLES, GPU_PROVIDERS, type GpuProvider, type GpuShare } from './gpu.js'
import type { KubernetesProfile } from './pool.js'

const spec = (gpu: unknown, template: object = {}) => ({
  v: 1,
  name: 'h200',
  budget: 8,
  profile: { backend: 'kubernetes', image: 'a/b:1', gpu, template },
})

/** What each provider needs at least. */
const LEAST: Readonly<Record<GpuProvider, Partial<GpuShare>>> = {
  'device-plugin': {},
  'time-slicing': {},
  mps: {},
  mig: { resource: 'nvidia.com/mig-1g.10gb' },
  kai: { queue: 'rl', share: 0.5 },
  hami: { memoryBytes: 2 ** 33 },
  dra: {},
}
const of = (provider: GpuProvider, change: Partial<GpuShare> = {}) => ({
  provider,
  ...LEAST[provider],
  ...change,
})

function gpuOf(gpu: unknown): GpuShare | null {
  const checked = checkPoolSpec(spec(gpu))
  if (checked.problem) throw new Error(checked.problem.message)
  return (checked.value.profile as KubernetesProfile).gpu
}

test('a profile without gpu has none, as have those that were given before there was any', () => {
  expect(gpuOf(undefined)).toBeNull()
  expect(gpuOf(null)).toBeNull()
})

test('a provider fills in what it is asked for', () => {
  const resource = (provider: GpuProvider) => gpuOf(of(provider))?.resource
  expect(resource('device-plugin')).toBe('nvidia.com/gpu')
  expect(resource('time-slicing')).toBe('nvidia.com/gpu.shared')
  expect(gpuOf(of('kai'))).toMatchObject({ scheduler: 'kai-scheduler', queue: 'rl', resource: null })
  expect(gpuOf(of('dra', { count: 2 }))).toEqual({
    provider: 'dra',
    count: 2,
    seatSet: 2,
    colocation: false,
    isolation: 'none',
    idle: 'hold',
    trust: 'tenant',
    duty: 0.6,
    agent: false,
    memoryBytes: null,
    share: null,
    cores: null,
    resource: null,
    scheduler: null,
    queue: null,
    deviceClass: 'gpu.nvidia.com',
    selector: null,
  })
})

test('what was filled in is read as it is', () => {
  for (const provider of GPU_PROVIDERS) {
    const filled = gpuOf(of(provider))
    expect(gpuOf(filled)).toEqual(filled)
  }
})

test.each<[object, string, string]>([
  [{}, 'provider', 'is missing; write one of: device-plugin, time-slicing'],
  [{ provider: 'cuda' }, 'provider', 'is "cuda"; write one of: device-plugin'],
  [of('dra', { count: 3 as never }), 'count', 'is 3; write one of: 1, 2, 4, 8'],
  [of('dra', { seatSet: 16 as never }), 'seatSet', 'is 16; write one of'],
  [of('dra', { idle: 'sleep' as never }), 'idle', 'is "sleep"; write one of: hold, park, checkpoint'],
  [of('dra', { isolation: 'soft' as never }), 'isolation', 'is "soft"; write one of: none, limits, hardware'],
  [of('dra', { colocation: 'yes' as never }), 'colocation', 'is "yes"; write true or false'],
  [of('dra', { agent: 'yes' as never }), 'agent', 'is "yes"; write true or false'],
  [of('kai', { share: 0.333 }), 'share', 'is 0.333; write hundredths'],
  [of('kai', { share: 0 }), 'share', 'is 0; write hundredths'],
  [of('hami', { memoryBytes: 5 }), 'memoryBytes', 'is 5; it must be between 1048576 and'],
  [of('hami', { cores: 101 }), 'cores', 'is 101; it must be between 1 and 100'],
  [of('mig', { resource: 'mig-1g' }), 'resource', 'is "mig-1g"; write an extended resource'],
  [of('mig', { resource: 'x.kubernetes.io/gpu' }), 'resource', 'is "x.kubernetes.io/gpu"; write an extended'],
  [of('kai', { queue: 'a queue' }), 'queue', 'is "a queue"; write the name of a queue'],
  [of('dra', { deviceClass: 'GPU' }), 'deviceClass', 'is "GPU"; write the name of a DeviceClass'],
  [of('dra', { selector: ' ' }), 'selector', 'is " "; write an expression in CEL'],
  [{ provider: 'mig' }, 'resource', 'is missing, and slices have a size'],
  [{ provider: 'kai', share: 0.5 }, 'queue', 'is missing, and the scheduler passes by'],
  [{ provider: 'hami' }, 'share', 'is missing, and so is an amount of memory'],
  [
    of('kai', { memoryBytes: 2 ** 33 }),
    'share',
    'is of the same memory as the other amount; say one of them',
  ],
  [of('kai', { share: 1 }), 'share', 'is 1, which is no share'],
])('%j is refused by its field %s', (gpu, field, said) => {
  const { problem } = readPoolSpec(spec(gpu))
  expect(problem?.message).toContain(`profile.gpu.${field} ${said}`)
  expect(problem?.details).toEqual({ path: `/profile/gpu/${field}` })
})

describe('what a provider cannot give is refused, with those that can', () => {
  const both = (idle: GpuShare['idle']) => ({ idle, colocation: true })
  test.each<[object, string, RegExp]>([
    [
      of('time-slicing', { count: 2 }),
      'count',
      /is 2, and provider time-slicing gives a pod 1; .*device-plugin, kai, hami or dra$/,
    ],
    [
      of('kai', { seatSet: 4 }),
      'seatSet',
      /provider kai cannot make several pods see the same 4 GPUs; .*use dra$/,
    ],
    [of('dra', { count: 4, seatSet: 2 }), 'seatSet', /is 2, less than count 4; raise it to 4/],
    [
      of('dra', { seatSet: 4 }),
      'seatSet',
      /no other pod may use the rest without colocation; set colocation: true/,
    ],
    [
      of('device-plugin', { colocation: true }),
      'colocation',
      /one pod on a GPU; .*time-slicing, mps, kai, hami or dra$/,
    ],
    [
      of('mps', { agent: true }),
      'agent',
      /no seat can pass from one pod to another: the MPS server owns .*use time-slicing, kai, hami or dra$/,
    ],
    [of('mig', { agent: true }), 'agent', /the slice is its own, .*; remove it, or use time-slicing, kai,/],
    [of('device-plugin', { agent: true }), 'agent', /no other pod can be on the GPU/],
    [
      of('dra', { idle: 'checkpoint', colocation: true }),
      'idle',
      /is checkpoint, but nobody says who may use the GPU next without the node agent; set agent: true/,
    ],
    [of('dra', { idle: 'checkpoint', agent: true }), 'idle', /without colocation; set colocation: true/],
    [of('mig', { colocation: true }), 'colocation', /one pod on a GPU/],
    [
      of('time-slicing', { isolation: 'limits' }),
      'isolation',
      /time-slicing has none; .*use device-plugin, mps, mig or hami$/,
    ],
    [of('hami', { isolation: 'hardware' }), 'isolation', /hami has limits; .*use device-plugin or mig$/],
    [of('dra', { colocation: true, isolation: 'limits' }), 'isolation', /dra has none/],
    [
      of('mps', both('park')),
      'idle',
      /is park, which provider mps cannot do: the MPS server owns.*time-slicing, kai, hami or dra$/,
    ],
    [of('mig', { idle: 'park' }), 'idle', /the slice is its own, .*; write hold, or use time-slicing, kai,/],
    [
      of('device-plugin', { idle: 'checkpoint' }),
      'idle',
      /is checkpoint, which provider device-plugin cannot do/,
    ],
    [of('dra', { idle: 'park' }), 'idle', /without colocation; set colocation: true/],
    [of('dra', { queue: 'rl' }), 'queue', /is nothing that provider dra has; it is of kai;/],
    [of('kai', { cores: 50 }), 'cores', /is nothing that provider kai has; it is of hami;/],
  ])('%j: %s', (gpu, field, said) => {
    const { problem } = checkPoolSpec(spec(gpu))
    expect(problem?.message).toMatch(said)
    expect(problem?.message).toContain(`profile.gpu.${field} `)
    expect(problem?.details).toEqual({ path: `/profile/gpu/${field}` })
    // What a pool was given once stays readable.
    expect(readPoolSpec(spec(gpu)).value).toBeDefined()
  })

  test('and what it can give is not', () => {
    for (const provider of ['time-slicing', 'kai', 'hami', 'dra'] as const)
      for (const idle of GPU_IDLES)
        expect(gpuOf(of(provider, { agent: true, ...both(idle) })), provider).toMatchObject({
          idle,
          agent: true,
        })
    expect(gpuOf(of('dra', { seatSet: 8, colocation: true, agent: true }))).toMatchObject({
      count: 1,
      seatSet: 8,
    })
    // Nobody else is on a GPU that no other pod's claim names.
    expect(gpuOf(of('dra', { isolation: 'hardware' }))).toMatchObject({ isolation: 'hardware' })
  })
})

test('what is not said of pauses: pods of a set with several seats park, up to a duty of 0.8', () => {
  const set = of('dra', { seatSet: 8, colocation: true, agent: true })
  const idle = (change: Partial<GpuShare>) => gpuOf({ ...set, ...change })?.idle
  expect(idle({})).toBe('park')
  expect(idle({ duty: 0.8 })).toBe('park')
  expect(idle({ duty: 0.81 })).toBe('hold')
  expect(idle({ duty: 0.81, idle: 'park' })).toBe('park')
  expect(idle({ idle: 'hold' })).toBe('hold')
  // A set of one seat: whoever comes back would find it busy.
  expect(idle({ count: 8 })).toBe('hold')
  expect(gpuOf(of('time-slicing', { colocation: true, agent: true }))?.idle).toBe('hold')
})

describe('a template that says the same', () => {
  test.each<[GpuProvider, object, string]>([
    ['kai', { schedulerName: 'other' }, 'profile.template.spec.schedulerName is said by profile.gpu as well'],
    [
      'dra',
      { containers: [{ name: 'runner', resources: { limits: { 'nvidia.com/gpu': '1' } } }] },
      'profile.template.spec.containers.0.resources.limits.nvidia.com/gpu asks for a GPU beside',
    ],
  ])('of %s is refused', (provider, pod, said) => {
    expect(checkPoolSpec(spec(of(provider), { spec: pod })).problem?.message).toContain(said)
    expect(checkPoolSpec(spec(undefined, { spec: pod })).value).toBeDefined()
  })
})

test('a template may ask for devices that are no GPUs', () => {
  const pod = { containers: [{ name: 'runner', resources: { limits: { 'nvidia.com/hostdev': '1' } } }] }
  expect(checkPoolSpec(spec(of('dra'), { spec: pod })).value).toBeDefined()
})

test('a misspelt field is named', () => {
  const { problem } = checkSpecNames(spec({ provider: 'kai', que: 'rl' }))
  expect(problem?.message).toContain('profile.gpu has no field "que"; did you mean \'queue\'?')
})

test('a local profile has no gpu', () => {
  const { problem } = checkPoolSpec({ v: 1, name: 'a', budget: 1, profile: { gpu: { provider: 'dra' } } })
  expect(problem?.message).toMatch(
    /^profile\.gpu is of pods in a cluster; set profile\.backend to 'kubernetes'/,
  )
})

test('every provider that parks lets pods stand on one GPU, and a set of several needs a claim', () => {
  for (const [provider, can] of Object.entries(GPU_CAPABILITIES)) {
    if (can.noParking === null) expect(can.colocation, provider).not.toBe('never')
    if (can.seatSets.length > 1) expect(can.seatFrom, provider).toBe('claim')
    if (can.colocation === 'never') expect(can.maxSharers, provider).toBe(1)
  }
})
