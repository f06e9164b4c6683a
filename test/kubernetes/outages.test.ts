import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { ControlPlane } from '../support/control-plane.js'
import { WORKER_ACCOUNT } from '../support/control-plane-objects.js'
import { Observer, orderOf, QUICK, startCluster } from '../support/kubernetes-world.js'
import { clusterObstacle, orSkipped } from '../support/obstacles.js'
import { kubeconfigThrough, startStallingProxy } from '../support/stalling-proxy.js'
import { waitUntil } from '../support/wait.js'

/** An API server that is away, that is silent, that is flooded: nothing is lost, and nothing is reported that did not happen. */

const obstacle = await clusterObstacle()

describe.skipIf(obstacle)(orSkipped('outages', obstacle), () => {
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

  const podPath = (pod: string) => `/api/v1/namespaces/${cluster.namespace}/pods/${pod}-g1`

  async function readyPod(by = worker): Promise<string> {
    const order = orderOf()
    await by.backend.create([order])
    await by.ready(order.pod)
    return order.pod
  }

  test('an API server that is flooded (429) is waited for, and does not count as a failure of the pod', async () => {
    const flow = '/apis/flowcontrol.apiserver.k8s.io/v1'
    await cluster.api.post(`${flow}/prioritylevelconfigurations`, {
      apiVersion: 'flowcontrol.apiserver.k8s.io/v1',
      kind: 'PriorityLevelConfiguration',
      metadata: { name: 'nothing' },
      spec: {
        type: 'Limited',
        limited: {
          nominalConcurrencyShares: 0,
          // Else it borrows what others do not use, and on a quiet server that is everything.
          borrowingLimitPercent: 0,
          limitResponse: { type: 'Reject' },
        },
      },
    })
    await cluster.api.post(`${flow}/flowschemas`, {
      apiVersion: 'flowcontrol.apiserver.k8s.io/v1',
      kind: 'FlowSchema',
      metadata: { name: 'creates-of-the-worker' },
      spec: {
        priorityLevelConfiguration: { name: 'nothing' },
        matchingPrecedence: 2,
        rules: [
          {
            subjects: [
              {
                kind: 'ServiceAccount',
                serviceAccount: { name: WORKER_ACCOUNT, namespace: cluster.namespace },
              },
            ],
            resourceRules: [{ apiGroups: [''], resources: ['pods'], verbs: ['create'], namespaces: ['*'] }],
          },
        ],
      },
    })
    const flooded = async () =>
      (await cluster.requests()).filter(({ verb, code }) => verb === 'create' && code === 429)
    const orders: ReturnType<typeof orderOf>[] = []
    const creates: Promise<unknown>[] = []
    let answered = 0
    // The server takes its new rule when it has heard of it, and lets one at a time pass even then: many come at once.
    await waitUntil('creates are refused', async () => {
      if (creates.length === answered) {
        const burst = Array.from({ length: 20 }, () => orderOf())
        orders.push(...burst)
        for (const order of burst) creates.push(worker.backend.create([order]).finally(() => answered++))
      }
      return (await flooded()).length > 0
    })
    await cluster.api.delete(`${flow}/flowschemas/creates-of-the-worker`)
    expect(await Promise.all(creates)).toEqual(orders.map(({ pod }) => [{ pod }]))
    for (const { pod } of orders) await worker.ready(pod)
    await worker.backend.stopAll('kwok')
    await cluster.api.delete(`${flow}/prioritylevelconfigurations/nothing`)
  })

  test('an API server that is down: pods stand as they were, creates are tried again and then put off, and all is caught up', async () => {
    const [stays, goes] = [await readyPod(), await readyPod()]
    await cluster.apiServer.stop()
    const before = worker.seen.length
    const order = orderOf()
    // Longer than one effect tries: what a moment may mend is no failure of the pod.
    await expect(worker.backend.create([order])).rejects.toThrow(/ECONNREFUSED/)
    await expect(worker.backend.list('kwok')).rejects.toThrow()
    expect(worker.seen.slice(before)).toEqual([])
    expect(worker.backend.ageMs()).toBeGreaterThan(10_000)
    // Both begin before it is back.
    const both = Promise.all([worker.backend.remove([goes]), worker.backend.create([order])])
    // It is awaited below, when the server is there again.
    both.catch(() => undefined)
    await cluster.apiServer.start()
    expect(await both).toEqual([undefined, [{ pod: order.pod }]])
    await worker.ready(order.pod)
    await worker.until(goes, 'gone', ({ phase }) => phase === 'gone')
    expect(worker.seen.filter(({ pod }) => pod === stays).map(({ phase }) => phase)).not.toContain('gone')
    expect((await worker.backend.list('kwok')).map(({ pod }) => pod).sort()).toEqual(
      [stays, order.pod].sort(),
    )
    await worker.backend.remove([stays, order.pod])
  })

  test('an API server that hangs (SIGSTOP): its age says so, and what happened meanwhile is seen afterwards', async () => {
    const pod = await readyPod()
    cluster.apiServer.freeze()
    try {
      await waitUntil('it is noticed', () => worker.backend.ageMs() > QUICK.idleMs + 1_000)
    } finally {
      cluster.apiServer.thaw()
    }
    await cluster.api.delete(podPath(pod))
    await worker.until(pod, 'gone', ({ phase }) => phase === 'gone')
    await waitUntil('it is fresh again', () => worker.backend.ageMs() < QUICK.idleMs)
  })

  test('a watch that is silently dead is noticed by its silence', async () => {
    const proxy = await startStallingProxy(Number(new URL(cluster.url).port))
    const kubeconfig = await kubeconfigThrough(proxy.port, cluster.workerKubeconfigPath)
    const through = await Observer.open(kubeconfig)
    const pod = await readyPod(through)
    expect(proxy.stall()).toBeGreaterThan(0)
    await cluster.api.delete(podPath(pod))
    await through.until(pod, 'gone', ({ phase }) => phase === 'gone')
    const another = await readyPod(through)
    await through.backend.remove([another])
    through.close()
    await proxy.close()
  })
})
