import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { GPU_PROVIDERS, type GpuShare, type SeatSetPlace } from '../../src/contract/index.js'
import { createKubernetesBackend, type KubernetesBackend } from '../../src/kubernetes/backend.js'
import { brokerId, podName } from '../../src/kubernetes/names.js'
import { podBody } from '../../src/kubernetes/pod-template.js'
import { claimsOf } from '../../src/kubernetes/shares/pod-gpus.js'
import { SHARE_PROVIDERS } from '../../src/kubernetes/shares/providers.js'
import { seenPod } from '../../src/kubernetes/shares/seen-pod.js'
import { gpuOrder } from '../../src/kubernetes/shares/share.fixture.js'
import type { SeatSet } from '../../src/kubernetes/shares/share.js'
import { generateKeys } from '../../src/token/token.js'
import { type ControlPlane, startControlPlane } from '../support/control-plane.js'
import { GPU_DRIVER, PLAYED_BY } from '../support/control-plane-objects.js'
import type { KubeObject } from '../support/kube-api.js'
import { Pods } from '../support/kube-pods.js'
import { allowNodes, GPU_RIGHTS, rulesOf } from '../support/kubernetes-world.js'
import { applyDriver } from '../support/node-agent.js'
import { waitUntil } from '../support/wait.js'

/** GPUs of pods on a real API server with its scheduler and its DRA; the GPUs are a driver's ResourceSlices and no more. */

const KWOK = { spec: { nodeSelector: { [PLAYED_BY.label]: PLAYED_BY.kwok } } }

const keys = generateKeys()
const broker = brokerId(keys.publicKeyBase64)
let cluster: ControlPlane
let pods: Pods
let claimsPath: string

beforeAll(async () => {
  cluster = await startControlPlane({ workerRules: rulesOf('Role', [GPU_RIGHTS]) })
  pods = new Pods(cluster.api, cluster.namespace)
  claimsPath = `/apis/resource.k8s.io/v1/namespaces/${cluster.namespace}/resourceclaims`
})
afterAll(() => cluster?.stop())

async function withBackend<T>(use: (backend: KubernetesBackend) => Promise<T>): Promise<T> {
  const backend = await createKubernetesBackend({
    kubeconfig: cluster.workerKubeconfigPath,
    brokerPublicKey: keys.publicKeyBase64,
  })
  try {
    return await use(backend)
  } finally {
    backend.close()
  }
}

const OF_DRIVER: Partial<GpuShare> = { deviceClass: GPU_DRIVER }

function draOrder(pod: string, seatSet?: SeatSetPlace, gpu: Partial<GpuShare> = {}) {
  const order = gpuOrder('dra', {
    gpu: { ...OF_DRIVER, ...gpu },
    template: KWOK,
    ...(seatSet ? { seatSet } : {}),
  })
  return { ...order, pod }
}

describe('the API server takes, with no field that it does not know,', () => {
  const dryRun = (path: string, body: KubeObject) =>
    cluster.api.post(`${path}?dryRun=All&fieldValidation=Strict`, body)
  const place = () => ({
    namespace: cluster.namespace,
    broker,
    brokerPublicKey: keys.publicKeyBase64,
    owner: { name: 'anchor', uid: '0b7e9a3c-0000-4000-8000-000000000000' },
  })

  test.each(GPU_PROVIDERS)('a pod with a GPU by %s, and what it names', async (provider) => {
    for (const seatSet of [undefined, { index: 0, gpus: ['GPU-a'] }]) {
      const order = gpuOrder(provider, seatSet ? { seatSet } : {})
      const made = await dryRun(pods.path, podBody(order, place()))
      expect(made.metadata.name).toBe(podName(order))
      const { resources } = made.spec.containers[0]
      // An extended resource that is limited is requested as well.
      expect(resources.requests).toMatchObject(
        Object.fromEntries(Object.entries(resources.limits).filter(([name]) => name.includes('/'))),
      )
      for (const claim of claimsOf(order, broker)) {
        const plural = claim.kind === 'ResourceClaim' ? 'resourceclaims' : 'resourceclaimtemplates'
        const path = `/apis/resource.k8s.io/v1/namespaces/${cluster.namespace}/${plural}`
        expect((await dryRun(path, claim)).metadata.name).toBe(claim.metadata.name)
      }
    }
  })

  test('and would not take another', async () => {
    const body = podBody(gpuOrder('dra'), place())
    const spec = { ...body.spec, resourceClaim: body.spec.resourceClaims }
    await expect(dryRun(pods.path, { ...body, spec })).rejects.toThrow(/unknown field "spec.resourceClaim"/)
  })
})

