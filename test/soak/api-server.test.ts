/** An API server that is away for a whole minute, longer than anything of ours waits for it: nobody who has a pod notices. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { createFirepoolClient } from '../../dist/client/index.js'
import type { ObservedPod } from '../../dist/contract/index.js'
import type { KubernetesBackend } from '../../dist/kubernetes/index.js'
import { type ClusterWorld, makeClusterWorld, ON_PROCESSES } from '../support/cluster-world.js'
import { clusterObstacle, orSkipped } from '../support/obstacles.js'
import { type ProcessKubelet, startProcessKubelet } from '../support/process-kubelet.js'
import { waitUntil } from '../support/wait.js'

const OUTAGE_MS = 60_000

const obstacle = await clusterObstacle()

describe.skipIf(obstacle)(orSkipped('an API server that is away for a minute', obstacle), () => {
  let world: ClusterWorld<ProcessKubelet>
  beforeAll(async () => {
    world = await makeClusterWorld(startProcessKubelet)
  })
  afterAll(() => world?.close())

  test('a job runs through it, warm jobs are served in it, a lease asked for in it comes after it; no pod is lost', async () => {
    const { cluster } = world
    const spec = { budget: 3, standby: 0, keepAliveMs: 600_000, profile: ON_PROCESSES }
    const pool = await world.pool('outage', spec)
    const session = (caller: string) =>
      createFirepoolClient({ client: world.client }).session('outage', { caller, ttl: '10m' })
    const [long, warm, late] = [session('long'), session('warm'), session('late')]
    const podOf = async (of: typeof long) => (await of.run({ command: 'echo $FIREPOOL_POD' })).stdout.trim()
    const pods = [await podOf(long), await podOf(warm)]
    const through = long.run({ command: `sleep ${OUTAGE_MS / 1_000 + 5}; echo $FIREPOOL_POD` })

    const seen: ObservedPod[] = []
    const stopWatch = world.backend!.watch('outage', (pod) => seen.push(pod))
    await cluster.apiServer.stop()
    // It would end by itself in a real cluster, where it loses its lease.
    await cluster.controllerManager.stop()
    const from = performance.now()
    // A third seat: its pod cannot be ordered now, which is no failure of a pod.
    const asked = podOf(late)
    await waitUntil('a minute is over', async () => {
      expect(await podOf(warm)).toBe(pods[1])
      return performance.now() - from > OUTAGE_MS
    })
    expect((world.backend as KubernetesBackend).ageMs()).toBeGreaterThan(OUTAGE_MS - 5_000)
    const during = await pool.status()
    expect(during).toMatchObject({ leases: 2, breaker: { failures: 0 } })

    await cluster.apiServer.start()
    cluster.controllerManager.start()
    expect((await through).stdout.trim()).toBe(pods[0])
    expect(pods).not.toContain(await asked)
    expect(seen.filter(({ phase }) => phase === 'failed' || phase === 'gone')).toEqual([])
    expect(await podOf(warm)).toBe(pods[1])
    await waitUntil('the pods are known again', () => (world.backend as KubernetesBackend).ageMs() < 30_000)
    expect(await pool.status()).toMatchObject({ leases: 3, podsCreated: 3, breaker: { failures: 0 } })
    stopWatch()
    for (const held of [long, warm, late]) await held.end()
  })
})
