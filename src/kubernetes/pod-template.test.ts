import { expect, test } from 'vitest'
import { checkPoolSpec, type KubernetesProfile, type PodOrder } from '../contract/index.js'
import { podBody } from './pod-template.js'

const PLACE = {
  namespace: 'pools',
  broker: 'b0',
  brokerPublicKey: 'KEY',
  owner: { name: 'firepool-cpu-b0', uid: 'u-1' },
}

function order(profile: object = {}): PodOrder & { profile: KubernetesProfile } {
  const spec = {
    v: 1,
    name: 'cpu',
    budget: 1,
    profile: { backend: 'kubernetes', image: 'firepool:1', ...profile },
  }
  const checked = checkPoolSpec(spec)
  if (checked.problem) throw new Error(checked.problem.message)
  return {
    pod: 'cpu-1a2b3c-7',
    pool: 'cpu',
    generation: 3,
    profile: checked.value.profile as KubernetesProfile,
    lifetimeMs: 600_000,
    startTimeoutMs: 30_000,
  }
}

const body = (profile: object = {}) => podBody(order(profile), PLACE)
interface Runner extends Record<string, unknown> {
  env: { name: string; value?: string }[]
}
const runner = (profile: object = {}) => (body(profile).spec.containers as Runner[])[0]!
const envOf = (profile: object = {}) =>
  Object.fromEntries(runner(profile).env.map(({ name, value }) => [name, value]))

test('a pod without a template is held by safe defaults', () => {
  expect(body().spec).toMatchObject({
    restartPolicy: 'Never',
    automountServiceAccountToken: false,
    enableServiceLinks: false,
    terminationGracePeriodSeconds: 10,
    // start, lifetime and the grace for the last job
    activeDeadlineSeconds: 30 + 600 + 3600,
    securityContext: { runAsNonRoot: true, runAsUser: 1000, seccompProfile: { type: 'RuntimeDefault' } },
    volumes: [{ name: 'firepool-pod', emptyDir: {} }],
  })
  expect(runner()).toMatchObject({
    name: 'runner',
    image: 'firepool:1',
    securityContext: { allowPrivilegeEscalation: false, capabilities: { drop: ['ALL'] } },
    readinessProbe: { httpGet: { path: '/ready', port: 47_100 } },
    resources: { limits: { cpu: '2', memory: '2Gi', 'ephemeral-storage': '8Gi' } },
    terminationMessagePolicy: 'FallbackToLogsOnError',
    volumeMounts: [{ name: 'firepool-pod', mountPath: '/var/lib/firepool/pod' }],
  })
})

test('a person sees whose pod it is, and the anchor takes it along', () => {
  expect(body().metadata).toEqual({
    name: 'cpu-1a2b3c-7-g3',
    namespace: 'pools',
    labels: {
      'app.kubernetes.io/managed-by': 'firepool',
      'firepool.dev/broker': 'b0',
      'firepool.dev/pool': 'cpu',
      'firepool.dev/pod': 'cpu-1a2b3c-7',
      'firepool.dev/generation': '3',
    },
    annotations: { 'firepool.dev/pod': 'cpu-1a2b3c-7', 'firepool.dev/start-timeout-ms': '30000' },
    ownerReferences: [{ apiVersion: 'v1', kind: 'ConfigMap', name: 'firepool-cpu-b0', uid: 'u-1' }],
  })
})

test('the runner is told what it is by its environment, its address by the kubelet', () => {
  const env = envOf({ env: { PRICE: '$(HOME) and $$' } })
  expect(runner().env[0]).toEqual({ name: 'POD_IP', valueFrom: { fieldRef: { fieldPath: 'status.podIP' } } })
  expect(env).toMatchObject({
    FIREPOOL_POD: 'cpu-1a2b3c-7',
    FIREPOOL_LISTEN: '$(POD_IP):47100',
    FIREPOOL_POD_DIR: '/var/lib/firepool/pod/cpu-1a2b3c-7-g3',
    FIREPOOL_LIFETIME_MS: '600000',
    FIREPOOL_TERMINATION_LOG: '/dev/termination-log',
  })
  // Read as a kubelet reads it, it is what the profile says.
  expect(env.FIREPOOL_PROFILE).toContain('$$(HOME) and $$$$')
  const preload = { python: 'python3', imports: ['numpy'], seeds: [] }
  expect(JSON.parse(envOf({ preload }).FIREPOOL_PROFILE!)).toMatchObject({ preload })
})

