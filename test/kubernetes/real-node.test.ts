import { existsSync, readdirSync } from 'node:fs'
import { networkInterfaces } from 'node:os'
import { fileURLToPath } from 'node:url'
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest'
import { generateKeys } from '../../dist/token/token.js'
import { processesWith, startScript } from '../support/cli.js'
import { IMAGE } from '../support/container-image.js'
import { type ControlPlane, startControlPlane } from '../support/control-plane.js'
import { GPU_DRIVER, PLAYED_BY } from '../support/control-plane-objects.js'
import type { KubeObject } from '../support/kube-api.js'
import { Pods, podObject } from '../support/kube-pods.js'
import { orSkipped, realNodeObstacle } from '../support/obstacles.js'
import { type RealNode, startRealNode } from '../support/real-node.js'
import { DAEMON, leaseOf, RESTRICTED, runnerPod } from '../support/runner-pod.js'
import { waitUntil } from '../support/wait.js'

/** A kubelet with containerd: its pods are real containers. */

const HOLD = fileURLToPath(new URL('../support/hold-cluster.ts', import.meta.url))

const obstacle = await realNodeObstacle()

/** Says who it is and what it has. */
const SERVER = `
  const { createServer } = require('node:http')
  const uid = process.getuid()
  createServer((_, response) => response.end(JSON.stringify({ uid, env: process.env }))).listen(8080)
  process.on('SIGTERM', () => process.exit(0))
  console.log('serving')`

function server(name: string, { gpus = 0, spec = {}, container = {} }: KubeObject = {}): KubeObject {
  return podObject(name, PLAYED_BY.kubelet, {
    gpus,
    spec: { automountServiceAccountToken: false, ...spec },
    container: {
      image: IMAGE.node,
      imagePullPolicy: 'Never',
      command: ['node', '-e', SERVER],
      readinessProbe: { httpGet: { port: 8080 }, periodSeconds: 1 },
      securityContext: RESTRICTED,
      ...container,
    },
  })
}

const ask = async (pod: KubeObject) =>
  (await fetch(`http://${pod.status.podIP}:8080/`, { signal: AbortSignal.timeout(5_000) })).json()

/** Whether this machine has the address of a node. */
const hasAddress = (ip: string) =>
  Object.values(networkInterfaces()).some((all) => all?.some(({ address }) => address === ip))

/** Whether a node's control group is there, in whichever hierarchy. Other tests have nodes of their own meanwhile. */
const hasControlGroup = (cgroup: string) =>
  readdirSync('/sys/fs/cgroup', { withFileTypes: true })
    .filter((entry) => entry.isDirectory())
    .flatMap(({ name }) => [name, ...readdirSync(`/sys/fs/cgroup/${name}`)])
    .includes(cgroup)

const serves = (pod: KubeObject) =>
  ask(pod).then(
    () => true,
    () => false,
  )

