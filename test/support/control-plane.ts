import { generateKeyPairSync } from 'node:crypto'
import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { HOST } from '../../src/server/free-port.js'
import { AUDIT_POLICY, type AuditedRequest, readAuditLog } from './audit-log.js'
import { type Authority, createAuthority, type Identity } from './certificates.js'
import {
  deviceClassObject,
  FAKE_KUBELETS,
  nodeObject,
  PLAYED_BY,
  resourceSliceObject,
  WORKER_ACCOUNT,
  WORKER_RULES,
  workerAccess,
} from './control-plane-objects.js'
import { type ControlPlaneParts, obtainControlPlaneParts } from './control-plane-parts.js'
import {
  apiServerArguments,
  controllerManagerArguments,
  etcdArguments,
  kwokArguments,
} from './control-plane-settings.js'
import { untilServing, withFreePorts } from './free-ports.js'
import { Keeper, type Part } from './keeper.js'
import { KubeApi, type KubeCredentials, type KubeObject } from './kube-api.js'
import { waitUntil } from './wait.js'

const STAGES = fileURLToPath(new URL('../control-plane/stages.yaml', import.meta.url))
const ADDRESS_IN_USE = /address already in use/
/** Of the worker's token: longer than any test or benchmark. */
const TOKEN_SECONDS = 86_400
const OK = 200
/** No address of it is of this machine. */
const NOBODYS = '10.77.0.1/16'

export interface ControlPlaneOptions {
  /** fake nodes, gpu-0 and so on; default 2 */
  nodes?: number
  /** fake GPUs of each, as nvidia.com/gpu and as DRA devices; default 8 */
  gpusPerNode?: number
  /** play those nodes with kwok; default true. Without it they are not created */
  kwok?: boolean
  /** addresses that kwok gives to pods, one after the other from the second on; default: some where nobody listens */
  podCidr?: string
  /** of the pods and the worker's account; default "firepool" */
  namespace?: string
  /** RBAC rules of the worker's account; default what Firepool's worker needs */
  workerRules?: KubeObject[]
  /** default: as `obtainControlPlaneParts` finds them */
  parts?: ControlPlaneParts
}

/** A Kubernetes control plane on the loopback, with fake nodes. Nothing of it outlives us. */
export interface ControlPlane {
  /** https://127.0.0.1:port */
  url: string
  namespace: string
  /** of an administrator */
  kubeconfigPath: string
  /** of the worker's account, which sees its namespace alone */
  workerKubeconfigPath: string
  /** JSON lines: see audit-log.ts */
  auditLogPath: string
  /** an administrator's requests */
  api: KubeApi
  /** as the API server's clients know it; issues certificates of more nodes */
  authority: Authority
  /** the temporary folder of logs and data, which goes with the control plane */
  folder: string
  keeper: Keeper
  /** The worker's requests so far, or those of another user; an administrator's are under "admin". */
  requests(user?: string): Promise<AuditedRequest[]>
  /** Lets a fake node's kubelet fall silent; the node is lost some 12 s later. */
  silenceNode(name: string): Promise<void>
  /** A kubelet of a fake node that was silenced comes back. */
  reviveNode(name: string): Promise<void>
  apiServer: ApiServer
  /**
   * Ends by itself in a real cluster when it cannot renew its lease of leadership, and is started again; here it has none. One that went on
   * over a long outage would take all nodes for lost in its first look at what is a minute old.
   */
  controllerManager: { stop(): Promise<void>; start(): void }
  /** Forgets all history up to now, as etcd does by itself every five minutes: what is older than that cannot be watched from any more. */
  compact(): Promise<void>
  /** Ends the processes and removes the folder. */
  stop(): Promise<void>
}

/** The API server alone, which a test may take away; everything else stays. */
export interface ApiServer {
  /** Kills it: connections break, and are refused from then on. */
  stop(): Promise<void>
  /** Starts it again on the same port, and waits until it serves. */
  start(): Promise<void>
  /** SIGSTOP: connections stay open and nobody answers, as when a network swallows packets. */
  freeze(): void
  thaw(): void
}

/**
 * Starts etcd, an API server, a controller manager, a scheduler and kwok on free ports of the loopback, without root, and waits
 * until pods can be created and the fake nodes are Ready.
 * @throws Error with the tail of the log of what failed; by then all is undone
 */
export async function startControlPlane(options: ControlPlaneOptions = {}): Promise<ControlPlane> {
  const parts = options.parts ?? (await obtainControlPlaneParts())
  const keeper = await Keeper.open('firepool-kubernetes-')
  try {
    return await start(parts, keeper, options)
  } catch (error) {
    await keeper.close()
    throw error
  }
}