test('a pod whose jobs may use secrets is told where they are mounted, and their names alone', () => {
  expect(envOf()).not.toHaveProperty('FIREPOOL_SECRETS')
  const env = envOf({ secrets: ['search-key'] })
  expect(env.FIREPOOL_SECRETS).toBe('/var/run/firepool/secrets')
  expect(JSON.parse(env.FIREPOOL_PROFILE!)).toMatchObject({ secrets: ['search-key'] })
})

test('the template is merged over the defaults: maps field by field, lists and values whole', () => {
  const template = {
    metadata: { labels: { team: 'a' }, annotations: { note: 'x' } },
    spec: {
      nodeSelector: { zone: 'x' },
      tolerations: [{ key: 'gpu', operator: 'Exists' }],
      imagePullSecrets: [{ name: 'registry' }],
      runtimeClassName: 'gvisor',
      terminationGracePeriodSeconds: 30,
      securityContext: { runAsUser: 2000 },
      volumes: [{ name: 'shm', emptyDir: { medium: 'Memory', sizeLimit: '1Gi' } }],
      initContainers: [{ name: 'seed', image: 'busybox' }],
      containers: [
        { name: 'side', image: 'proxy' },
        {
          name: 'runner',
          command: ['node', '/runner.js'],
          env: [{ name: 'EXTRA', value: '1' }],
          resources: { limits: { memory: '256Mi', 'nvidia.com/gpu': '1' } },
          volumeMounts: [{ name: 'shm', mountPath: '/dev/shm' }],
        },
      ],
    },
  }
  const { metadata, spec } = body({ template })
  expect(metadata.labels).toMatchObject({ team: 'a', 'firepool.dev/pool': 'cpu' })
  expect(metadata.annotations).toMatchObject({ note: 'x', 'firepool.dev/pod': 'cpu-1a2b3c-7' })
  expect(spec).toMatchObject({
    nodeSelector: { zone: 'x' },
    tolerations: [{ key: 'gpu', operator: 'Exists' }],
    imagePullSecrets: [{ name: 'registry' }],
    runtimeClassName: 'gvisor',
    terminationGracePeriodSeconds: 30,
    securityContext: { runAsNonRoot: true, runAsUser: 2000 },
    initContainers: [{ name: 'seed', securityContext: { allowPrivilegeEscalation: false } }],
  })
  expect((spec.volumes as { name: string }[]).map(({ name }) => name)).toEqual(['firepool-pod', 'shm'])
  const [first, side] = spec.containers as Record<string, unknown>[]
  expect(side).toMatchObject({ name: 'side', securityContext: { capabilities: { drop: ['ALL'] } } })
  expect(first).toMatchObject({ name: 'runner', command: ['node', '/runner.js'] })
  expect((first!.env as object[]).at(-1)).toEqual({ name: 'EXTRA', value: '1' })
  // A request of ours above a limit of theirs would be refused.
  expect(first!.resources).toEqual({
    requests: { cpu: '250m', 'ephemeral-storage': '1Gi' },
    limits: { cpu: '2', 'ephemeral-storage': '8Gi', memory: '256Mi', 'nvidia.com/gpu': '1' },
  })
  expect(first!.volumeMounts).toEqual([
    { name: 'firepool-pod', mountPath: '/var/lib/firepool/pod' },
    { name: 'shm', mountPath: '/dev/shm' },
  ])
})

test("the pod's folder is where the template mounts its volume", () => {
  const template = {
    spec: {
      volumes: [{ name: 'firepool-pod', emptyDir: { sizeLimit: '10Gi' } }],
      containers: [{ name: 'runner', volumeMounts: [{ name: 'firepool-pod', mountPath: '/data' }] }],
    },
  }
  expect(body({ template }).spec.volumes).toEqual([{ name: 'firepool-pod', emptyDir: { sizeLimit: '10Gi' } }])
  expect(runner({ template }).volumeMounts).toEqual([{ name: 'firepool-pod', mountPath: '/data' }])
  expect(envOf({ template }).FIREPOOL_POD_DIR).toBe('/data/cpu-1a2b3c-7-g3')
})

test('an order of a release that knew of no GPUs makes the same pod', () => {
  const now = order()
  const { gpu, ...profile } = now.profile
  expect(gpu).toBeNull()
  expect(podBody({ ...now, profile: profile as KubernetesProfile }, PLACE)).toEqual(podBody(now, PLACE))
})
