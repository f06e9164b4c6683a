import { describe, expect, test } from 'vitest'
import { checkPoolSpec, checkSpecNames, readPoolSpec } from './check-spec.js'

const spec = (change: object) => ({ v: 1, name: 'a', budget: 4, ...change })

test.each<[object, RegExp]>([
  [
    { maxPods: 0 },
    /^maxPods is 0, less than the budget of 4 needs; .*raise it to 4 or more, or leave it out$/,
  ],
  [{ maxPods: 3, standby: 2 }, /^maxPods is 3, less than the budget of 4/],
  [{ budget: 0, maxPods: 0 }, /^maxPods is 0, less than one pod; .*raise it to 1 or more/],
  [{ profile: { env: { A: '1', FIREPOOL_POD: 'x' } } }, /^profile\.env may not set FIREPOOL_POD: .*; choose/],
])(
  '%j contradicts itself: refused at an edge, but a pool that has it once goes on with it',
  (change, said) => {
    expect(checkPoolSpec(spec(change)).problem).toMatchObject({ code: 'InvalidRequest', origin: 'caller' })
    expect(checkPoolSpec(spec(change)).problem?.message).toMatch(said)
    expect(readPoolSpec(spec(change)).value).toMatchObject({ name: 'a' })
  },
)

test.each([
  { maxPods: 4 },
  { maxPods: 4, standby: 3 },
  { budget: 0, maxPods: 1 },
  { budget: 2_000 },
  { budget: 0 },
  { profile: { env: { FIREPOOL_OTHER: 'x' } } },
])('%j is accepted', (change) => {
  expect(checkPoolSpec(spec(change)).value).toMatchObject({ name: 'a' })
})

const cluster = (change: object) => spec({ profile: { backend: 'kubernetes', image: 'a/b:1', ...change } })

test('a profile of a cluster has its defaults, and a template as Kubernetes writes it', () => {
  const template = {
    metadata: { labels: { team: 'a' } },
    spec: {
      nodeSelector: { zone: 'x' },
      containers: [{ name: 'runner', resources: { limits: { cpu: '4' } } }],
    },
  }
  expect(checkPoolSpec(cluster({ template })).value?.profile).toMatchObject({
    backend: 'kubernetes',
    namespace: null,
    image: 'a/b:1',
    prePull: false,
    env: {},
    template,
  })
})

test.each<[object, RegExp]>([
  [{ image: undefined }, /^profile\.image is the image of the pods/],
  [{ image: 'A B' }, /^profile\.image is the image/],
  [{ namespace: 'No' }, /^profile\.namespace is the name of a Kubernetes namespace, not "No"/],
  [{ gpu: 1 }, /^profile\.gpu is 1; write a map/],
  [{ backend: 'local', image: 'a' }, /^profile\.image is of pods in a cluster; set profile\.backend/],
  [{ backend: 'vm' }, /^profile\.backend is 'local' or 'kubernetes', not "vm"/],
  [{ template: [] }, /^profile\.template is a part of a pod/],
  [{ template: { kind: 'Pod' } }, /^profile\.template\.kind has no place in a pod; /],
])('a profile with %j is refused', (change, said) => {
  expect(readPoolSpec(cluster(change)).problem?.message).toMatch(said)
})

const inPod = (of: object) => ({ spec: of })
const inRunner = (of: object) => inPod({ containers: [{ name: 'runner', ...of }] })

