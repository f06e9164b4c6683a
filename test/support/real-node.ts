import { execFile } from 'node:child_process'
import { randomBytes, randomInt } from 'node:crypto'
import { mkdirSync, readdirSync, readFileSync } from 'node:fs'
import { access, mkdir, rm, writeFile } from 'node:fs/promises'
import { networkInterfaces } from 'node:os'
import { dirname, join } from 'node:path'
import { promisify } from 'node:util'
import { IMAGE, writeFirepoolLayer, writeImage } from './container-image.js'
import { areReady, type ControlPlane, kubeconfigFor } from './control-plane.js'
import { FAKE_KUBELETS, GPU_RESOURCE, PLAYED_BY } from './control-plane-objects.js'
import { describeImage } from './dockerfile.js'
import { Keeper, type Part } from './keeper.js'
import { KubeApi } from './kube-api.js'
import { obtainPythonLayer, obtainRealNodeParts, type RealNodeParts } from './real-node-parts.js'
import {
  containerdConfig,
  containerdSocket,
  firstProcess,
  KUBELET_PORT,
  kubeletConfig,
  type NodePlace,
  networkConfig,
  nodeIp,
  runtimeFile,
} from './real-node-settings.js'
import { waitUntil } from './wait.js'

const run = promisify(execFile)
const OK = 200
const LOG_TAIL_CHARS = 4_000
/** A containerd that has just started answers "not initialized" for a while, and a kubelet that hears it exits. */
const KUBELET_STARTS = 20

export interface RealNodeOptions {
  /** default real-0 */
  name?: string
  /** fake GPUs, by a device plugin and a DRA driver; default 8 */
  gpus?: number
  /** default: as `obtainRealNodeParts` finds them */
  parts?: RealNodeParts
  /**
   * RuntimeClasses, each with the names of files of the node's folder `devices` that its containers find at the same path. It stands for
   * what a GPU's container runtime does.
   */
  runtimes?: Readonly<Record<string, readonly string[]>>
  /** whether it has the image with Python too, which takes seconds more to import; default false */
  python?: boolean
}

/** A kubelet with containerd and runc: its pods are real containers. */
export interface RealNode {
  name: string
  /** of the bridge on which its pods are */
  ip: string
  /** of its control group, in each hierarchy */
  cgroup: string
  /** the temporary folder of logs, images and containers, which goes with the node */
  folder: string
  kubelet: NodeProgram
  containerd: NodeProgram
  /** Starts a program of the node, in its namespaces and with it. */
  run(name: string, command: string, args: readonly string[]): Part
  /** Runs a command in a container, in its control group. @returns what it wrote */
  exec(container: string, command: readonly string[]): Promise<string>
  /** Power off and on: every process is killed at once, and the node comes back with what is on its disk. */
  restart(): Promise<void>
  /** Ends its containers and programs; its files, its network and its control groups go. */
  stop(): Promise<void>
}

/** A program of the node that a test may take away; containers stay. */
export interface NodeProgram {
  freeze(): void
  thaw(): void
  /** SIGKILL */
  kill(): Promise<void>
  /** Starts it again and waits until it serves. */
  start(): Promise<void>
}

/**
 * Starts a node beside a control plane on this machine and waits until it takes pods and has its GPUs. It needs root. Nothing of it
 * outlives us: its processes and mounts are in namespaces of its own, which end with their first process.
 * @throws Error with the tail of the log of what failed; by then all is undone
 */
export async function startRealNode(cluster: ControlPlane, options: RealNodeOptions = {}): Promise<RealNode> {
  const parts = options.parts ?? (await obtainRealNodeParts())
  const id = randomBytes(4).toString('hex')
  const machine = { network: freeNetwork(), bridge: `fp-${id}`, cgroup: `firepool-${id}` }
  const keeper = await Keeper.open('firepool-node-', cleanUp(machine))
  try {
    return await start({ ...machine, folder: keeper.folder }, parts, keeper, cluster, options)
  } catch (error) {
    await keeper.close()
    throw error
  }
}

/** 10.x.y.0/24 in which this machine has no address. */
function freeNetwork(): string {
  const taken = Object.values(networkInterfaces()).flatMap((all) => all?.map(({ address }) => address) ?? [])
  for (;;) {
    const network = `10.${randomInt(128, 255)}.${randomInt(0, 256)}`
    if (!taken.some((address) => address.startsWith(`${network}.`))) return network
  }
}