describe.skipIf(obstacle)(orSkipped('a real node', obstacle), () => {
  let cluster: ControlPlane
  let node: RealNode
  let pods: Pods
  beforeAll(async () => {
    // A second node: a cluster that loses its only one takes the fault for its own, and deletes nothing.
    cluster = await startControlPlane({ nodes: 1 })
    node = await startRealNode(cluster)
    pods = new Pods(cluster.api, cluster.namespace)
  })
  afterAll(async () => {
    await node?.stop()
    await cluster?.stop()
  })
  afterEach(() => pods.clear())

  test('runs a container as a restricted user, serves, logs, and is gone after its deletion', async () => {
    await pods.create(server('plain'))
    const pod = await pods.ready('plain')
    expect(pod.spec.nodeName).toBe(node.name)
    expect(await ask(pod)).toMatchObject({ uid: 1000 })
    expect(await cluster.api.text(`${pods.path}/plain/log`)).toBe('serving\n')
    await pods.delete('plain')
    await pods.gone('plain')
    expect(await serves(pod)).toBe(false)
  })

  test("carries Firepool's runner, as deploy/kubernetes/images says its command and user: it is bound, runs a job, is drained, and all of it ends with the pod", async () => {
    const keys = generateKeys()
    const wanted = runnerPod('runner', PLAYED_BY.kubelet, keys)
    const [container] = wanted.spec.containers
    // By its number the kubelet knows that this user is not root.
    const { runAsUser: _, ...security } = container.securityContext
    Object.assign(container, { image: IMAGE.runner, command: undefined, securityContext: security })
    await pods.create(wanted)
    const pod = await pods.ready('runner')
    const lease = leaseOf(pod, keys)
    await lease.bind()
    const mark = 'job-of-real-node'
    const command = `id -u; export MARK=${mark}; ${DAEMON}`
    expect(await lease.run(command)).toMatchObject({
      kind: 'result',
      result: { exitCode: 0, stdout: '1000\n' },
    })
    expect(processesWith(mark).length).toBeGreaterThan(0)
    expect(await lease.drain()).toMatchObject({ drained: true })
    await pods.delete('runner')
    await pods.gone('runner')
    expect(processesWith(mark)).toEqual([])
    await expect(lease.broker.status()).rejects.toThrow()
  })

  test('a container that is killed says so', async () => {
    const spec = { restartPolicy: 'Never' }
    await pods.create(
      server('killed', { spec, container: { env: [{ name: 'MARK', value: 'mark-to-kill' }] } }),
    )
    await pods.ready('killed')
    for (const pid of processesWith('mark-to-kill')) process.kill(pid, 'SIGKILL')
    const { status } = await pods.until('has failed', 'killed', (p) => p.status.phase === 'Failed')
    expect(status.containerStatuses[0].state.terminated).toMatchObject({ exitCode: 137, reason: 'Error' })
  })

  test('a container over its memory is killed, and its pod says why', async () => {
    const fill = 'const all = []; for (;;) all.push(Buffer.alloc(8_000_000, 1))'
    const resources = { limits: { memory: '128Mi' } }
    await pods.create(
      server('hungry', {
        container: { command: ['node', '-e', fill], resources, readinessProbe: undefined },
      }),
    )
    const { status } = await pods.until('has failed', 'hungry', (p) => p.status.phase === 'Failed')
    expect(status.containerStatuses[0].state.terminated).toMatchObject({ exitCode: 137, reason: 'OOMKilled' })
  })

  test('gives a pod the GPUs that it asks for, and others to the next', async () => {
    for (const name of ['first', 'second']) await pods.create(server(`gpu-${name}`, { gpus: 4 }))
    const all: string[] = []
    for (const name of ['first', 'second']) {
      const { env } = (await ask(await pods.ready(`gpu-${name}`))) as { env: Record<string, string> }
      const visible = env.NVIDIA_VISIBLE_DEVICES!.split(',')
      expect(visible).toHaveLength(4)
      all.push(...visible)
    }
    expect(new Set(all).size).toBe(8)
    for (const name of ['first', 'second']) await pods.delete(`gpu-${name}`)
    for (const name of ['first', 'second']) await pods.gone(`gpu-${name}`)
  })

  test('shares one GPU between two pods of one claim', async () => {
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
    for (const name of ['left', 'right']) await pods.create(server(name, { spec, container }))
    for (const name of ['left', 'right']) await pods.ready(name)
    const { status } = await cluster.api.get(`${claims}/shared`)
    expect(status.allocation.devices.results).toMatchObject([{ driver: GPU_DRIVER, pool: node.name }])
    expect(status.reservedFor).toHaveLength(2)
    for (const name of ['left', 'right']) await pods.delete(name)
    for (const name of ['left', 'right']) await pods.gone(name)
  })

  test('a kubelet that is killed leaves its containers alone, and finds them again', async () => {
    await pods.create(server('survivor'))
    const pod = await pods.ready('survivor')
    await node.kubelet.kill()
    expect(await serves(pod)).toBe(true)
    await node.kubelet.start()
    await pods.delete('survivor')
    await pods.gone('survivor')
    expect(await serves(pod)).toBe(false)
  })

  test('a containerd that is killed leaves its containers alone, and takes new ones when it is back', async () => {
    await pods.create(server('old'))
    const old = await pods.ready('old')
    await node.containerd.kill()
    expect(await serves(old)).toBe(true)
    await node.containerd.start()
    await pods.create(server('new'))
    await pods.ready('new')
    expect((await pods.ready('old')).status.containerStatuses[0].restartCount).toBe(0)
    expect(await serves(old)).toBe(true)
  })

  test('a node that starts again has lost what ran: some pods are started again, others have failed', async () => {
    const bootId = async () => (await cluster.api.get(`/api/v1/nodes/${node.name}`)).status.nodeInfo.bootID
    await pods.create(server('always', { spec: { restartPolicy: 'Always' } }))
    await pods.create(server('never', { gpus: 8 }))
    for (const name of ['always', 'never']) await pods.ready(name)
    const before = await bootId()
    await node.restart()
    const { status } = await pods.until('has failed', 'never', (p) => p.status.phase === 'Failed')
    expect(status.containerStatuses[0].state.terminated.exitCode).not.toBe(0)
    const again = await pods.until(
      'is started again',
      'always',
      (p) => p.status.containerStatuses[0].restartCount > 0,
    )
    await pods.ready('always')
    expect(again.metadata.uid).toBe((await pods.find('always')).metadata.uid)
    expect(await waitUntil('the boot is another one', async () => (await bootId()) !== before)).toBe(true)
    await pods.create(server('next', { gpus: 8 }))
    await pods.ready('next')
  })

  test('a frozen kubelet is a lost node: its pod is deleted and serves on, until the node is back', async () => {
    await pods.create(server('zombie'))
    const pod = await pods.ready('zombie')
    node.kubelet.freeze()
    await pods.until('is deleted by the cluster', 'zombie', (p) => p.metadata.deletionTimestamp)
    const { status } = await cluster.api.get(`/api/v1/nodes/${node.name}`)
    expect(status.conditions.find((c: KubeObject) => c.type === 'Ready').status).toBe('Unknown')
    expect(await serves(pod)).toBe(true)
    node.kubelet.thaw()
    await pods.gone('zombie')
    await waitUntil('it serves no more', async () => !(await serves(pod)))
  })

  test('when who started it is killed, nothing of it is left', async () => {
    const holder = startScript(HOLD, ['node'], { ...process.env, NODE_OPTIONS: '--import tsx' })
    await holder.until('stdout', '\n')
    type Held = { folders: string[]; ip: string; cgroup: string }
    const { folders, ip, cgroup } = JSON.parse(holder.stdout()) as Held
    const processes = () => folders.flatMap(processesWith)
    expect(hasAddress(ip)).toBe(true)
    expect(hasControlGroup(cgroup)).toBe(true)
    expect(processes().length).toBeGreaterThan(5)
    holder.kill('SIGKILL')
    await waitUntil('its processes are gone', () => processes().length === 0)
    await waitUntil('its network is gone', () => !hasAddress(ip))
    await waitUntil('its control groups are gone', () => !hasControlGroup(cgroup))
    await waitUntil('its files are gone', () => !folders.some(existsSync))
  })

  test('when the node is stopped, nothing of it is left', async () => {
    const other = await startRealNode(cluster, { name: 'real-1', gpus: 0 })
    await pods.create(
      server('last', {
        spec: { nodeName: 'real-1' },
        container: { env: [{ name: 'MARK', value: 'mark-of-real-node' }] },
      }),
    )
    const pod = await pods.ready('last')
    expect(await serves(pod)).toBe(true)
    expect(processesWith('mark-of-real-node').length).toBeGreaterThan(0)
    expect(hasAddress(other.ip)).toBe(true)
    expect(hasControlGroup(other.cgroup)).toBe(true)
    await other.stop()
    expect(processesWith('mark-of-real-node')).toEqual([])
    expect(processesWith(other.folder)).toEqual([])
    expect(hasAddress(other.ip)).toBe(false)
    expect(hasControlGroup(other.cgroup)).toBe(false)
    expect(existsSync(other.folder)).toBe(false)
  })
})
