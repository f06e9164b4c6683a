import { type Checked, checkNumber, checkPoolName, invalid, isRecord, shown, utf8Bytes } from './check.js'
import { checkGpu, checkGpuNames, gpuProblem } from './check-gpu.js'
import { checkSecretName, RESERVED_ENV } from './check-job.js'
import { checkTemplate, templateProblem } from './check-template.js'
import { type Problem, problem } from './errors.js'
import { LIMIT, TIMEOUT } from './limits.js'
import { refuseUnknownNames } from './option-names.js'
import type { JobSurroundings, KubernetesProfile, LocalProfile, PoolSpec, Preload, Profile } from './pool.js'
import { seatSetRule } from './seat-set.js'

/** Most of a spec's numbers, with their bounds and defaults. */
const MAX_START_DELAY_MS = 10 * 60_000

/**
 * A pool spec as it crosses an edge: every number within its bound (F8), durations allowed where the name ends in Ms,
 * missing numbers with their defaults, and nothing in it that contradicts the rest.
 */
export function checkPoolSpec(value: unknown): Checked<PoolSpec> {
  const spec = readPoolSpec(value)
  if (spec.problem) return spec
  return contradictionIn(spec.value) ?? spec
}

/**
 * The same for what a pool was given once: a spec that an earlier release took must stay readable, or the pool's history
 * would not replay.
 */
export function readPoolSpec(value: unknown): Checked<PoolSpec> {
  if (!isRecord(value)) return invalid(`a pool spec is an object, not ${shown(value)}`)
  if (value.v !== 1)
    return invalid(`this Firepool understands version 1 of a pool spec, not ${shown(value.v)}`)
  const name = checkPoolName(value.name)
  if (name.problem) return name
  const budget = checkNumber('budget', value.budget, { min: 0, max: LIMIT.pods })
  if (budget.problem) return budget
  const profile = checkProfile(value.profile ?? {})
  if (profile.problem) return profile
  const numbers = checkNumbers(value, budget.value, podsWithCallers(budget.value, profile.value))
  if (numbers.problem) return numbers
  const spec: PoolSpec = { v: 1, name: name.value, ...numbers.value, profile: profile.value }
  const bytes = utf8Bytes(JSON.stringify(spec))
  if (bytes > LIMIT.specBytes)
    return invalid(
      `the spec of pool ${name.value} has ${bytes} bytes, at most ${LIMIT.specBytes} are allowed`,
    )
  return { value: spec }
}

/** What each field may say by itself, but not beside the others: such a pool would run and serve nobody, or too few. */
function contradictionIn({
  name,
  budget,
  guarantee,
  maxPods,
  shards,
  profile,
}: PoolSpec): { problem: Problem } | null {
  if (maxPods < Math.max(1, budget)) {
    const needs = budget > 0 ? `the budget of ${budget} needs` : 'one pod'
    return invalid(
      `maxPods is ${maxPods}, less than ${needs}; it bounds all pods, standbys and pods on their way included: raise it to ${Math.max(1, budget)} or more, or leave it out`,
    )
  }
  const { seats } = seatSetRule(profile) ?? { seats: 1 }
  if (budget % seats !== 0)
    return invalid(
      `budget is ${budget}, and a seat set has ${seats} seats (profile.gpu: seatSet / count): the rest of it would serve nobody; make it a multiple of ${seats}`,
    )
  if (guarantee % seats !== 0)
    return invalid(
      `guarantee is ${guarantee}, and a seat set has ${seats} seats (profile.gpu: seatSet / count); make it a multiple of ${seats}`,
    )
  if (shards > 1 && budget < shards * seats)
    return invalid(
      `shards is ${shards}, more than the budget of ${budget} has ${seats === 1 ? 'seats' : 'seat sets'}: a shard without one would serve none of its callers; lower shards or raise the budget`,
    )
  if (shards > 1 && name.length > LIMIT.poolNameChars - SHARD_SUFFIX_CHARS)
    return invalid(
      `the name of a pool with shards has at most ${LIMIT.poolNameChars - SHARD_SUFFIX_CHARS} characters, because its shards' names are longer; ${shown(name)} has ${name.length}`,
    )
  const reserved = RESERVED_ENV.find((name) => Object.hasOwn(profile.env, name))
  if (reserved !== undefined)
    return invalid(
      `profile.env may not set ${reserved}: the runner finds a job's processes by it; choose another name`,
    )
  return profile.backend === 'kubernetes' ? (templateProblem(profile) ?? gpuProblem(profile)) : null
}