/** A shell script: what is left of a node in the kernel when its processes are gone. */
function cleanUp({ bridge, cgroup }: Pick<NodePlace, 'bridge' | 'cgroup'>): string {
  // A control group is busy for a moment after its last process has ended.
  return `
ip link del ${bridge} 2>/dev/null
n=0
while [ "$n" -lt 50 ] && [ -n "$(find /sys/fs/cgroup -type d -name ${cgroup} 2>/dev/null)" ]; do
  find /sys/fs/cgroup -depth -type d -path '*/${cgroup}*' -exec rmdir {} + 2>/dev/null
  sleep 0.1
  n=$((n+1))
done`
}

async function start(
  place: NodePlace,
  parts: RealNodeParts,
  keeper: Keeper,
  cluster: ControlPlane,
  { name = 'real-0', gpus = 8, runtimes = {}, python = false }: RealNodeOptions,
): Promise<RealNode> {
  await writeSettings(place, cluster, name)
  await writeRuntimes(place, parts, cluster, runtimes)
  await makeBridge(place)
  makeControlGroups(place.cgroup)
  let namespaces = await startNamespaces(place, parts, keeper)
  const containerd = program(() => startContainerd(place, parts, keeper, namespaces.enter))
  await containerd.start()
  await importImages(place, parts, python)
  const kubeconfig = await kubeconfigFor(cluster, `system:node:${name}`, 'system:nodes')
  const given = () => ({ place, parts, keeper, enter: namespaces.enter, cluster, name, kubeconfig, gpus })
  const kubelet = program(() => startKubelet(given()))
  const enroll = async () => {
    await kubelet.start()
    await waitUntil(`${name} is Ready`, () => areReady(cluster.api, [name]))
    if (gpus > 0) await startFakeGpus(given())
  }
  await enroll()
  return {
    name,
    ip: nodeIp(place),
    cgroup: place.cgroup,
    folder: place.folder,
    kubelet,
    containerd,
    run: (name, command, args) =>
      keeper.start('nsenter', [...namespaces.enter, command, ...args], { name, env: environment(parts) }),
    async exec(container, command) {
      const id = randomBytes(4).toString('hex')
      const task = ['tasks', 'exec', '--exec-id', id, container, ...command]
      const args = ['--address', containerdSocket(place), '--namespace', 'k8s.io', ...task]
      // Its pipes are below the node's own /run.
      return (await run('nsenter', [...namespaces.enter, parts.ctr, ...args])).stdout
    },
    async restart() {
      await namespaces.part.stop('SIGKILL')
      namespaces = await startNamespaces(place, parts, keeper)
      await containerd.start()
      await enroll()
    },
    stop: () => keeper.close(),
  }
}

async function writeSettings(place: NodePlace, { authority }: ControlPlane, name: string): Promise<void> {
  const identity = authority.issue(`system:node:${name}`, {
    organization: 'system:nodes',
    hosts: [nodeIp(place), name],
  })
  const files: Record<string, string> = {
    'network/10-firepool.conflist': JSON.stringify(networkConfig(place)),
    'kubelet.json': JSON.stringify(kubeletConfig(place)),
    'kubelet.crt': identity.cert,
    'kubelet.key': identity.key,
    'ca.crt': authority.cert,
  }
  for (const [file, text] of Object.entries(files)) {
    const path = join(place.folder, file)
    await mkdir(dirname(path), { recursive: true })
    await writeFile(path, text, { mode: 0o600 })
  }
}

/** The runtimes and the RuntimeClasses by which pods ask for them. */
async function writeRuntimes(
  place: NodePlace,
  parts: RealNodeParts,
  { api }: ControlPlane,
  runtimes: Readonly<Record<string, readonly string[]>>,
): Promise<void> {
  const names = Object.keys(runtimes)
  await writeFile(join(place.folder, 'containerd.toml'), containerdConfig(place, parts, names))
  if (names.length === 0) return
  const base = JSON.parse((await run(parts.ctr, ['oci', 'spec'])).stdout)
  for (const [handler, files] of Object.entries(runtimes)) {
    const binds = files.map((file) => {
      const path = join(place.folder, 'devices', file)
      return { destination: path, source: path, type: 'bind', options: ['bind', 'rw'] }
    })
    const spec = { ...base, mounts: [...base.mounts, ...binds] }
    await writeFile(runtimeFile(place, handler), JSON.stringify(spec))
    const apiVersion = 'node.k8s.io/v1'
    await api.post(`/apis/${apiVersion}/runtimeclasses`, {
      apiVersion,
      kind: 'RuntimeClass',
      metadata: { name: handler },
      handler,
    })
  }
}

