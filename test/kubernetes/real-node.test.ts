import { existsSync, readdirSync } from 'node:fs'
import { networkInterfaces } from 'node:os'
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest'
import { processesWith } from '../support/cli.js'
import { IMAGE, IMAGE_FIREPOOL } from '../support/container-image.js'
import { type ControlPlane, startControlPlane } from '../support/control-plane.js'
import { GPU_DRIVER, PLAYED_BY } from '../support/control-plane-objects.js'
import type { KubeObject } from '../support/kube-api.js'
import { Pods, podObject } from '../support/kube-pods.js'
import { type RealNode, startRealNode } from '../support/real-node.js'
import { realNodeObstacle } from '../support/real-node-parts.js'
import { waitUntil } from '../support/wait.js'

/** A kubelet with containerd: its pods are real containers. */

const obstacle = await realNodeObstacle()

/** Says who it is and what it has. */
const SERVER = `
  const { createServer } = require('node:http')
  const uid = process.getuid()
  createServer((_, response) => response.end(JSON.stringify({ uid, env: process.env }))).listen(8080)
  process.on('SIGTERM', () => process.exit(0))
  console.log('serving')`

/** What the restricted Pod Security Standard asks for. */
const RESTRICTED = {
  allowPrivilegeEscalation: false,
  capabilities: { drop: ['ALL'] },
  runAsNonRoot: true,
  runAsUser: 1000,
  seccompProfile: { type: 'RuntimeDefault' },
}

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

const serves = (pod: KubeObject) =>
  ask(pod).then(
    () => true,
    () => false,
  )

describe.skipIf(obstacle)(`a real node${obstacle ? `, skipped: ${obstacle}` : ''}`, () => {
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

  test("carries Firepool's runner", async () => {
    const main = `${IMAGE_FIREPOOL}/dist/runner/main.js`
    await pods.create(server('runner', { container: { command: ['node', main], readinessProbe: undefined } }))
    const { status } = await pods.until('ends', 'runner', (p) => p.status.phase === 'Failed')
    // It is there, and misses its settings.
    expect(status.containerStatuses[0].state.terminated.exitCode).not.toBe(0)
    expect(await cluster.api.text(`${pods.path}/runner/log`)).toMatch(/FIREPOOL_\w+ is not set/)
    await pods.delete('runner')
    await pods.gone('runner')
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
    const isHere = () =>
      Object.values(networkInterfaces()).some((all) => all?.some((one) => one.address === other.ip))
    expect(isHere()).toBe(true)
    const mounts = () => readdirSync('/var/lib').filter((name) => ['kubelet', 'cni'].includes(name))
    expect(mounts()).toEqual([])
    await other.stop()
    expect(processesWith('mark-of-real-node')).toEqual([])
    expect(isHere()).toBe(false)
    expect(existsSync('/run/containerd')).toBe(false)
  })
})
