import { existsSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest'
import { processesWith, startScript } from '../support/cli.js'
import { type ControlPlane, startControlPlane } from '../support/control-plane.js'
import { GPU_DRIVER, PLAYED_BY } from '../support/control-plane-objects.js'
import { obtainControlPlaneParts } from '../support/control-plane-parts.js'
import { KubeApi, type KubeEvent, type KubeObject } from '../support/kube-api.js'
import { isReady, type PodOptions, Pods, podObject } from '../support/kube-pods.js'
import { readKubeconfig } from '../support/kubeconfig.js'
import { clusterObstacle, orSkipped } from '../support/obstacles.js'
import { waitUntil } from '../support/wait.js'

/** The cluster of these tests itself, with the fake nodes that kwok plays. */

const HOLD = fileURLToPath(new URL('../support/hold-cluster.ts', import.meta.url))

/** A thousand pods are much work for two cores, and others may want them too. */
const MANY_MS = 200_000

const obstacle = await clusterObstacle()

const fakePod = (name: string, options?: PodOptions) => podObject(name, PLAYED_BY.kwok, options)

describe.skipIf(obstacle)(orSkipped('a control plane', obstacle), () => {
  let cluster: ControlPlane
  let pods: Pods
  beforeAll(async () => {
    cluster = await startControlPlane()
    pods = new Pods(cluster.api, cluster.namespace)
  })
  afterAll(() => cluster?.stop())
  afterEach(() => pods.clear())

  test('is of the version that Firepool is made for', async () => {
    expect((await cluster.api.get('/version')).gitVersion).toMatch(/^v1\.36\./)
  })

  describe('a pod on a fake node', () => {
    test('is scheduled, becomes Ready and has an address; it is gone after its deletion', async () => {
      await pods.create(fakePod('plain'))
      const pod = await pods.ready('plain')
      expect(pod.spec.nodeName).toMatch(/^gpu-[01]$/)
      expect(pod.status).toMatchObject({ phase: 'Running', podIP: expect.stringMatching(/^10\.77\./) })
      await pods.delete('plain')
      await pods.gone('plain')
    })

    test('becomes Ready after its delay, with the address that it names', async () => {
      const events: string[] = []
      const { metadata } = await cluster.api.get(pods.path)
      const watch = cluster.api.watch(pods.path, metadata.resourceVersion, ({ object }) => {
        if (object.metadata.name === 'slow')
          events.push(`${Boolean(object.spec.nodeName)} ${isReady(object)}`)
      })
      await pods.create(fakePod('slow', { does: { 'ready-after': '1500ms', 'pod-ip': '127.0.0.9' } }))
      const { status } = await pods.ready('slow')
      watch.stop()
      expect(status.podIP).toBe('127.0.0.9')
      // Created, bound, and only later Ready.
      expect(events.slice(0, 2)).toEqual(['false false', 'true false'])
      const bound = status.conditions.find((c: KubeObject) => c.type === 'PodScheduled').lastTransitionTime
      const ready = status.conditions.find((c: KubeObject) => c.type === 'Ready').lastTransitionTime
      // In whole seconds.
      expect(Date.parse(ready) - Date.parse(bound)).toBeGreaterThanOrEqual(1_000)
    })

    test('takes a GPU, and one too many waits for its turn', async () => {
      const all = ['one', 'two', 'three'].map((name) => `gpus-${name}`)
      for (const name of all) await pods.create(fakePod(name, { gpus: 8 }))
      // Two nodes have eight each.
      const nodes = await waitUntil('two are Ready, one is not scheduled', async () => {
        const found = await Promise.all(all.map((name) => pods.find(name)))
        const waits = found.filter((pod) =>
          pod.status.conditions?.some((c: KubeObject) => c.reason === 'Unschedulable'),
        )
        const ready = found.filter(isReady)
        return ready.length === 2 && waits.length === 1 && ready.map((pod) => pod.spec.nodeName)
      })
      expect(new Set(nodes)).toEqual(new Set(['gpu-0', 'gpu-1']))
      for (const name of all) await pods.delete(name)
      for (const name of all) await pods.gone(name)
    })

    test('shares a GPU with another one by their common claim', async () => {
      const claims = `/apis/resource.k8s.io/v1/namespaces/${cluster.namespace}/resourceclaims`
      const request = { name: 'gpu', exactly: { deviceClassName: GPU_DRIVER } }
      await cluster.api.post(claims, {
        apiVersion: 'resource.k8s.io/v1',
        kind: 'ResourceClaim',
        metadata: { name: 'shared' },
        spec: { devices: { requests: [request] } },
      })
      const spec = { resourceClaims: [{ name: 'gpu', resourceClaimName: 'shared' }] }
      const container = { resources: { claims: [{ name: 'gpu' }] } }
      const nodes = new Set<string>()
      for (const name of ['left', 'right']) await pods.create(fakePod(name, { spec, container }))
      for (const name of ['left', 'right']) nodes.add((await pods.ready(name)).spec.nodeName)
      const { status } = await cluster.api.get(`${claims}/shared`)
      expect(status.allocation.devices.results).toMatchObject([{ driver: GPU_DRIVER, pool: [...nodes][0] }])
      expect(nodes.size).toBe(1)
      await pods.clear()
      await cluster.api.delete(`${claims}/shared`)
    })

    test.each(['ErrImagePull', 'ImagePullBackOff', 'CreateContainerConfigError'])(
      'never starts: %s',
      async (reason) => {
        const name = `fail-${reason.toLowerCase()}`
        await pods.create(fakePod(name, { does: { fail: reason } }))
        const { status } = await pods.until(
          'fails',
          name,
          (pod) => pod.status.containerStatuses !== undefined,
        )
        expect(status.phase).toBe('Pending')
        expect(status.containerStatuses[0]).toMatchObject({ ready: false, state: { waiting: { reason } } })
      },
    )

    test('crashes again and again', async () => {
      await pods.create(
        fakePod('loop', { does: { fail: 'CrashLoopBackOff' }, spec: { restartPolicy: 'Always' } }),
      )
      const { status } = await pods.until(
        'crashes',
        'loop',
        (pod) => pod.status.containerStatuses !== undefined,
      )
      expect(status.phase).toBe('Running')
      expect(status.containerStatuses[0]).toMatchObject({
        ready: false,
        state: { waiting: { reason: 'CrashLoopBackOff' } },
        lastState: { terminated: { exitCode: 1 } },
      })
    })

    test.each([
      ['OOMKilled', 137],
      ['Error', 1],
    ])('is Ready, and then ends: %s', async (reason, exitCode) => {
      const name = `fail-${reason.toLowerCase()}`
      await pods.create(fakePod(name, { does: { fail: reason, 'fail-after': '1s' } }))
      await pods.ready(name)
      const { status } = await pods.until('has failed', name, (pod) => pod.status.phase === 'Failed')
      expect(status.containerStatuses[0]).toMatchObject({
        ready: false,
        state: { terminated: { reason, exitCode } },
      })
    })

    test('ends, and its container is started again', async () => {
      const does = { fail: 'OOMKilled', 'fail-after': '1s', 'restart-after': '1s' }
      await pods.create(fakePod('again', { does, spec: { restartPolicy: 'Always' } }))
      await pods.ready('again')
      await pods.until('ends', 'again', (pod) => !isReady(pod))
      const { status } = await pods.ready('again')
      expect(status.containerStatuses[0]).toMatchObject({
        restartCount: 1,
        lastState: { terminated: { reason: 'OOMKilled', exitCode: 137 } },
      })
    })

    test.each(['Evicted', 'UnexpectedAdmissionError'])('is given up by its kubelet: %s', async (reason) => {
      const name = `fail-${reason.toLowerCase()}`
      await pods.create(fakePod(name, { does: { fail: reason } }))
      const { status } = await pods.until('has failed', name, (pod) => pod.status.phase === 'Failed')
      expect(status.reason).toBe(reason)
    })

    test('completes', async () => {
      await pods.create(fakePod('complete', { does: { 'exit-after': '1s' } }))
      await pods.ready('complete')
      const { status } = await pods.until('completes', 'complete', (pod) => pod.status.phase === 'Succeeded')
      expect(status.containerStatuses[0].state.terminated).toMatchObject({ exitCode: 0, reason: 'Completed' })
    })
  })

  test('a node that falls silent is lost with its pods, and comes back', async () => {
    await pods.create(fakePod('stranded', { spec: { nodeName: 'gpu-0' } }))
    await pods.ready('stranded')
    await cluster.silenceNode('gpu-0')
    const pod = await pods.until('is deleted by the cluster', 'stranded', (p) => p.metadata.deletionTimestamp)
    // Nobody is there to end it: only the mark tells of its end.
    expect(pod.status.conditions).toContainEqual(
      expect.objectContaining({ type: 'DisruptionTarget', reason: 'DeletionByTaintManager' }),
    )
    expect(isReady(pod)).toBe(false)
    await cluster.reviveNode('gpu-0')
    await pods.gone('stranded')
  })

  test('a thousand pods become Ready, and go', async () => {
    const names = Array.from({ length: 1_000 }, (_, i) => `many-${i}`)
    // As many requests at once as a busy worker has.
    const makers = Array.from({ length: 20 }, async (_, maker) => {
      for (let i = maker; i < names.length; i += 20) await pods.create(fakePod(names[i]!))
    })
    await Promise.all(makers)
    // To read a thousand pods again and again would be most of the work.
    const others = `${pods.path}?fieldSelector=status.phase!%3DRunning&limit=1`
    await waitUntil('all run', async () => (await cluster.api.get(others)).items.length === 0, MANY_MS)
    const { items } = await cluster.api.get(pods.path)
    expect(items.filter(isReady)).toHaveLength(names.length)
    await pods.clear()
  })

  describe("the worker's account", () => {
    let worker: KubeApi
    beforeAll(async () => {
      worker = new KubeApi(await readKubeconfig(cluster.workerKubeconfigPath))
    })
    afterAll(() => worker?.close())

    test('manages pods of its namespace, and sees nothing else', async () => {
      await worker.post(pods.path, fakePod('of-worker'))
      await pods.ready('of-worker')
      await expect(worker.get('/api/v1/nodes')).rejects.toMatchObject({ code: 403 })
      await expect(worker.get('/api/v1/namespaces/default/pods')).rejects.toMatchObject({ code: 403 })
      await expect(worker.get(`/api/v1/namespaces/${cluster.namespace}/secrets`)).rejects.toMatchObject({
        code: 403,
      })
      await worker.delete(`${pods.path}/of-worker`)
      await pods.gone('of-worker')
    })

    test('has its requests counted, each once, and nobody else has', async () => {
      const before = (await cluster.requests()).length
      await worker.post(pods.path, fakePod('counted'))
      await pods.ready('counted')
      const { metadata } = await worker.get(pods.path)
      const watch = worker.watch(pods.path, metadata.resourceVersion, () => {})
      await worker.delete(`${pods.path}/counted`)
      const requests = await waitUntil('they are written down', async () => {
        const all = (await cluster.requests()).slice(before)
        return all.length >= 4 && all
      })
      watch.stop()
      await watch.ended
      expect(requests.map(({ verb }) => verb).sort()).toEqual(['create', 'delete', 'list', 'watch'])
      expect(requests.find(({ verb }) => verb === 'create')).toMatchObject({
        user: `system:serviceaccount:${cluster.namespace}:firepool-worker`,
        resource: 'pods',
        namespace: cluster.namespace,
        code: 201,
      })
    })
  })

  describe('the API server', () => {
    test('goes away and comes back with all that it knew', async () => {
      await pods.create(fakePod('survivor'))
      const { metadata } = await pods.ready('survivor')
      await cluster.apiServer.stop()
      await expect(cluster.api.get(pods.path)).rejects.toMatchObject({ code: 'ECONNREFUSED' })
      await cluster.apiServer.start()
      expect((await pods.find('survivor')).metadata.uid).toBe(metadata.uid)
      // Scheduler, controllers and kwok have found it again.
      await pods.create(fakePod('later'))
      await pods.ready('later')
    })

    test('freezes: a watch is silent and not ended, and then goes on', async () => {
      // A test that is run once more finds the pods of its first run.
      const [before, within] = ['before', 'within'].map((when) => `${when}-frost-${Date.now() % 100_000}`)
      const { metadata } = await cluster.api.get(pods.path)
      const seen: string[] = []
      const onEvent = ({ type, object }: KubeEvent) => seen.push(`${type} ${object.metadata?.name}`)
      const watch = cluster.api.watch(pods.path, metadata.resourceVersion, onEvent)
      let isOver = false
      watch.ended.then(() => {
        isOver = true
      })
      await pods.create(fakePod(before!))
      await waitUntil('it is seen', () => seen.includes(`ADDED ${before}`))
      let isAnswered = false
      let creation: Promise<void>
      cluster.apiServer.freeze()
      // What comes after this test needs an API server that answers.
      try {
        creation = pods.create(fakePod(within!)).then(() => {
          isAnswered = true
        })
        await new Promise((resolve) => setTimeout(resolve, 2_000))
        expect({ isOver, isAnswered }).toEqual({ isOver: false, isAnswered: false })
      } finally {
        cluster.apiServer.thaw()
      }
      await creation
      await waitUntil('it goes on', () => seen.includes(`ADDED ${within}`))
      watch.stop()
    })
  })

  describe('nothing is left', () => {
    test('when it is stopped', async () => {
      const other = await startControlPlane({ nodes: 1, gpusPerNode: 0 })
      expect(processesWith(other.folder).length).toBeGreaterThanOrEqual(5)
      await other.stop()
      expect(processesWith(other.folder)).toEqual([])
      expect(existsSync(other.folder)).toBe(false)
    })

    test('when who started it is killed, a frozen API server included', async () => {
      const holder = startScript(HOLD, [], { ...process.env, NODE_OPTIONS: '--import tsx' })
      await holder.until('stdout', '\n')
      const [folder] = (JSON.parse(holder.stdout()) as { folders: [string] }).folders
      const all = processesWith(folder)
      expect(all.length).toBeGreaterThanOrEqual(5)
      for (const pid of processesWith(`${folder}/audit.log`)) process.kill(pid, 'SIGSTOP')
      holder.kill('SIGKILL')
      await waitUntil('all of its processes are gone', () => processesWith(folder).length === 0)
      await waitUntil('its files are gone', () => !existsSync(folder))
    })

    test('when it could not start, and it says why', async () => {
      const parts = await obtainControlPlaneParts()
      await expect(
        startControlPlane({ parts: { ...parts, 'kube-apiserver': '/bin/false' } }),
      ).rejects.toThrow(/The API server ended early \(exit code 1\)/)
    })
  })
})