/** of the name of a shard, '.15': see shardName */
const SHARD_SUFFIX_CHARS = 3

const SPEC_FIELDS: Readonly<Record<keyof PoolSpec, true>> = {
  v: true,
  name: true,
  budget: true,
  guarantee: true,
  standby: true,
  maxPods: true,
  queueLimit: true,
  keepAliveMs: true,
  podStartMs: true,
  podLifetimeMs: true,
  shards: true,
  profile: true,
}
const LOCAL_FIELDS: Readonly<Record<keyof LocalProfile, true>> = {
  backend: true,
  env: true,
  startDelay: true,
  limits: true,
  prepare: true,
  secrets: true,
  preload: true,
}
const PRELOAD_FIELDS: Readonly<Record<keyof Preload, true>> = { python: true, imports: true, seeds: true }
const KUBERNETES_FIELDS: Readonly<Record<keyof KubernetesProfile, true>> = {
  ...LOCAL_FIELDS,
  namespace: true,
  image: true,
  template: true,
  gpu: true,
  prePull: true,
}

/** Refuses names that a spec does not have, for those who write one by hand: checkPoolSpec would not look at them. */
export function checkSpecNames(value: Record<string, unknown>): Checked<true> {
  const spec = refuseUnknownNames('a pool spec', 'field', value, Object.keys(SPEC_FIELDS))
  if (spec.problem || !isRecord(value.profile)) return spec
  const { limits } = value.profile
  const fields = value.profile.backend === 'kubernetes' ? KUBERNETES_FIELDS : LOCAL_FIELDS
  const profile = refuseUnknownNames('profile', 'field', value.profile, Object.keys(fields))
  if (profile.problem) return profile
  const gpu = checkGpuNames(value.profile.gpu)
  if (gpu.problem) return gpu
  const { preload: given } = value.profile
  const preload = refuseUnknownNames(
    'profile.preload',
    'field',
    isRecord(given) ? given : {},
    Object.keys(PRELOAD_FIELDS),
  )
  if (preload.problem || !isRecord(limits)) return preload
  return refuseUnknownNames('profile.limits', 'field', limits, Object.keys(NO_LIMITS))
}

/** As many as the budget lets there be at once: parked pods take turns on its seats. */
function podsWithCallers(budget: number, profile: Profile): number {
  const rule = seatSetRule(profile)
  return rule ? Math.floor(budget / rule.seats) * rule.pods : budget
}

/** @param callers pods that may be callers' at once */
function checkNumbers(
  value: Record<string, unknown>,
  budget: number,
  callers: number,
): Checked<Omit<PoolSpec, 'v' | 'name' | 'profile'>> {
  const standby = checkNumber('standby', value.standby, { min: 0, max: LIMIT.pods, otherwise: 0 })
  if (standby.problem) return standby
  const shards = checkNumber('shards', value.shards, { min: 1, max: LIMIT.shards, otherwise: 1 })
  if (shards.problem) return shards
  // Room for pods that are on their way out while their successors start, in each shard.
  const pods = callers + standby.value
  const surge = Math.max(2 * shards.value, Math.ceil(pods / 10))
  const out = { budget, standby: standby.value } as Omit<PoolSpec, 'v' | 'name' | 'profile'>
  const rest = [
    ['guarantee', { min: 0, max: LIMIT.pods, otherwise: budget }],
    ['maxPods', { min: 0, max: LIMIT.pods, otherwise: Math.min(LIMIT.pods, pods + surge) }],
    ['queueLimit', { min: 0, max: LIMIT.queue, otherwise: LIMIT.queue }],
    ['keepAliveMs', { min: 0, max: LIMIT.keepAliveMsMax, otherwise: TIMEOUT.keepAliveMs, duration: true }],
    ['podStartMs', { min: 1, max: LIMIT.podStartMsMax, otherwise: TIMEOUT.podStartMs, duration: true }],
    [
      'podLifetimeMs',
      {
        min: LIMIT.podLifetimeMsMin,
        max: LIMIT.podLifetimeMsMax,
        otherwise: TIMEOUT.podLifetimeMs,
        duration: true,
      },
    ],
  ] as const
  for (const [key, bounds] of rest) {
    const number = checkNumber(key, value[key], bounds)
    if (number.problem) return number
    out[key] = number.value
  }
  if (out.guarantee > out.budget)
    return invalid(
      `guarantee is ${out.guarantee}, more than the budget of ${out.budget}; lower it or raise the budget`,
    )
  return { value: { ...out, shards: shards.value } }
}

