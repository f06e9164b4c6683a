import type { ControlPlane } from './control-plane.js'
import { PLAYED_BY } from './control-plane-objects.js'
import type { KubeObject } from './kube-api.js'
import { GPU_RIGHTS, rulesOf, startCluster } from './kubernetes-world.js'
import { makeWorld, type World } from './world.js'

/** A world whose pods are of a cluster. */
export interface ClusterWorld<Nodes> extends World {
  cluster: ControlPlane
  /** what plays the cluster's nodes */
  nodes: Nodes
  /** The pods with a label of Firepool's: `podsWith('pool', 'a')` are those of pool a. */
  podsWith(label: 'pool' | 'pod', value: string): Promise<KubeObject[]>
}

export interface ClusterWorldOptions {
  /** the worker has the rights that pools with GPUs need */
  gpus?: boolean
  /** see makeWorld */
  workerProcess?: boolean
}

/** What every profile of a pool on a process kubelet has. */
export const ON_PROCESSES = {
  backend: 'kubernetes',
  image: 'registry.test/firepool:1',
  template: { spec: { nodeSelector: { [PLAYED_BY.label]: PLAYED_BY.process } } },
}

/**
 * A cluster with nodes, a Temporal server, and Firepool's worker with the rights that users are told to give it. Its `close` ends all.
 * @param startNodes such as startProcessKubelet
 */
export async function makeClusterWorld<Nodes extends { stop(): Promise<void> }>(
  startNodes: (cluster: ControlPlane) => Promise<Nodes>,
  { gpus = false, workerProcess = false }: ClusterWorldOptions = {},
): Promise<ClusterWorld<Nodes>> {
  const stops: (() => Promise<void>)[] = []
  const close = async () => {
    for (const stop of stops.reverse()) await stop()
  }
  try {
    const workerRules = rulesOf('Role', gpus ? [GPU_RIGHTS] : [])
    const cluster = await startCluster({ kwok: false, workerRules })
    stops.push(() => cluster.stop())
    const nodes = await startNodes(cluster)
    stops.push(() => nodes.stop())
    const { workerKubeconfigPath: kubeconfig, namespace } = cluster
    const backend = { kind: 'kubernetes' as const, kubeconfig, namespaces: [namespace] }
    const world = await makeWorld({ workerProcess, backend })
    stops.push(() => world.close())
    const podsWith = async (label: string, value: string) =>
      (
        await cluster.api.get(
          `/api/v1/namespaces/${namespace}/pods?labelSelector=firepool.dev%2F${label}%3D${value}`,
        )
      ).items
    return { ...world, cluster, nodes, podsWith, close }
  } catch (error) {
    await close()
    throw error
  }
}