async function start(
  parts: ControlPlaneParts,
  keeper: Keeper,
  options: ControlPlaneOptions,
): Promise<ControlPlane> {
  const { nodes = 2, gpusPerNode = 8, kwok = true, namespace = 'firepool', podCidr = NOBODYS } = options
  const { folder } = keeper
  const authority = createAuthority('firepool-test-cluster')
  await writeKeys(folder, authority)
  const etcdUrl = await startEtcd(parts, keeper)
  const { url, apiServer } = await startApiServer(parts, keeper, etcdUrl, authority)
  const cluster: Cluster = { url, ca: authority.cert, folder }
  const admin = authority.issue('admin', { organization: 'system:masters' })
  const kubeconfigPath = await writeKubeconfig(cluster, 'admin', identityOf(admin), namespace)
  const api = new KubeApi({ url, ca: authority.cert, ...admin })
  const controllerManager = await startControllers(parts, keeper, cluster, authority)
  const token = await createObjects(api, options.workerRules ?? WORKER_RULES, namespace)
  if (kwok) await startKwok(parts, keeper, cluster, authority, podCidr)
  const workerKubeconfigPath = await writeKubeconfig(cluster, 'worker', { token }, namespace)
  const names = kwok ? Array.from({ length: nodes }, (_, i) => `gpu-${i}`) : []
  await Promise.all(names.map((name) => createNode(api, name, gpusPerNode)))
  await waitUntil('the nodes are Ready and take pods', () => areReady(api, names))
  const auditLogPath = join(folder, 'audit.log')
  const playedBy = (name: string, player: string | null) =>
    api.patch(`/api/v1/nodes/${name}`, { metadata: { labels: { [PLAYED_BY.label]: player } } })
  return {
    url,
    namespace,
    kubeconfigPath,
    workerKubeconfigPath,
    auditLogPath,
    api,
    authority,
    folder,
    keeper,
    async requests(user = `system:serviceaccount:${namespace}:${WORKER_ACCOUNT}`) {
      const { requests } = await readAuditLog(auditLogPath)
      return requests.filter((request) => request.user === user)
    },
    silenceNode: (name) => playedBy(name, null),
    reviveNode: (name) => playedBy(name, PLAYED_BY.kwok),
    apiServer,
    controllerManager,
    compact: () => compact(etcdUrl),
    async stop() {
      api.close()
      await keeper.close()
    },
  }
}

/** By etcd's own JSON API. */
async function compact(etcdUrl: string): Promise<void> {
  const call = async (path: string, body: object) => {
    const answer = await fetch(`${etcdUrl}/v3/${path}`, { method: 'POST', body: JSON.stringify(body) })
    if (!answer.ok) throw new Error(`etcd ${path}: ${answer.status} ${await answer.text()}`)
    return (await answer.json()) as { header: { revision: string } }
  }
  const { header } = await call('kv/range', { key: Buffer.from('x').toString('base64') })
  await call('kv/compaction', { revision: header.revision, physical: true })
}

interface Cluster {
  url: string
  ca: string
  folder: string
}

/** Names of files that the programs read. */
async function writeKeys(folder: string, authority: Authority): Promise<void> {
  const server = authority.issue('kube-apiserver', {
    // The first address of the service range is that of the service "kubernetes".
    hosts: ['10.96.0.1', 'kubernetes.default.svc'],
  })
  const toKubelets = authority.issue('kube-apiserver-kubelet-client', { organization: 'system:masters' })
  const kwok = authority.issue('kwok')
  const accounts = generateKeyPairSync('ec', { namedCurve: 'P-256' })
  const files: Record<string, string> = {
    'ca.crt': authority.cert,
    'ca.key': authority.key,
    'apiserver.crt': server.cert,
    'apiserver.key': server.key,
    'kubelet-client.crt': toKubelets.cert,
    'kubelet-client.key': toKubelets.key,
    'kwok.crt': kwok.cert,
    'kwok.key': kwok.key,
    'accounts.key': accounts.privateKey.export({ type: 'sec1', format: 'pem' }).toString(),
    'accounts.pub': accounts.publicKey.export({ type: 'spki', format: 'pem' }).toString(),
    'audit-policy.json': JSON.stringify(AUDIT_POLICY),
  }
  for (const [name, text] of Object.entries(files)) {
    await writeFile(join(folder, name), text, { mode: 0o600 })
  }
}

