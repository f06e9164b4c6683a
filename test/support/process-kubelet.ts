import { randomInt } from 'node:crypto'
import { createServer, type Server } from 'node:https'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { HOST } from '../../src/server/free-port.js'
import { IMAGE_FIREPOOL } from './container-image.js'
import { areReady, type ControlPlane } from './control-plane.js'
import { FAKE_KUBELETS, nodeObject, PLAYED_BY } from './control-plane-objects.js'
import { NODE_LEASE_SECONDS } from './control-plane-settings.js'
import { Keeper } from './keeper.js'
import { KubeApi, type KubeObject } from './kube-api.js'
import { type PodHost, ProcessPod } from './process-pod.js'
import { waitUntil } from './wait.js'

/** As a kubelet: four times in the life of its Lease. */
const RENEW_EVERY_MS = (NODE_LEASE_SECONDS * 1_000) / 4
const FOLLOW_AGAIN_MS = 200
const LEASES = '/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases'

/** Where paths of the containers' image are on this machine: Firepool is this repository, built. */
const IMAGE_PATHS = [
  [IMAGE_FIREPOOL, fileURLToPath(new URL('../..', import.meta.url)).replace(/\/$/, '')],
] as const

export interface ProcessKubeletOptions {
  /** default process-0 */
  nodes?: readonly string[]
  /** default 8 */
  gpusPerNode?: number
}

/** Nodes whose pods are processes of this machine. */
export interface ProcessKubelet {
  nodes: readonly string[]
  /** first processes of a pod's containers */
  pids(namespace: string, pod: string): number[]
  /** what a pod has printed */
  log(namespace: string, pod: string): string
  /** The node falls silent while its pods go on, as behind a cut cable; it is lost some 12 s later. */
  silence(node: string): void
  /** The node is heard again, and hears what was decided about its pods meanwhile. */
  revive(node: string): void
  /** Kills the pods' processes and ends. */
  stop(): Promise<void>
}

/**
 * Plays the kubelets of some nodes: each pod's command is a process on an address 127.x.y.z of its own, with the environment, the
 * volumes (by their path: what names a mount path is told the folder), the readiness probe (HTTP) and the ends of its spec. There
 * is no isolation: processes see the machine. Linux alone has all of 127.0.0.0/8.
 */
export async function startProcessKubelet(
  cluster: ControlPlane,
  options: ProcessKubeletOptions = {},
): Promise<ProcessKubelet> {
  const keeper = await Keeper.open('firepool-process-kubelet-')
  const { url, authority } = cluster
  const identity = authority.issue('process-kubelet', { organization: FAKE_KUBELETS })
  const api = new KubeApi({ url, ca: authority.cert, ...identity })
  const { nodes: names = ['process-0'], gpusPerNode = 8 } = options
  const host = { api, keeper, imagePaths: IMAGE_PATHS, podAddress: podAddresses() }
  const nodes = names.map((name) => new ProcessNode(name, gpusPerNode, host))
  const find = (namespace: string, pod: string) => {
    for (const node of nodes) {
      const found = node.find(namespace, pod)
      if (found) return found
    }
    throw new Error(`no pod ${namespace}/${pod} runs here`)
  }
  const logServer = await serveLogs(cluster, find)
  for (const node of nodes) await node.register(logServer.port)
  const follower = new Follower(api, nodes)
  await waitUntil('the nodes are Ready', () => areReady(api, names))
  const nodeOf = (name: string) => {
    const node = nodes.find((n) => n.name === name)
    if (!node) throw new Error(`no node ${name} is played here`)
    return node
  }
  return {
    nodes: names,
    pids: (namespace, pod) => find(namespace, pod).pids(),
    log: (namespace, pod) => find(namespace, pod).log(),
    silence: (name) => nodeOf(name).silence(),
    revive(name) {
      nodeOf(name).revive()
      follower.lookAgain()
    },
    async stop() {
      await follower.stop()
      await Promise.all(nodes.map((node) => node.stop()))
      await logServer.close()
      api.close()
      await keeper.close()
    },
  }
}

/** Other kubelets of this machine choose other ones, as good as surely. */
function podAddresses(): () => string {
  const [second, third] = [randomInt(16, 255), randomInt(0, 256)]
  let count = 0
  return () => {
    count++
    return `127.${second}.${(third + (count >> 8)) & 255}.${count & 255}`
  }
}

/** The kubelet's port, as far as the API server asks it for a container's log. */
async function serveLogs(
  { authority }: ControlPlane,
  find: (namespace: string, pod: string) => ProcessPod,
): Promise<{ port: number; close(): Promise<void> }> {
  const server: Server = createServer(authority.issue('process-kubelet'), (request, response) => {
    const [, what, namespace = '', pod = '', container] = new URL(
      request.url ?? '/',
      'https://x',
    ).pathname.split('/')
    try {
      if (what !== 'containerLogs') throw new Error(`a process kubelet has no ${what}`)
      response.end(find(namespace, pod).log(container))
    } catch (error) {
      response.writeHead(404).end((error as Error).message)
    }
  })
  await new Promise<void>((resolve) => server.listen(0, HOST, resolve))
  const address = server.address()
  if (address === null || typeof address === 'string') throw new Error('no TCP port')
  return {
    port: address.port,
    close: () =>
      new Promise((resolve) => {
        server.close(() => resolve())
        server.closeAllConnections()
      }),
  }
}

/** Gives every node its pods, as they are now and as they change. */
class Follower {
  private isStopped = false
  private endWatch = () => {}
  private readonly ended: Promise<void>

