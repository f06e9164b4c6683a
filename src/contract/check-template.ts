import { type Checked, invalid, isRecord, shown } from './check.js'
import { problem } from './errors.js'
import type { KubernetesProfile } from './pool.js'

/**
 * What a pool's pod template may not say, each with its cause and its remedy. It is a list of refusals, not of what is allowed: fields
 * that this release does not know go to the API server as they are, and that one refuses what it does not know (fieldValidation Strict).
 */

/** The container of the template that is merged with the runner's own. */
export const RUNNER_CONTAINER = 'runner'
/** Labels and annotations by which Firepool finds its pods begin with this. */
export const LABEL_PREFIX = 'firepool.dev/'
/** The volume of the pod's own folder: jobs, home and work are in it. */
export const POD_VOLUME = 'firepool-pod'
/** The volume of the node agent's socket: a container that mounts it can take and give back the seats of the pod. */
export const SEAT_VOLUME = 'firepool-seat'
export const SEAT_DRIVER = 'node.firepool.dev'
export const RUNNER_PORT = 47_100
/** No pod is killed at once, and none keeps its place for long once it must go. */
const GRACE_SECONDS_MAX = 300

type Path = readonly (string | number)[]
type Refusal = { problem: ReturnType<typeof problem> } | null

/** The first thing in the template that is refused; `details.path` says where it stands. */
export function templateProblem({ template }: Pick<KubernetesProfile, 'template'>): Refusal {
  return inMetadata(template.metadata) ?? inSpec(template.spec)
}

/** A template as it crosses an edge: its shape alone. */
export function checkTemplate(value: unknown): Checked<KubernetesProfile['template']> {
  if (value === undefined || value === null) return { value: {} }
  if (!isRecord(value))
    return invalid(`profile.template is a part of a pod, { metadata, spec }, not ${shown(value)}`)
  for (const key of Object.keys(value)) {
    if (key !== 'metadata' && key !== 'spec')
      return refuse([key], 'has no place in a pod', 'a template has metadata (labels, annotations) and spec')
  }
  const { metadata, spec } = value
  if (metadata !== undefined && !isRecord(metadata))
    return refuse(['metadata'], `is ${shown(metadata)}`, 'write { labels, annotations }')
  if (spec !== undefined && !isRecord(spec))
    return refuse(['spec'], `is ${shown(spec)}`, "write a map, as a pod's spec in Kubernetes")
  return { value: value as KubernetesProfile['template'] }
}

function refuse(path: Path, why: string, remedy: string): { problem: ReturnType<typeof problem> } {
  const whole = ['profile', 'template', ...path]
  return {
    problem: problem('InvalidRequest', `${whole.join('.')} ${why}; ${remedy}`, { path: jsonPointer(whole) }),
  }
}

/** Names of labels have dots and slashes themselves (RFC 6901). */
function jsonPointer(path: Path): string {
  return path.map((step) => `/${String(step).replaceAll('~', '~0').replaceAll('/', '~1')}`).join('')
}

/** The steps of a pointer that a template's problem has. */
export function stepsOfPointer(pointer: string): (string | number)[] {
  const steps = pointer.split('/').slice(1)
  return steps.map((step) =>
    /^\d+$/.test(step) ? Number(step) : step.replaceAll('~1', '/').replaceAll('~0', '~'),
  )
}

function inMetadata(metadata: Record<string, unknown> | undefined): Refusal {
  for (const [key, value] of Object.entries(metadata ?? {})) {
    if (key !== 'labels' && key !== 'annotations')
      return refuse(
        ['metadata', key],
        'is set by Firepool, which finds its pods by it',
        'a template says labels and annotations only',
      )
    if (!isRecord(value)) return refuse(['metadata', key], `is ${shown(value)}`, 'write a map of texts')
    for (const [name, text] of Object.entries(value)) {
      if (name.startsWith(LABEL_PREFIX) || name === 'app.kubernetes.io/managed-by')
        return refuse(
          ['metadata', key, name],
          'is what Firepool knows its own pods by',
          'use a name with a prefix of your own',
        )
      if (typeof text !== 'string')
        return refuse(['metadata', key, name], `is ${shown(text)}, no text`, 'put it in quotes')
    }
  }
  return null
}

