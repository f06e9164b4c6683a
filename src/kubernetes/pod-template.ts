import {
  type KubernetesProfile,
  POD_VOLUME,
  type PodOrder,
  RUNNER_CONTAINER,
  RUNNER_PORT,
  type RunnerEnv,
  TIMEOUT,
} from '../contract/index.js'
import { startDelayMs } from '../start-delay.js'
import { ANNOTATION, LABEL, MANAGED_BY, podLabel, podName } from './names.js'
import type { PodBody } from './objects.js'
import { RUNNER_COMMAND } from './runner-command.js'
import { withGpus } from './shares/pod-gpus.js'
import { withSeats } from './shares/seat-volume.js'

const POD_FOLDER = '/var/lib/firepool/pod'
/** The user `node` of Node's own images; any image works with it, because the pod's folder is a volume of that group. */
const USER_ID = 1000
/** The runner ends its jobs within 2 s of SIGTERM and then itself. */
const GRACE_SECONDS = 10
/** A readiness probe that fails this long takes no pod away, it only is not given to anybody new. */
const PROBE = { periodSeconds: 2, timeoutSeconds: 5, failureThreshold: 6 }
/**
 * Without limits a job takes the node's memory from everybody. These run small CPU jobs; a profile says what it needs, and
 * what it says about a resource replaces both numbers here.
 */
const REQUESTS: Record<string, string> = { cpu: '250m', memory: '512Mi', 'ephemeral-storage': '1Gi' }
const LIMITS: Record<string, string> = { cpu: '2', memory: '2Gi', 'ephemeral-storage': '8Gi' }

type Fields = Record<string, unknown>

export interface PodPlace {
  namespace: string
  /** of brokerId() */
  broker: string
  brokerPublicKey: string
  /** the anchor of the pool */
  owner: { name: string; uid: string }
}

/** The pod of an order: the profile's template over safe defaults. Pure: the same order gives the same pod. */
export function podBody(order: PodOrder & { profile: KubernetesProfile }, place: PodPlace): PodBody {
  const { template } = order.profile
  const body: PodBody = {
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: {
      name: podName(order),
      namespace: place.namespace,
      labels: { ...template.metadata?.labels, ...labelsOf(order, place.broker) },
      annotations: {
        ...template.metadata?.annotations,
        [ANNOTATION.pod]: order.pod,
        [ANNOTATION.startTimeoutMs]: String(order.startTimeoutMs),
      },
      ownerReferences: [ownerReference(place.owner)],
    },
    spec: podSpec(order, place.brokerPublicKey),
  }
  return withSeats(withGpus(body, order, place.broker), order)
}

export function labelsOf(order: PodOrder, broker: string): Record<string, string> {
  return {
    [LABEL.managedBy]: MANAGED_BY,
    [LABEL.broker]: broker,
    [LABEL.pool]: order.pool,
    [LABEL.pod]: podLabel(order.pod),
    [LABEL.generation]: String(order.generation),
    ...(order.seatSet === undefined ? {} : { [LABEL.seatSet]: String(order.seatSet.index) }),
  }
}

/** No controller: the anchor makes no pods. */
export function ownerReference({ name, uid }: PodPlace['owner']) {
  return { apiVersion: 'v1', kind: 'ConfigMap', name, uid }
}

function podSpec(order: PodOrder & { profile: KubernetesProfile }, brokerPublicKey: string): Fields {
  const spec = (order.profile.template.spec ?? {}) as Fields
  const containers = (spec.containers ?? []) as Fields[]
  const { securityContext, volumes = [], initContainers, ...rest } = spec
  const runner = runnerContainer(
    order,
    containers.find(({ name }) => name === RUNNER_CONTAINER) ?? {},
    brokerPublicKey,
  )
  const hasVolume = (volumes as Fields[]).some(({ name }) => name === POD_VOLUME)
  return {
    terminationGracePeriodSeconds: GRACE_SECONDS,
    // Variables of every service of the namespace are nothing that jobs should know.
    enableServiceLinks: false,
    ...rest,
    restartPolicy: 'Never',
    automountServiceAccountToken: false,
    activeDeadlineSeconds: deadlineSeconds(order),
    securityContext: merged(
      {
        runAsNonRoot: true,
        runAsUser: USER_ID,
        runAsGroup: USER_ID,
        fsGroup: USER_ID,
        seccompProfile: { type: 'RuntimeDefault' },
      },
      securityContext,
    ),
    ...(initContainers === undefined
      ? {}
      : { initContainers: (initContainers as Fields[]).map((container) => besideRunner(container)) }),
    containers: [
      runner,
      ...containers
        .filter(({ name }) => name !== RUNNER_CONTAINER)
        .map((container) => besideRunner(container)),
    ],
    volumes: [...(hasVolume ? [] : [{ name: POD_VOLUME, emptyDir: {} }]), ...(volumes as Fields[])],
  }
}