const identityOf = ({ cert, key }: Identity) => ({
  'client-certificate-data': Buffer.from(cert).toString('base64'),
  'client-key-data': Buffer.from(key).toString('base64'),
})

/** @returns its path */
async function writeKubeconfig(
  { url, ca, folder }: Cluster,
  name: string,
  user: Record<string, string>,
  namespace = 'default',
): Promise<string> {
  const path = join(folder, `${name}.kubeconfig`)
  const cluster = { server: url, 'certificate-authority-data': Buffer.from(ca).toString('base64') }
  const config = {
    apiVersion: 'v1',
    kind: 'Config',
    clusters: [{ name: 'test', cluster }],
    users: [{ name, user }],
    contexts: [{ name: 'test', context: { cluster: 'test', user: name, namespace } }],
    'current-context': 'test',
  }
  // JSON is YAML.
  await writeFile(path, JSON.stringify(config), { mode: 0o600 })
  return path
}

/** For another part of the cluster, such as a kubelet. @returns the path of its kubeconfig */
export function kubeconfigFor(
  { url, authority, folder }: Pick<ControlPlane, 'url' | 'authority' | 'folder'>,
  name: string,
  organization?: string,
): Promise<string> {
  const identity = authority.issue(name, organization === undefined ? {} : { organization })
  const file = name.replaceAll(':', '-')
  return writeKubeconfig({ url, ca: authority.cert, folder }, file, identityOf(identity))
}

/**
 * Go programs want to know where home is; ours has settings that are none of their business. An API server that is asked to end waits ten
 * seconds for its watches, and nothing that it has written is read again.
 */
const asPart = (folder: string) => ({ env: { PATH: '/usr/bin:/bin', HOME: folder }, disposable: true })

/** @returns the URL of its clients */
function startEtcd(parts: ControlPlaneParts, keeper: Keeper): Promise<string> {
  return withFreePorts(2, async ([clients, peers]) => {
    const name = `etcd-${clients}`
    const part = keeper.start(parts.etcd, etcdArguments(join(keeper.folder, name), clients!, peers!), {
      name,
      ...asPart(keeper.folder),
    })
    const url = `http://${HOST}:${clients}`
    await untilServing('etcd', part, ADDRESS_IN_USE, async () => {
      const answer = await fetch(`${url}/health`).catch(() => undefined)
      return answer !== undefined && (await answer.text()).includes('"health":"true"')
    })
    return url
  })
}

async function startApiServer(
  parts: ControlPlaneParts,
  keeper: Keeper,
  etcdUrl: string,
  authority: Authority,
): Promise<{ url: string; apiServer: ApiServer }> {
  const credentials = authority.issue('admin', { organization: 'system:masters' })
  const startOn = async (port: number): Promise<Part> => {
    const part = keeper.start(parts['kube-apiserver'], apiServerArguments(keeper.folder, port, etcdUrl), {
      name: `apiserver-${port}`,
      ...asPart(keeper.folder),
    })
    const api = new KubeApi({ url: `https://${HOST}:${port}`, ca: authority.cert, ...credentials })
    await untilServing(
      'The API server',
      part,
      ADDRESS_IN_USE,
      async () => (await api.status('/readyz')) === OK,
    )
    api.close()
    return part
  }
  let [port, part] = await withFreePorts(1, async ([free]) => [free!, await startOn(free!)] as const)
  return {
    url: `https://${HOST}:${port}`,
    apiServer: {
      stop: () => part.stop('SIGKILL'),
      async start() {
        part = await startOn(port)
      },
      freeze: () => part.signal('SIGSTOP'),
      thaw: () => part.signal('SIGCONT'),
    },
  }
}

async function startControllers(
  parts: ControlPlaneParts,
  keeper: Keeper,
  cluster: Cluster,
  authority: Authority,
): Promise<ControlPlane['controllerManager']> {
  const { folder } = keeper
  const shared = asPart(folder)
  const configFor = (name: string) =>
    writeKubeconfig(cluster, name, identityOf(authority.issue(`system:${name}`)))
  const manager = 'kube-controller-manager'
  const args = controllerManagerArguments(folder, await configFor(manager))
  const startManager = () => keeper.start(parts[manager], args, { name: manager, ...shared })
  let part = startManager()
  const scheduler = 'kube-scheduler'
  const config = join(folder, 'scheduler.json')
  await writeFile(
    config,
    JSON.stringify({
      apiVersion: 'kubescheduler.config.k8s.io/v1',
      kind: 'KubeSchedulerConfiguration',
      leaderElection: { leaderElect: false },
      // The limits of the client would be those of the measured, not the scheduler's work.
      clientConnection: { kubeconfig: await configFor(scheduler), qps: 1000, burst: 2000 },
    }),
  )
  keeper.start(parts[scheduler], [`--config=${config}`, '--secure-port=0'], { name: scheduler, ...shared })
  return {
    stop: () => part.stop(),
    start() {
      part = startManager()
    },
  }
}

