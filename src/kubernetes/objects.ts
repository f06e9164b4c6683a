/**
 * What this backend reads of Kubernetes' objects, as the API server writes them (JSON: times are texts). The client's own classes are not used: they
 * drop fields that they do not know, and a template may have such.
 */

export interface ObjectMeta {
  name: string
  namespace?: string
  uid: string
  resourceVersion: string
  creationTimestamp?: string
  deletionTimestamp?: string
  labels?: Record<string, string>
  annotations?: Record<string, string>
  ownerReferences?: { kind: string; name: string; uid: string }[]
}

export interface KubeObject {
  metadata: ObjectMeta
}

export interface Condition {
  type: string
  status: 'True' | 'False' | 'Unknown'
  reason?: string
  message?: string
}

export interface ContainerState {
  waiting?: { reason?: string; message?: string }
  running?: { startedAt?: string }
  terminated?: { exitCode: number; signal?: number; reason?: string; message?: string }
}

export interface ContainerStatus {
  name: string
  restartCount: number
  containerID?: string
  state?: ContainerState
  lastState?: ContainerState
}

export interface Pod extends KubeObject {
  spec: { nodeName?: string; schedulingGates?: { name: string }[] }
  status?: {
    phase?: 'Pending' | 'Running' | 'Succeeded' | 'Failed' | 'Unknown'
    reason?: string
    message?: string
    podIP?: string
    conditions?: Condition[]
    initContainerStatuses?: ContainerStatus[]
    containerStatuses?: ContainerStatus[]
  }
}

export interface Node extends KubeObject {
  spec?: { unschedulable?: boolean }
  status?: { conditions?: Condition[] }
}

/** A pod as it is ordered: without what the API server adds. */
export interface PodBody {
  apiVersion: 'v1'
  kind: 'Pod'
  metadata: Omit<ObjectMeta, 'uid' | 'resourceVersion'> & { ownerReferences?: object[] }
  spec: Record<string, unknown>
}

export function conditionOf(object: Pod | Node, type: string): Condition | undefined {
  return object.status?.conditions?.find((condition) => condition.type === type)
}

/**
 * The object without what nobody here reads: who wrote which field, what runs in a pod's containers, which images a node has. Thousands of
 * pods are kept for as long as they live, and this is most of each.
 */
export function withoutBulk<T extends Partial<KubeObject>>(object: T): T {
  const { metadata, spec, status } = object as { metadata?: object; spec?: object; status?: object | string }
  return {
    ...object,
    ...(metadata ? { metadata: without(metadata, METADATA_BULK) } : {}),
    ...(spec ? { spec: without(spec, SPEC_BULK) } : {}),
    // Of an error it is a word.
    ...(typeof status === 'object' ? { status: without(status, STATUS_BULK) } : {}),
  }
}

const METADATA_BULK: ReadonlySet<string> = new Set(['managedFields'])
const SPEC_BULK: ReadonlySet<string> = new Set([
  'affinity',
  'containers',
  'initContainers',
  'tolerations',
  'topologySpreadConstraints',
  'volumes',
])
const STATUS_BULK: ReadonlySet<string> = new Set(['images', 'volumesAttached', 'volumesInUse'])

function without<T extends object>(fields: T, names: ReadonlySet<string>): T {
  return Object.fromEntries(Object.entries(fields).filter(([name]) => !names.has(name))) as T
}