/** A profile with its defaults. */
export function checkProfile(value: unknown): Checked<Profile> {
  if (!isRecord(value)) return invalid(`a profile is an object, not ${shown(value)}`)
  const backend = value.backend ?? 'local'
  if (backend === 'kubernetes') return checkKubernetesProfile(value)
  if (backend !== 'local') return invalid(`profile.backend is 'local' or 'kubernetes', not ${shown(backend)}`)
  const foreign = Object.keys(KUBERNETES_FIELDS).find(
    (name) => !Object.hasOwn(LOCAL_FIELDS, name) && value[name] !== undefined && value[name] !== null,
  )
  if (foreign !== undefined)
    return invalid(
      `profile.${foreign} is of pods in a cluster; set profile.backend to 'kubernetes', or remove it`,
    )
  const surroundings = checkSurroundings(value)
  if (surroundings.problem) return surroundings
  return { value: { backend, ...surroundings.value } }
}

/** What every profile has, whatever its backend. */
function checkSurroundings(value: Record<string, unknown>): Checked<JobSurroundings> {
  const env = checkEnv(value.env ?? {})
  if (env.problem) return env
  const delay = checkStartDelay(value.startDelay ?? null)
  if (delay.problem) return delay
  const limits = checkLimits(value.limits ?? {})
  if (limits.problem) return limits
  const { prepare } = value
  if (prepare !== undefined && prepare !== null) {
    if (
      !Array.isArray(prepare) ||
      prepare.length === 0 ||
      !prepare.every((word) => typeof word === 'string')
    ) {
      return invalid(`profile.prepare is an argv (a list of texts), not ${shown(prepare)}`)
    }
  }
  const secrets = checkSecrets(value.secrets ?? [])
  if (secrets.problem) return secrets
  const preload = checkPreload(value.preload)
  if (preload.problem) return preload
  return {
    value: {
      env: env.value,
      startDelay: delay.value,
      limits: limits.value,
      prepare: (prepare ?? null) as string[] | null,
      // Left out where there are none, so that the profile of an earlier release is the same one.
      ...(secrets.value.length > 0 ? { secrets: secrets.value } : {}),
      ...(preload.value === null ? {} : { preload: preload.value }),
    },
  }
}

function checkSecrets(value: unknown): Checked<string[]> {
  if (!Array.isArray(value) || value.length > LIMIT.envVars)
    return invalid(
      `profile.secrets is a list of at most ${LIMIT.envVars} names of secrets that jobs may use; values have no place here`,
    )
  for (const name of value) {
    const checked = checkSecretName(name, 'profile.secrets[]')
    if (checked.problem) return checked
  }
  return { value: [...new Set(value as string[])] }
}

const MODULE = /^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$/
const FUNCTION = /^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$/

function checkPreload(value: unknown): Checked<Preload | null> {
  if (value === undefined || value === null) return { value: null }
  if (!isRecord(value))
    return invalid(
      `profile.preload is { imports, python?, seeds? }, such as {"imports": ["numpy"]}, not ${shown(value)}`,
    )
  const { python = 'python3', imports, seeds = [] } = value
  if (typeof python !== 'string' || python === '' || python.includes('\u0000'))
    return invalid(`profile.preload.python is how jobs call the interpreter, not ${shown(python)}`)
  const modules = checkTexts('imports', imports, MODULE, 1, "modules, such as ['numpy']")
  if (modules.problem) return modules
  const functions = checkTexts('seeds', seeds, FUNCTION, 0, "functions, such as ['mine.random:seed']")
  if (functions.problem) return functions
  return { value: { python, imports: modules.value, seeds: functions.value } }
}