/** Fields of a pod's spec that no pool may set, whatever their value. */
const POD_FIELDS: Readonly<Record<string, readonly [why: string, remedy: string]>> = {
  activeDeadlineSeconds: ["is derived from the pool's podLifetime", 'set podLifetime'],
  nodeName: ['would go past the scheduler and its quota', 'use nodeSelector or affinity'],
  ephemeralContainers: ['are for people with kubectl debug', 'remove it'],
  containers: [
    'is a list of containers',
    'write - name: runner for the one that jobs run in, others beside it',
  ],
}

/** Fields that would take down the wall around jobs, which are not trusted. */
const POD_WALLS: Readonly<Record<string, string>> = {
  hostNetwork: 'lets jobs listen and speak as the node',
  hostPID: "shows jobs the node's processes",
  hostIPC: "shows jobs the node's shared memory",
  shareProcessNamespace: 'lets jobs see and signal other containers',
}

function inSpec(spec: Record<string, unknown> | undefined): Refusal {
  if (spec === undefined) return null
  const at = (...path: Path) => ['spec', ...path]
  for (const [key, value] of Object.entries(spec)) {
    const [why, remedy] = (key === 'containers' ? null : POD_FIELDS[key]) ?? []
    if (why !== undefined && remedy !== undefined) return refuse(at(key), why, remedy)
    if (POD_WALLS[key] !== undefined && value !== false)
      return refuse(at(key), POD_WALLS[key], 'remove it; jobs are not trusted')
  }
  if (spec.restartPolicy !== undefined && spec.restartPolicy !== 'Never')
    return refuse(
      at('restartPolicy'),
      `is ${shown(spec.restartPolicy)}; a runner that restarts has forgotten its jobs, so its pod is replaced instead`,
      'remove it: it is Never',
    )
  if (spec.automountServiceAccountToken === true)
    return refuse(
      at('automountServiceAccountToken'),
      "would give jobs the pod's rights in the cluster",
      'remove it; for an identity elsewhere mount a projected serviceAccountToken volume with its audience',
    )
  const grace = spec.terminationGracePeriodSeconds
  if (
    grace !== undefined &&
    !(Number.isInteger(grace) && 1 <= Number(grace) && Number(grace) <= GRACE_SECONDS_MAX)
  )
    return refuse(
      at('terminationGracePeriodSeconds'),
      `is ${shown(grace)}`,
      `give 1 to ${GRACE_SECONDS_MAX}: a pod that is killed at once leaves its jobs' files and devices as they are`,
    )
  return (
    inSecurityContext(spec.securityContext, at('securityContext')) ??
    inVolumes(spec.volumes, at('volumes')) ??
    inContainers(spec.containers, at('containers'), true) ??
    inContainers(spec.initContainers, at('initContainers'), false)
  )
}

function inSecurityContext(context: unknown, path: Path): Refusal {
  if (context === undefined) return null
  if (!isRecord(context)) return refuse(path, `is ${shown(context)}`, 'write a map')
  const walls: readonly [field: string, isRefused: boolean, why: string][] = [
    ['privileged', context.privileged === true, 'gives jobs the node'],
    ['allowPrivilegeEscalation', context.allowPrivilegeEscalation === true, 'lets jobs become root'],
    ['runAsNonRoot', context.runAsNonRoot === false, 'lets jobs run as root'],
    ['runAsUser', context.runAsUser === 0, 'makes jobs root'],
    ['procMount', context.procMount === 'Unmasked', "shows jobs the kernel's settings"],
  ]
  for (const [field, isRefused, why] of walls) {
    if (isRefused)
      return refuse([...path, field], why, 'remove it, and build the image for a user that is not root')
  }
  const seccomp = isRecord(context.seccompProfile) ? context.seccompProfile.type : undefined
  if (seccomp === 'Unconfined')
    return refuse(
      [...path, 'seccompProfile'],
      'opens every system call to jobs',
      'use RuntimeDefault or Localhost',
    )
  const added = isRecord(context.capabilities) ? context.capabilities.add : undefined
  if (Array.isArray(added) && added.length > 0)
    return refuse([...path, 'capabilities'], `adds ${shown(added)}`, 'remove `add`: jobs are not trusted')
  return null
}

