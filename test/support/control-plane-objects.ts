import type { KubeObject } from './kube-api.js'

/** Objects of a test cluster that are there before the first pod. */

/** Who plays a node's kubelet is a label of the node. Without it kwok lets the node fall silent. */
export const PLAYED_BY = {
  label: 'firepool.test/played-by',
  kwok: 'kwok',
  process: 'process-kubelet',
  kubelet: 'kubelet',
} as const

/** The group of who plays kubelets; their requests are not in the audit log. */
export const FAKE_KUBELETS = 'firepool.test:fake-kubelets'

/** The extended resource of a device plugin. */
export const GPU_RESOURCE = 'nvidia.com/gpu'
/** The driver of DRA devices, and the name of their DeviceClass. */
export const GPU_DRIVER = 'gpu.firepool.test'

/** The restricted account of Firepool's worker, in the namespace of its pods. */
export const WORKER_ACCOUNT = 'firepool-worker'

/** What Firepool's worker may do, in its own namespace alone. Exec is asked for by GET (WebSocket) and by POST. */
export const WORKER_RULES: KubeObject[] = [
  { apiGroups: [''], resources: ['pods'], verbs: ['get', 'list', 'watch', 'create', 'delete', 'patch'] },
  { apiGroups: [''], resources: ['pods/log'], verbs: ['get'] },
  { apiGroups: [''], resources: ['pods/exec'], verbs: ['get', 'create'] },
  { apiGroups: [''], resources: ['events'], verbs: ['get', 'list', 'watch'] },
]

/** Size of a fake node: more than a thousand small pods want. */
const CAPACITY = { cpu: '512', memory: '4Ti', 'ephemeral-storage': '64Ti', pods: '1000' }

/**
 * A Node as its kubelet registers it.
 * @param name and host name
 * @param player who plays its kubelet
 */
export function nodeObject(name: string, player: string, gpus: number): KubeObject {
  const capacity = { ...CAPACITY, ...(gpus > 0 ? { [GPU_RESOURCE]: String(gpus) } : {}) }
  return {
    apiVersion: 'v1',
    kind: 'Node',
    metadata: {
      name,
      labels: {
        [PLAYED_BY.label]: player,
        'kubernetes.io/hostname': name,
        'kubernetes.io/os': 'linux',
        'kubernetes.io/arch': 'amd64',
      },
    },
    status: {
      capacity,
      allocatable: capacity,
      addresses: [
        { type: 'InternalIP', address: '127.0.0.1' },
        { type: 'Hostname', address: name },
      ],
      nodeInfo: { kubeletVersion: 'v1.36.3' },
    },
  }
}

/** The GPUs of a node as its DRA driver publishes them. */
export function resourceSliceObject(node: string, gpus: number): KubeObject {
  return {
    apiVersion: 'resource.k8s.io/v1',
    kind: 'ResourceSlice',
    metadata: { name: `${node}-${GPU_DRIVER}` },
    spec: {
      driver: GPU_DRIVER,
      nodeName: node,
      pool: { name: node, generation: 1, resourceSliceCount: 1 },
      devices: Array.from({ length: gpus }, (_, i) => ({
        name: `gpu-${i}`,
        attributes: { uuid: { string: `GPU-${node}-${i}` } },
      })),
    },
  }
}

/** The class by which claims ask for a GPU of our driver. */
export function deviceClassObject(): KubeObject {
  return {
    apiVersion: 'resource.k8s.io/v1',
    kind: 'DeviceClass',
    metadata: { name: GPU_DRIVER },
    spec: { selectors: [{ cel: { expression: `device.driver == "${GPU_DRIVER}"` } }] },
  }
}

/** Account, role and binding of the worker: paths and bodies in the order in which they are posted. */
export function workerAccess(namespace: string, rules: KubeObject[]): [path: string, body: KubeObject][] {
  const metadata = { name: WORKER_ACCOUNT }
  const rbac = `/apis/rbac.authorization.k8s.io/v1/namespaces/${namespace}`
  const group = 'rbac.authorization.k8s.io'
  return [
    [
      `/api/v1/namespaces/${namespace}/serviceaccounts`,
      { apiVersion: 'v1', kind: 'ServiceAccount', metadata },
    ],
    [`${rbac}/roles`, { apiVersion: `${group}/v1`, kind: 'Role', metadata, rules }],
    [
      `${rbac}/rolebindings`,
      {
        apiVersion: `${group}/v1`,
        kind: 'RoleBinding',
        metadata,
        roleRef: { apiGroup: group, kind: 'Role', name: WORKER_ACCOUNT },
        subjects: [{ kind: 'ServiceAccount', name: WORKER_ACCOUNT, namespace }],
      },
    ],
  ]
}