test.each<[object, string]>([
  [{ metadata: { name: 'x' } }, 'metadata.name is set by Firepool'],
  [
    { metadata: { labels: { 'firepool.dev/pool': 'x' } } },
    'metadata.labels.firepool.dev/pool is what Firepool',
  ],
  [
    { metadata: { labels: { 'firepool.dev/gang': 'x' } } },
    'metadata.labels.firepool.dev/gang is what Firepool',
  ],
  [{ metadata: { annotations: { a: 1 } } }, 'metadata.annotations.a is 1, no text; put it in quotes'],
  [inPod({ restartPolicy: 'Always' }), 'spec.restartPolicy is "Always"; a runner that restarts'],
  [inPod({ hostNetwork: true }), 'spec.hostNetwork lets jobs'],
  [inPod({ hostPID: true }), 'spec.hostPID shows jobs'],
  [inPod({ nodeName: 'n' }), 'spec.nodeName would go past the scheduler'],
  [inPod({ activeDeadlineSeconds: 5 }), "spec.activeDeadlineSeconds is derived from the pool's podLifetime"],
  [inPod({ automountServiceAccountToken: true }), 'spec.automountServiceAccountToken would give jobs'],
  [inPod({ terminationGracePeriodSeconds: 0 }), 'spec.terminationGracePeriodSeconds is 0; give 1 to 300'],
  [inPod({ securityContext: { runAsUser: 0 } }), 'spec.securityContext.runAsUser makes jobs root'],
  [
    inPod({ securityContext: { seccompProfile: { type: 'Unconfined' } } }),
    'seccompProfile opens every system call',
  ],
  [
    inPod({ volumes: [{ name: 'a', hostPath: { path: '/' } }] }),
    "spec.volumes.0.hostPath shows jobs the node's files",
  ],
  [
    inPod({ volumes: [{ name: 'a', csi: { driver: 'node.firepool.dev' } }] }),
    "spec.volumes.0 is the node agent's, by which a pod takes its seats",
  ],
  [
    inPod({ volumes: [{ name: 'firepool-seat', emptyDir: {} }] }),
    "spec.volumes.0 is the node agent's, by which a pod takes its seats",
  ],
  [
    inPod({
      containers: [{ name: 'side', image: 'x', volumeMounts: [{ name: 'firepool-seat', mountPath: '/s' }] }],
    }),
    "spec.containers.0.volumeMounts.0 mounts the node agent's volume",
  ],
  [inPod({ containers: {} }), 'spec.containers is {}; write - name: runner'],
  [inPod({ containers: [{ name: 'side' }] }), 'spec.containers.0.image is missing'],
  [
    inPod({ initContainers: [{ name: 'runner' }] }),
    "spec.initContainers.0.name is the name of the jobs' own",
  ],
  [inRunner({ image: 'x' }), "spec.containers.0.image is the pool's; set profile.image"],
  [inRunner({ livenessProbe: {} }), 'spec.containers.0.livenessProbe would kill jobs'],
  [inRunner({ securityContext: { privileged: true } }), 'securityContext.privileged gives jobs the node'],
  [
    inRunner({ securityContext: { capabilities: { add: ['SYS_ADMIN'] } } }),
    'capabilities adds ["SYS_ADMIN"]',
  ],
  [inRunner({ env: [{ name: 'FIREPOOL_POD', value: 'x' }] }), 'spec.containers.0.env.0.name is FIREPOOL_POD'],
  [inRunner({ ports: [{ containerPort: 47_100 }] }), "spec.containers.0.ports.0 has the runner's own port"],
])('the template %j is refused by the name of its field', (template, said) => {
  const { problem } = checkPoolSpec(cluster({ template }))
  expect(problem?.message).toContain(`${said}`)
  expect(problem?.message).toMatch(/^profile\.template\..+; .+/)
  // What a pool was given once stays readable.
  expect(readPoolSpec(cluster({ template })).value).toBeDefined()
})

test('the names of secrets are each once in a profile, and without any it is as an earlier release wrote it', () => {
  const profileOf = (secrets: unknown) => checkPoolSpec(spec({ profile: { secrets } }))
  expect(profileOf(['b', 'a', 'b']).value?.profile.secrets).toEqual(['b', 'a'])
  for (const none of [[], undefined, null])
    expect(Object.keys(profileOf(none).value!.profile)).not.toContain('secrets')
  for (const wrong of ['a', { a: 'value' }, ['a/b'], [7], ['.hidden']])
    expect(profileOf(wrong).problem?.message, JSON.stringify(wrong)).toMatch(/^profile\.secrets/)
})

describe('profile.preload', () => {
  const read = (preload: unknown) => readPoolSpec(spec({ profile: { preload } }))

  test('has its defaults, and a profile without one is the text that it was', () => {
    expect(read({ imports: ['numpy'] }).value?.profile.preload).toEqual({
      python: 'python3',
      imports: ['numpy'],
      seeds: [],
    })
    for (const none of [undefined, null]) expect(read(none).value?.profile).not.toHaveProperty('preload')
  })

  test.each<[unknown, RegExp]>([
    ['numpy', /^profile\.preload is \{ imports, python\?, seeds\? \}/],
    [{}, /^profile\.preload\.imports is a list of 1 to 100 modules/],
    [{ imports: [] }, /^profile\.preload\.imports/],
    [{ imports: ['os; print(1)'] }, /^profile\.preload\.imports/],
    [{ imports: ['numpy'], python: '' }, /^profile\.preload\.python/],
    [
      { imports: ['numpy'], seeds: ['mine.seed'] },
      /^profile\.preload\.seeds is a list of 0 to 100 functions/,
    ],
  ])('%j is refused', (preload, said) => {
    expect(read(preload).problem?.message).toMatch(said)
  })

  test('has no other fields', () => {
    const typo = spec({ profile: { preload: { imports: ['numpy'], import: [] } } })
    expect(checkSpecNames(typo).problem?.message).toContain('profile.preload')
  })
})
