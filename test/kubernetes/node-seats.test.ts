import { cp } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest'
import { SEAT_VOLUME } from '../../dist/contract/index.js'
import { processesWith } from '../support/cli.js'
import { type ClusterWorld, makeClusterWorld } from '../support/cluster-world.js'
import { IMAGE } from '../support/container-image.js'
import type { ControlPlane } from '../support/control-plane.js'
import { GPU_DRIVER, GPU_RESOURCE, PLAYED_BY } from '../support/control-plane-objects.js'
import type { KubeObject } from '../support/kube-api.js'
import { Pods, podObject } from '../support/kube-pods.js'
import { deviceName, type NodeAgent, startNodeAgent } from '../support/node-agent.js'
import { orSkipped, realNodeObstacle } from '../support/obstacles.js'
import { type RealNode, startRealNode } from '../support/real-node.js'
import { RESTRICTED } from '../support/runner-pod.js'
import { type PoolHandle, waitUntil } from '../support/world.js'

/**
 * Pools whose pods have seats from the node agent: a real kubelet with containerd, real containers in a namespace under Pod Security
 * `restricted`, the real agent with the kernel's identity, a real broker. FAKE are the GPUs and their driver (test/support/node-agent.ts).
 */

const obstacle = await realNodeObstacle()

/** One GPU that two pods share, and a set of eight. */
const ONE = 0
const SET = [1, 2, 3, 4, 5, 6, 7, 8]
/** As the agent makes a fake device. */
const EMPTY_BYTES = 4 * 2 ** 20
/** The image's busybox has no flock: containers get the machine's, beside their devices. */
const FLOCK = 'flock'
const RUNTIMES = { 'one-gpu': [deviceName(ONE), FLOCK], 'eight-gpus': [...SET.map(deviceName), FLOCK] }

