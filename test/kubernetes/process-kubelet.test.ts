import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest'
import { generateKeys } from '../../dist/token/token.js'
import { markedPids } from '../../src/runner/process-tree.js'
import { processesWith } from '../support/cli.js'
import { type ControlPlane, startControlPlane } from '../support/control-plane.js'
import { PLAYED_BY } from '../support/control-plane-objects.js'
import type { KubeObject } from '../support/kube-api.js'
import { isReady, Pods, podObject } from '../support/kube-pods.js'
import { clusterObstacle, orSkipped } from '../support/obstacles.js'
import { type ProcessKubelet, startProcessKubelet } from '../support/process-kubelet.js'
import { DAEMON, leaseOf, runnerPod } from '../support/runner-pod.js'
import { waitUntil } from '../support/wait.js'

/** The kubelet whose pods are processes of this machine. */

const NODE = 'process-0'

const obstacle = await clusterObstacle()

/** Says over HTTP what it has found; it takes `SLOW_MS` to become ready and to end. */
const SERVER = `
  const { createServer } = require('node:http')
  const { readFileSync } = require('node:fs')
  let ready = false
  const slowMs = Number(process.env.SLOW_MS ?? 0)
  setTimeout(() => { ready = true }, slowMs)
  createServer((request, response) => {
    if (request.url === '/ready') return response.writeHead(ready ? 200 : 503).end()
    if (request.url === '/file') return response.end(readFileSync(process.env.FILE))
    if (request.url === '/exit') process.exit(Number(process.env.EXIT_CODE ?? 3))
    response.end(JSON.stringify(process.env))
  }).listen(8080, process.env.POD_IP, () => console.log('listening'))
  process.on('SIGTERM', () => {
    console.log('told to end')
    if (process.env.DEAF !== '1') setTimeout(() => process.exit(0), slowMs)
  })`

const field = (name: string, fieldPath: string) => ({ name, valueFrom: { fieldRef: { fieldPath } } })

interface ServerOptions {
  env?: KubeObject[]
  container?: KubeObject
  spec?: KubeObject
  gpus?: number
}

function server(
  name: string,
  { env = [], container = {}, spec = {}, gpus = 0 }: ServerOptions = {},
): KubeObject {
  return podObject(name, PLAYED_BY.process, {
    gpus,
    spec,
    container: {
      command: ['node', '-e', SERVER],
      env: [field('POD_IP', 'status.podIP'), ...env],
      readinessProbe: { httpGet: { port: 8080, path: '/ready' }, periodSeconds: 1 },
      ...container,
    },
  })
}

const ask = async (pod: KubeObject, path = '/') =>
  (await fetch(`http://${pod.status.podIP}:8080${path}`)).text()

/** Whether somebody still listens there. */
const serves = (pod: KubeObject) =>
  ask(pod).then(
    () => true,
    () => false,
  )