async function startKwok(
  parts: ControlPlaneParts,
  keeper: Keeper,
  cluster: Cluster,
  authority: Authority,
  podCidr: string,
): Promise<void> {
  const identity = authority.issue('kwok', { organization: FAKE_KUBELETS })
  const kubeconfig = await writeKubeconfig(cluster, 'kwok', identityOf(identity))
  await withFreePorts(1, async ([port]) => {
    const args = kwokArguments({ folder: keeper.folder, kubeconfig, stages: STAGES, port: port!, podCidr })
    const part = keeper.start(parts.kwok, args, { name: `kwok-${port}`, ...asPart(keeper.folder) })
    const url = `https://${HOST}:${port}`
    const api = new KubeApi({ url, ca: authority.cert } satisfies KubeCredentials)
    await untilServing('kwok', part, ADDRESS_IN_USE, async () => (await api.status('/healthz')) === OK)
    api.close()
  })
}

/** Namespace, accounts and what claims need. @returns the worker's token */
async function createObjects(api: KubeApi, workerRules: KubeObject[], namespace: string): Promise<string> {
  await api.post('/apis/rbac.authorization.k8s.io/v1/clusterrolebindings', {
    apiVersion: 'rbac.authorization.k8s.io/v1',
    kind: 'ClusterRoleBinding',
    metadata: { name: 'fake-kubelets' },
    roleRef: { apiGroup: 'rbac.authorization.k8s.io', kind: 'ClusterRole', name: 'cluster-admin' },
    subjects: [{ apiGroup: 'rbac.authorization.k8s.io', kind: 'Group', name: FAKE_KUBELETS }],
  })
  await api.post('/api/v1/namespaces', { apiVersion: 'v1', kind: 'Namespace', metadata: { name: namespace } })
  await api.post('/apis/resource.k8s.io/v1/deviceclasses', deviceClassObject())
  for (const [path, body] of workerAccess(namespace, workerRules)) await api.post(path, body)
  const token = await tokenOf(api, namespace, WORKER_ACCOUNT)
  // Before the controller manager has made it, no pod can be created.
  const account = `/api/v1/namespaces/${namespace}/serviceaccounts/default`
  await waitUntil('the namespace has its default account', async () => (await api.status(account)) === OK)
  return token
}

async function tokenOf(api: KubeApi, namespace: string, account: string): Promise<string> {
  const path = `/api/v1/namespaces/${namespace}/serviceaccounts/${account}/token`
  const { status } = await api.post(path, {
    apiVersion: 'authentication.k8s.io/v1',
    kind: 'TokenRequest',
    spec: { expirationSeconds: TOKEN_SECONDS },
  })
  return status.token
}

/** What a pod of a service account would find in its own folder. @returns the path of a kubeconfig */
export async function kubeconfigOfAccount(
  { url, authority, folder, api }: Pick<ControlPlane, 'url' | 'authority' | 'folder' | 'api'>,
  namespace: string,
  account: string,
): Promise<string> {
  const token = await tokenOf(api, namespace, account)
  return writeKubeconfig({ url, ca: authority.cert, folder }, `${namespace}-${account}`, { token }, namespace)
}

async function createNode(api: KubeApi, name: string, gpus: number): Promise<void> {
  await api.post('/api/v1/nodes', nodeObject(name, PLAYED_BY.kwok, gpus))
  if (gpus > 0) await api.post('/apis/resource.k8s.io/v1/resourceslices', resourceSliceObject(name, gpus))
}

/** Whether these nodes are there, Ready and without a taint, so that the scheduler gives them pods. */
export async function areReady(api: KubeApi, names: readonly string[]): Promise<boolean> {
  if (names.length === 0) return true
  const { items } = await api.get('/api/v1/nodes')
  const ready = items.filter(
    ({ metadata, spec, status }: KubeObject) =>
      names.includes(metadata.name) &&
      spec.taints === undefined &&
      status.conditions?.some((c: KubeObject) => c.type === 'Ready' && c.status === 'True'),
  )
  return ready.length === names.length
}
