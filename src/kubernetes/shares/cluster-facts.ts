import { KubeError } from '../kube-error.js'
import type { KubeObject } from '../objects.js'
import type { Request, Requests } from '../requests.js'
import type { ClusterFacts, NodeFacts, Subject } from './share.js'

/** Nodes come in pages: a large cluster's are many megabytes. */
const PAGE = '500'
const KAI_API = '/apis/scheduling.run.ai/v2'
const DRA_API = '/apis/resource.k8s.io/v1'
const STORAGE_API = '/apis/storage.k8s.io/v1'

/** Reads what providers look for, and no more. What this worker may not see is null; what the cluster does not know is empty. */
export async function clusterFacts(requests: Requests, subjects: readonly Subject[]): Promise<ClusterFacts> {
  const facts: { -readonly [Part in keyof ClusterFacts]: ClusterFacts[Part] } = {
    nodes: null,
    apis: null,
    deviceClasses: null,
    queues: null,
    csiDrivers: null,
  }
  const read: Readonly<Record<Subject, () => Promise<void>>> = {
    async nodes() {
      facts.nodes = await listed(requests, 'nodes', '/api/v1/nodes', nodeFacts)
    },
    async apis() {
      facts.apis = await apis(requests)
    },
    async deviceClasses() {
      facts.deviceClasses = await listed(requests, 'deviceclasses', `${DRA_API}/deviceclasses`, nameOf)
    },
    async queues() {
      facts.queues = await listed(requests, 'queues', `${KAI_API}/queues`, nameOf)
    },
    async csiDrivers() {
      facts.csiDrivers = await listed(requests, 'csidrivers', `${STORAGE_API}/csidrivers`, nameOf)
    },
  }
  await Promise.all(subjects.map((subject) => read[subject]()))
  return facts
}

interface NodeObject extends KubeObject {
  status?: { allocatable?: Record<string, string> }
}

function nodeFacts({ metadata, status }: NodeObject): NodeFacts {
  const { name, labels = {}, annotations = {} } = metadata
  return { name, labels, annotations, allocatable: status?.allocatable ?? {} }
}

function nameOf({ metadata }: KubeObject): string {
  return metadata.name
}

async function apis(requests: Requests): Promise<string[] | null> {
  const found = await asked<{ groups: { versions: { groupVersion: string }[] }[] }>(requests, {
    verb: 'get',
    resource: 'apis',
    path: '/apis',
  })
  if (found === 'forbidden') return null
  return found === 'absent'
    ? []
    : found.groups.flatMap(({ versions }) => versions.map((of) => of.groupVersion))
}

async function listed<Found extends KubeObject, Fact>(
  requests: Requests,
  resource: string,
  path: string,
  fact: (object: Found) => Fact,
): Promise<Fact[] | null> {
  const facts: Fact[] = []
  let next = ''
  do {
    const page = await asked<{ items: Found[]; metadata: { continue?: string } }>(requests, {
      verb: 'list',
      resource,
      path,
      query: { limit: PAGE, ...(next ? { continue: next } : {}) },
    })
    if (page === 'forbidden') return null
    if (page === 'absent') return []
    facts.push(...page.items.map(fact))
    next = page.metadata.continue ?? ''
  } while (next !== '')
  return facts
}

async function asked<T>(requests: Requests, request: Request): Promise<T | 'forbidden' | 'absent'> {
  try {
    return await requests.json<T>({ ...request, optional: true })
  } catch (error) {
    if (error instanceof KubeError && error.status === 403) return 'forbidden'
    if (error instanceof KubeError && error.status === 404) return 'absent'
    throw error
  }
}