/** Before the kubelet asks for it: its address may not be one of the loopback, and so is the bridge's. */
async function makeBridge(place: NodePlace): Promise<void> {
  const { bridge } = place
  await run('ip', ['link', 'add', bridge, 'type', 'bridge'])
  await run('ip', ['addr', 'add', `${nodeIp(place)}/24`, 'dev', bridge])
  await run('ip', ['link', 'set', bridge, 'up'])
}

/** A kubelet makes its groups below one that is there, in each hierarchy. */
function makeControlGroups(cgroup: string): void {
  const root = '/sys/fs/cgroup'
  const entries = readdirSync(root, { withFileTypes: true })
  const isUnified = entries.some(({ name }) => name === 'cgroup.controllers')
  const hierarchies = isUnified
    ? [root]
    : entries.filter((e) => e.isDirectory()).map((e) => join(root, e.name))
  for (const hierarchy of hierarchies) mkdirSync(join(hierarchy, cgroup))
}

interface Namespaces {
  /** with it everything in them ends */
  part: Part
  /** what puts a program into them: arguments of nsenter, before the program's own */
  enter: readonly string[]
}

async function startNamespaces(place: NodePlace, parts: RealNodeParts, keeper: Keeper): Promise<Namespaces> {
  await rm(join(place.folder, 'ready'), { force: true })
  const script = firstProcess(place, parts.pause)
  const flags = ['--pid', '--mount', '--fork', '--kill-child', '--mount-proc']
  const part = keeper.start('unshare', [...flags, '/bin/sh', '-c', script], {
    name: 'node',
    ...asPart(parts),
  })
  await waitUntil('the node has its namespaces', async () => {
    if (part.hasExited()) throw new Error(`unshare ended: ${part.log().slice(-LOG_TAIL_CHARS)}`)
    return access(join(place.folder, 'ready')).then(
      () => true,
      () => false,
    )
  })
  const first = readFileSync(`/proc/${part.pid}/task/${part.pid}/children`, 'latin1').trim()
  return { part, enter: ['--target', first, '--mount', '--pid', '--'] }
}

/** What runs in the node's namespaces ends with their first process; that one takes no signal but SIGKILL. */
const asPart = (parts: RealNodeParts) => ({ env: environment(parts), disposable: true })

const environment = ({ containerd, runc }: RealNodeParts) => ({
  PATH: [dirname(containerd), dirname(runc), '/usr/sbin:/usr/bin:/sbin:/bin'].join(':'),
  HOME: '/',
})

/** @param start resolves when it serves */
function program(start: () => Promise<Part>): NodeProgram {
  let part: Part | undefined
  return {
    freeze: () => part?.signal('SIGSTOP'),
    thaw: () => part?.signal('SIGCONT'),
    kill: async () => part?.stop('SIGKILL'),
    async start() {
      part = await start()
    },
  }
}

async function startContainerd(
  place: NodePlace,
  parts: RealNodeParts,
  keeper: Keeper,
  enter: readonly string[],
): Promise<Part> {
  const args = [...enter, parts.containerd, '--config', join(place.folder, 'containerd.toml')]
  const part = keeper.start('nsenter', args, { name: 'containerd', ...asPart(parts) })
  await waitUntil('containerd serves', async () => {
    if (part.hasExited()) throw new Error(`containerd ended: ${part.log().slice(-LOG_TAIL_CHARS)}`)
    return ctr(place, parts, ['version']).then(
      () => true,
      () => false,
    )
  })
  return part
}

const ctr = (place: NodePlace, parts: RealNodeParts, args: readonly string[]) =>
  run(parts.ctr, ['--address', containerdSocket(place), '--namespace', 'k8s.io', ...args])

