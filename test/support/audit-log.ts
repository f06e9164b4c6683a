import { readFile, stat } from 'node:fs/promises'
import { FAKE_KUBELETS } from './control-plane-objects.js'
import type { KubeObject } from './kube-api.js'

/** The API server writes down who has asked it for what; a benchmark counts it. */

/** Parts of the cluster itself; what remains are the worker and the tests. */
const OF_THE_CLUSTER = {
  users: ['system:kube-controller-manager', 'system:kube-scheduler', 'system:apiserver', 'system:anonymous'],
  userGroups: ['system:nodes', 'system:serviceaccounts:kube-system', FAKE_KUBELETS],
}

/** An audit policy: every request of a worker or a test once, when it is answered (a watch when it begins, and when it ends). */
export const AUDIT_POLICY: KubeObject = {
  apiVersion: 'audit.k8s.io/v1',
  kind: 'Policy',
  omitStages: ['RequestReceived'],
  rules: [
    { level: 'None', users: OF_THE_CLUSTER.users },
    { level: 'None', userGroups: OF_THE_CLUSTER.userGroups },
    { level: 'Metadata' },
  ],
}

/** One request to the API server. */
export interface AuditedRequest {
  /** when the server began to work on it, ms since 1970 */
  atMs: number
  /** system:serviceaccount:{namespace}:{name}, or the name in a certificate */
  user: string
  userAgent: string
  /** get, list, watch, create, update, patch, delete, deletecollection */
  verb: string
  /** pods, pods/exec, ...; the path where it is no resource */
  resource: string
  namespace: string
  name: string
  /** HTTP status */
  code: number
}

/**
 * Reads the requests of an audit log. Those under way are not in it, except watches.
 * @param fromByte skips what an earlier call has read
 */
export async function readAuditLog(
  file: string,
  fromByte = 0,
): Promise<{ requests: AuditedRequest[]; nextByte: number }> {
  const bytes = (await readFile(file)).subarray(fromByte)
  const complete = bytes.subarray(0, bytes.lastIndexOf(0x0a) + 1)
  const requests: AuditedRequest[] = []
  for (const line of complete.toString('utf8').split('\n')) {
    if (line === '') continue
    const event = JSON.parse(line)
    const isWatch = event.verb === 'watch'
    // Each request once: a watch when it begins, all others when they are answered.
    if (isWatch ? event.stage !== 'ResponseStarted' : event.stage === 'ResponseStarted') continue
    requests.push(requestOf(event))
  }
  return { requests, nextByte: fromByte + complete.length }
}

/** Where `readAuditLog` would begin to read what comes from now on. */
export async function endOfAuditLog(file: string): Promise<number> {
  return (await stat(file)).size
}

function requestOf(event: KubeObject): AuditedRequest {
  const { resource, subresource, namespace = '', name = '' } = event.objectRef ?? {}
  return {
    atMs: Date.parse(event.requestReceivedTimestamp),
    user: event.user?.username ?? '',
    userAgent: event.userAgent ?? '',
    verb: event.verb,
    resource: resource ? [resource, subresource].filter(Boolean).join('/') : event.requestURI,
    namespace,
    name,
    code: event.responseStatus?.code ?? 0,
  }
}
