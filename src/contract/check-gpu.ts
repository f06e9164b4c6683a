import { type Checked, checkNumber, isRecord, shown, utf8Bytes } from './check.js'
import { type Problem, problem } from './errors.js'
import {
  GPU_CAPABILITIES,
  GPU_COUNTS,
  GPU_IDLES,
  GPU_PROVIDERS,
  GPU_TRUSTS,
  type GpuCapabilities,
  type GpuCount,
  type GpuIdle,
  type GpuProvider,
  type GpuShare,
  ISOLATIONS,
  type Isolation,
  providersWith,
  type ShareField,
} from './gpu.js'
import { refuseUnknownNames } from './option-names.js'
import type { KubernetesProfile } from './pool.js'

/**
 * A profile's `gpu`: its shape and its bounds (checkGpu), and what it asks of a provider that cannot give it (gpuProblem), each with the field
 * that is meant in `details.path`.
 */

type Refusal = { problem: Problem } | null

const MIB = 2 ** 20
/** Larger than any device: a number that is a mistake. */
const MEMORY_BYTES_MAX = 2 ** 42
/** Domain and name of an extended resource. The domain kubernetes.io is for Kubernetes' own. */
const RESOURCE =
  /^(?=.{1,253}\/)[a-z0-9]([a-z0-9.-]*[a-z0-9])?\/[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$/
const OBJECT_NAME = /^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$/
const LABEL_VALUE = /^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$/
/** What a CEL selector of a claim may have in Kubernetes. */
const SELECTOR_BYTES_MAX = 10 * 1024

const FIELDS: Readonly<Record<keyof GpuShare, true>> = {
  provider: true,
  count: true,
  seatSet: true,
  colocation: true,
  isolation: true,
  idle: true,
  trust: true,
  duty: true,
  agent: true,
  memoryBytes: true,
  share: true,
  cores: true,
  resource: true,
  scheduler: true,
  queue: true,
  deviceClass: true,
  selector: true,
}
export const GPU_FIELDS = Object.keys(FIELDS) as (keyof GpuShare)[]

/**
 * Agents' loops of the published traces (mean job 5.9 s, mean pause 4.8 s, hand-back up to 1 s): what is assumed of callers of whom
 * nothing is said.
 */
const DUTY = 0.6
/**
 * Callers that use their GPUs for more of the time than this leave no seat to anybody else: no set lets more of them in by parking than
 * by holding (seat-set.ts), and each job would pay for the hand-back.
 */
const PARK_DUTY_MAX = 0.8

/** What is asked for where a profile does not say it. MIG has no default: its slices have a size. */
const DEFAULTS: Readonly<Record<GpuProvider, Partial<Record<ShareField, string>>>> = {
  'device-plugin': { resource: 'nvidia.com/gpu' },
  // Renamed by the plugin's renameByDefault: under the plain name nobody could tell a share from a whole GPU.
  'time-slicing': { resource: 'nvidia.com/gpu.shared' },
  mps: { resource: 'nvidia.com/gpu.shared' },
  mig: {},
  kai: { scheduler: 'kai-scheduler' },
  hami: { scheduler: 'hami-scheduler' },
  dra: { deviceClass: 'gpu.nvidia.com' },
}

function refuse(field: keyof GpuShare | null, why: string, remedy: string): { problem: Problem } {
  const path = ['profile', 'gpu', ...(field === null ? [] : [field])]
  return {
    problem: problem('InvalidRequest', `${path.join('.')} ${why}; ${remedy}`, { path: `/${path.join('/')}` }),
  }
}

/** Refuses names that a profile's gpu does not have, for those who write one by hand. */
export function checkGpuNames(value: unknown): Checked<true> {
  if (!isRecord(value)) return { value: true }
  return refuseUnknownNames('profile.gpu', 'field', value, GPU_FIELDS)
}

/** A profile's gpu as it crosses an edge, with its provider's defaults. */
export function checkGpu(value: unknown): Checked<GpuShare | null> {
  if (value === undefined || value === null) return { value: null }
  if (!isRecord(value)) return refuse(null, `is ${shown(value)}`, 'write a map with a provider')
  const provider = checkWord('provider', value.provider, GPU_PROVIDERS)
  if (provider.problem) return provider
  const count = checkCount('count', value.count, 1)
  if (count.problem) return count
  const can = GPU_CAPABILITIES[provider.value]
  const seatSet = checkCount('seatSet', value.seatSet, can.seatSets.includes(count.value) ? count.value : 1)
  if (seatSet.problem) return seatSet
  const isolation = checkWord('isolation', value.isolation, ISOLATIONS, 'none')
  if (isolation.problem) return isolation
  const trust = checkWord('trust', value.trust, GPU_TRUSTS, 'tenant')
  if (trust.problem) return trust
  const duty = value.duty ?? DUTY
  if (!(typeof duty === 'number' && duty >= 0.01 && duty <= 1))
    return refuse('duty', `is ${shown(duty)}`, 'write a number from 0.01 to 1, such as 0.6')
  const idle = checkWord('idle', value.idle, GPU_IDLES, idleByItself(seatSet.value / count.value, duty))
  if (idle.problem) return idle
  const colocation = checkFlag('colocation', value.colocation)
  if (colocation.problem) return colocation
  const agent = checkFlag('agent', value.agent)
  if (agent.problem) return agent
  const amounts = checkAmounts(value)
  if (amounts.problem) return amounts
  const names = checkNames(value, DEFAULTS[provider.value])
  if (names.problem) return names
  const gpu: GpuShare = {
    provider: provider.value,
    count: count.value,
    seatSet: seatSet.value,
    colocation: colocation.value,
    isolation: isolation.value,
    idle: idle.value,
    trust: trust.value,
    duty,
    agent: agent.value,
    ...amounts.value,
    ...names.value,
  }
  return incomplete(gpu) ?? { value: gpu }
}

/** @param seats of a set: with one seat, whoever comes back would find it busy */
function idleByItself(seats: number, duty: number): GpuIdle {
  return seats > 1 && duty <= PARK_DUTY_MAX ? 'park' : 'hold'
}

function checkWord<Word extends string>(
  field: 'provider' | 'isolation' | 'idle' | 'trust',
  value: unknown,
  words: readonly Word[],
  otherwise?: Word,
): Checked<Word> {
  if ((value === undefined || value === null) && otherwise !== undefined) return { value: otherwise }
  if (words.includes(value as Word)) return { value: value as Word }
  const why = value === undefined ? 'is missing' : `is ${shown(value)}`
  return refuse(field, why, `write one of: ${words.join(', ')}`)
}

function checkFlag(field: 'colocation' | 'agent', value: unknown): Checked<boolean> {
  const flag = value ?? false
  return typeof flag === 'boolean'
    ? { value: flag }
    : refuse(field, `is ${shown(flag)}`, 'write true or false')
}

function checkCount(field: 'count' | 'seatSet', value: unknown, otherwise: GpuCount): Checked<GpuCount> {
  if (value === undefined || value === null) return { value: otherwise }
  if (GPU_COUNTS.includes(value as GpuCount)) return { value: value as GpuCount }
  return refuse(field, `is ${shown(value)}`, `write one of: ${GPU_COUNTS.join(', ')}`)
}

function checkAmounts(
  value: Record<string, unknown>,
): Checked<Pick<GpuShare, 'memoryBytes' | 'share' | 'cores'>> {
  const memory = optionalNumber('memoryBytes', value.memoryBytes, MIB, MEMORY_BYTES_MAX)
  if (memory.problem) return memory
  const cores = optionalNumber('cores', value.cores, 1, 100)
  if (cores.problem) return cores
  const share = value.share ?? null
  // Both schedulers count in hundredths: what is finer would be another number there.
  const isShare =
    typeof share === 'number' &&
    share >= 0.01 &&
    share <= 1 &&
    Math.abs(share * 100 - Math.round(share * 100)) < 1e-9
  if (share !== null && !isShare)
    return refuse('share', `is ${shown(share)}`, 'write hundredths from 0.01 to 1, such as 0.25')
  return { value: { memoryBytes: memory.value, share: share as number | null, cores: cores.value } }
}

function optionalNumber(
  field: 'memoryBytes' | 'cores',
  value: unknown,
  min: number,
  max: number,
): Checked<number | null> {
  if (value === undefined || value === null) return { value: null }
  const number = checkNumber(`profile.gpu.${field}`, value, { min, max })
  return number.problem ? withPath(number.problem, field) : number
}

function withPath(of: Problem, field: keyof GpuShare): { problem: Problem } {
  return { problem: { ...of, details: { ...of.details, path: `/profile/gpu/${field}` } } }
}

type Names = Pick<GpuShare, 'resource' | 'scheduler' | 'queue' | 'deviceClass' | 'selector'>

function checkNames(
  value: Record<string, unknown>,
  defaults: Partial<Record<ShareField, string>>,
): Checked<Names> {
  const out = {} as Record<keyof Names, string | null>
  const rules: readonly [field: keyof Names, isRight: (text: string) => boolean, example: string][] = [
    [
      'resource',
      (text) => RESOURCE.test(text) && !/(^|\.)kubernetes\.io\//.test(text),
      "an extended resource such as 'nvidia.com/gpu'",
    ],
    ['scheduler', (text) => OBJECT_NAME.test(text), "the scheduler's name as pods have it in schedulerName"],
    ['queue', (text) => LABEL_VALUE.test(text), 'the name of a queue of the scheduler'],
    ['deviceClass', (text) => OBJECT_NAME.test(text), "the name of a DeviceClass, such as 'gpu.nvidia.com'"],
    [
      'selector',
      (text) => text.trim() !== '' && utf8Bytes(text) <= SELECTOR_BYTES_MAX,
      "an expression in CEL of at most 10 KiB, such as device.attributes['gpu.nvidia.com'].productName == 'NVIDIA H200'",
    ],
  ]
  for (const [field, isRight, example] of rules) {
    const text = value[field] ?? defaults[field] ?? null
    if (text !== null && !(typeof text === 'string' && isRight(text)))
      return refuse(field, `is ${shown(text)}`, `write ${example}`)
    out[field] = text
  }
  return { value: out }
}

/** What a profile asks that its provider cannot give, or that its template says otherwise; null: nothing. */
export function gpuProblem({ gpu, template }: KubernetesProfile): Refusal {
  if (gpu === null) return null
  const can = GPU_CAPABILITIES[gpu.provider]
  return (
    foreignField(gpu, can) ??
    inSize(gpu, can) ??
    inSharing(gpu, can) ??
    inIdle(gpu, can) ??
    withAgent(gpu, can) ??
    besideTemplate(gpu, template)
  )
}

function foreignField(gpu: GpuShare, can: GpuCapabilities): Refusal {
  const shareFields = [...new Set(Object.values(GPU_CAPABILITIES).flatMap(({ fields }) => fields))]
  const foreign = shareFields.find((field) => gpu[field] !== null && !can.fields.includes(field))
  if (foreign === undefined) return null
  const others = providersWith(({ fields }) => fields.includes(foreign))
  return refuse(
    foreign,
    `is nothing that provider ${gpu.provider} has`,
    `it is of ${others}; remove it, or change the provider`,
  )
}

function inSize({ provider, count, seatSet }: GpuShare, can: GpuCapabilities): Refusal {
  if (!can.counts.includes(count))
    return refuse(
      'count',
      `is ${count}, and provider ${provider} gives a pod ${can.counts.join(', ')}`,
      `lower it, or use ${providersWith(({ counts }) => counts.includes(count))}`,
    )
  if (seatSet > 1 && !can.seatSets.includes(seatSet))
    return refuse(
      'seatSet',
      `is ${seatSet}: provider ${provider} cannot make several pods see the same ${seatSet} GPUs`,
      `remove it, or use ${providersWith(({ seatSets }) => seatSets.includes(seatSet))}`,
    )
  if (can.seatSets.length > 1 && seatSet < count)
    return refuse(
      'seatSet',
      `is ${seatSet}, less than count ${count}`,
      `raise it to ${count} or more: a job's GPUs are of one set`,
    )
  return null
}

const rank = (isolation: Isolation) => ISOLATIONS.indexOf(isolation)

function inSharing(gpu: GpuShare, can: GpuCapabilities): Refusal {
  const { provider, colocation, isolation, seatSet, count, agent } = gpu
  if (colocation && can.colocation === 'never')
    return refuse(
      'colocation',
      `is true, and with provider ${provider} there is one pod on a GPU`,
      `remove it, or use ${providersWith((other) => other.colocation !== 'never')}`,
    )
  if (seatSet > count && !colocation)
    return refuse(
      'seatSet',
      `is ${seatSet} with a count of ${count}, but no other pod may use the rest without colocation`,
      'set colocation: true, or remove seatSet',
    )
  if (seatSet > count && !agent)
    return refuse(
      'seatSet',
      `is ${seatSet} with a count of ${count}, but nobody says which of the ${seatSet} are a job's without the node agent`,
      'set agent: true (docs/gpu-sharing.md says what it needs), or remove seatSet',
    )
  // A pod with a claim of its own has its GPUs to itself.
  const isAlone = can.colocation === 'byClaim' && !colocation
  if (!isAlone && rank(isolation) > rank(can.isolation))
    return refuse(
      'isolation',
      `is ${isolation}, and between pods on one GPU provider ${provider} has ${can.isolation}`,
      `lower it, or use ${providersWith((other) => rank(other.isolation) >= rank(isolation))}`,
    )
  return null
}

function inIdle({ provider, idle, colocation, agent }: GpuShare, can: GpuCapabilities): Refusal {
  if (idle === 'hold') return null
  if (can.noParking !== null)
    return refuse(
      'idle',
      `is ${idle}, which provider ${provider} cannot do: ${can.noParking}`,
      `write hold, or use ${providersWith(({ noParking }) => noParking === null)}`,
    )
  if (!colocation)
    return refuse(
      'idle',
      `is ${idle}, but no other pod may use the GPU meanwhile without colocation`,
      'set colocation: true, or write hold',
    )
  if (!agent)
    return refuse(
      'idle',
      `is ${idle}, but nobody says who may use the GPU next without the node agent`,
      'set agent: true (docs/gpu-sharing.md says what it needs), or write hold',
    )
  return null
}

/** The agent sees who is on a whole GPU, and nothing of a slice or of a server that is on it for others. */
function withAgent({ provider, agent }: GpuShare, can: GpuCapabilities): Refusal {
  if (!agent) return null
  if (can.noParking !== null)
    return refuse(
      'agent',
      `is true, and with provider ${provider} no seat can pass from one pod to another: ${can.noParking}`,
      `remove it, or use ${providersWith(({ noParking }) => noParking === null)}`,
    )
  return null
}

/** What a provider needs that has no default: without it the pod would get something else, or nothing. */
function incomplete({ provider, memoryBytes, share, queue, resource }: GpuShare): Refusal {
  if (provider === 'mig' && resource === null)
    return refuse(
      'resource',
      'is missing, and slices have a size',
      "write it, such as 'nvidia.com/mig-1g.10gb'",
    )
  if (provider === 'kai' && queue === null)
    return refuse(
      'queue',
      'is missing, and the scheduler passes by pods without one',
      'name a queue of the scheduler',
    )
  if (provider !== 'kai' && provider !== 'hami') return null
  if (memoryBytes !== null && share !== null)
    return refuse('share', 'is of the same memory as the other amount', 'say one of them')
  if (memoryBytes === null && share === null)
    return refuse(
      'share',
      'is missing, and so is an amount of memory',
      'say one of them, such as share: 0.25',
    )
  if (provider === 'kai' && share === 1)
    return refuse(
      'share',
      'is 1, which is no share',
      'lower it, or use device-plugin with schedulerName in the template',
    )
  return null
}

/** Labels, annotations and fields of the pod that a provider sets. */
function besideTemplate(gpu: GpuShare, { spec = {} }: KubernetesProfile['template']): Refusal {
  const said = (path: (string | number)[], why: string): Refusal => {
    const whole = ['profile', 'template', 'spec', ...path]
    const pointer = whole
      .map((step) => `/${String(step).replaceAll('~', '~0').replaceAll('/', '~1')}`)
      .join('')
    return {
      problem: problem('InvalidRequest', `${whole.join('.')} ${why}; remove one of them`, { path: pointer }),
    }
  }
  if (gpu.scheduler !== null && spec.schedulerName !== undefined)
    return said(['schedulerName'], `is said by profile.gpu as well, as scheduler ${shown(gpu.scheduler)}`)
  const containers = Array.isArray(spec.containers) ? (spec.containers as unknown[]) : []
  for (const [n, container] of containers.entries()) {
    const resources = isRecord(container) && isRecord(container.resources) ? container.resources : {}
    for (const part of ['limits', 'requests'] as const) {
      const amounts = isRecord(resources[part]) ? resources[part] : {}
      const device = Object.keys(amounts).find((name) => isDevice(name, gpu))
      if (device !== undefined)
        return said(['containers', n, 'resources', part, device], 'asks for a GPU beside that of profile.gpu')
    }
  }
  return null
}

/** GPUs and slices alone: network cards have resources of that domain too. */
function isDevice(name: string, { resource }: GpuShare): boolean {
  return name === resource || /^nvidia\.com\/(gpu|mig-)/.test(name)
}