describe.skipIf(obstacle)(orSkipped('seats on a real node', obstacle), () => {
  let world: ClusterWorld<RealNode>
  let agent: NodeAgent
  let pair: PoolHandle
  let device: string
  let flock: string

  async function startNode(cluster: ControlPlane): Promise<RealNode> {
    await cluster.api.patch(`/api/v1/namespaces/${cluster.namespace}`, {
      metadata: { labels: { 'pod-security.kubernetes.io/enforce': 'restricted' } },
    })
    const node = await startRealNode(cluster, { gpus: 16, runtimes: RUNTIMES })
    agent = await startNodeAgent(cluster, node, { gpus: 1 + SET.length })
    return node
  }
  beforeAll(async () => {
    world = await makeClusterWorld(startNode, { gpus: true })
    device = agent.device(ONE)
    flock = join(dirname(device), FLOCK)
    await cp('/usr/bin/flock', flock, { dereference: true })
    pair = await world.pool('pair', { budget: 3, standby: 1, profile: profile('one-gpu') })
  })
  afterAll(async () => {
    await world?.close()
    agent?.close()
  })

  const TIME_SLICE = { provider: 'time-slicing', resource: GPU_RESOURCE, colocation: true }

  function profile(runtimeClassName: string, gpu: object = TIME_SLICE) {
    const resources = { requests: { cpu: '10m', memory: '64Mi' } }
    return {
      backend: 'kubernetes',
      image: IMAGE.node,
      gpu: { agent: true, ...('colocation' in gpu ? { idle: 'park' } : {}), ...gpu },
      template: {
        spec: {
          nodeSelector: { [PLAYED_BY.label]: PLAYED_BY.kubelet },
          runtimeClassName,
          containers: [{ name: 'runner', resources }],
        },
      },
    }
  }

  const callers: Caller[] = []
  interface Caller {
    handle: Awaited<ReturnType<ClusterWorld<RealNode>['start']>>
    job(command: string, more?: object): Promise<void>
    /** what became of its jobs, results and problems */
    ran(count: number): Promise<KubeObject[]>
    pod(): Promise<KubeObject>
  }

  async function caller(name: string, pool: PoolHandle = pair): Promise<Caller> {
    const handle = await world.start('holder', [{ pool: pool.name, caller: name }])
    const ran = () => handle.query<KubeObject[]>('ran')
    const one: Caller = {
      handle,
      job: (command, more = {}) => handle.signal('job', { command, ...more }),
      async ran(count) {
        let last: KubeObject[] = []
        return await waitUntil(`${name} has ${count} outcomes, has ${JSON.stringify(last)}`, async () => {
          last = await ran()
          return last.length >= count ? last : null
        })
      },
      async pod() {
        const { leased } = await pool.until(`${name} has a pod`, (s) =>
          s.leased.some((lease) => lease.caller === name),
        )
        const { pod } = leased.find((lease) => lease.caller === name)!
        return (await world.podsWith('pod', pod))[0]!
      },
    }
    callers.push(one)
    return one
  }
  /** What the driver says is in use of the shared GPU. */
  const use = (bytes: number) =>
    agent.describe(ONE, (gpu) => {
      gpu.used.bytes = bytes
    })
  afterEach(async () => {
    if (agent) await use(EMPTY_BYTES)
    for (const { handle } of callers.splice(0)) await handle.terminate().catch(() => undefined)
    await agent?.until('all seats are given back', (s) => s.gpus.every(({ phase }) => phase === 'free'))
    await pair?.until('nobody holds a pod', (s) => s.leases === 0)
  })

  /** Who has this lock is alone on the device: it is the kernel's, and goes with the last process that has the file open. */
  const lock = (path = device) => `exec 3<${path}; ${flock} -n 3 || { echo not alone; exit 9; }`
  const HOLD = () => `${lock()}; exec sleep 600`
  const ALONE = () => `${lock()}; echo alone on $CUDA_VISIBLE_DEVICES`
  const alone = () => `alone on ${agent.uuid(ONE)}\n`
  /** Leaves a process in a session of its own whose parent is gone, with the device. */
  const leaves = (mark: string) =>
    `export MARK=${mark}; setsid sh -c '${lock()}; echo > left; exec sleep 600' > /dev/null 2>&1 & until [ -e left ]; do sleep 0.01; done; rm left`

  const heldBy = (pod: KubeObject) =>
    agent.until(`${pod.metadata.name} has its seat`, (s) => s.gpus[ONE]!.pod === pod.metadata.uid)
  const waits = () => agent.until('somebody waits for a seat', (s) => s.waiting === 1)

  /** What a pod's own socket says, asked from inside of its container. */
  async function stand(pod: KubeObject): Promise<KubeObject> {
    const [{ containerID }] = pod.status.containerStatuses
    const ask = `require('http').get({ socketPath: process.env.FIREPOOL_SEAT_SOCKET, path: '/v1/seats' }, (r) => r.pipe(process.stdout))`
    return JSON.parse(await world.nodes.exec(containerID.replace('containerd://', ''), ['node', '-e', ask]))
  }

  test('a standby and a parked pod are verified to be on no GPU, whoever is on it', async () => {
    const standby = (await world.podsWith('pool', 'pair'))[0]!
    expect(standby.spec.volumes.at(-1)).toMatchObject({ name: SEAT_VOLUME, csi: { readOnly: true } })
    const off = { zeroVram: 'yes', held: null, tenant: 'pair' }
    expect(await stand(standby)).toMatchObject({ ...off, pod: standby.metadata.uid })
    const a = await caller('a')
    await a.job('echo $CUDA_VISIBLE_DEVICES')
    expect((await a.ran(1))[0]!.result.stdout).toBe(`${agent.uuid(ONE)}\n`)
    const parked = await a.pod()
    expect(await stand(parked)).toMatchObject(off)
    const b = await caller('b')
    await b.job(HOLD())
    const holder = await b.pod()
    await heldBy(holder)
    await waitUntil('the holder is seen on its GPU', async () => (await stand(holder)).zeroVram === 'no')
    expect(await stand(parked)).toMatchObject(off)
  })

  test('a promotion: the holder is drained, its GPU is released, and only then the job of the other pod begins', async () => {
    const [a, b] = [await caller('a'), await caller('b')]
    await a.job(HOLD())
    await heldBy(await a.pod())
    await b.job(ALONE())
    await waits()
    await a.handle.terminate()
    expect((await b.ran(1))[0]!.result.stdout).toBe(alone())
  })

  test('a holder that ignores SIGTERM is killed, and then the other one begins', async () => {
    const after = { command: 'true', device: 'none' }
    const long = { command: `trap '' TERM; ${HOLD()}` }
    const a = await world.start<{ heard: string }>('cancelWhenTold', [{ pool: 'pair', long, after }])
    await agent.until('the seat is held', (s) => s.gpus[ONE]!.phase === 'held')
    const b = await caller('b')
    await b.job(ALONE())
    await waits()
    await a.signal('finish')
    expect((await b.ran(1))[0]!.result.stdout).toBe(alone())
    expect((await a.result()).heard).toBe('the cancel')
  })

  test('a double-forked grandchild that keeps the device open is killed before the next grant', async () => {
    const [a, b] = [await caller('a'), await caller('b')]
    await a.job(leaves('left-behind'))
    expect((await a.ran(1))[0]!.result.exitCode).toBe(0)
    expect(processesWith('left-behind')).toHaveLength(1)
    await b.job(ALONE())
    expect((await b.ran(1))[0]!.result.stdout).toBe(alone())
    expect(processesWith('left-behind')).toEqual([])
    expect((await agent.status()).counts.killed).toBeGreaterThan(0)
  })

  test('an agent that is killed in the middle of a handover goes on with it', async () => {
    const [a, b] = [await caller('a'), await caller('b')]
    await a.job(leaves('of-a-handover'))
    await a.ran(1)
    const [before] = (await agent.until('it is being verified', (s) => s.gpus[ONE]!.phase === 'verifying'))
      .gpus
    expect(before!.why).toContain('of the former job lives')
    await agent.kill()
    await b.job(ALONE())
    expect(processesWith('of-a-handover')).toHaveLength(1)
    await agent.start()
    expect((await b.ran(1))[0]!.result.stdout).toBe(alone())
    expect(processesWith('of-a-handover')).toEqual([])
  })

  test('memory that stays: the GPU is quarantined by name, who waits hears SeatUnavailable, and it comes back when it is empty', async () => {
    const [a, b] = [await caller('a'), await caller('b')]
    await a.job(HOLD())
    await heldBy(await a.pod())
    await use(EMPTY_BYTES + 2 ** 30)
    await b.job(ALONE())
    await waits()
    await a.handle.terminate()
    const [problem] = await b.ran(1)
    expect(problem).toMatchObject({ code: 'SeatUnavailable', details: { reason: 'SeatSetSick' } })
    expect(problem!.message).toContain('GPU-fake-0 quarantined (dirty: 1028 MiB are in use')
    expect((await agent.gpu(ONE)).quarantine).toMatchObject({ reason: 'dirty' })
    await use(EMPTY_BYTES)
    await agent.until('the GPU is well', (s) => s.gpus[ONE]!.phase === 'free')
    await b.job(ALONE())
    expect((await b.ran(2))[1]!.result.stdout).toBe(alone())
  })

  test('a pod that asks by the socket of another is refused: who it is, is the word of the kernel', async () => {
    const victim = (await world.podsWith('pool', 'pair'))[0]!
    const { cluster } = world
    await cluster.api.post('/api/v1/namespaces', {
      apiVersion: 'v1',
      kind: 'Namespace',
      metadata: { name: 'privileged' },
    })
    await waitUntil('it has an account', async () =>
      cluster.api.get('/api/v1/namespaces/privileged/serviceaccounts/default').then(Boolean, () => false),
    )
    // Under `restricted` nobody gets at that folder: this one has it from the node.
    const script = `require('http').get({ socketPath: '${agent.podsFolder}/${victim.metadata.uid}/agent.sock', path: '/v1/seats' }, (r) => r.pipe(process.stdout))`
    const pods = new Pods(cluster.api, 'privileged')
    await pods.create(
      podObject('thief', PLAYED_BY.kubelet, {
        spec: {
          volumes: [
            { name: 'sockets', hostPath: { path: agent.podsFolder } },
            { name: SEAT_VOLUME, csi: { driver: 'node.firepool.dev', readOnly: true } },
          ],
        },
        container: {
          image: IMAGE.node,
          imagePullPolicy: 'Never',
          command: ['node', '-e', script],
          securityContext: RESTRICTED,
          volumeMounts: [
            { name: 'sockets', mountPath: agent.podsFolder },
            { name: SEAT_VOLUME, mountPath: '/run/own' },
          ],
        },
      }),
    )
    await pods.until('has ended', 'thief', (pod) => pod.status.phase === 'Succeeded')
    expect(JSON.parse(await cluster.api.text(`${pods.path}/thief/log`)).error).toMatchObject({
      code: 'IdentityMismatch',
    })
  })

  test('a request for eight GPUs is served among pods that park on one each', async () => {
    const three = { budget: 3, standby: 3, maxPods: 3, profile: profile('eight-gpus') }
    const all = { provider: 'dra', deviceClass: GPU_DRIVER, count: 8 }
    const [parkers, eight] = await Promise.all([
      world.pool('parkers', three),
      world.pool('eight', { budget: 1, standby: 1, maxPods: 1, profile: profile('eight-gpus', all) }),
    ])
    const loops = await Promise.all(['p', 'q', 'r'].map((name) => caller(name, parkers)))
    const paths = SET.map((minor) => agent.device(minor))
    const take = `for d in ${paths.join(' ')}; do case $CUDA_VISIBLE_DEVICES in *-\${d##*nvidia}) exec 4<$d; ${flock} -n 4 || echo shared; esac; done; sleep 0.7`
    for (const loop of loops) for (let n = 0; n < 8; n++) await loop.job(take)
    await agent.until('GPUs are held', (s) => s.gpus.some(({ phase }) => phase === 'held'))
    const large = await caller('large', eight)
    const every = paths.map((path, i) => `exec ${i + 3}<${path}; ${flock} -n ${i + 3} || echo shared`)
    await large.job(`${every.join('; ')}; echo $CUDA_VISIBLE_DEVICES`)
    const [{ result }] = (await large.ran(1)) as [KubeObject]
    expect(result.stdout.trim().split(',').sort()).toEqual(SET.map((minor) => agent.uuid(minor)).sort())
    // It holds them until its lease ends.
    await large.handle.terminate()
    for (const loop of loops) {
      const outcomes = await loop.ran(8)
      expect(outcomes.map((each) => each.result?.stdout ?? each.code)).toEqual(Array(8).fill(''))
    }
  })

  test('a job that opens the device without a grant is killed, and its pod ends: the next job is on another one', async () => {
    const a = await caller('thief')
    await a.job(`exec 3<${device}; exec sleep 600`, { device: 'none' })
    expect((await a.ran(1))[0]!.result).toMatchObject({ signal: 'SIGKILL' })
    const { uid, name } = (await a.pod()).metadata
    await a.job(ALONE())
    const next = (await a.ran(2))[1]!.result
    expect(next.stdout).toBe(alone())
    expect(`${next.pod}-g1`).not.toBe(name)
    const { reports } = await agent.status()
    expect(reports.some(({ kind, pod }) => kind === 'ungranted' && pod === uid)).toBe(true)
    const b = await caller('b')
    await b.job(ALONE())
    expect((await b.ran(1))[0]!.result.stdout).toBe(alone())
  })
})
