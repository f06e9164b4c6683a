import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type Connection, connectToCluster, type WatchEvent } from '../../src/kubernetes/connection.js'
import { ListWatch } from '../../src/kubernetes/list-watch.js'
import { Requests } from '../../src/kubernetes/requests.js'
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

  // From here on it goes away: who watches it asks again at longer and longer intervals.
  test('an API server that is down: pods stand as they were, creates are tried again and then put off, and all is caught up', async () => {
    const [stays, goes] = [await readyPod(), await readyPod()]
    await cluster.apiServer.stop()
    const before = worker.seen.length
    const order = orderOf()
    // Longer than one effect tries: what a moment may mend is no failure of the pod.
    await Promise.all([
      expect(worker.backend.create([order])).rejects.toThrow(/ECONNREFUSED/),
      expect(worker.backend.list('kwok')).rejects.toThrow(),
    ])
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

  test('a worker that starts with its API server waits for the roles to be read: no right is said to be missing', async () => {
    await cluster.apiServer.stop()
    const early = await Observer.open(cluster.workerKubeconfigPath, { timing: { ...QUICK, rightMs: 10_000 } })
    try {
      const said = new Set<string>()
      const order = orderOf()
      // It asks from the first moment on; the creates that come too early for any answer are tried again, as its effects are.
      const created = waitUntil('its pod is created', async () => {
        said.add(early.backend.problem() ?? '')
        const [answer] = await early.backend.create([order]).catch(() => [undefined])
        if (answer?.problem) said.add(answer.problem.message)
        return answer !== undefined
      })
      await Promise.all([cluster.apiServer.start(), created])
      await waitUntil('it lists its pods', () => early.backend.problem() === null)
      expect([...said].filter((text) => text.includes('may not'))).toEqual([])
      expect(early.lines.filter((line) => line.includes('403'))).toEqual([])
      await early.backend.remove([order.pod])
    } finally {
      early.close()
    }
  })

  describe('what was forgotten meanwhile (410)', () => {
    const maps = () => `/api/v1/namespaces/${cluster.namespace}/configmaps`
    const makeMap = (name: string) => cluster.api.post(maps(), { metadata: { name, labels: { of: 'gone' } } })

    /** A worker's list whose first watch has a gap: it begins from where the list was, after what `meanwhile` did. */
    async function afterGap(meanwhile: () => Promise<unknown>) {
      const real = await connectToCluster({ kubeconfig: cluster.kubeconfigPath })
      const [seen, from, lines] = [[] as string[], [] as string[], [] as string[]]
      let isFirst = true
      const connection: Connection = {
        namespace: cluster.namespace,
        send: (call) => real.send(call),
        async watch(path, query, options) {
          // The end that every watch has after a while, a long while before the next one begins.
          if (isFirst) {
            isFirst = false
            await meanwhile()
            return null
          }
          from.push(query.resourceVersion ?? '')
          return real.watch(path, query, options)
        },
        reset: () => real.reset(),
        close: () => real.close(),
      }
      const options = {
        resource: 'configmaps',
        namespace: cluster.namespace,
        path: maps(),
        selector: 'of=gone',
      }
      const list = new ListWatch(
        connection,
        new Requests(connection),
        { ...options, ...QUICK, log: (line) => lines.push(line) },
        {
          changed: ({ metadata }) => seen.push(`+${metadata.name}`),
          gone: ({ metadata }) => seen.push(`-${metadata.name}`),
        },
      ).start()
      const close = () => {
        list.stop()
        real.close()
      }
      return { seen, from, lines, close }
    }

    test('at the start of a watch: it lists anew and tells what went and what came', async () => {
      await makeMap('goes')
      const world = await afterGap(async () => {
        await cluster.api.delete(`${maps()}/goes`)
        await makeMap('came')
        await cluster.compact()
        // It has what changed lately in memory, and would serve a watch from before.
        await cluster.apiServer.stop()
        await cluster.apiServer.start()
      })
      await waitUntil('it has caught up', () => world.seen.includes('+came'))
      expect(world.seen).toEqual(['+goes', '-goes', '+came'])
      await waitUntil('it watches again', () => world.from.length > 1)
      const [before, after] = world.from
      expect(Number(after)).toBeGreaterThan(Number(before))
      await cluster.api.delete(`${maps()}/came`)
      await waitUntil('and hears what happens', () => world.seen.includes('-came'))
      expect(world.lines).toEqual([])
      world.close()
    })

    test('by the real server: a watch from before is told so inside of its stream, a page of a list by its status', async () => {
      await makeMap('first')
      await makeMap('second')
      const path = `${maps()}?limit=1&labelSelector=of%3Dgone`
      const { metadata } = await cluster.api.get(path)
      await cluster.api.delete(`${maps()}/second`)
      await cluster.compact()
      await cluster.apiServer.stop()
      await cluster.apiServer.start()
      const events: WatchEvent[] = []
      const real = await connectToCluster({ kubeconfig: cluster.kubeconfigPath })
      const query = { resourceVersion: metadata.resourceVersion, timeoutSeconds: '5' }
      const signal = new AbortController().signal
      const ended = await real.watch(maps(), query, {
        idleMs: 10_000,
        signal,
        onEvent: (e) => events.push(e),
      })
      // As an event of the stream, after HTTP 200.
      expect({ ended, events }).toMatchObject({
        ended: null,
        events: [{ type: 'ERROR', object: { code: 410 } }],
      })
      const next = `${path}&continue=${encodeURIComponent(metadata.continue)}`
      await expect(cluster.api.get(next)).rejects.toThrow(/410 Expired/)
      await cluster.api.delete(`${maps()}/first`)
      real.close()
    })
  })
})
