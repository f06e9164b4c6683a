import { isUtf8 } from 'node:buffer'
import { closeSync, openSync } from 'node:fs'
import { z } from 'zod'
import {
  type Checked,
  checkPoolSpec,
  closestWord,
  durationMs,
  GPU_PROVIDERS,
  isRecord,
  LIMIT,
  type PoolSpec,
  readPoolSpec,
  shown,
  stepsOfPointer,
} from '../contract/index.js'
import { readUpTo } from './bounded-read.js'
import { CliError, cliReport, type FailureReport, splitMessage } from './failure.js'
import { type Place, PROBLEMS_MAX, parseYaml, type YamlFile } from './yaml-file.js'

/**
 * The pool file: what users write. Shapes and names are checked here, numbers and their defaults by checkPoolSpec;
 * docs/cli.md has the table.
 */

const duration = z.union([z.number(), z.string().refine((text) => durationMs(text) !== undefined)])
const size = z.union([z.number(), z.string().refine((text) => typeof sizeBytes(text) === 'number')])
const LIMITS = z.strictObject({
  memory: size.optional(),
  cpuSeconds: z.number().optional(),
  openFiles: z.number().optional(),
  processes: z.number().optional(),
  fileSize: size.optional(),
})
const START_DELAY = z.strictObject({ min: duration, max: duration })
const GPU = z.strictObject({
  provider: z.string(),
  count: z.number().optional(),
  seatSet: z.number().optional(),
  colocation: z.boolean().optional(),
  isolation: z.string().optional(),
  idle: z.string().optional(),
  trust: z.string().optional(),
  duty: z.number().optional(),
  agent: z.boolean().optional(),
  memory: size.optional(),
  share: z.number().optional(),
  cores: z.number().optional(),
  resource: z.string().optional(),
  scheduler: z.string().optional(),
  queue: z.string().optional(),
  deviceClass: z.string().optional(),
  selector: z.string().optional(),
})
const PRELOAD = z.strictObject({
  python: z.string().optional(),
  imports: z.array(z.string()),
  seeds: z.array(z.string()).optional(),
})
const PROFILE = z.strictObject({
  backend: z.string().optional(),
  env: z.record(z.string(), z.string()).optional(),
  startDelay: START_DELAY.optional(),
  limits: LIMITS.optional(),
  prepare: z.array(z.string()).optional(),
  secrets: z.array(z.string()).optional(),
  preload: PRELOAD.optional(),
  namespace: z.string().optional(),
  image: z.string().optional(),
  template: z.record(z.string(), z.unknown()).optional(),
  prePull: z.boolean().optional(),
  gpu: GPU.optional(),
})
const POOL = z.strictObject({
  name: z.string(),
  budget: z.number(),
  guarantee: z.number().optional(),
  standby: z.number().optional(),
  maxPods: z.number().optional(),
  queueLimit: z.number().optional(),
  keepAlive: duration.optional(),
  podStart: duration.optional(),
  podLifetime: duration.optional(),
  shards: z.number().optional(),
  profile: PROFILE.optional(),
})
const FILE = z.strictObject({ pools: z.array(POOL).min(1) })

type PoolText = z.infer<typeof POOL>

/** Keys of each map in the file, by the key that leads to it. */
const KEYS: Record<string, readonly string[]> = {
  '': Object.keys(FILE.shape),
  pools: Object.keys(POOL.shape),
  profile: Object.keys(PROFILE.shape),
  startDelay: Object.keys(START_DELAY.shape),
  limits: Object.keys(LIMITS.shape),
  gpu: Object.keys(GPU.shape),
  preload: Object.keys(PRELOAD.shape),
}

/** What a value must look like, by the key that it stands under: a word of help that no schema library has. */
const EXPECTED: Record<string, string> = {
  keepAlive: "a duration such as '90s' or '5m', or milliseconds",
  podStart: "a duration such as '90s' or '5m', or milliseconds",
  podLifetime: "a duration such as '12h', or milliseconds",
  min: "a duration such as '20s', or milliseconds",
  max: "a duration such as '35s', or milliseconds",
  memory: "a size such as '512MiB', or bytes",
  fileSize: "a size such as '1GiB', or bytes",
  env: 'a map of names to texts',
  prepare: "a command as a list of texts, such as ['pip', 'install', 'numpy']",
  secrets: "a list of names of secrets, such as ['search-key']",
  imports: "a list of Python modules, such as ['numpy']",
  template: 'a part of a Kubernetes pod, with the keys metadata and spec',
  prePull: 'true or false',
  colocation: 'true or false',
  agent: 'true or false',
  provider: `one of ${GPU_PROVIDERS.join(', ')}`,
  pools: "a list of pools, each beginning with '- name: ...'",
}

