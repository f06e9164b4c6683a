import { type ChildProcess, spawn } from 'node:child_process'
import { randomUUID } from 'node:crypto'
import { existsSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type ControlPlane, startControlPlane } from '../support/control-plane.js'
import { GPU_DRIVER, PLAYED_BY } from '../support/control-plane-objects.js'
import type { KubeObject } from '../support/kube-api.js'
import { Pods, podObject } from '../support/kube-pods.js'
import { create, DEPLOY, render } from '../support/kubectl.js'
import {
  askAsOperator,
  buildNodeAgent,
  canBuildNodeAgent,
  fakeNodeArguments,
} from '../support/node-agent-program.js'
import { clusterObstacle, orSkipped } from '../support/obstacles.js'
import { waitUntil } from '../support/wait.js'

/**
 * The node agent with -kube against a real API server, with the rights of its manifests. What is played: the node and its pods (kwok),
 * the GPUs (files), and that a pod's processes are in it (a variable).
 */

const NAMESPACE = 'firepool-jobs'
const NODE = 'gpu-0'
const ACCOUNT = 'system:serviceaccount:firepool-node:firepool-node'
const RULES = '/apis/resource.k8s.io/v1beta2/devicetaintrules'
/** As the DRA driver of the node says it. */
const uuidOf = (minor: number) => `GPU-${NODE}-${minor}`

const obstacle = await clusterObstacle()

