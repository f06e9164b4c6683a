import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { createKubernetesBackend } from '../../dist/kubernetes/index.js'
import { generateKeys } from '../../dist/token/token.js'
import type { ControlPlane } from '../support/control-plane.js'
import { Observer, orderOf, startCluster } from '../support/kubernetes-world.js'
import { clusterObstacle, orSkipped } from '../support/obstacles.js'
import { waitUntil } from '../support/wait.js'

/** Pods through the port, on a real API server, scheduler and controller manager; kwok plays the nodes. */

const obstacle = await clusterObstacle()

describe.skipIf(obstacle)(orSkipped('pods of a cluster', obstacle), () => {
  let cluster: ControlPlane
  let worker: Observer
  beforeAll(async () => {
    cluster = await startCluster()
    worker = await Observer.open(cluster.workerKubeconfigPath)
  })
  afterAll(async () => {
    worker?.close()
    await cluster?.stop()
  })

  const podsPath = () => `/api/v1/namespaces/${cluster.namespace}/pods`
  const podOf = (pod: string, generation = 1) => cluster.api.get(`${podsPath()}/${pod}-g${generation}`)
  const count = async (pool: string) =>
    (await cluster.api.get(`${podsPath()}?labelSelector=firepool.dev%2Fpool%3D${pool}`)).items.length

  /** Orders one pod. @returns its name, and the problem when it was refused */
  async function create(order: ReturnType<typeof orderOf>, by = worker) {
    const [created] = await by.backend.create([order])
    return created!
  }

  test('a pod is created, becomes ready, is seen by another worker that starts later, and is removed', async () => {
    const order = orderOf()
    expect(await create(order)).toEqual({ pod: order.pod })
    expect(await worker.ready(order.pod)).toMatchObject({ generation: 1, incarnation: 'kwok' })

    const later = await Observer.open(cluster.workerKubeconfigPath)
    expect((await later.backend.list('kwok')).map(({ pod }) => pod)).toEqual([order.pod])
    expect(await later.ready(order.pod)).toEqual(worker.last(order.pod))

    await later.backend.remove([order.pod])
    expect(await count('kwok')).toBe(0)
    for (const by of [worker, later]) await by.until(order.pod, 'gone', ({ phase }) => phase === 'gone')
    // Once more is as good.
    await worker.backend.remove([order.pod, 'never-was'])
    expect(await worker.backend.list('kwok')).toEqual([])
    later.close()
  })

  test('a create that comes again, from whichever worker, makes one pod', async () => {
    const order = orderOf({}, { pool: 'again' })
    const other = await Observer.open(cluster.workerKubeconfigPath)
    const created = await Promise.all([
      create(order),
      create(order),
      create(order, other),
      create(order, other),
    ])
    expect(created).toEqual([0, 1, 2, 3].map(() => ({ pod: order.pod })))
    expect(await count('again')).toBe(1)
    await worker.backend.remove([order.pod])
    other.close()
  })

  test('a pod of that name that is not ours is left alone, and named', async () => {
    const order = orderOf()
    await cluster.api.post(podsPath(), {
      apiVersion: 'v1',
      kind: 'Pod',
      metadata: { name: `${order.pod}-g1` },
      spec: { containers: [{ name: 'a', image: 'registry.test/none:1' }] },
    })
    expect(await create(order)).toMatchObject({ problem: { reason: 'NameTaken' } })
    await worker.backend.remove([order.pod])
    expect((await podOf(order.pod)).metadata.deletionTimestamp).toBeUndefined()
    await cluster.api.delete(`${podsPath()}/${order.pod}-g1`)
  })

  test('two deployments in one namespace do not see each other', async () => {
    const { publicKeyBase64 } = generateKeys()
    const theirs = await Observer.open(cluster.workerKubeconfigPath, { brokerPublicKey: publicKeyBase64 })
    const order = orderOf()
    await create(order, theirs)
    await theirs.ready(order.pod)
    await worker.backend.remove([order.pod])
    expect(await worker.backend.list('kwok')).toEqual([])
    expect(worker.last(order.pod)).toBeUndefined()
    expect(await theirs.backend.stopAll()).toBe(1)
    theirs.close()
  })

  test('whom a pod serves stands on it, the last lease of many, and no job is a request', async () => {
    const order = orderOf()
    await create(order)
    await worker.ready(order.pod)
    for (const epoch of [1, 2, 3])
      worker.backend.annotate(order.pod, { leaseId: `lease-${epoch}`, epoch, caller: 'agent-7' })
    const { annotations } = await waitUntil('the note', async () => {
      const { metadata } = await podOf(order.pod)
      return metadata.annotations['firepool.dev/epoch'] === '3' && metadata
    })
    expect(annotations).toMatchObject({ 'firepool.dev/lease': 'lease-3', 'firepool.dev/caller': 'agent-7' })
    await worker.backend.remove([order.pod])
  })

  describe('the anchor of a pool', () => {
    const anchors = async () =>
      (await cluster.api.get(`/api/v1/namespaces/${cluster.namespace}/configmaps`)).items.filter(
        ({ metadata }: { metadata: { name: string } }) => metadata.name.startsWith('firepool-anchored'),
      )

    test('takes its pods along when somebody deletes it, and the next create makes another', async () => {
      const watching = await Observer.open(cluster.workerKubeconfigPath, {}, ['anchored'])
      const order = orderOf({}, { pool: 'anchored' })
      await create(order, watching)
      await watching.ready(order.pod)
      const [anchor] = await anchors()
      await cluster.api.delete(`/api/v1/namespaces/${cluster.namespace}/configmaps/${anchor.metadata.name}`)
      await watching.until(order.pod, 'gone', ({ phase }) => phase === 'gone')
      // What a worker trusts for a moment is found out in the end: a pod of the old anchor would be taken away again.
      const next = orderOf({}, { pool: 'anchored' })
      const fresh = await Observer.open(cluster.workerKubeconfigPath, {}, ['anchored'])
      await create(next, fresh)
      await fresh.ready(next.pod)
      const [again] = await anchors()
      expect(again.metadata.uid).not.toBe(anchor.metadata.uid)
      await fresh.backend.remove([next.pod])
      for (const observer of [watching, fresh]) observer.close()
    })

    test('goes when the pool has ended', async () => {
      await worker.backend.forget('anchored')
      expect(await anchors()).toEqual([])
      await worker.backend.forget('anchored')
    })
  })

  test('an image is pulled ahead once for each generation, where its pods may run', async () => {
    const path = `/apis/apps/v1/namespaces/${cluster.namespace}/daemonsets`
    const order = (generation: number, image: string) =>
      orderOf({}, { pool: 'pulled', generation, profile: { prePull: true, image } })
    await create(order(1, 'registry.test/a:1'))
    const image = (is: string) =>
      waitUntil(`image ${is}`, async () => {
        const { items } = await cluster.api.get(path)
        return items.length === 1 && items[0].spec.template.spec.containers[0].image === is && items[0]
      })
    const pulling = await image('registry.test/a:1')
    expect(pulling.spec.template.spec.nodeSelector).toEqual(order(1, 'a').profile.template.spec?.nodeSelector)
    await create(order(2, 'registry.test/a:2'))
    await image('registry.test/a:2')
    // One that is late does not pull the old one again; what pulls is no pod of the pool.
    const late = await Observer.open(cluster.workerKubeconfigPath)
    await create(order(1, 'registry.test/a:1'), late)
    expect(await late.backend.list('pulled')).toHaveLength(3)
    await image('registry.test/a:2')
    expect(worker.lines.filter((line) => line.includes('pulled ahead'))).toEqual([])
    await worker.backend.stopAll('pulled')
    await worker.backend.forget('pulled')
    late.close()
  })

  describe('what the API server refuses has a name, and a remedy', () => {
    test('a field that the API server does not know', async () => {
      const { problem } = await create(orderOf({}, { spec: { nodeSelectr: { a: 'b' } } }))
      expect(problem).toMatchObject({ reason: 'InvalidPod' })
      expect(problem?.message).toContain('nodeSelectr')
    })

    test('a pod that contradicts itself', async () => {
      const spec = { containers: [{ name: 'runner', volumeMounts: [{ name: 'none', mountPath: '/x' }] }] }
      const { problem } = await create(orderOf({}, { spec }))
      expect(problem).toMatchObject({ reason: 'InvalidPod' })
      expect(problem?.message).toContain('volumeMounts')
    })

    test('another namespace than the worker serves; one that is missing', async () => {
      const elsewhere = orderOf({}, { profile: { namespace: 'elsewhere' } })
      expect(await create(elsewhere)).toMatchObject({ problem: { reason: 'NamespaceNotServed' } })
      const admin = await Observer.open(cluster.kubeconfigPath, { namespaces: ['elsewhere'] })
      const { problem } = await create(elsewhere, admin)
      expect(problem).toMatchObject({ reason: 'NamespaceMissing' })
      expect(problem?.message).toMatch(/create the namespace in namespace elsewhere|create the namespace/)
      admin.close()
    })

    test('a right that is missing: which verb on which resource', async () => {
      const order = orderOf({}, { profile: { namespace: 'default' } })
      const foreign = await Observer.open(cluster.workerKubeconfigPath, { namespaces: ['default'] })
      const { problem } = await create(order, foreign)
      expect(problem).toMatchObject({ reason: 'Forbidden' })
      expect(problem?.message).toMatch(
        /may not get configmaps in namespace default; give its role the verb "get" on "configmaps"/,
      )
      await expect(foreign.backend.list('kwok')).rejects.toThrow(/may not list pods in namespace default/)
      await waitUntil('its log says so', () =>
        foreign.lines.some((line) => /pods cannot be watched.*403 Forbidden/.test(line)),
      )
      foreign.close()
    })

    test('an order of another backend', async () => {
      const order = { ...orderOf(), profile: { ...orderOf().profile, backend: 'local' } as never }
      expect(await create(order)).toMatchObject({ problem: { reason: 'BackendNotServed' } })
    })

    test('a quota that is exceeded', async () => {
      const path = `/api/v1/namespaces/${cluster.namespace}/resourcequotas`
      await cluster.api.post(path, {
        apiVersion: 'v1',
        kind: 'ResourceQuota',
        metadata: { name: 'none' },
        spec: { hard: { pods: '0' } },
      })
      // The API server takes a moment to look at a new quota.
      const problem = await waitUntil(
        'the quota is in force',
        async () => (await create(orderOf())).problem ?? null,
      )
      expect(problem).toMatchObject({ reason: 'QuotaExceeded' })
      expect(problem.message).toMatch(/exceeded quota: none.*raise the quota/)
      await cluster.api.delete(`${path}/none`)
      await waitUntil('pods are allowed again', async () => (await create(orderOf())).problem === undefined)
      await worker.backend.stopAll('kwok')
    })
  })

  test('settings that lead nowhere are named before anything starts', async () => {
    const open = (options: object) => createKubernetesBackend({ brokerPublicKey: 'x', ...options })
    await expect(open({ kubeconfig: '/nowhere/config' })).rejects.toThrow(
      /kubeconfig \/nowhere\/config cannot be read/,
    )
    await expect(open({ kubeconfig: cluster.kubeconfigPath, context: 'nobody' })).rejects.toThrow(
      /no context 'nobody'/,
    )
  })
})