/** A file of another kind has thousands of errors. */
const PROBLEMS_SHOWN = 20

/** Larger than any sensible file: a wrong file must not be read for minutes. */
const FILE_BYTES_MAX = 1024 * 1024

export interface PoolFileProblem {
  file: string
  /** from 1 */
  line: number
  /** e.g. 'pools[0].profile.limits.memory' */
  path: string
  why: string
  remedy: string
}

/** All that is wrong with a pool file, at once. */
export class PoolFileError extends Error {
  override readonly name = 'PoolFileError'
  constructor(readonly problems: readonly PoolFileProblem[]) {
    super(problems.map((p) => `${locationOf(p)}: ${p.why}; ${p.remedy}`).join('\n'))
  }

  report(): FailureReport {
    const { length } = this.problems
    const count = length < PROBLEMS_MAX ? String(length) : `${PROBLEMS_MAX} or more`
    const why = `the pool file has ${length === 1 ? 'an error' : `${count} errors`}`
    const remedy = 'correct them all; docs/cli.md has every key with its bounds'
    const shownOnes = this.problems.slice(0, PROBLEMS_SHOWN)
    const [next] = this.problems.slice(PROBLEMS_SHOWN)
    if (next) {
      const why = 'there are more errors from here on'
      shownOnes.push({ ...next, path: '', why, remedy: 'correct those above first' })
    }
    const all = shownOnes.map((p) => ({
      ...p,
      code: 'InvalidPoolFile' as const,
      why: `${locationOf(p)}: ${p.why}`,
    }))
    return { ...cliReport('InvalidPoolFile', why, remedy), all }
  }
}

function locationOf({ file, line, path }: PoolFileProblem): string {
  return path === '' ? `${file}:${line}` : `${file}:${line}: ${path}`
}

/**
 * Reads a pool file; '-' is standard input.
 * @throws PoolFileError with everything that is wrong, CliError when the file cannot be read
 */
export function readPoolFile(file: string): PoolSpec[] {
  let text: string
  try {
    text = readText(file)
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException
    const why = code === 'ENOENT' ? 'there is no such file' : code === 'EISDIR' ? 'it is a folder' : message
    throw new CliError(
      'InvalidPoolFile',
      `the pool file ${file} cannot be read: ${why}`,
      'give the path of a YAML file with -f; firepool pool apply --help shows one',
    )
  }
  return parsePoolFile(text, file === '-' ? '<stdin>' : file)
}

/** @throws Error with the reason why it can be no YAML file */
function readText(file: string): string {
  // It may be a pipe: -f <(generate-pools).
  const descriptor = file === '-' ? 0 : openSync(file, 'r')
  try {
    const bytes = readUpTo(descriptor, FILE_BYTES_MAX)
    if (bytes === null) throw new Error('it has more than 1 MiB')
    if (!isUtf8(bytes) || bytes.includes(0)) throw new Error('it is no text in UTF-8')
    return bytes.toString('utf8')
  } finally {
    if (descriptor !== 0) closeSync(descriptor)
  }
}

/**
 * The pools of a file's text, every default filled in.
 * @param file its name, for messages
 * @throws PoolFileError with everything that is wrong
 */
export function parsePoolFile(text: string, file: string): PoolSpec[] {
  const yaml = parseYaml(text)
  if (yaml.problems.length > 0) throw new PoolFileError(yaml.problems.map((p) => ({ ...p, file, path: '' })))
  const problems = shapeProblems(yaml)
  const pools = isRecord(yaml.value) && Array.isArray(yaml.value.pools) ? yaml.value.pools : []
  const specs: PoolSpec[] = []
  for (const [at, pool] of pools.entries()) {
    if (problems.length >= PROBLEMS_MAX) break
    if (!isRecord(pool)) continue
    const place: Place = ['pools', at]
    const found = boundProblems(pool, place, problems)
    problems.push(...found)
    if (problems.some((p) => startsWith(p.place, place))) continue
    specs.push(checkPoolSpec(draftOf(pool as PoolText)).value!)
  }
  problems.push(...doubledNames(pools, yaml))
  if (problems.length === 0) return specs
  throw new PoolFileError(
    problems
      .map(({ place, key, why, remedy }) => {
        const whole = key === undefined ? place : [...place, key]
        return { file, line: yaml.lineOf(whole), path: pathText(whole), why, remedy }
      })
      .sort((a, b) => a.line - b.line),
  )
}

