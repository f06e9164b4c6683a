/**
 * deploy/kubernetes at work: applied to a real API server, its worker started from its own Deployment with the rights of its own
 * account and no more, against a real Temporal server. The worker's pod and the runners' are processes of this machine. A caller's own
 * worker has what its pod would have: a token of its service account, which a kubelet mounts where it projects one.
 */
import { execFile } from 'node:child_process'
import { copyFile, cp, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { Client, Connection } from '@temporalio/client'
import { NativeConnection, Worker } from '@temporalio/worker'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { stringify } from 'yaml'
import { FirepoolPlugin } from '../../dist/plugin/index.js'
import { startDevServer, type TemporalServer } from '../../dist/server/dev-server.js'
import { createClusterTokenSource } from '../../src/plugin/cluster-token-source.js'
import { freePort } from '../../src/server/free-port.js'
import { type Ended, startCli } from '../support/cli.js'
import { IMAGE_FIREPOOL } from '../support/container-image.js'
import { type ControlPlane, kubeconfigOfAccount, startControlPlane } from '../support/control-plane.js'
import type { KubeObject } from '../support/kube-api.js'
import { isReady, Pods } from '../support/kube-pods.js'
import { create, DEPLOY, render } from '../support/kubectl.js'
import { clusterObstacle, orSkipped } from '../support/obstacles.js'
import { type ProcessKubelet, startProcessKubelet } from '../support/process-kubelet.js'
import { waitUntil } from '../support/wait.js'

const ACCOUNT = 'system:serviceaccount:firepool:firepool-worker'
const DEPLOYMENT = '/apis/apps/v1/namespaces/firepool/deployments/firepool-worker'

const base64 = (text: string) => Buffer.from(text).toString('base64')

const obstacle = await clusterObstacle()

describe.skipIf(obstacle)(orSkipped('deploy/kubernetes at work', obstacle), () => {
  let folder: string
  let temporal: TemporalServer
  let cluster: ControlPlane
  let kubelet: ProcessKubelet
  let objects: KubeObject[]
  let healthPort: number
  let tokenPort: number
  let workers: Pods
  let jobs: Pods

  beforeAll(async () => {
    folder = await mkdtemp(join(tmpdir(), 'firepool-deployment-'))
    temporal = await startDevServer({ logFile: join(folder, 'server.log') })
    cluster = await startControlPlane({ kwok: false, namespace: 'tests' })
    kubelet = await startProcessKubelet(cluster)
    healthPort = await freePort()
    tokenPort = await freePort()
    workers = new Pods(cluster.api, 'firepool')
    jobs = new Pods(cluster.api, 'firepool-jobs')
    objects = await renderOverlay()
  })
  afterAll(async () => {
    await kubelet?.stop()
    await cluster?.stop()
    await temporal?.stop()
    if (folder) await rm(folder, { recursive: true, force: true })
  })

  /** An overlay as users write one, with what a process has to be told because it is no container. */
  async function renderOverlay(): Promise<KubeObject[]> {
    await cp(DEPLOY, join(folder, 'kubernetes'), { recursive: true })
    const overlay = join(folder, 'kubernetes/overlays/test')
    await cp(join(DEPLOY, 'overlays/kind'), overlay, { recursive: true })
    const ofContainer = (field: string, value: unknown, op = 'add') => ({
      op,
      path: `/spec/template/spec/containers/0/${field}`,
      value,
    })
    const kustomization = {
      resources: ['../../base'],
      components: ['../../components/short-jobs'],
      replicas: [{ name: 'firepool-worker', count: 1 }],
      configMapGenerator: [
        {
          name: 'firepool-temporal',
          namespace: 'firepool',
          behavior: 'merge',
          literals: [`TEMPORAL_ADDRESS=${temporal.address}`, 'FIREPOOL_TOKEN_CALLERS=agents/trainer'],
        },
      ],
      patches: [
        {
          target: { kind: 'Deployment', name: 'firepool-worker' },
          patch: stringify([
            ofContainer('command', ['node', `${IMAGE_FIREPOOL}/dist/cli/main.js`]),
            // All pods share the ports of one machine.
            ofContainer('args/2', String(healthPort), 'replace'),
            // That of the component stands before it.
            ofContainer('ports/1/containerPort', healthPort, 'replace'),
            // Where a container has its account's token is a mount, which a process has not.
            ofContainer('env/-', { name: 'KUBECONFIG', value: join(folder, 'account.kubeconfig') }),
            ofContainer('env/-', { name: 'FIREPOOL_TOKEN_PORT', value: String(tokenPort) }),
          ]),
        },
      ],
    }
    await writeFile(join(overlay, 'kustomization.yaml'), stringify(kustomization))
    return render(overlay)
  }

  const { PATH = '' } = process.env
  const cli = (args: readonly string[]): Promise<Ended> =>
    startCli(args, { PATH, HOME: folder, TEMPORAL_ADDRESS: temporal.address, FIREPOOL_DIR: folder }).ended

  async function succeeds(args: readonly string[]): Promise<string> {
    const { code, stdout, stderr } = await cli(args)
    expect(code, `firepool ${args.join(' ')}: ${stdout}${stderr}`).toBe(0)
    return stdout.toString()
  }

  const workerPods = async (): Promise<KubeObject[]> => (await cluster.api.get(workers.path)).items

  async function readiness(): Promise<string> {
    const answer = await fetch(`http://127.0.0.1:${healthPort}/readyz`).catch(() => undefined)
    return answer === undefined ? 'no answer' : `${answer.status} ${(await answer.text()).trim()}`
  }

  /** A wait that tells what the worker said, when it is in vain. */
  async function until<T>(what: string, read: () => Promise<T | null | false>): Promise<T> {
    try {
      return await waitUntil(what, read)
    } catch (error) {
      const logs = (await workerPods()).map(({ metadata }) => kubelet.log('firepool', metadata.name))
      throw new Error(
        `${(error as Error).message}; readiness: ${await readiness()}; logs: ${logs.join('\n')}`,
      )
    }
  }

  /** Applies the pools of a file, or given ones. */
  async function apply(pools: string | object[]): Promise<void> {
    const file = typeof pools === 'string' ? pools : join(folder, 'pools.yaml')
    if (typeof pools !== 'string') await writeFile(file, stringify({ pools }))
    await succeeds(['pool', 'apply', '--file', file])
  }

  /** The Secret of the token endpoint, as cert-manager makes one. */
  function tokenCertificate(): KubeObject {
    const { cert, key } = cluster.authority.issue('firepool-tokens.firepool.svc')
    const data = { 'tls.crt': base64(cert), 'tls.key': base64(key) }
    const metadata = { name: 'firepool-token-tls', namespace: 'firepool' }
    return { apiVersion: 'v1', kind: 'Secret', type: 'kubernetes.io/tls', metadata, data }
  }

  /** A file with a token of an account, made if need be, as a projected volume has it. */
  async function accountToken(account: string, audience: string): Promise<string> {
    const accounts = '/api/v1/namespaces/agents/serviceaccounts'
    if ((await cluster.api.status(`${accounts}/${account}`)) !== 200)
      await cluster.api.post(accounts, { metadata: { name: account } })
    const spec = { audiences: [audience], expirationSeconds: 600 }
    const { status } = await cluster.api.post(`${accounts}/${account}/token`, {
      apiVersion: 'authentication.k8s.io/v1',
      kind: 'TokenRequest',
      spec,
    })
    const file = join(folder, `${account}-${audience.replace(/\W/g, '')}`)
    await writeFile(file, status.token)
    return file
  }

  const poolOf = (name: string, profile: object = {}) => ({
    name,
    budget: 1,
    standby: 1,
    profile: { backend: 'kubernetes', image: 'firepool-runner-cpu:0.1.0', ...profile },
  })

  test('without its key the worker does not start, and the kubelet says which Secret is missing', async () => {
    // The rights come last: what is missing without them is a test of its own.
    const first = objects.filter(({ kind }) => kind === 'Namespace')
    const others = objects.filter(({ kind }) => kind !== 'Namespace' && kind !== 'RoleBinding')
    for (const object of [...first, tokenCertificate(), ...others]) await create(cluster.api, object)
    const config = await kubeconfigOfAccount(cluster, 'firepool', 'firepool-worker')
    await copyFile(config, join(folder, 'account.kubeconfig'))
    const message = await until('the container is refused', async () => {
      const [pod] = await workerPods()
      return pod?.status?.containerStatuses?.[0]?.state.waiting?.message ?? null
    })
    expect(message).toContain('firepool-broker-key')
  })

  test('with the key of the guide it starts; it is not ready, and says which right it misses', async () => {
    const pem = join(folder, 'broker-key.pem')
    await promisify(execFile)('openssl', ['genpkey', '-algorithm', 'ed25519', '-out', pem])
    const secret = {
      apiVersion: 'v1',
      kind: 'Secret',
      metadata: { name: 'firepool-broker-key', namespace: 'firepool' },
      data: { 'broker-key.pem': (await readFile(pem)).toString('base64') },
    }
    await create(cluster.api, secret)
    // A kubelet would try again by itself; ours plays a pod once.
    const [refused] = await workerPods()
    await workers.delete(refused.metadata.name)
    await workers.gone(refused.metadata.name)
    const answer = await until('it says what it misses', async () => {
      const said = await readiness()
      return /may not/.test(said) ? said : null
    })
    expect(answer).toMatch(/^503 this worker may not list pods in namespace firepool-jobs/)
    expect(answer).toContain('give its role the verb "list" on "pods"')
    const [pod] = await workerPods()
    expect(isReady(pod)).toBe(false)
  })

  test('with its rights it becomes ready, and so does the Deployment', async () => {
    for (const object of objects.filter(({ kind }) => kind === 'RoleBinding'))
      await create(cluster.api, object)
    await until('the Deployment is available', async () => {
      const { status } = await cluster.api.get(DEPLOYMENT)
      return status.availableReplicas === 1
    })
    expect(await readiness()).toBe('200 ready')
  })

  test("the guide's pool: a job on a standby, and the next one on the same warm pod", async () => {
    await apply(join(DEPLOY, 'pools.yaml'))
    const run = async () => {
      const args = ['run', '--pool', 'cpu', '--caller', 'me', '--json', '--', 'sh', '-c', 'echo hello']
      return JSON.parse(await succeeds(args)).result
    }
    const [first, second] = [await run(), await run()]
    expect(first).toMatchObject({ exitCode: 0, stdout: 'hello\n' })
    expect(second).toMatchObject({ exitCode: 0, pod: first.pod })
    const { items } = await cluster.api.get(jobs.path)
    expect(items.length).toBeGreaterThan(0)
    for (const { metadata } of items) expect(metadata.labels['firepool.dev/pool']).toBe('cpu')
  })

  describe("a caller's own worker in the cluster", () => {
    const LEASE = { pod: 'p', epoch: 1, leaseId: 'l' }
    let tokenUrl: string
    let tokenCa: string
    beforeAll(async () => {
      await cluster.api.post('/api/v1/namespaces', { metadata: { name: 'agents' } })
      tokenUrl = `https://127.0.0.1:${tokenPort}`
      tokenCa = join(folder, 'token-ca.crt')
      await writeFile(tokenCa, cluster.authority.cert)
    })

    test('gets tokens of its leases by its service account: its short jobs are local activities', async () => {
      const plugin = new FirepoolPlugin({
        tokenUrl,
        tokenCa,
        tokenFile: await accountToken('trainer', 'firepool'),
      })
      const connection = await NativeConnection.connect({ address: temporal.address })
      const worker = await Worker.create({
        connection,
        taskQueue: 'agents',
        workflowsPath: fileURLToPath(new URL('../support/callers.ts', import.meta.url)),
        plugins: [plugin],
      })
      const client = new Client({ connection: await Connection.connect({ address: temporal.address }) })
      const jobs = [1, 2, 3].map((n) => ({ command: `echo ${n} >> f; cat f`, short: true }))
      const args = [{ pool: 'cpu', jobs }]
      const workflowId = 'agents/short'
      const ran = await worker.runUntil(
        client.workflow.execute('loop', { taskQueue: 'agents', workflowId, args }),
      )
      const outputs = (ran as { result: { stdout: string } }[]).map(({ result }) => result.stdout)
      expect(outputs).toEqual(['1\n', '1\n2\n', '1\n2\n3\n'])
      const { events } = await client.workflow.getHandle(workflowId).fetchHistory()
      const text = JSON.stringify(events)
      expect(text).toContain('core_local_activity')
      expect(events!.filter(({ activityTaskScheduledEventAttributes: scheduled }) => scheduled)).toEqual([])
      // Neither the account's token nor the lease's: both are base64url of JSON.
      expect(text).not.toMatch(/eyJ2IjoxLCJwb2Qi|eyJhbGci|Bearer/)
      await connection.close()
    })

    test('whom the operator has not listed, and tokens for others, get none; no log has any token', async () => {
      const ask = async (account: string, audience: string) => {
        const tokenFile = await accountToken(account, audience)
        const source = createClusterTokenSource({ url: tokenUrl, caFile: tokenCa, tokenFile })
        return source(LEASE).then(
          () => 'a token',
          (error: Error) => error.message,
        )
      }
      expect(await ask('trainer', 'firepool')).toBe('a token')
      expect(await ask('other', 'firepool')).toMatch(/refused \(403\).*agents:other may not have tokens/)
      expect(await ask('trainer', 'https://kubernetes.default.svc')).toMatch(/refused \(401\)/)
      // Signed by nobody: the API server is asked, and does not know it.
      const [head, payload] = (await readFile(await accountToken('trainer', 'firepool'), 'utf8')).split('.')
      const forged = join(folder, 'forged')
      await writeFile(forged, `${head}.${payload}.${base64('x'.repeat(256))}`)
      const source = createClusterTokenSource({ url: tokenUrl, caFile: tokenCa, tokenFile: forged })
      await expect(source({ ...LEASE, leaseId: 'forged' })).rejects.toThrow(/refused \(401\).*does not know/)
      const [pod] = await workerPods()
      expect(kubelet.log('firepool', pod.metadata.name)).not.toMatch(/eyJ/)
    })
  })

  test('its metrics: pods by pool and phase, how fresh that is, what it asked for and what was refused', async () => {
    const read = async () => {
      const answer = await fetch(`http://127.0.0.1:${healthPort}/metrics`)
      expect(answer.headers.get('content-type')).toMatch(/^text\/plain; version=0\.0\.4/)
      const lines = (await answer.text()).split('\n').filter((line) => line !== '' && !line.startsWith('#'))
      return new Map(lines.map((line) => [line.replace(/ \S+$/, ''), Number(/ (\S+)$/.exec(line)![1])]))
    }
    await until('the pods are counted as they are', async () => {
      const { items } = await cluster.api.get(jobs.path)
      return (await read()).get('firepool_pods{pool="cpu",phase="ready"}') === items.length
    })
    const metrics = await read()
    expect(metrics.get('firepool_worker_ready')).toBe(1)
    expect(metrics.get('firepool_pod_watch_age_seconds{namespace="firepool-jobs"}')).toBeLessThan(90)
    const asked = (verb: string, resource: string, code: string) =>
      metrics.get(`firepool_kubernetes_requests_total{verb="${verb}",resource="${resource}",code="${code}"}`)
    const ofAudit = (await cluster.requests(ACCOUNT)).filter(
      ({ verb, resource, code }) => verb === 'create' && resource === 'pods' && code === 201,
    )
    // A busy server may have made a pod for a request that the worker had given up by then: it finds it at its next try.
    expect(asked('create', 'pods', '201')).toBeGreaterThan(0)
    expect(asked('create', 'pods', '201')).toBeLessThanOrEqual(ofAudit.length)
    expect(asked('list', 'pods', '403')).toBeGreaterThan(0)
    expect(asked('create', 'tokenreviews', '201')).toBeGreaterThan(0)
    expect(metrics.get('firepool_token_requests_total{code="403"}')).toBe(1)
  })

  test('an image is pulled ahead; a failure has its last words; a pool that is deleted leaves nothing', async () => {
    await apply([poolOf('ahead', { prePull: true })])
    const sets = '/apis/apps/v1/namespaces/firepool-jobs/daemonsets'
    const generation = async () =>
      (await cluster.api.get(sets)).items[0]?.metadata.labels['firepool.dev/generation'] ?? null
    const first = await until('the image is pulled ahead', generation)
    await apply([poolOf('ahead', { prePull: true, env: { NEW: '1' } })])
    await until('that of the next generation too', async () => (await generation()) !== first)

    const silent = { name: 'runner', command: ['sh', '-c', 'exit 3'] }
    await apply([
      poolOf('broken', { prepare: ['sh', '-c', 'echo no such wheel; exit 1'] }),
      poolOf('silent', { template: { spec: { containers: [silent] } } }),
    ])
    const tells = async (pool: string, text: string) =>
      (await succeeds(['pool', 'describe', pool, '--json'])).includes(text)
    await until('the failure is told with its last words', () => tells('broken', 'no such wheel'))
    // What has no last words has a log, it may be.
    await until('the silent one too', () => tells('silent', 'Exited'))

    for (const name of ['cpu', 'ahead', 'broken', 'silent'])
      await succeeds(['pool', 'delete', name, '--force', '--yes'])
    await until('pods, anchors and what pulled are gone', async () => {
      const configMaps =
        '/api/v1/namespaces/firepool-jobs/configmaps?labelSelector=app.kubernetes.io/managed-by'
      const left = await Promise.all([jobs.path, sets, configMaps].map((path) => cluster.api.get(path)))
      return left.every(({ items }) => items.length === 0)
    })
  })

  test('at its deletion a worker ends by itself within its grace', async () => {
    const [pod] = await workerPods()
    const { name } = pod.metadata
    const events: string[] = []
    const watch = cluster.api.watch(workers.path, '', ({ object }) => {
      const state = object.status?.containerStatuses?.[0]?.state.terminated
      if (object.metadata?.name === name && state) events.push(`${state.exitCode}`)
    })
    await workers.delete(name)
    await workers.gone(name)
    watch.stop()
    expect(events.at(-1), 'no SIGKILL').toBe('0')
  })

  test('its role has the rights that it used, and no other', async () => {
    const requests = (await cluster.requests(ACCOUNT)).filter(({ resource }) => !resource.startsWith('/'))
    const asked = new Set(requests.map(({ verb, resource }) => `${verb} ${resource}`))
    // Of a create that comes again, and of an end that the watch does not see: backend.test.ts has both, with these rights.
    asked.add('get pods')
    const rules = objects
      .filter(({ kind }) => kind === 'Role' || kind === 'ClusterRole')
      .flatMap(({ rules }) => rules as { resources: string[]; verbs: string[] }[])
    const given = rules.flatMap(({ resources, verbs }) =>
      resources.flatMap((resource) => verbs.map((verb) => `${verb} ${resource}`)),
    )
    expect([...asked].sort()).toEqual(given.sort())
    // Before the binding was there, everything was refused.
    const isBound = requests.findIndex(({ resource, code }) => resource === 'pods' && code === 200)
    const refused = requests.slice(isBound).filter(({ code }) => code === 403)
    expect(refused.map(({ verb, resource }) => `${verb} ${resource}`)).toEqual([])
  })
})