describe.skipIf(obstacle || !canBuildNodeAgent())(orSkipped('the node agent in a cluster', obstacle), () => {
  let cluster: ControlPlane
  let pods: Pods
  let manifests: KubeObject[]
  let dir: string
  const processes: ChildProcess[] = []

  beforeAll(async () => {
    cluster = await startControlPlane({ nodes: 1, namespace: NAMESPACE })
    pods = new Pods(cluster.api, NAMESPACE)
    manifests = await render(join(DEPLOY, 'overlays/node-agent-kube'))
    for (const object of manifests)
      if (/^(Namespace|ServiceAccount|(Cluster)?Role(Binding)?)$/.test(object.kind))
        await create(cluster.api, object)
    dir = mkdtempSync(join(tmpdir(), 'fpk-')) // short: a socket's path has at most 107 bytes
    await startAgent()
  })
  afterAll(async () => {
    for (const { pid } of processes) if (pid !== undefined) kill(pid)
    await cluster?.stop()
    if (dir !== undefined) rmSync(dir, { recursive: true, force: true })
  })

  async function startAgent() {
    const token = await cluster.api.post(
      '/api/v1/namespaces/firepool-node/serviceaccounts/firepool-node/token',
      { apiVersion: 'authentication.k8s.io/v1', kind: 'TokenRequest', spec: {} },
    )
    for (const folder of ['account', 'dev']) mkdirSync(join(dir, folder))
    writeFileSync(join(dir, 'account/token'), token.status.token)
    writeFileSync(join(dir, 'account/ca.crt'), cluster.authority.cert)
    for (const minor of [0, 1]) writeFileSync(join(dir, `dev/nvidia${minor}`), 'a fake device\n')
    describeGpus([])
    const flags = [`-kube=${cluster.url}`, `-kube-credentials=${join(dir, 'account')}`, `-node-name=${NODE}`]
    const { args } = manifests.find(({ kind }) => kind === 'DaemonSet')!.spec.template.spec.containers[0]
    expect(args).toContain('-kube=in-cluster')
    start(buildNodeAgent(dir), [...fakeNodeArguments(dir), ...flags])
    await waitUntil('the agent answers', () => existsSync(join(dir, 'state/operator.sock')))
    await allGpusAre('free') // else who uses one is taken for its holder: the agent has no file of its past
  }

  const allGpusAre = (wanted: string) =>
    waitUntil(`all GPUs are ${wanted}`, async () => {
      const { gpus } = (await askAsOperator(dir, 'GET', '/status')) as { gpus: { phase: string }[] }
      return gpus.every(({ phase }) => phase === wanted)
    })

  /** What the driver says from now on. */
  function describeGpus(xidsOfFirst: { id: number; code: number }[]) {
    const gpus = [0, 1].map((minor) => ({
      uuid: uuidOf(minor),
      minor,
      used: { bytes: 4 << 20 },
      bytesPerOpener: 100 << 20,
      processes: { openers: true },
      xids: minor === 0 ? xidsOfFirst : [],
    }))
    writeFileSync(join(dir, 'dev/nvml.json'), JSON.stringify({ v: 1, gpus }))
  }

  function start(command: string, args: string[], env: Record<string, string> = {}): ChildProcess {
    const child = spawn(command, args, {
      env: { ...process.env, ...env },
      stdio: 'ignore',
      detached: true,
    })
    processes.push(child)
    return child
  }

  const kill = (group: number) => {
    try {
      process.kill(-group, 'SIGKILL')
    } catch {
      // it has ended
    }
  }

  /** A pod of the node. @returns its UID */
  async function pod(name: string): Promise<string> {
    await pods.create(podObject(name, PLAYED_BY.kwok))
    return (await pods.ready(name)).metadata.uid
  }

  /** Registers a pod with the agent, and starts a shell in it. */
  async function enter(name: string, uid: string, script: string): Promise<void> {
    await askAsOperator(dir, 'PUT', `/v1/pods/${uid}`, { v: 1, namespace: NAMESPACE, name, tenant: 't' })
    const shell = script.replaceAll('SOCKET', join(dir, 'pods', uid, 'agent.sock'))
    start('sh', ['-c', shell], { FIREPOOL_FAKE_POD_UID: uid })
  }

  const steal = () => `exec 3<${join(dir, 'dev/nvidia1')}; exec sleep 600`

  const eventAbout = (namespace: string, reason: string, uid: string) =>
    waitUntil(`an event ${reason}`, async () => {
      const { items } = await cluster.api.get(`/api/v1/namespaces/${namespace}/events`)
      const isIt = (event: KubeObject) => event.reason === reason && event.involvedObject.uid === uid
      return items.find(isIt) ?? null
    })

  test('a pod that uses a GPU without a grant is deleted, with an event that says why', async () => {
    const uid = await pod('thief')
    await enter('thief', uid, steal())
    await pods.gone('thief')
    const event = await eventAbout(NAMESPACE, 'UngrantedUse', uid)
    expect(event.message).toContain(`used GPU ${uuidOf(1)} without a grant`)
  })

  test('another one of its name is not', async () => {
    await pod('namesake')
    await enter('namesake', randomUUID(), steal())
    await waitUntil('it was not deleted', async () =>
      (await cluster.requests(ACCOUNT)).some(({ name, code }) => name === 'namesake' && code === 409),
    )
    expect((await pods.ready('namesake')).metadata.deletionTimestamp).toBeUndefined()
  })

  test('a device that fails is tainted, and the pod whose job was on it deleted, until an operator says that it is well', async () => {
    const wanted = JSON.stringify({ v: 1, requestId: '1', leaseEpoch: 1, gpus: 2, waitMs: 60_000 })
    await allGpusAre('free')
    const uid = await pod('holder')
    await enter(
      'holder',
      uid,
      `curl -s --unix-socket SOCKET -d '${wanted}' http://agent/v1/seats > ${join(dir, 'granted')}; exec sleep 600`,
    )
    await allGpusAre('held')
    describeGpus([{ id: 1, code: 79 }])
    await pods.gone('holder')
    await eventAbout(NAMESPACE, 'PodLost', uid)
    const event = await eventAbout('default', 'SeatQuarantined', NODE)
    expect(event.message).toContain(`GPU ${uuidOf(0)}: xid: XID 79`)
    const rule = await waitUntil('the taint', async () => (await cluster.api.get(RULES)).items[0] ?? null)
    expect(rule.spec).toMatchObject({
      deviceSelector: { driver: GPU_DRIVER, pool: NODE, device: 'gpu-0' },
      taint: { key: 'node.firepool.dev/quarantined', value: 'xid', effect: 'NoSchedule' },
    })
    await askAsOperator(dir, 'POST', `/v1/gpus/${uuidOf(0)}/clear`)
    await waitUntil('the taint is gone', async () => (await cluster.api.get(RULES)).items.length === 0)
    await eventAbout('default', 'SeatReturned', NODE)
  })

  test('its account has the rights that it used, and no other', async () => {
    const requests = await cluster.requests(ACCOUNT)
    const asked = new Set(requests.map(({ verb, resource }) => `${verb} ${resource}`))
    const rules = manifests
      .filter(({ kind }) => kind === 'Role' || kind === 'ClusterRole')
      .flatMap(({ rules }) => rules as { resources: string[]; verbs: string[] }[])
    const given = new Set(
      rules.flatMap(({ resources, verbs }) =>
        resources.flatMap((resource) => verbs.map((verb) => `${verb} ${resource}`)),
      ),
    )
    expect([...asked].sort()).toEqual([...given].sort())
    expect(requests.filter(({ code }) => code === 403)).toEqual([])
  })
})