/** A problem before its line is known. */
interface Finding {
  place: Place
  /** of a map at `place`, when it is the key itself that is wrong */
  key?: string
  why: string
  remedy: string
}

function shapeProblems(yaml: YamlFile): Finding[] {
  if (yaml.value === null || yaml.value === undefined) {
    return [{ place: [], why: 'the file is empty', remedy: "write a list of pools under 'pools:'" }]
  }
  const checked = FILE.safeParse(yaml.value)
  if (checked.success) return []
  const issues = checked.error.issues.slice(0, PROBLEMS_MAX)
  return issues.flatMap((issue) => findingsOf(issue, yaml.value)).slice(0, PROBLEMS_MAX)
}

function findingsOf(issue: z.core.$ZodIssue, root: unknown): Finding[] {
  const place = issue.path as Place
  if (issue.code === 'unrecognized_keys') return issue.keys.map((key) => unknownKey(place, key))
  const value = valueAt(root, place)
  const name = nameOf(place)
  const expected = EXPECTED[name] ?? expectedBy(issue, name)
  if (value === undefined) {
    return [{ place, why: `${name} is missing`, remedy: `add '${name}:' with ${expected}` }]
  }
  if (value === null) {
    return [{ place, why: `${name} has no value`, remedy: `write ${expected} behind it, or remove the key` }]
  }
  return [{ place, why: `this must be ${expected}, not ${shown(value)}`, remedy: rewriteHint(issue, value) }]
}

/** 'pool' for an entry of pools, 'prepare[]' for one of prepare, else the last key. */
function nameOf(place: Place): string {
  const last = place.at(-1)
  if (last === undefined) return 'the file'
  if (typeof last === 'string') return last
  return place.length === 2 ? 'pool' : `${place.at(-2)}[]`
}

function unknownKey(place: Place, key: string): Finding {
  const known = KEYS[String(place.findLast((step) => typeof step === 'string') ?? '')] ?? []
  const meant = closestWord(key, known)
  const remedy = meant ? `did you mean '${meant}'?` : `use one of: ${known.join(', ')}`
  return { place, key, why: `unknown key ${shown(key)}`, remedy }
}

function expectedBy(issue: z.core.$ZodIssue, name: string): string {
  if (issue.code === 'too_small') return 'a list with at least one pool'
  if (name === 'the file') return "a map with the key 'pools'"
  const type = issue.code === 'invalid_type' ? issue.expected : ''
  const words: Record<string, string> = { number: 'a number', string: 'a text', array: 'a list' }
  return words[type] ?? `a map with the keys ${(KEYS[name === 'pool' ? 'pools' : name] ?? []).join(', ')}`
}

function rewriteHint(issue: z.core.$ZodIssue, value: unknown): string {
  const expected = issue.code === 'invalid_type' ? issue.expected : ''
  if (expected === 'number' && typeof value === 'string' && value !== '' && Number.isFinite(Number(value)))
    return `write ${value} without quotes`
  if (expected === 'string' && (typeof value === 'number' || typeof value === 'boolean'))
    return `put it in quotes: '${value}'`
  return 'correct the value; docs/cli.md has every key with its bounds'
}

function doubledNames(pools: readonly unknown[], yaml: YamlFile): Finding[] {
  const first = new Map<string, number>()
  return pools.flatMap((pool, at): Finding[] => {
    if (!isRecord(pool) || typeof pool.name !== 'string') return []
    const earlier = first.get(pool.name)
    if (earlier === undefined) {
      first.set(pool.name, at)
      return []
    }
    const line = yaml.lineOf(['pools', earlier, 'name'])
    const why = `two pools have the name ${shown(pool.name)}; the other one is on line ${line}`
    return [{ place: ['pools', at, 'name'], why, remedy: 'rename one of them, or remove it' }]
  })
}

