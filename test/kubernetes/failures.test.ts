import { createServer, type Server } from 'node:https'
import { afterAll, afterEach, beforeAll, describe, expect, test, vi } from 'vitest'
import type { ControlPlane } from '../support/control-plane.js'
import { GPU_RESOURCE } from '../support/control-plane-objects.js'
import { Observer, orderOf, startCluster } from '../support/kubernetes-world.js'
import { clusterObstacle, orSkipped } from '../support/obstacles.js'
import { waitUntil } from '../support/wait.js'

/** What happens to pods in a cluster has the name that the cluster gives it, as soon as the cluster says it. */

const obstacle = await clusterObstacle()

describe.skipIf(obstacle)(orSkipped('failures of pods', obstacle), () => {
  let cluster: ControlPlane
  let worker: Observer
  beforeAll(async () => {
    cluster = await startCluster({ nodes: 4 })
    worker = await Observer.open(cluster.workerKubeconfigPath)
  })
  afterAll(async () => {
    worker?.close()
    await cluster?.stop()
  })

  type Change = Parameters<typeof orderOf>[1]

  const podPath = (pod: string) => `/api/v1/namespaces/${cluster.namespace}/pods/${pod}-g1`

  async function ordered(does: Record<string, string> = {}, change: Change = {}): Promise<string> {
    const order = orderOf(does, change)
    const [created] = await worker.backend.create([order])
    expect(created).toEqual({ pod: order.pod })
    return order.pod
  }

  async function readyOn(node: string, change: Change = {}): Promise<string> {
    const pod = await ordered(
      {},
      { ...change, spec: { nodeSelector: { 'kubernetes.io/hostname': node }, ...change.spec } },
    )
    await worker.ready(pod)
    return pod
  }

  const removed = (pod: string) => worker.backend.remove([pod])

  describe('a pod that cannot start', () => {
    test.each([
      'ErrImagePull',
      'ImagePullBackOff',
      'InvalidImageName',
      'CreateContainerConfigError',
      'CreateContainerError',
      'RunContainerError',
    ])('%s', async (fail) => {
      const pod = await ordered({ fail })
      expect(await worker.failed(pod)).toMatchObject({
        reason: fail,
        message: expect.stringContaining('runner'),
      })
      await removed(pod)
    })

    test('CrashLoopBackOff, of a sidecar that is started again and again', async () => {
      // kwok gives all containers of a pod one state, so the runner shows it here.
      const pod = await ordered({ fail: 'CrashLoopBackOff' })
      expect((await worker.failed(pod)).reason).toMatch(/CrashLoopBackOff|Exited/)
      await removed(pod)
    })

    test('Unschedulable: what it waits for at once, and then the reason of its failure', async () => {
      const spec = { nodeSelector: { nowhere: 'yes' } }
      const pod = await ordered({}, { spec, startTimeoutMs: 4_000 })
      const waits = await worker.until(pod, 'waiting', ({ reason }) => reason === 'Unschedulable')
      expect(waits).toMatchObject({ phase: 'starting', message: expect.stringContaining('0/4 nodes') })
      const failed = await worker.failed(pod)
      expect(failed).toMatchObject({ reason: 'Unschedulable' })
      expect(failed.message).toMatch(/not ready within 4000 ms of its start: 0\/4 nodes/)
      await removed(pod)
    })

    test('SchedulingGated, by the name of the gate', async () => {
      const pod = await ordered({}, { spec: { schedulingGates: [{ name: 'example.com/quota' }] } })
      const waits = await worker.until(pod, 'waiting', ({ reason }) => reason === 'SchedulingGated')
      expect(waits.phase).toBe('starting')
      await removed(pod)
    })

    test('StartTimeout, when nobody knows why', async () => {
      const pod = await ordered({ 'ready-after': '600s' }, { startTimeoutMs: 3_000 })
      expect(await worker.failed(pod)).toMatchObject({ reason: 'StartTimeout' })
      await removed(pod)
    })
  })

  describe('clocks that are hours apart', () => {
    const HOURS_MS = 5 * 3_600_000
    afterEach(() => vi.restoreAllMocks())

    test.each([
      ['behind', -HOURS_MS],
      ['ahead', HOURS_MS],
    ])('a worker whose clock is %s of the API server: ages are right', async (_, byMs) => {
      const now = Date.now
      vi.spyOn(Date, 'now').mockImplementation(() => now() + byMs)
      const pod = await ordered({ 'ready-after': '2s' }, { startTimeoutMs: 60_000 })
      expect((await worker.ready(pod)).phase).toBe('ready')
      const late = await ordered({ 'ready-after': '600s' }, { startTimeoutMs: 3_000 })
      expect(await worker.failed(late)).toMatchObject({ reason: 'StartTimeout' })
      await worker.backend.remove([pod, late])
    })

    test.each([
      ['behind', -HOURS_MS],
      ['ahead', HOURS_MS],
    ])('a node whose clock is %s: what it dates changes nothing', async (_, byMs) => {
      const pod = await readyOn('gpu-3', { startTimeoutMs: 60_000 })
      const at = new Date(Date.now() + byMs).toISOString().replace(/\.\d+/, '')
      const { status } = await cluster.api.get(podPath(pod))
      const before = worker.seen.length
      const dated = (list: object[]) => list.map((entry) => ({ ...entry, lastTransitionTime: at }))
      const patched = await cluster.api.patch(`${podPath(pod)}/status`, {
        status: {
          startTime: at,
          conditions: dated(status.conditions),
          containerStatuses: status.containerStatuses.map((container: object) => ({
            ...container,
            state: { running: { startedAt: at } },
          })),
        },
      })
      expect(patched.status.startTime).toBe(at)
      const { resourceVersion } = patched.metadata
      // Another pod comes after it in the watch: what its dates meant was told by then.
      await removed(await readyOn('gpu-2'))
      expect(Number((await cluster.api.get(podPath(pod))).metadata.resourceVersion)).toBeGreaterThanOrEqual(
        Number(resourceVersion),
      )
      expect(worker.seen.slice(before).filter((seen) => seen.pod === pod)).toEqual([])
      expect(worker.last(pod)).toMatchObject({ phase: 'ready' })
      await removed(pod)
    })
  })

  describe('a pod that served', () => {
    test.each(['OOMKilled', 'Evicted', 'UnexpectedAdmissionError'])('%s', async (fail) => {
      const pod = await ordered({ fail, 'fail-after': '1s' })
      await worker.ready(pod)
      expect(await worker.failed(pod)).toMatchObject({ reason: fail })
      await removed(pod)
    })

    test('Exited, whatever its exit code', async () => {
      const [over, broken] = [
        await ordered({ 'exit-after': '1s' }),
        await ordered({ fail: 'Error', 'fail-after': '1s' }),
      ]
      expect((await worker.failed(over)).message).toContain('exit code 0')
      expect((await worker.failed(broken)).message).toContain('exit code 1')
      await worker.backend.remove([over, broken])
    })

    test('Deleted by hand: as soon as it is told to end, not when it has', async () => {
      const pod = await ordered({ 'delete-after': '4s' })
      await worker.ready(pod)
      await cluster.api.delete(podPath(pod))
      expect(await worker.failed(pod)).toMatchObject({ reason: 'Deleted' })
      await worker.until(pod, 'gone', ({ phase }) => phase === 'gone')
      expect(worker.seen.filter((seen) => seen.pod === pod).map(({ phase }) => phase)).toEqual([
        'starting',
        'ready',
        'failed',
        'gone',
      ])
    })

    test('NodeDrained: cordoned first, then evicted', async () => {
      const pod = await readyOn('gpu-3')
      await cluster.api.patch('/api/v1/nodes/gpu-3', { spec: { unschedulable: true } })
      const cordoned = await worker.until(pod, 'on a cordoned node', ({ retire }) => retire !== undefined)
      expect(cordoned).toMatchObject({ phase: 'ready', retire: 'NodeCordoned' })
      await cluster.api.patch(podPath(pod), {
        metadata: { annotations: { 'firepool.test/delete-after': '3s' } },
      })
      await cluster.api.post(`${podPath(pod)}/eviction`, {
        apiVersion: 'policy/v1',
        kind: 'Eviction',
        metadata: { name: `${pod}-g1`, namespace: cluster.namespace },
      })
      expect(await worker.failed(pod)).toMatchObject({ reason: 'NodeDrained' })
      await cluster.api.patch('/api/v1/nodes/gpu-3', { spec: { unschedulable: false } })
    })

    test('Preempted, by a pod of a higher priority', async () => {
      await cluster.api.post('/apis/scheduling.k8s.io/v1/priorityclasses', {
        apiVersion: 'scheduling.k8s.io/v1',
        kind: 'PriorityClass',
        metadata: { name: 'urgent' },
        value: 1_000,
      })
      const gpus = (priorityClassName?: string) => ({
        ...(priorityClassName ? { priorityClassName } : {}),
        containers: [{ name: 'runner', resources: { limits: { [GPU_RESOURCE]: '8' } } }],
      })
      const low = await readyOn('gpu-2', { spec: gpus() })
      await cluster.api.patch(podPath(low), {
        metadata: { annotations: { 'firepool.test/delete-after': '3s' } },
      })
      const high = await ordered(
        {},
        { spec: { nodeSelector: { 'kubernetes.io/hostname': 'gpu-2' }, ...gpus('urgent') } },
      )
      expect(await worker.failed(low)).toMatchObject({ reason: 'Preempted' })
      await worker.ready(high)
      await removed(high)
    })

    test('NodeLost, and its pods are gone once their end is wanted: nobody is there to end them', async () => {
      const pod = await readyOn('gpu-1')
      await cluster.silenceNode('gpu-1')
      const lost = await worker.failed(pod)
      expect(lost).toMatchObject({ reason: 'NodeLost', message: expect.stringContaining('gpu-1') })
      await removed(pod)
      expect(await worker.backend.list('kwok')).toEqual([])
      await cluster.reviveNode('gpu-1')
    })

    test('NodeLost, when the node is deleted', async () => {
      const pod = await readyOn('gpu-0')
      await cluster.api.delete('/api/v1/nodes/gpu-0')
      expect((await worker.failed(pod)).reason).toMatch(/NodeLost/)
      await removed(pod)
    })
  })

  describe('admission', () => {
    let hook: Server | undefined
    const path = '/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations'
    let answers = 0

    /** A webhook that refuses every pod. */
    async function startHook(port = 0): Promise<number> {
      hook = createServer(cluster.authority.issue('hook'), (request, response) => {
        let body = ''
        request.on('data', (piece) => {
          body += piece
        })
        request.on('end', () => {
          answers++
          const { uid } = JSON.parse(body).request
          const status = { message: 'pods need an owner', code: 403 }
          response.setHeader('content-type', 'application/json')
          response.end(
            JSON.stringify({
              apiVersion: 'admission.k8s.io/v1',
              kind: 'AdmissionReview',
              response: { uid, allowed: false, status },
            }),
          )
        })
      })
      await new Promise<void>((resolve) => hook!.listen(port, '127.0.0.1', resolve))
      return (hook.address() as { port: number }).port
    }

    afterAll(() => {
      hook?.closeAllConnections()
      hook?.close()
    })

    test('a webhook that refuses, and one that is down', async () => {
      const port = await startHook()
      await cluster.api.post(path, {
        apiVersion: 'admissionregistration.k8s.io/v1',
        kind: 'ValidatingWebhookConfiguration',
        metadata: { name: 'owners' },
        webhooks: [
          {
            name: 'owners.example.com',
            rules: [{ apiGroups: [''], apiVersions: ['v1'], resources: ['pods'], operations: ['CREATE'] }],
            clientConfig: {
              url: `https://127.0.0.1:${port}/`,
              caBundle: Buffer.from(cluster.authority.cert).toString('base64'),
            },
            admissionReviewVersions: ['v1'],
            sideEffects: 'None',
            timeoutSeconds: 2,
          },
        ],
      })
      // The API server takes a moment to know of it.
      const refused = await waitUntil('it is asked', async () => {
        const [created] = await worker.backend.create([orderOf()])
        return created!.problem ?? null
      })
      expect(refused).toMatchObject({ reason: 'AdmissionRefused' })
      expect(refused.message).toMatch(/owners\.example\.com.*pods need an owner; change profile\.template/)
      expect(answers).toBeGreaterThan(0)

      hook!.closeAllConnections()
      await new Promise((resolve) => hook!.close(resolve))
      const [down] = await worker.backend.create([orderOf()])
      expect(down!.problem).toMatchObject({ reason: 'AdmissionUnavailable' })
      await cluster.api.delete(`${path}/owners`)
    })
  })
})