function checkTexts(
  key: keyof Preload,
  value: unknown,
  form: RegExp,
  least: number,
  expected: string,
): Checked<string[]> {
  const isRight =
    Array.isArray(value) &&
    value.length >= least &&
    value.length <= LIMIT.preloads &&
    value.every((text) => typeof text === 'string' && form.test(text))
  return isRight
    ? { value }
    : invalid(
        `profile.preload.${key} is a list of ${least} to ${LIMIT.preloads} ${expected}, not ${shown(value)}`,
      )
}

/** An image's reference: the API server takes nearly anything, and the kubelet would say InvalidImageName a minute later. */
const IMAGE =
  /^[a-z0-9][a-z0-9._-]*(:[0-9]+)?(\/[a-z0-9._-]+)*(:[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?(@[a-z0-9+._-]+:[0-9a-f]{32,})?$/
const NAMESPACE = /^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$/

function checkKubernetesProfile(value: Record<string, unknown>): Checked<KubernetesProfile> {
  const surroundings = checkSurroundings(value)
  if (surroundings.problem) return surroundings
  const { image, namespace = null, prePull = false } = value
  if (typeof image !== 'string' || image.length > 512 || !IMAGE.test(image)) {
    const message = `profile.image is the image of the pods, such as 'registry.example/firepool:1.0', not ${shown(image)}`
    return { problem: problem('InvalidRequest', message, { path: '/profile/image' }) }
  }
  if (namespace !== null && !(typeof namespace === 'string' && NAMESPACE.test(namespace)))
    return invalid(`profile.namespace is the name of a Kubernetes namespace, not ${shown(namespace)}`)
  if (prePull !== null && typeof prePull !== 'boolean')
    return invalid(`profile.prePull is true or false, not ${shown(prePull)}`)
  const template = checkTemplate(value.template)
  if (template.problem) return template
  const gpu = checkGpu(value.gpu)
  if (gpu.problem) return gpu
  return {
    value: {
      backend: 'kubernetes',
      ...surroundings.value,
      namespace,
      image,
      template: template.value,
      gpu: gpu.value,
      prePull: prePull ?? false,
    },
  }
}

function checkEnv(value: unknown): Checked<Record<string, string>> {
  if (!isRecord(value)) return invalid(`profile.env is a map of names to texts, not ${shown(value)}`)
  const entries = Object.entries(value)
  if (entries.length > LIMIT.envVars)
    return invalid(`profile.env has ${entries.length} variables, at most ${LIMIT.envVars} are allowed`)
  for (const [name, text] of entries) {
    if (!/^[A-Za-z_][A-Za-z0-9_]*$/.test(name))
      return invalid(`profile.env has a name that no shell accepts: ${shown(name)}`)
    if (typeof text !== 'string' || text.includes('\u0000'))
      return invalid(`profile.env.${name} must be a text without NUL, not ${shown(text)}`)
  }
  return { value: value as Record<string, string> }
}

function checkStartDelay(value: unknown): Checked<Profile['startDelay']> {
  if (value === null) return { value: null }
  if (!isRecord(value))
    return invalid(`profile.startDelay is { minMs, maxMs } of an imitated cold start, not ${shown(value)}`)
  const min = checkNumber('profile.startDelay.minMs', value.minMs, {
    min: 0,
    max: MAX_START_DELAY_MS,
    duration: true,
  })
  if (min.problem) return min
  const max = checkNumber('profile.startDelay.maxMs', value.maxMs, {
    min: min.value,
    max: MAX_START_DELAY_MS,
    duration: true,
  })
  if (max.problem) return max
  return { value: { minMs: min.value, maxMs: max.value } }
}

const NO_LIMITS: Readonly<Profile['limits']> = {
  memoryBytes: null,
  cpuSeconds: null,
  openFiles: null,
  processes: null,
  fileBytes: null,
}

function checkLimits(value: unknown): Checked<Profile['limits']> {
  if (!isRecord(value)) return invalid(`profile.limits is an object, not ${shown(value)}`)
  const out = { ...NO_LIMITS }
  for (const key of Object.keys(out) as (keyof Profile['limits'])[]) {
    if (value[key] === undefined || value[key] === null) continue
    const number = checkNumber(`profile.limits.${key}`, value[key], { min: 1, max: Number.MAX_SAFE_INTEGER })
    if (number.problem) return number
    out[key] = number.value
  }
  return { value: out }
}