/** The file's keys that checkPoolSpec looks at one by one, as paths in a pool. */
const FIELDS: readonly (readonly [string, ...string[]])[] = [
  ...['name', 'budget', 'standby', 'guarantee', 'maxPods', 'queueLimit', 'shards'].map(
    (key) => [key] as [string],
  ),
  ...['keepAlive', 'podStart', 'podLifetime'].map((key) => [key] as [string]),
  ...[
    'backend',
    'env',
    'startDelay',
    'prepare',
    'secrets',
    'preload',
    'namespace',
    'image',
    'template',
    'prePull',
    'gpu',
  ].map((key) => ['profile', key] as [string, string]),
  ...LIMITS.keyof().options.map((key) => ['profile', 'limits', key] as [string, ...string[]]),
]

/** Maps that hold fields, innermost first. */
const CONTAINERS: readonly (readonly [string, ...string[]])[] = [['profile', 'limits'], ['profile']]

/**
 * What is wrong with a pool by the contract. Its checks stop at the first problem, so each field is shown to them by
 * itself, and then the pool of those that are right.
 */
function boundProblems(pool: Record<string, unknown>, place: Place, known: readonly Finding[]): Finding[] {
  const found: Finding[] = []
  let sound = pool
  for (const field of FIELDS) {
    const value = valueAt(pool, field)
    const at: Place = [...place, ...field]
    if (value === undefined) continue
    const shape = known.some((p) => startsWith(p.place, at))
    const probe: Record<string, unknown> = { name: 'probe', budget: LIMIT.pods, ...nested(field, value) }
    if (field[0] === 'profile') probe.profile = { ...fieldsBeside(pool), ...(probe.profile as object) }
    const problem = shape ? null : complaint(readPoolSpec(draftOf(probe as PoolText)))
    if (problem) {
      const { within, why, remedy } = problem
      found.push({ place: within ? [...place, ...within] : at, why, remedy })
    }
    if (shape || problem) sound = without(sound, field)
  }
  for (const container of CONTAINERS) {
    if (!isRecord(valueAt(sound, container))) sound = without(sound, container)
  }
  // It can be looked at without a name, but not without a budget. An image that was wrong is not missing as well.
  const { profile } = sound
  if (isRecord(profile) && isRecord(pool.profile) && pool.profile.image !== undefined)
    sound = { ...sound, profile: { ...fieldsBeside(sound), ...profile } }
  if (sound.budget === undefined) return found
  return [...found, ...contradictions({ name: 'probe', ...sound } as unknown as PoolText, place)]
}

/** What a profile's field is of: without these it would be refused for what another field does not say. */
function fieldsBeside({ profile }: Record<string, unknown>): Record<string, unknown> {
  return isRecord(profile) && profile.backend === 'kubernetes'
    ? { backend: 'kubernetes', image: 'probe' }
    : {}
}

/** What each field may say, but not beside the others: found again and again without the field that says it. */
function contradictions(pool: PoolText, place: Place): Finding[] {
  const problem = complaint(checkPoolSpec(draftOf(pool)))
  if (!problem) return []
  // It says which field is meant. What else is wrong with a template or a GPU is found when that is right.
  if (problem.within) {
    const { within, ...text } = problem
    const whole = within.slice(0, 2).map(String)
    const isPart = /^(template|gpu)$/.test(whole[1] ?? '') && valueAt(pool, whole) !== undefined
    const rest = isPart ? contradictions(without({ ...pool }, whole) as unknown as PoolText, place) : []
    return [{ place: [...place, ...within], ...text }, ...rest]
  }
  const kind = (why: string | undefined) => why?.replace(/\d+/g, '#')
  const rest = FIELDS.filter(([key]) => key !== 'name' && key !== 'budget')
    .filter((field) => valueAt(pool, field) !== undefined)
    .map((field) => ({ field, pool: without({ ...pool }, field) as unknown as PoolText }))
  const cause = rest.find(
    (without) => kind(complaint(checkPoolSpec(draftOf(without.pool)))?.why) !== kind(problem.why),
  )
  const { why, remedy } = problem
  if (!cause) return [{ place, why, remedy }]
  return [{ place: [...place, ...cause.field], why, remedy }, ...contradictions(cause.pool, place)]
}