test('a worker that may not look at nodes orders the pod, and the scheduler says what it lacks', async () => {
  const order = { ...gpuOrder('mig', { template: KWOK }), pod: 'blind' }
  await withBackend(async (backend) => {
    expect(await backend.create([order])).toEqual([{ pod: 'blind' }])
  })
  const pod = await pods.until('is not scheduled', podName(order), ({ status }) =>
    status.conditions?.some((c: KubeObject) => c.reason === 'Unschedulable'),
  )
  expect(pod.status.conditions[0].message).toContain('Insufficient nvidia.com/mig-1g.10gb')
  await pods.delete(podName(order))
})

describe('a worker that may look', () => {
  beforeAll(async () => {
    await allowNodes(cluster, [GPU_RIGHTS])
  })

  test('refuses a profile with the node agent where that is not installed', async () => {
    const [answer] = await withBackend((backend) => backend.create([draOrder('no-agent')]))
    expect(answer?.problem?.reason).toBe('GpuProviderMissing')
    expect(answer?.problem?.message).toContain(
      'the CSIDriver node.firepool.dev (not there); install the node agent on the GPU nodes',
    )
    await applyDriver(cluster.api)
  })

  test('refuses what is not installed, and says what it looked for', async () => {
    const orders = (['mig', 'kai', 'hami', 'dra'] as const).map((provider) => ({
      ...gpuOrder(provider, { template: KWOK }),
      pod: provider,
    }))
    const answers = await withBackend((backend) => backend.create(orders))
    const messages = answers.map(({ problem }) => `${problem?.reason}: ${problem?.message}`)
    const looked = [
      'a node with nvidia.com/mig-1g.10gb to allocate (not there)',
      'the API scheduling.run.ai/v2 (not there), the queue rl (not there)',
      'a node with nvidia.com/gpu to allocate (there), on such a node the annotation hami.io/node-nvidia-register (not there)',
      'the API resource.k8s.io/v1 (there), the DeviceClass gpu.nvidia.com (not there), the CSIDriver node.firepool.dev (there)',
    ]
    expect(messages).toEqual(looked.map((what) => expect.stringContaining(`; looked for ${what}; install `)))
    for (const message of messages) expect(message).toMatch(/^GpuProviderMissing: /)
    expect(
      (await cluster.api.get(pods.path)).items.map((pod: KubeObject) => pod.metadata.name),
    ).not.toContain(podName(orders[0]!))
  })

  test('a selector that is no CEL is named', async () => {
    const order = draOrder('no-cel', undefined, { selector: 'this is' })
    const [answer] = await withBackend((backend) => backend.create([order]))
    expect(answer?.problem).toMatchObject({ reason: 'InvalidClaim' })
    expect(answer?.problem?.message).toMatch(/cel.*; correct profile\.gpu$/is)
  })

  test('forms seats from claims: pods of one set have its GPUs, others have others', async () => {
    const gpu = { count: 1, seatSet: 4 } as const
    const orders = [
      draOrder('set-0-a', { index: 0 }, gpu),
      draOrder('set-0-b', { index: 0 }, gpu),
      draOrder('set-1-a', { index: 1 }, gpu),
      draOrder('alone-a'),
      draOrder('alone-b'),
    ]
    await withBackend(async (backend) => {
      const expected = orders.map(({ pod }) => ({ pod }))
      expect(await backend.create(orders)).toEqual(expected)
      // A worker that asks again, or another one, finds all as it is.
      expect(await backend.create(orders)).toEqual(expected)
      expect(await withBackend((other) => other.create(orders))).toEqual(expected)
    })
    const seats: (SeatSet | null)[] = []
    for (const order of orders) seats.push(await seatOf(order))
    const [a, b, other, ...alone] = seats as [SeatSet, SeatSet, SeatSet, ...SeatSet[]]
    expect(a).toEqual(b)
    expect(a.gpus).toHaveLength(4)
    expect(other.gpus).toHaveLength(4)
    for (const one of alone) expect(one.gpus).toHaveLength(1)
    const all = [a, other, ...alone]
    expect(new Set(all.map(({ id }) => id)).size).toBe(4)
    // No GPU is of two sets.
    expect(new Set(all.flatMap(({ gpus }) => gpus)).size).toBe(4 + 4 + 1 + 1)
  })

  test('and with the pool its claims go', async () => {
    expect((await cluster.api.get(claimsPath)).items.length).toBeGreaterThan(0)
    await withBackend(async (backend) => {
      await backend.stopAll('h200')
      await backend.forget('h200')
    })
    await waitUntil('no claim is left', async () => (await cluster.api.get(claimsPath)).items.length === 0)
  })
})

/** Of a pod that the scheduler has given a node, and its claims devices of it. */
async function seatOf(order: ReturnType<typeof draOrder>): Promise<SeatSet | null> {
  const { gpu } = order.profile
  const pod = await pods.until('has a node', podName(order), ({ spec }) => spec.nodeName !== undefined)
  const { items } = await cluster.api.get(claimsPath)
  const claims = new Map<string, KubeObject>(items.map((claim: KubeObject) => [claim.metadata.name, claim]))
  return SHARE_PROVIDERS[gpu.provider].seatOf(seenPod(pod, gpu, claims))
}