describe.skipIf(obstacle)(orSkipped('a process kubelet', obstacle), () => {
  let cluster: ControlPlane
  let kubelet: ProcessKubelet
  let pods: Pods
  beforeAll(async () => {
    // A second node: a cluster that loses its only one takes the fault for its own, and deletes nothing.
    cluster = await startControlPlane({ nodes: 1 })
    kubelet = await startProcessKubelet(cluster)
    pods = new Pods(cluster.api, cluster.namespace)
  })
  afterAll(async () => {
    await kubelet?.stop()
    await cluster?.stop()
  })
  afterEach(() => pods.clear())

  test('a pod is a process: Ready when its probe says so, on an address of its own, gone after its deletion', async () => {
    await pods.create(server('one', { env: [{ name: 'SLOW_MS', value: '300' }] }))
    await pods.create(server('two'))
    const started = await pods.until(
      'runs, and is not yet Ready',
      'one',
      (p) => p.status.phase === 'Running' && !isReady(p),
    )
    expect(started.status.containerStatuses[0].state.running).toBeDefined()
    const [one, two] = await Promise.all([pods.ready('one'), pods.ready('two')])
    expect(one.status.podIP).toMatch(/^127\./)
    expect(one.status.podIP).not.toBe(two.status.podIP)
    expect(kubelet.pids(cluster.namespace, 'one')).toHaveLength(1)
    await pods.delete('one')
    await pods.gone('one')
    expect(await serves(one)).toBe(false)
    expect(await serves(two)).toBe(true)
    await pods.delete('two')
    await pods.gone('two')
  })

  test('its environment is what the spec says, the downward API included', async () => {
    await cluster.api.post(`/api/v1/namespaces/${cluster.namespace}/configmaps`, {
      apiVersion: 'v1',
      kind: 'ConfigMap',
      metadata: { name: 'settings' },
      data: { mode: 'fast', 'notes.txt': 'from a ConfigMap' },
    })
    await cluster.api.post(`/api/v1/namespaces/${cluster.namespace}/secrets`, {
      apiVersion: 'v1',
      kind: 'Secret',
      metadata: { name: 'keys' },
      stringData: { token: 'from a Secret' },
    })
    const env = [
      field('NAME', 'metadata.name'),
      field('NAMESPACE', 'metadata.namespace'),
      field('UID', 'metadata.uid'),
      field('NODE', 'spec.nodeName'),
      field('ROLE', "metadata.annotations['role']"),
      { name: 'LISTEN', value: '$(POD_IP):8080 $(UNKNOWN) $$(NAME)' },
      { name: 'MODE', valueFrom: { configMapKeyRef: { name: 'settings', key: 'mode' } } },
      { name: 'TOKEN', valueFrom: { secretKeyRef: { name: 'keys', key: 'token' } } },
      { name: 'FILE', value: '/etc/settings/notes.txt' },
    ]
    const pod = server('env', {
      env,
      gpus: 2,
      spec: { volumes: [{ name: 'settings', configMap: { name: 'settings' } }] },
      container: {},
    })
    pod.metadata.annotations.role = 'worker'
    pod.spec.containers[0].volumeMounts = [{ name: 'settings', mountPath: '/etc/settings' }]
    await pods.create(pod)
    const { metadata, status } = await pods.ready('env')
    const found = JSON.parse(await ask({ status }))
    expect(found).toMatchObject({
      NAME: 'env',
      NAMESPACE: cluster.namespace,
      UID: metadata.uid,
      NODE,
      ROLE: 'worker',
      LISTEN: `${status.podIP}:8080 $(UNKNOWN) $(NAME)`,
      MODE: 'fast',
      TOKEN: 'from a Secret',
      NVIDIA_VISIBLE_DEVICES: expect.stringMatching(/^GPU-process-0-\d,GPU-process-0-\d$/),
    })
    expect(found.HOME).toBeUndefined()
    expect(await ask({ status }, '/file')).toBe('from a ConfigMap')
    await pods.delete('env')
    await pods.gone('env')
  })

  test('who does not end within the grace is killed', async () => {
    await pods.create(server('deaf', { env: [{ name: 'DEAF', value: '1' }] }))
    const pod = await pods.ready('deaf')
    const uids: string[] = []
    const watch = cluster.api.watch(pods.path, pod.metadata.resourceVersion, ({ object }) => {
      const { terminated } = object.status?.containerStatuses?.[0]?.state ?? {}
      if (object.metadata.name === 'deaf' && terminated) uids.push(`${terminated.exitCode}`)
    })
    await pods.delete('deaf')
    await waitUntil('it is told to end', () => kubelet.log(cluster.namespace, 'deaf').includes('told to end'))
    expect(await serves(pod)).toBe(true)
    await pods.gone('deaf')
    watch.stop()
    expect(uids[0]).toBe('137')
    expect(await serves(pod)).toBe(false)
  })

  test('how it ends is in its status, and its log can be read', async () => {
    await pods.create(server('ends'))
    const pod = await pods.ready('ends')
    await ask(pod, '/exit').catch(() => undefined)
    const { status } = await pods.until('has failed', 'ends', (p) => p.status.phase === 'Failed')
    expect(status.containerStatuses[0]).toMatchObject({
      ready: false,
      state: { terminated: { exitCode: 3, reason: 'Error' } },
    })
    expect(await cluster.api.text(`${pods.path}/ends/log`)).toBe('listening\n')
  })

  test('with restartPolicy Always it is started again, and then held back', async () => {
    const spec = { restartPolicy: 'Always' }
    await pods.create(
      podObject('again', PLAYED_BY.process, { spec, container: { command: ['sh', '-c', 'exit 7'] } }),
    )
    const { status } = await pods.until(
      'is held back',
      'again',
      (p) => p.status.containerStatuses?.[0].state.waiting?.reason === 'CrashLoopBackOff',
    )
    expect(status).toMatchObject({
      phase: 'Running',
      containerStatuses: [{ restartCount: 2, lastState: { terminated: { exitCode: 7 } } }],
    })
    await pods.delete('again')
    await pods.gone('again')
  })

  test.each([
    [
      'a command that is not there',
      { command: ['/nowhere/command'] },
      { terminated: { reason: 'StartError', exitCode: 128 } },
    ],
    [
      'a Secret that is not there',
      { command: ['true'], env: [{ name: 'X', valueFrom: { secretKeyRef: { name: 'none', key: 'x' } } }] },
      { waiting: { reason: 'CreateContainerConfigError' } },
    ],
  ])('%s is said', async (what, container, state) => {
    const name = what.includes('Secret') ? 'no-secret' : 'no-command'
    await pods.create(podObject(name, PLAYED_BY.process, { container }))
    const pod = await pods.until('is said', name, (p) => {
      const { waiting, terminated } = p.status.containerStatuses?.[0].state ?? {}
      return terminated ?? (waiting && waiting.reason !== 'ContainerCreating')
    })
    expect(pod.status.containerStatuses[0].state).toMatchObject(state)
    await pods.delete(name)
    await pods.gone(name)
  })

  test("Firepool's runner is a pod: it is bound and runs a job; what it has started ends with it, however it ends", async () => {
    const keys = generateKeys()
    await pods.create(runnerPod('runner', PLAYED_BY.process, keys))
    const lease = leaseOf(await pods.ready('runner'), keys)
    await lease.bind()
    expect(await lease.run(`${DAEMON}; echo done`)).toMatchObject({
      kind: 'result',
      result: { exitCode: 0, stdout: 'done\n' },
    })
    expect(markedPids({ env: { FIREPOOL_POD: 'runner' } }).length).toBeGreaterThan(1)
    // It ends nothing itself any more.
    for (const pid of kubelet.pids(cluster.namespace, 'runner')) process.kill(pid, 'SIGKILL')
    const { status } = await pods.until('has failed', 'runner', (p) => p.status.phase === 'Failed')
    expect(status.containerStatuses[0].state.terminated.exitCode).toBe(137)
    expect(markedPids({ env: { FIREPOOL_POD: 'runner' } })).toEqual([])
  })

  test('why it ended is what it wrote down, or else the end of its log', async () => {
    const say = (command: string) => ({
      command: ['sh', '-c', command],
      terminationMessagePolicy: 'FallbackToLogsOnError',
    })
    const written = say('echo logged; echo written > $WHERE; exit 4')
    const env = [{ name: 'WHERE', value: '/dev/termination-log' }]
    await pods.create(podObject('written', PLAYED_BY.process, { container: { ...written, env } }))
    await pods.create(podObject('logged', PLAYED_BY.process, { container: say('echo logged; exit 4') }))
    for (const name of ['written', 'logged']) {
      const { status } = await pods.until('has failed', name, (p) => p.status.phase === 'Failed')
      expect(status.containerStatuses[0].state.terminated).toMatchObject({
        exitCode: 4,
        message: `${name}\n`,
      })
    }
  })

  test('a pod past its deadline is ended', async () => {
    await pods.create(server('late', { spec: { activeDeadlineSeconds: 2 } }))
    await pods.ready('late')
    const pod = await pods.until('has failed', 'late', (p) => p.status.phase === 'Failed')
    expect(pod.status.reason).toBe('DeadlineExceeded')
    expect(await serves(pod)).toBe(false)
  })

  test('a node behind a cut cable is lost, its pod serves on, and ends when the node is back', async () => {
    await pods.create(server('zombie'))
    const pod = await pods.ready('zombie')
    kubelet.silence(NODE)
    await pods.until('is deleted by the cluster', 'zombie', (p) => p.metadata.deletionTimestamp)
    expect(await serves(pod)).toBe(true)
    kubelet.revive(NODE)
    await pods.gone('zombie')
    expect(await serves(pod)).toBe(false)
  })

  test('when the kubelet stops, its processes are gone', async () => {
    const other = await startProcessKubelet(cluster, { nodes: ['process-1'] })
    await pods.create(
      server('last', { env: [{ name: 'MARK', value: 'mark-of-last' }], spec: { nodeName: 'process-1' } }),
    )
    await pods.ready('last')
    expect(processesWith('mark-of-last').length).toBeGreaterThan(0)
    await other.stop()
    expect(processesWith('mark-of-last')).toEqual([])
  })
})