interface Complaint {
  why: string
  remedy: string
  /** of a pool's template or GPU: which of its fields is meant */
  within?: Place
}

function complaint({ problem }: Checked<unknown>): Complaint | null {
  if (!problem) return null
  const { why, remedy } = splitMessage(inFileWords(problem.message))
  const text = { why, remedy: remedy ?? 'correct the value; docs/cli.md has every key with its bounds' }
  const { path } = problem.details ?? {}
  if (typeof path !== 'string') return text
  const steps = stepsOfPointer(path)
  // In a template every word is Kubernetes' own.
  return { ...text, within: steps[1] === 'template' ? steps : steps.map((step) => FILE_WORDS[step] ?? step) }
}

/** The contract's names as the file writes them. */
const FILE_WORDS: Record<string, string> = {
  keepAliveMs: 'keepAlive',
  podStartMs: 'podStart',
  podLifetimeMs: 'podLifetime',
  minMs: 'min',
  maxMs: 'max',
  memoryBytes: 'memory',
  fileBytes: 'fileSize',
}

function inFileWords(message: string): string {
  return message.replace(/\b(\w+(?:Ms|Bytes))\b/g, (word) => FILE_WORDS[word] ?? word)
}

/** A pool of the file in the contract's words. What is not understood goes on as it is, and is refused there. */
function draftOf(pool: PoolText): unknown {
  const { keepAlive, podStart, podLifetime, profile = {}, ...same } = pool
  const { startDelay, limits = {}, gpu, ...rest } = profile
  const { memory, fileSize, ...counts } = limits
  return {
    v: 1,
    ...same,
    keepAliveMs: keepAlive,
    podStartMs: podStart,
    podLifetimeMs: podLifetime,
    profile: {
      ...rest,
      startDelay: startDelay && { minMs: startDelay.min, maxMs: startDelay.max },
      gpu: gpuDraft(gpu),
      limits: { ...counts, memoryBytes: sizeBytes(memory), fileBytes: sizeBytes(fileSize) },
    },
  }
}

function gpuDraft(gpu: unknown): unknown {
  if (!isRecord(gpu)) return gpu
  const { memory, ...same } = gpu
  return memory === undefined ? same : { ...same, memoryBytes: sizeBytes(memory) }
}

const UNIT_BYTES: Record<string, number> = { b: 1, kib: 2 ** 10, mib: 2 ** 20, gib: 2 ** 30, tib: 2 ** 40 }

/** Bytes of a size such as '512MiB'; what is no size is returned as it is. */
export function sizeBytes(value: unknown): unknown {
  if (typeof value !== 'string') return value
  const match = /^\s*(\d+(?:\.\d+)?)\s*(b|kib|mib|gib|tib)\s*$/i.exec(value)
  return match ? Math.round(Number(match[1]) * UNIT_BYTES[match[2]!.toLowerCase()]!) : value
}

function valueAt(root: unknown, place: Place | readonly string[]): unknown {
  let value = root
  for (const step of place) {
    if (typeof value !== 'object' || value === null || !Object.hasOwn(value, step)) return undefined
    value = (value as Record<string | number, unknown>)[step]
  }
  return value
}

function nested(path: readonly string[], value: unknown): Record<string, unknown> {
  const [first, ...rest] = path
  return { [first!]: rest.length === 0 ? value : nested(rest, value) }
}

function without(map: Record<string, unknown>, [first, ...rest]: readonly string[]): Record<string, unknown> {
  const copy = { ...map }
  if (rest.length === 0) delete copy[first!]
  else if (isRecord(copy[first!])) copy[first!] = without(copy[first!] as Record<string, unknown>, rest)
  return copy
}

function startsWith(place: Place, prefix: Place): boolean {
  return prefix.every((step, at) => place[at] === step)
}

/** e.g. pools[0].profile.env.PORT; a key that is no plain word is quoted and cut. */
function pathText(place: Place): string {
  return place
    .map((step) => {
      if (typeof step === 'number') return `[${step}]`
      return /^[\w-]{1,60}$/.test(step) ? `.${step}` : `[${shown(step)}]`
    })
    .join('')
    .replace(/^\./, '')
}