async function importImages(place: NodePlace, parts: RealNodeParts, python: boolean): Promise<void> {
  const file = (name: string) => join(place.folder, name)
  await writeFirepoolLayer(file('firepool.tar'))
  const { pause, node } = parts.layers
  await writeImage({ name: IMAGE.pause, layers: [pause], command: ['/pause'] }, file('pause-image.tar'))
  const layers = [node, file('firepool.tar')]
  await writeImage({ name: IMAGE.node, layers, command: ['node'] }, file('node-image.tar'))
  const { command, env, user } = describeImage('cpu.Dockerfile')
  await writeImage({ name: IMAGE.runner, layers, command, env, user }, file('runner-image.tar'))
  const images = ['pause-image.tar', 'node-image.tar', 'runner-image.tar']
  if (python) {
    const layers = [node, await obtainPythonLayer(), file('firepool.tar')]
    await writeImage({ name: IMAGE.python, layers, command: ['node'] }, file('python-image.tar'))
    images.push('python-image.tar')
  }
  for (const image of images) await ctr(place, parts, ['images', 'import', file(image)])
}

interface KubeletStart {
  place: NodePlace
  parts: RealNodeParts
  keeper: Keeper
  enter: readonly string[]
  cluster: ControlPlane
  name: string
  kubeconfig: string
  gpus: number
}

async function startKubelet(given: KubeletStart): Promise<Part> {
  const { place, cluster } = given
  const admin = cluster.authority.issue('admin', { organization: 'system:masters' })
  const url = `https://${nodeIp(place)}:${KUBELET_PORT}`
  const api = new KubeApi({ url, ca: cluster.authority.cert, ...admin })
  let part = spawnKubelet(given)
  let starts = 1
  // Its Node may still be Ready from an earlier life: only the kubelet itself knows.
  await waitUntil('the kubelet serves', async () => {
    if ((await api.status('/healthz')) === OK) return true
    if (part.hasExited()) {
      const isTooEarly = part.log().slice(-LOG_TAIL_CHARS).includes('validate CRI v1 runtime API')
      if (!isTooEarly || starts >= KUBELET_STARTS) {
        throw new Error(`the kubelet ended: ${part.log().slice(-LOG_TAIL_CHARS)}`)
      }
      part = spawnKubelet(given)
      starts++
    }
    return false
  })
  api.close()
  return part
}

function spawnKubelet({ place, parts, keeper, enter, name, kubeconfig }: KubeletStart): Part {
  const { folder } = place
  const args = [
    ...[`--config=${join(folder, 'kubelet.json')}`, `--kubeconfig=${kubeconfig}`],
    ...[`--root-dir=${join(folder, 'kubelet')}`, `--cert-dir=${join(folder, 'kubelet-certificates')}`],
    ...[`--hostname-override=${name}`, `--node-ip=${nodeIp(place)}`],
    `--node-labels=${PLAYED_BY.label}=${PLAYED_BY.kubelet}`,
  ]
  return keeper.start('nsenter', [...enter, parts.kubelet, ...args], {
    name: 'kubelet',
    ...asPart(parts),
  })
}

async function startFakeGpus({
  place,
  parts,
  keeper,
  enter,
  cluster,
  name,
  gpus,
}: KubeletStart): Promise<void> {
  const env = {
    ...environment(parts),
    FAKE_GPU_COUNT: String(gpus),
    FAKE_GPU_NODE: name,
    FAKE_GPU_KUBELET_ROOT: join(place.folder, 'kubelet'),
    KUBECONFIG: await kubeconfigFor(cluster, 'fake-gpu', FAKE_KUBELETS),
  }
  const started = ['device-plugin', 'dra'].map((kind) =>
    keeper.start('nsenter', [...enter, parts.fakeGpu, kind], {
      name: `fake-gpu-${kind}`,
      env,
      disposable: true,
    }),
  )
  await waitUntil('the node has its GPUs', async () => {
    for (const part of started) {
      if (part.hasExited()) throw new Error(`the fake GPU ended: ${part.log().slice(-LOG_TAIL_CHARS)}`)
    }
    const { status } = await cluster.api.get(`/api/v1/nodes/${name}`)
    const slices = await cluster.api.get(
      `/apis/resource.k8s.io/v1/resourceslices?fieldSelector=spec.nodeName%3D${name}`,
    )
    return status.allocatable[GPU_RESOURCE] === String(gpus) && slices.items.length > 0
  })
}