/** The pod ends itself by age; this is for one whose runner hangs (F17). */
function deadlineSeconds({ lifetimeMs, startTimeoutMs }: PodOrder): number {
  return Math.ceil((startTimeoutMs + lifetimeMs + TIMEOUT.podLifetimeGraceMs) / 1_000)
}

function containerSecurity(own: unknown): unknown {
  return merged({ allowPrivilegeEscalation: false, capabilities: { drop: ['ALL'] } }, own)
}

function besideRunner(container: Fields): Fields {
  return { ...container, securityContext: containerSecurity(container.securityContext) }
}

function runnerContainer(
  order: PodOrder & { profile: KubernetesProfile },
  template: Fields,
  brokerPublicKey: string,
): Fields {
  const mounts = (template.volumeMounts ?? []) as { name: string; mountPath: string }[]
  const mount = mounts.find(({ name }) => name === POD_VOLUME)
  const folder = mount?.mountPath ?? POD_FOLDER
  const { env = [], ports = [], resources, securityContext, ...rest } = template
  return {
    imagePullPolicy: 'IfNotPresent',
    command: RUNNER_COMMAND,
    ...rest,
    name: RUNNER_CONTAINER,
    image: order.profile.image,
    env: [
      // First: a later one may name an earlier one.
      { name: 'POD_IP', valueFrom: { fieldRef: { fieldPath: 'status.podIP' } } },
      ...Object.entries(runnerEnv(order, folder, brokerPublicKey)).map(([name, value]) => ({ name, value })),
      ...(env as Fields[]),
    ],
    ports: [{ name: 'runner', containerPort: RUNNER_PORT }, ...(ports as Fields[])],
    readinessProbe: { httpGet: { path: '/ready', port: RUNNER_PORT }, ...PROBE },
    resources: resourcesOf(resources),
    securityContext: containerSecurity(securityContext),
    volumeMounts: [...(mount ? [] : [{ name: POD_VOLUME, mountPath: folder }]), ...mounts],
    // Where a kubelet reads why it ended: what the runner said, or else the end of its log.
    terminationMessagePath: TERMINATION_LOG,
    terminationMessagePolicy: 'FallbackToLogsOnError',
  }
}

const TERMINATION_LOG = '/dev/termination-log'
/** Where a profile that names secrets mounts them. */
export const SECRETS_FOLDER = '/var/run/firepool/secrets'

function runnerEnv(
  order: PodOrder & { profile: KubernetesProfile },
  folder: string,
  brokerPublicKey: string,
): RunnerEnv {
  const { env, limits, prepare, preload, secrets } = order.profile
  // A kubelet would read $(NAME) and $$ in it; $$ is how a $ is written (and $$$$ is how replaceAll is told so).
  const literal = (text: string) => text.replaceAll('$', '$$$$')
  return {
    FIREPOOL_POD: order.pod,
    FIREPOOL_POD_DIR: `${folder}/${podName(order)}`,
    FIREPOOL_LISTEN: `$(POD_IP):${RUNNER_PORT}`,
    FIREPOOL_BROKER_KEY: brokerPublicKey,
    FIREPOOL_LIFETIME_MS: String(order.lifetimeMs),
    FIREPOOL_BROKER_GONE_MS: String(TIMEOUT.brokerGoneMs),
    FIREPOOL_START_DELAY_MS: String(startDelayMs(order)),
    FIREPOOL_PROFILE: literal(JSON.stringify({ env, limits, prepare, preload, secrets })),
    ...(secrets === undefined ? {} : { FIREPOOL_SECRETS: SECRETS_FOLDER }),
    FIREPOOL_TERMINATION_LOG: TERMINATION_LOG,
  }
}

/** What a profile says of one resource replaces both of our numbers for it: a limit below our request would be refused. */
function resourcesOf(own: unknown): Fields {
  const { requests = {}, limits = {}, ...rest } = (own ?? {}) as Record<string, Record<string, string>>
  const isSaid = (name: string) => Object.hasOwn(requests, name) || Object.hasOwn(limits, name)
  const others = (of: Record<string, string>) =>
    Object.fromEntries(Object.entries(of).filter(([name]) => !isSaid(name)))
  return {
    ...rest,
    requests: { ...others(REQUESTS), ...requests },
    limits: { ...others(LIMITS), ...limits },
  }
}

/** Maps are merged, everything else is replaced. */
function merged(base: Fields, over: unknown): Fields {
  const out: Fields = { ...base }
  for (const [key, value] of Object.entries((over ?? {}) as Fields)) {
    const below = out[key]
    const both = isMap(below) && isMap(value)
    out[key] = both ? merged(below, value) : value
  }
  return out
}

function isMap(value: unknown): value is Fields {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}
