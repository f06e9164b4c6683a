import { join } from 'node:path'
import { HOST } from '../../src/server/free-port.js'
import { PLAYED_BY } from './control-plane-objects.js'

/** How the programs of a test cluster are started: one of each, on one machine, for minutes. */

/** A kubelet writes a quarter as often; a node that is silent for longer than the grace is lost. */
const NODE_LEASE_SECONDS = 8
const NODE_GRACE = '12s'
/** Pods of a lost node are deleted after this (Kubernetes' own default is 300). */
const TOLERATION_SECONDS = 5

/** Those that pods, their nodes and the project's manifests need; the others would only take memory. */
const CONTROLLERS = [
  'serviceaccount-controller',
  'root-ca-certificate-publisher-controller',
  'namespace-controller',
  'garbage-collector-controller',
  'pod-garbage-collector-controller',
  'node-lifecycle-controller',
  'taint-eviction-controller',
  'disruption-controller',
  'replicaset-controller',
  'deployment-controller',
  'daemonset-controller',
  'endpointslice-controller',
  'resourceclaim-controller',
  'resourcequota-controller',
  'clusterrole-aggregation-controller',
]

export function etcdArguments(data: string, clientPort: number, peerPort: number): string[] {
  const [clients, peers] = [clientPort, peerPort].map((port) => `http://${HOST}:${port}`)
  return [
    ...['--name=test', `--data-dir=${data}`, `--initial-cluster=test=${peers}`],
    ...[`--listen-client-urls=${clients}`, `--advertise-client-urls=${clients}`],
    ...[`--listen-peer-urls=${peers}`, `--initial-advertise-peer-urls=${peers}`],
    // A disk sync for each write; what is here need not survive the machine.
    '--unsafe-no-fsync',
    '--log-level=warn',
  ]
}

/** @param folder has the keys and certificates */
export function apiServerArguments(folder: string, port: number, etcdUrl: string): string[] {
  const file = (name: string) => join(folder, name)
  return [
    `--etcd-servers=${etcdUrl}`,
    ...[`--bind-address=${HOST}`, `--advertise-address=${HOST}`, `--secure-port=${port}`],
    // The loopback may not be the endpoint of a service.
    '--endpoint-reconciler-type=none',
    ...[`--tls-cert-file=${file('apiserver.crt')}`, `--tls-private-key-file=${file('apiserver.key')}`],
    `--client-ca-file=${file('ca.crt')}`,
    `--kubelet-certificate-authority=${file('ca.crt')}`,
    `--kubelet-client-certificate=${file('kubelet-client.crt')}`,
    `--kubelet-client-key=${file('kubelet-client.key')}`,
    '--kubelet-preferred-address-types=InternalIP',
    `--service-account-key-file=${file('accounts.pub')}`,
    `--service-account-signing-key-file=${file('accounts.key')}`,
    '--service-account-issuer=https://kubernetes.default.svc',
    // As installers do: who may be privileged is said by the namespaces.
    '--allow-privileged=true',
    // By default 1.36 has the rules for failed devices, but does not serve them.
    ...['--feature-gates=DRADeviceTaintRules=true', '--runtime-config=resource.k8s.io/v1beta2=true'],
    ...['--authorization-mode=Node,RBAC', '--enable-admission-plugins=NodeRestriction'],
    '--service-cluster-ip-range=10.96.0.0/16',
    `--default-unreachable-toleration-seconds=${TOLERATION_SECONDS}`,
    `--default-not-ready-toleration-seconds=${TOLERATION_SECONDS}`,
    ...[`--audit-policy-file=${file('audit-policy.json')}`, `--audit-log-path=${file('audit.log')}`],
    // One file, however long: whoever counts reads it from its beginning.
    '--audit-log-maxsize=0',
    '--profiling=false',
  ]
}

export function controllerManagerArguments(folder: string, kubeconfig: string): string[] {
  return [
    `--kubeconfig=${kubeconfig}`,
    ...['--leader-elect=false', '--secure-port=0', '--profiling=false'],
    '--use-service-account-credentials=true',
    `--root-ca-file=${join(folder, 'ca.crt')}`,
    // The default of 20 requests a second would be what a benchmark measures.
    ...['--kube-api-qps=200', '--kube-api-burst=400'],
    ...['--node-monitor-period=1s', `--node-monitor-grace-period=${NODE_GRACE}`],
    // With two nodes, one that is lost is half of the zone, and evictions would be held back.
    ...['--node-eviction-rate=100', '--secondary-node-eviction-rate=100', '--unhealthy-zone-threshold=1'],
    `--controllers=${CONTROLLERS.join(',')}`,
  ]
}

export function kwokArguments(files: {
  folder: string
  kubeconfig: string
  stages: string
  port: number
  podCidr: string
}): string[] {
  const { folder, kubeconfig, stages, port, podCidr } = files
  return [
    ...[`--kubeconfig=${kubeconfig}`, `--config=${stages}`],
    `--manage-nodes-with-label-selector=${PLAYED_BY.label}=${PLAYED_BY.kwok}`,
    ...[`--cidr=${podCidr}`, `--node-ip=${HOST}`, `--node-port=${port}`],
    `--server-address=${HOST}:${port}`,
    `--tls-cert-file=${join(folder, 'kwok.crt')}`,
    `--tls-private-key-file=${join(folder, 'kwok.key')}`,
    `--node-lease-duration-seconds=${NODE_LEASE_SECONDS}`,
  ]
}

/** Seconds for which a kubelet's Lease is good. */
export { NODE_LEASE_SECONDS }
