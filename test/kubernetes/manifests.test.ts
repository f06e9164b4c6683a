/** deploy/kubernetes, rendered as `kubectl apply -k` does it and taken by a real API server; and that its parts fit each other. */
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { cp, mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { parse, stringify } from 'yaml'
import { readPoolFile } from '../../dist/cli/pool-file.js'
import { type KubernetesProfile, RUNNER_PORT } from '../../dist/contract/index.js'
import { podBody } from '../../src/kubernetes/pod-template.js'
import { IMAGE_FIREPOOL } from '../support/container-image.js'
import { type ControlPlane, startControlPlane } from '../support/control-plane.js'
import { describeImage } from '../support/dockerfile.js'
import type { KubeObject } from '../support/kube-api.js'
import { create, DEPLOY, objectsOf, render } from '../support/kubectl.js'
import { clusterObstacle, orSkipped } from '../support/obstacles.js'
import { waitUntil } from '../support/wait.js'

const ROOT = join(DEPLOY, '../..')
const text = (path: string) => readFileSync(join(ROOT, path), 'utf8')
const { version } = JSON.parse(text('package.json')) as { version: string }
const SAMPLES = readdirSync(join(DEPLOY, 'samples'))
const POOL_FILES = ['pools.yaml', 'pools-gpu.yaml']

const obstacle = await clusterObstacle()

describe.skipIf(obstacle)(orSkipped('deploy/kubernetes', obstacle), () => {
  let cluster: ControlPlane
  let base: KubeObject[]
  let kind: KubeObject[]
  let short: KubeObject[]
  beforeAll(async () => {
    cluster = await startControlPlane({ nodes: 0, kwok: false, namespace: 'tests' })
    base = await render(join(DEPLOY, 'base'))
    kind = await render(join(DEPLOY, 'overlays/kind'))
    short = await renderWith('short-jobs')
    for (const object of base) await create(cluster.api, object)
  })
  afterAll(() => cluster?.stop())

  /** The base with a component beside it, as an overlay has it. */
  async function renderWith(component: string): Promise<KubeObject[]> {
    const folder = await mkdtemp(join(tmpdir(), 'firepool-manifests-'))
    try {
      await cp(DEPLOY, folder, { recursive: true })
      const resources = ['../../base']
      const kustomization = { resources, components: [`../../components/${component}`] }
      await mkdir(join(folder, 'overlays/test'))
      await writeFile(join(folder, 'overlays/test/kustomization.yaml'), stringify(kustomization))
      return await render(join(folder, 'overlays/test'))
    } finally {
      await rm(folder, { recursive: true })
    }
  }

  const find = (objects: KubeObject[], what: string, name: string): KubeObject => {
    const found = objects.find((object) => object.kind === what && object.metadata.name === name)
    if (found === undefined) throw new Error(`there is no ${what} ${name}`)
    return found
  }
  const samples = () => SAMPLES.flatMap((file) => objectsOf(text(`deploy/kubernetes/samples/${file}`)))
  const worker = () => find(base, 'Deployment', 'firepool-worker').spec.template

  /** The pod that this backend would order for the first pool of a file. */
  function podOf(file: string): KubeObject {
    const [spec] = readPoolFile(join(DEPLOY, file))
    const { name, podLifetimeMs, podStartMs, profile } = spec!
    const order = { pod: `${name}-0-0`, pool: name, generation: 1, profile: profile as KubernetesProfile }
    const owner = { name: 'anchor', uid: '00000000-0000-4000-8000-000000000000' }
    const place = { namespace: 'firepool-jobs', broker: 'broker', brokerPublicKey: 'key', owner }
    return podBody({ ...order, lifetimeMs: podLifetimeMs, startTimeoutMs: podStartMs }, place)
  }

  describe('a real API server takes', () => {
    test('the base, which it has, and with it the overlay for kind', async () => {
      expect(base.length).toBeGreaterThan(10)
      // A namespace that a dry run does not make is missing for what is in it.
      await create(cluster.api, find(kind, 'Namespace', 'temporal'))
      for (const object of kind) await create(cluster.api, object, true)
    })

    test('the base with short jobs', async () => {
      for (const object of short) await create(cluster.api, object, true)
    })

    test('the node agent, and its pods in its namespace alone', async () => {
      const agent = await render(join(DEPLOY, 'node-agent'))
      const { spec } = find(agent, 'DaemonSet', 'firepool-node')
      // A namespace that a dry run does not make is missing for what is in it.
      await create(cluster.api, find(agent, 'Namespace', 'firepool-node'))
      await create(cluster.api, find(agent, 'ServiceAccount', 'firepool-node'))
      const withRights = await render(join(DEPLOY, 'overlays/node-agent-kube'))
      expect(withRights.length).toBeGreaterThan(agent.length)
      for (const object of [...agent, ...withRights]) await create(cluster.api, object, true)
      const pod = (namespace: string) => ({
        apiVersion: 'v1',
        kind: 'Pod',
        ...spec.template,
        metadata: { ...spec.template.metadata, name: 'agent', namespace },
        spec: { ...spec.template.spec, serviceAccountName: undefined, priorityClassName: undefined },
      })
      await create(cluster.api, pod('firepool-node'), true)
      await expect(create(cluster.api, pod('firepool-jobs'), true)).rejects.toThrow(/violates PodSecurity/)
    })

    test.each(SAMPLES)('samples/%s', async (file) => {
      for (const object of objectsOf(text(`deploy/kubernetes/samples/${file}`))) {
        await create(cluster.api, object, true)
      }
    })

    test('the pods of its Deployments: its namespaces are restricted', async () => {
      const deployments = kind.filter((object) => object.kind === 'Deployment')
      expect(deployments).toHaveLength(2)
      for (const { metadata, spec } of deployments) {
        const { name, namespace } = metadata
        const pod = {
          apiVersion: 'v1',
          kind: 'Pod',
          ...spec.template,
          metadata: { ...spec.template.metadata, name, namespace },
        }
        await create(cluster.api, pod, true)
        pod.spec = { ...pod.spec, hostNetwork: true }
        await expect(create(cluster.api, pod, true)).rejects.toThrow(/violates PodSecurity "restricted/)
      }
    })

    test.each(POOL_FILES)("the pods of %s, within the sample's quota and of its priority", async (file) => {
      const pod = podOf(file)
      await create(cluster.api, pod, true)
      const quota = find(samples(), 'ResourceQuota', 'firepool-jobs')
      const priority = find(samples(), 'PriorityClass', 'firepool-jobs')
      for (const object of [quota, priority]) await create(cluster.api, object)
      const path = '/api/v1/namespaces/firepool-jobs/resourcequotas/firepool-jobs'
      try {
        const prioritized = { ...pod, spec: { ...pod.spec, priorityClassName: priority.metadata.name } }
        // It counts what is there only after a moment.
        await waitUntil(
          'the quota is known',
          async () => (await cluster.api.get(path)).status.hard?.pods ?? null,
        )
        await create(cluster.api, prioritized, true)
      } finally {
        await cluster.api.delete(path)
        await cluster.api.delete('/apis/scheduling.k8s.io/v1/priorityclasses/firepool-jobs')
      }
    })

    test('nothing with a field that it does not know', async () => {
      const wrong = structuredClone(find(base, 'Deployment', 'firepool-worker'))
      wrong.spec.template.spec.containers[0].readinessProb = {}
      await expect(create(cluster.api, wrong, true)).rejects.toThrow(/unknown field .*readinessProb/)
    })
  })

  describe('its parts fit each other:', () => {
    test('one policy lets workers, and them alone, reach the port of the runners', () => {
      const policies = base.filter((object) => object.kind === 'NetworkPolicy')
      const ofJobs = policies.filter(({ metadata }) => metadata.namespace === 'firepool-jobs')
      expect(ofJobs.map(({ spec }) => spec)).toEqual([
        { podSelector: {}, policyTypes: ['Ingress', 'Egress'] },
        {
          podSelector: { matchLabels: { 'app.kubernetes.io/managed-by': 'firepool' } },
          policyTypes: ['Ingress'],
          ingress: [
            {
              from: [
                {
                  namespaceSelector: { matchLabels: { 'kubernetes.io/metadata.name': 'firepool' } },
                  podSelector: { matchLabels: worker().metadata.labels },
                },
              ],
              ports: [{ protocol: 'TCP', port: RUNNER_PORT }],
            },
          ],
        },
      ])
      // That is the label of the backend's pods, and the namespace that of the workers.
      expect(podOf('pools.yaml').metadata.labels).toMatchObject({
        'app.kubernetes.io/managed-by': 'firepool',
      })
      expect(find(base, 'Deployment', 'firepool-worker').metadata.namespace).toBe('firepool')
      const ofWorkers = policies.filter(({ metadata }) => metadata.namespace === 'firepool')
      expect(ofWorkers.map(({ spec }) => spec)).toEqual([{ podSelector: {}, policyTypes: ['Ingress'] }])
    })

    test('short jobs: callers reach the port that the worker serves, its Service finds it, and the runners', () => {
      const [container] = find(short, 'Deployment', 'firepool-worker').spec.template.spec.containers
      const env = (name: string) => container.env.find((e: KubeObject) => e.name === name).value
      const ports = container.ports.map(({ name, containerPort }: KubeObject) => [
        name,
        String(containerPort),
      ])
      expect(ports).toContainEqual(['tokens', env('FIREPOOL_TOKEN_PORT')])
      const mount = container.volumeMounts.find((m: KubeObject) => m.mountPath === env('FIREPOOL_TOKEN_TLS'))
      expect(mount).toMatchObject({ name: 'token-tls', readOnly: true })
      const { spec } = find(short, 'Service', 'firepool-tokens')
      expect(spec).toEqual({
        selector: worker().metadata.labels,
        ports: [{ name: 'tokens', port: 443, targetPort: 'tokens' }],
      })
      const from = [{ namespaceSelector: { matchLabels: { 'firepool.dev/callers': 'true' } } }]
      expect(find(short, 'NetworkPolicy', 'callers-reach-tokens').spec).toEqual({
        podSelector: { matchLabels: worker().metadata.labels },
        policyTypes: ['Ingress'],
        ingress: [{ from, ports: [{ protocol: 'TCP', port: 'tokens' }] }],
      })
      expect(find(short, 'NetworkPolicy', 'callers-reach-runners').spec).toEqual({
        podSelector: { matchLabels: { 'app.kubernetes.io/managed-by': 'firepool' } },
        policyTypes: ['Ingress'],
        ingress: [{ from, ports: [{ protocol: 'TCP', port: RUNNER_PORT }] }],
      })
      const more = short.filter(
        ({ kind, metadata }) => !base.some((o) => o.kind === kind && o.metadata.name === metadata.name),
      )
      expect(more.filter(({ kind }) => kind === 'ClusterRole').map(({ rules }) => rules)).toEqual([
        [{ apiGroups: ['authentication.k8s.io'], resources: ['tokenreviews'], verbs: ['create'] }],
      ])
    })

    test('the port of seats: of the agent, its service, and the policies on both sides', async () => {
      const agent = await render(join(DEPLOY, 'node-agent'))
      const { template } = find(agent, 'DaemonSet', 'firepool-node').spec
      const [container] = template.spec.containers
      const ports = Object.fromEntries(
        container.ports.map(({ name, containerPort }: KubeObject) => [name, containerPort]),
      )
      expect(container.args).toContain(`-seats-listen=:${ports.seats}`)
      expect(container.args).toContain(`-listen=:${ports.metrics}`)
      const service = find(agent, 'Service', 'firepool-node').spec
      expect(service).toMatchObject({
        selector: template.metadata.labels,
        internalTrafficPolicy: 'Local',
        // The agent looks for this very port in the pod's socket, whose other end is the service.
        ports: [{ port: ports.seats, targetPort: 'seats' }],
      })
      const { ingress } = find(agent, 'NetworkPolicy', 'firepool-node').spec
      expect(ingress[0]).toEqual({ ports: [{ protocol: 'TCP', port: 'metrics' }] })
      expect(ingress[1].ports).toEqual([{ protocol: 'TCP', port: 'seats' }])
      expect(podOf('pools.yaml').metadata.labels).toMatchObject(ingress[1].from[0].podSelector.matchLabels)
      const [, { to, ports: out }] = find(samples(), 'NetworkPolicy', 'runners-reach-node-agents').spec.egress
      expect(out).toEqual([{ protocol: 'TCP', port: ports.seats }])
      expect(to[0].podSelector.matchLabels).toEqual(template.metadata.labels)
    })

    test('probes, port and arguments; the budget for disruptions finds the workers', () => {
      const [container] = worker().spec.containers
      const port = container.ports.find(({ name }: KubeObject) => name === 'health').containerPort
      expect(container.args).toEqual(['worker', '--health-port', String(port), '--log', '-'])
      expect(container.readinessProbe.httpGet).toEqual({ path: '/readyz', port: 'health' })
      expect(container.livenessProbe.httpGet).toEqual({ path: '/livez', port: 'health' })
      const { spec } = find(base, 'PodDisruptionBudget', 'firepool-worker')
      expect(spec).toEqual({ minAvailable: 1, selector: { matchLabels: worker().metadata.labels } })
      for (const { labelSelector } of worker().spec.topologySpreadConstraints)
        expect(labelSelector.matchLabels).toEqual(worker().metadata.labels)
    })

    test('the key is where no job can mount it', () => {
      const [keys] = worker().spec.volumes
      expect(keys.secret.secretName).toBe('firepool-broker-key')
      const { env } = worker().spec.containers[0]
      expect(env).toContainEqual({ name: 'FIREPOOL_KUBE_NAMESPACE', value: 'firepool-jobs' })
      expect(find(base, 'Role', 'firepool-worker').metadata.namespace).toBe('firepool-jobs')
      // Nothing in the namespace of the keys may be read, or run, by the account that speaks for jobs.
      const inKeys = base.filter(
        ({ kind, metadata }) => /^Role/.test(kind) && metadata.namespace !== 'firepool-jobs',
      )
      expect(inKeys).toEqual([])
    })

    test('versions: of the package, and of Temporal as in docker-compose.yml', () => {
      expect(worker().spec.containers[0].image).toBe(`firepool:${version}`)
      const compose = parse(text('docker-compose.yml'), { merge: true })
      const [temporal] = find(kind, 'Deployment', 'temporal').spec.template.spec.containers
      expect(temporal.image).toBe(compose.services.namespace.image)
      for (const file of POOL_FILES)
        expect((readPoolFile(join(DEPLOY, file))[0]!.profile as KubernetesProfile).image).toMatch(
          new RegExp(`firepool-runner-(cpu|cuda):${version}$`),
        )
    })
  })

  describe.each(['cpu', 'cuda'])("images/%s.Dockerfile describes a runner's image:", (name) => {
    const image = describeImage(`${name}.Dockerfile`)

    test('the package from the image of the workers, to where the backend looks for it', () => {
      const [runner] = podOf('pools.yaml').spec.containers
      expect(image.copies).toContainEqual({
        from: `firepool:${version}`,
        path: IMAGE_FIREPOOL,
        to: IMAGE_FIREPOOL,
      })
      // What is copied is there: npm puts the package below the folder in which it is installed.
      const dockerfile = text('deploy/docker/Dockerfile')
      expect(dockerfile).toContain('COPY --from=package /opt/firepool /opt/firepool')
      expect(IMAGE_FIREPOOL).toBe('/opt/firepool/node_modules/firepool')
      expect(image.command).toEqual(runner.command)
      const main = image.command.at(-1)
      expect(existsSync(join(ROOT, main!.replace(`${IMAGE_FIREPOOL}/`, '')))).toBe(true)
    })

    test('of a pinned base, with Node, as the user whom the backend names', () => {
      expect(image.base).toMatch(/^[a-z/]+:\d+\.\d+\.\d+-[a-z0-9.-]+$/)
      const [nodeOfWorkers] = /^FROM (node:\S+)/m.exec(text('deploy/docker/Dockerfile'))!.slice(1)
      const hasNode =
        image.base === nodeOfWorkers || image.copies.some(({ to }) => to === '/usr/local/bin/node')
      expect(hasNode).toBe(true)
      const { runAsUser, runAsGroup } = podOf('pools.yaml').spec.securityContext
      expect(image.user).toBe(`${runAsUser}:${runAsGroup}`)
    })
  })
})
