import { readFileSync } from 'node:fs'
import { createServer } from 'node:http'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { createFirepoolClient, type Session } from '../../dist/client/index.js'
import { type ClusterWorld, makeClusterWorld, ON_PROCESSES } from '../support/cluster-world.js'
import type { ControlPlane } from '../support/control-plane.js'
import { GPU_DRIVER, resourceSliceObject } from '../support/control-plane-objects.js'
import type { KubeObject } from '../support/kube-api.js'
import { clusterObstacle, orSkipped } from '../support/obstacles.js'
import { type ProcessKubelet, startProcessKubelet } from '../support/process-kubelet.js'
import { waitUntil } from '../support/wait.js'
import type { PoolHandle } from '../support/world.js'

/**
 * Seat sets of a whole pool: claims that the real scheduler allocates; the GPUs are a driver's ResourceSlices and no more, and there is
 * no node agent: most jobs here need no GPU, and for one a scripted agent answers.
 */

const NODE = 'process-0'
/** No lease is recalled while a test looks at it. */
const SPEC = { budget: 8, standby: 1, keepAliveMs: 600_000 }

const obstacle = await clusterObstacle()

describe.skipIf(obstacle)(orSkipped('seat sets of a pool in a cluster', obstacle), () => {
  let world: ClusterWorld<ProcessKubelet>
  let pool: PoolHandle
  beforeAll(async () => {
    const startNodes = async (cluster: ControlPlane) => {
      await cluster.api.post('/apis/resource.k8s.io/v1/resourceslices', resourceSliceObject(NODE, 8))
      return startProcessKubelet(cluster, { nodes: [NODE] })
    }
    world = await makeClusterWorld(startNodes, { gpus: true, workerProcess: true })
  })
  afterAll(() => world?.close())

  const profile = (env: Record<string, string> = {}) => ({
    ...ON_PROCESSES,
    env,
    gpu: {
      ...{ provider: 'dra', deviceClass: GPU_DRIVER, count: 1, seatSet: 4, colocation: true },
      ...{ idle: 'park', duty: 0.2, agent: true },
    },
  })
  const firepool = () => createFirepoolClient({ client: world.client })
  const podOf = async (session: Session) =>
    (await session.run({ command: 'echo $FIREPOOL_POD', device: 'none' })).stdout.trim()

  /** The pods that are there, each with its set, its claim and the GPUs that the scheduler gave that. */
  async function seated(): Promise<Map<string, { set: string; claim: string; gpus: string[] }>> {
    const pods = await world.podsWith('pool', 'sets')
    const { api, namespace } = world.cluster
    const { items: claims } = await api.get(`/apis/resource.k8s.io/v1/namespaces/${namespace}/resourceclaims`)
    const gpusOf = new Map<string, string[]>(
      claims.map(({ metadata, status }: KubeObject) => [
        metadata.name,
        (status?.allocation?.devices.results ?? []).map(({ device }: { device: string }) => device),
      ]),
    )
    return new Map(
      pods
        .filter(({ metadata }: KubeObject) => metadata.deletionTimestamp === undefined)
        .map(({ metadata, spec }: KubeObject) => {
          const claim = spec.resourceClaims[0].resourceClaimName
          const set = metadata.labels['firepool.dev/seat-set']
          return [metadata.annotations['firepool.dev/pod'], { set, claim, gpus: gpusOf.get(claim)! }]
        }),
    )
  }

  test('pods of one tenant share the GPUs of a claim, those of another tenant have another claim', async () => {
    pool = await world.pool('sets', { ...SPEC, profile: profile() })
    const sessions = ['r1', 'r2', 'r3', 'r4', 'r5', 'b1'].map((caller) =>
      firepool().session('sets', { caller, tenant: caller.startsWith('r') ? 'red' : 'blue', ttl: '2m' }),
    )
    // More of red's than a set has seats: they take turns on it.
    const names: string[] = []
    for (const session of sessions) names.push(await podOf(session))
    const pods = await seated()
    const of = names.map((name) => pods.get(name)!)
    const [blue, ...red] = [of.at(-1)!, ...of.slice(0, -1)]
    expect(new Set(red.map(({ claim }) => claim)).size).toBe(1)
    expect(blue.claim).not.toBe(red[0]!.claim)
    expect(red[0]!.gpus).toHaveLength(4)
    expect(new Set([...red[0]!.gpus, ...blue.gpus]).size).toBe(8)
    const { seatSets, budget } = await pool.until('all are leased', ({ leases }) => leases === 6)
    expect(budget).toMatchObject({ held: 8, inForce: 8 })
    expect(seatSets).toMatchObject({ seats: 4, pods: 10, allowed: 2 })
    expect(seatSets!.rows.map(({ callers, tenants }) => ({ callers, tenants }))).toEqual([
      { callers: 5, tenants: ['red'] },
      { callers: 1, tenants: ['blue'] },
    ])
    for (const session of sessions) await session.end()
  })

  test('a new template takes the GPUs over, on a node that has no others', async () => {
    const changed = { standby: 2, keepAliveMs: 1_000, profile: profile({ RELEASE: '2' }) }
    const spec = { v: 1, name: 'sets', ...SPEC, ...changed }
    await pool.handle.signal('firepool.apply', spec)
    await pool.until(
      'it is rolled',
      (s) => s.generation === 2 && s.rollout === undefined && s.standby.ready === 2,
    )
    const session = firepool().session('sets', { caller: 'late', tenant: 'red', ttl: '1m' })
    expect((await session.run({ command: 'echo $RELEASE', device: 'none' })).stdout).toBe('2\n')
    await session.end()
  })

  test('a smaller budget gives the GPUs of a set back', async () => {
    await pool.handle.executeUpdate('firepool.resize', { args: [{ v: 1, budget: 4 }] })
    await waitUntil('one claim has GPUs', async () => {
      const sets = new Set([...(await seated()).values()].map(({ set }) => set))
      return sets.size === 1 && sets.has('0')
    })
    await firepool().deletePool('sets', { force: true })
    await waitUntil('no pod has GPUs', async () => (await seated()).size === 0)
  })

  test('a caller whose seat set is sick moves to another one with the job that finds it out', async () => {
    pool = await world.pool('sick', { ...SPEC, standby: 2, profile: profile() })
    await pool.until('each set has a standby', ({ standby }) => standby.ready === 2)
    const agents = await answerSeats((set) => set === '0')
    const session = firepool().session('sick', { caller: 'ann', ttl: '1m' })
    const { stdout } = await session.run({ command: 'echo $CUDA_VISIBLE_DEVICES' })
    expect(stdout).toBe('GPU-of-set-1\n')
    const { seatSets } = await pool.until(
      'what stood by on the sick set stands by on the other',
      (s) => s.standby.ready === 2 && s.seatSets!.rows.every(({ set }) => set === 1),
    )
    expect(seatSets?.sick).toEqual({ sets: [0], why: 'GPU-a quarantined (dirty). Elsewhere.' })
    expect(agents.asked).toEqual(['0', '1'])
    await session.end()
    agents.close()
  })

  /** Stands for the agent of the node in each pod that is there: refuses seats of a set that is sick, and grants others. */
  async function answerSeats(isSick: (set: string) => boolean) {
    const asked: string[] = []
    const error = { code: 'SeatSetSick', message: 'GPU-a quarantined (dirty)', remedy: 'Elsewhere' }
    const servers = await Promise.all(
      (await world.podsWith('pool', 'sick')).map(async ({ metadata }: KubeObject) => {
        const set = metadata.labels['firepool.dev/seat-set']
        const server = createServer((req, res) => {
          if (req.url === '/v1/seats') asked.push(set)
          const refuses = req.url === '/v1/seats' && isSick(set)
          const granted = { v: 1, seatEpoch: 1, uuids: [`GPU-of-set-${set}`], xids: [] }
          res.writeHead(refuses ? 503 : 200).end(JSON.stringify(refuses ? { v: 1, error } : granted))
        })
        await new Promise<void>((resolve) => server.listen(socketOf(metadata.name), resolve))
        return server
      }),
    )
    return { asked, close: () => servers.forEach((server) => void server.close()) }
  }

  /** Where the runner of a pod looks for its agent. */
  function socketOf(pod: string): string {
    for (const pid of world.nodes.pids(world.cluster.namespace, pod)) {
      const env = readFileSync(`/proc/${pid}/environ`, 'utf8').split('\0')
      const found = env.find((entry) => entry.startsWith('FIREPOOL_SEAT_SOCKET='))
      if (found) return found.slice(found.indexOf('=') + 1)
    }
    throw new Error(`pod ${pod} was not told where its agent is`)
  }
})