  constructor(
    private readonly api: KubeApi,
    private readonly nodes: readonly ProcessNode[],
  ) {
    this.ended = this.follow()
  }

  /** Tells the nodes of all pods, as at the beginning. */
  lookAgain(): void {
    this.endWatch()
  }

  async stop(): Promise<void> {
    this.isStopped = true
    this.endWatch()
    await this.ended
  }

  private async follow(): Promise<void> {
    const path = '/api/v1/pods'
    while (!this.isStopped) {
      try {
        const { items, metadata } = await this.api.get(path)
        for (const node of this.nodes) node.seeAll(items)
        const watch = this.api.watch(path, metadata.resourceVersion, ({ type, object }) =>
          this.nodes.find(({ name }) => name === object.spec?.nodeName)?.see(type, object),
        )
        this.endWatch = watch.stop
        if (this.isStopped) watch.stop()
        await watch.ended
      } catch {
        // The API server is away: what runs goes on, and what changed is seen later.
      }
      if (!this.isStopped) await sleep(FOLLOW_AGAIN_MS)
    }
  }
}

class ProcessNode {
  private readonly pods = new Map<string, ProcessPod>()
  private readonly freeGpus: string[]
  private readonly host: PodHost
  private renewal: NodeJS.Timeout | undefined
  private isSilent = false

  constructor(
    readonly name: string,
    private readonly gpus: number,
    host: Omit<PodHost, 'takeGpus' | 'returnGpus'>,
  ) {
    this.freeGpus = Array.from({ length: gpus }, (_, i) => `GPU-${name}-${i}`)
    this.host = {
      ...host,
      takeGpus: (count) => (count > this.freeGpus.length ? undefined : this.freeGpus.splice(0, count)),
      returnGpus: (names) => this.freeGpus.push(...names),
    }
  }

  find(namespace: string, pod: string): ProcessPod | undefined {
    return [...this.pods.values()].findLast((p) => p.name === pod && p.namespace === namespace)
  }

  async register(logPort: number): Promise<void> {
    const { api } = this.host
    const node = nodeObject(this.name, PLAYED_BY.process, this.gpus)
    node.status.daemonEndpoints = { kubeletEndpoint: { Port: logPort } }
    node.status.conditions = [this.readyCondition()]
    await api.post('/api/v1/nodes', node)
    await api.post(LEASES, {
      apiVersion: 'coordination.k8s.io/v1',
      kind: 'Lease',
      metadata: { name: this.name },
      spec: { holderIdentity: this.name, leaseDurationSeconds: NODE_LEASE_SECONDS, renewTime: microTime() },
    })
    this.renewal = setInterval(() => void this.renew(), RENEW_EVERY_MS)
  }

  /** The node's pods, all of them: who is not among them was removed while nobody looked. */
  seeAll(pods: readonly KubeObject[]): void {
    const uids = new Set(pods.map(({ metadata }) => metadata.uid))
    for (const [uid, pod] of this.pods) if (!uids.has(uid) && !this.isSilent) void this.forget(uid, pod)
    for (const pod of pods) if (pod.spec.nodeName === this.name) this.see('MODIFIED', pod)
  }

  see(type: string, pod: KubeObject): void {
    // It could not hear: what was said meanwhile it learns when it is revived.
    if (this.isSilent) return
    const { uid } = pod.metadata
    const known = this.pods.get(uid)
    if (type === 'DELETED') {
      if (known) void this.forget(uid, known)
    } else if (known) known.update(pod)
    else if (!['Succeeded', 'Failed'].includes(pod.status?.phase)) {
      const started = new ProcessPod(pod, this.host)
      this.pods.set(uid, started)
      if (pod.metadata.deletionTimestamp) started.update(pod)
      else void started.run()
    }
  }

  silence(): void {
    this.isSilent = true
    for (const pod of this.pods.values()) pod.isSilent = true
  }

  revive(): void {
    this.isSilent = false
    for (const pod of this.pods.values()) {
      pod.isSilent = false
      // The cluster has called it not Ready meanwhile.
      pod.report()
    }
    void this.renew()
  }

  async stop(): Promise<void> {
    clearInterval(this.renewal)
    await Promise.all([...this.pods.values()].map((pod) => pod.kill()))
  }

  private async forget(uid: string, pod: ProcessPod): Promise<void> {
    this.pods.delete(uid)
    await pod.kill()
  }

  private async renew(): Promise<void> {
    if (this.isSilent) return
    const { api } = this.host
    try {
      await api.patch(`${LEASES}/${this.name}`, { spec: { renewTime: microTime() } })
      const { status } = await api.get(`/api/v1/nodes/${this.name}`)
      const ready = status.conditions.find(({ type }: KubeObject) => type === 'Ready')
      // Whoever was thought lost says that it is not.
      if (ready?.status !== 'True') {
        const body = { status: { conditions: [this.readyCondition()] } }
        await api.patch(`/api/v1/nodes/${this.name}/status`, body, 'strategic')
      }
    } catch {
      // The API server is away, or busy: the next renewal comes soon.
    }
  }

  private readyCondition(): KubeObject {
    const now = new Date().toISOString()
    return {
      type: 'Ready',
      status: 'True',
      reason: 'KubeletReady',
      lastHeartbeatTime: now,
      lastTransitionTime: now,
    }
  }
}

/** Of a Lease: with microseconds, or the API server refuses it. */
const microTime = () => new Date().toISOString().replace('Z', '000Z')
