import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import type { Client } from '@temporalio/client'
import { createFirepoolClient } from '../dist/client/index.js'
import { type PoolStatus, poolWorkflowId, QUERY } from '../dist/contract/index.js'
import type { Cleanup } from '../dist/demo/cleanup.js'
import type { KubernetesOptions } from '../dist/worker.js'
import { IMAGE } from '../test/support/container-image.js'
import type { ControlPlane } from '../test/support/control-plane.js'
import { GPU_RESOURCE, PLAYED_BY } from '../test/support/control-plane-objects.js'
import { startCluster } from '../test/support/kubernetes-world.js'
import { deviceName, type NodeAgent, startNodeAgent } from '../test/support/node-agent.js'
import { realNodeObstacle } from '../test/support/obstacles.js'
import { type RealNode, startRealNode } from '../test/support/real-node.js'
import { waitUntil } from '../test/support/wait.js'
import { log } from './world.js'

/** A real kubelet with the real node agent, and what a benchmark reads of them. Fake are the GPUs: files, and a driver that reads one. */

/** The GPU that two pods share, and the one whose pods are deleted and created. */
export const [SHARED, FRESH] = [0, 1]
const RUNTIMES = { shared: [deviceName(SHARED)], fresh: [deviceName(FRESH)] }

const POD_VOLUME_PATH = 'volumes/kubernetes.io~empty-dir/firepool-pod'

/** A pod of a pool, with where its jobs' folder and its log are on the node. */
export interface SeatPod {
  pod: string
  uid: string
  work: string
  logFile: string
}

export interface SeatNode {
  cluster: ControlPlane
  node: RealNode
  agent: NodeAgent
}

/** @throws Error when this machine can have no real node */
export async function startSeatNode(
  cleanup: Cleanup,
  signal: AbortSignal,
): Promise<SeatNode & { backend: KubernetesOptions }> {
  const obstacle = await realNodeObstacle()
  if (obstacle) throw new Error(`no real node for the benchmark: ${obstacle}`)
  log('starts a control plane, a kubelet with containerd, and the node agent')
  const cluster = await startCluster({ kwok: false })
  cleanup.add('stop the control plane', () => cluster.stop())
  signal.throwIfAborted()
  const node = await startRealNode(cluster, { runtimes: RUNTIMES, python: true })
  cleanup.add('stop the node', () => node.stop())
  signal.throwIfAborted()
  const agent = await startNodeAgent(cluster, node, { gpus: 2, args: ['-verbose'] })
  cleanup.add("stop the driver's registration", () => agent.close())
  const { workerKubeconfigPath: kubeconfig, namespace } = cluster
  return { cluster, node, agent, backend: { kind: 'kubernetes', kubeconfig, namespaces: [namespace] } }
}

/** What a number can only be read beside. */
export async function describeCluster({ cluster, node }: SeatNode): Promise<Record<string, string>> {
  const { status } = await cluster.api.get(`/api/v1/nodes/${node.name}`)
  const { kubeletVersion, containerRuntimeVersion, kernelVersion } = status.nodeInfo
  return {
    kubelet: kubeletVersion,
    runtime: containerRuntimeVersion,
    kernel: kernelVersion,
    gpus: 'FAKE: ordinary files, and a driver that says what a file says',
    agent: 'firepool-node as a process of the node, its file and its identity as in production',
  }
}

export function seatProfile(runtimeClassName: keyof typeof RUNTIMES, more: object = {}) {
  const gpu = {
    provider: 'time-slicing',
    resource: GPU_RESOURCE,
    colocation: true,
    idle: 'park',
    agent: true,
  }
  const nodeSelector = { [PLAYED_BY.label]: PLAYED_BY.kubelet }
  const template = { spec: { nodeSelector, runtimeClassName } }
  return { backend: 'kubernetes', image: IMAGE.node, gpu, template, ...more }
}

/** The pool's own view of its pods and leases. */
export class PoolView {
  readonly handle
  constructor(
    private readonly client: Client,
    readonly pool: string,
    private readonly node: SeatNode,
  ) {
    this.handle = client.workflow.getHandle(poolWorkflowId(pool))
  }

  status(): Promise<PoolStatus> {
    return this.handle.query<PoolStatus>(QUERY.status)
  }

  /** The lease of a caller, once it has one. */
  lease(caller: string) {
    return waitUntil(`${caller} has a lease`, async () => {
      const { leased } = await this.status()
      return leased.find((lease) => lease.caller === caller) ?? null
    })
  }

  async address(pod: string): Promise<string> {
    const { rows } = await createFirepoolClient({ client: this.client }).pods(this.pool)
    const row = rows.find((each) => each.pod === pod)
    if (!row?.address) throw new Error(`pod ${pod} has no address`)
    return row.address
  }

  /** Where a pod is on the node. */
  async place(pod: string): Promise<SeatPod> {
    const { cluster, node } = this.node
    const path = `/api/v1/namespaces/${cluster.namespace}/pods?labelSelector=firepool.dev%2Fpod%3D${pod}`
    const [{ metadata }] = (await cluster.api.get(path)).items
    const { uid, name } = metadata
    return {
      pod,
      uid,
      work: join(node.folder, 'kubelet/pods', uid, POD_VOLUME_PATH, name, 'work'),
      logFile: join(node.folder, 'pod-logs', `${cluster.namespace}_${name}_${uid}`, 'runner/0.log'),
    }
  }
}

/** Waits for a file that a job writes, without a look's worth of delay in what it says. */
export function fileOf(path: string): Promise<string> {
  return waitUntil(path, () =>
    readFile(path, 'utf8').then(
      (text) => (text.endsWith('\n') ? text : null),
      () => null,
    ),
  )
}