function inVolumes(volumes: unknown, path: Path): Refusal {
  if (volumes === undefined) return null
  if (!Array.isArray(volumes)) return refuse(path, `is ${shown(volumes)}`, 'write a list')
  for (const [n, volume] of volumes.entries()) {
    if (!isRecord(volume) || typeof volume.name !== 'string')
      return refuse([...path, n], 'has no name', "write - name: ... with the volume's source")
    if (volume.hostPath !== undefined)
      return refuse(
        [...path, n, 'hostPath'],
        "shows jobs the node's files",
        'use an emptyDir, a claim, an ephemeral or a CSI volume',
      )
    if (volume.name === SEAT_VOLUME || (isRecord(volume.csi) && volume.csi.driver === SEAT_DRIVER))
      return refuse(
        [...path, n],
        "is the node agent's, by which a pod takes its seats",
        "remove it, and set profile.gpu.agent: then the runner's container has it, and no other",
      )
  }
  return null
}

function inContainers(list: unknown, path: Path, mayBeRunner: boolean): Refusal {
  if (list === undefined) return null
  if (!Array.isArray(list)) return refuse(path, `is ${shown(list)}`, POD_FIELDS.containers![1])
  const names = new Set<string>()
  for (const [n, container] of list.entries()) {
    const at = [...path, n]
    if (!isRecord(container) || typeof container.name !== 'string')
      return refuse(at, 'has no name', POD_FIELDS.containers![1])
    if (names.has(container.name))
      return refuse([...at, 'name'], `is ${shown(container.name)} a second time`, 'name each container once')
    names.add(container.name)
    const wrong =
      inMounts(container.volumeMounts, [...at, 'volumeMounts']) ??
      inSecurityContext(container.securityContext, [...at, 'securityContext']) ??
      (container.name !== RUNNER_CONTAINER
        ? inSidecar(container, at)
        : mayBeRunner
          ? inRunner(container, at)
          : refuse([...at, 'name'], "is the name of the jobs' own container", 'choose another name'))
    if (wrong) return wrong
  }
  return null
}

function inMounts(mounts: unknown, path: Path): Refusal {
  const n = Array.isArray(mounts)
    ? mounts.findIndex((mount) => isRecord(mount) && mount.name === SEAT_VOLUME)
    : -1
  return n < 0
    ? null
    : refuse(
        [...path, n],
        "mounts the node agent's volume",
        "remove it: it is the runner's container's alone",
      )
}

function inSidecar(container: Record<string, unknown>, path: Path): Refusal {
  if (typeof container.image !== 'string')
    return refuse(
      [...path, 'image'],
      'is missing',
      `name an image, or call the container ${RUNNER_CONTAINER}`,
    )
  return null
}

/** Fields of the runner's container that are the backend's. */
const RUNNER_FIELDS: Readonly<Record<string, readonly [why: string, remedy: string]>> = {
  image: ["is the pool's", 'set profile.image'],
  livenessProbe: [
    'would kill jobs because a probe was slow',
    'remove it: the pool notices a runner that is away',
  ],
  readinessProbe: ["is the runner's own", 'remove it'],
  startupProbe: ['is not needed: until podStart is over a pod may start', 'remove it'],
  restartPolicy: ['would restart a runner, which then has forgotten its jobs', 'remove it'],
  restartPolicyRules: ['would restart a runner, which then has forgotten its jobs', 'remove it'],
  terminationMessagePath: ['is where the runner says why it could not start', 'remove it'],
  terminationMessagePolicy: ['is how a failure keeps the end of its log', 'remove it'],
}

function inRunner(container: Record<string, unknown>, path: Path): Refusal {
  for (const key of Object.keys(container)) {
    const [why, remedy] = RUNNER_FIELDS[key] ?? []
    if (why !== undefined && remedy !== undefined) return refuse([...path, key], why, remedy)
  }
  const { env, ports } = container
  if (env !== undefined && !Array.isArray(env))
    return refuse([...path, 'env'], `is ${shown(env)}`, 'write a list')
  for (const [n, variable] of (Array.isArray(env) ? env : []).entries()) {
    const name = isRecord(variable) ? variable.name : undefined
    if (typeof name !== 'string')
      return refuse([...path, 'env', n], 'has no name', 'write - name: ..., value: ...')
    if (name.startsWith('FIREPOOL_') || name === 'POD_IP')
      return refuse(
        [...path, 'env', n, 'name'],
        `is ${name}, by which the runner is told what it is`,
        'choose another',
      )
  }
  for (const [n, port] of (Array.isArray(ports) ? ports : []).entries()) {
    if (isRecord(port) && port.containerPort === RUNNER_PORT)
      return refuse([...path, 'ports', n], `has the runner's own port ${RUNNER_PORT}`, 'choose another')
  }
  return null
}
