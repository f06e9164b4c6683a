import { posix } from 'node:path'
import {
  type AckRequest,
  type BindRequest,
  type CancelRequest,
  type DrainRequest,
  durationMs,
  FirepoolError,
  formatMs,
  type JobFile,
  type JobRequest,
  type JobSpec,
  LIMIT,
  problem,
  type RevokeRequest,
} from '../contract/index.js'

/** Checks of what comes over the wire, by hand: the runner starts with every pod and carries no schema library. */

type Fields = Record<string, unknown>

/** Names of the variables by which the runner finds a job's processes again. */
const RESERVED_ENV = ['FIREPOOL_POD', 'FIREPOOL_INCARNATION', 'FIREPOOL_EPOCH', 'FIREPOOL_JOB_ID']
const PATH_CHARS_MAX = 4_096
const KEY_CHARS_MAX = 512
const URL_CHARS_MAX = 2_048
/** what a job request has beside its spec, generously */
const ENVELOPE_BYTES = 2_048

/** Refuses a request with a typed InvalidRequest. */
function refuse(message: string): never {
  throw new FirepoolError(problem('InvalidRequest', message))
}

function fieldsOf(value: unknown, name: string, allowed: readonly string[]): Fields {
  if (typeof value !== 'object' || value === null || Array.isArray(value))
    refuse(`${name} must be a JSON object. See the runner's API for its fields.`)
  for (const key of Object.keys(value)) {
    if (!allowed.includes(key))
      refuse(
        `${name} has a field ${JSON.stringify(key.slice(0, 80))} that this runner does not know. Known are: ${allowed.join(', ')}. Correct the name, or replace the pod by one of a newer image.`,
      )
  }
  return value as Fields
}

function envelope(value: unknown, name: string, fields: readonly string[]): Fields {
  const found = fieldsOf(value, name, ['v', ...fields])
  if (found.v !== 1)
    refuse(
      `${name} has version ${JSON.stringify(found.v) ?? 'none'}, this runner speaks version 1. Use a worker and a pod image of matching versions.`,
    )
  return found
}

function text(fields: Fields, name: string, charsMax = KEY_CHARS_MAX): string {
  const value = fields[name]
  if (typeof value !== 'string' || value.length === 0 || value.length > charsMax)
    refuse(`${name} must be a text of 1 to ${charsMax} characters.`)
  return value
}

function counter(fields: Fields, name: string, min: number): number {
  const value = fields[name]
  if (!Number.isSafeInteger(value) || (value as number) < min)
    refuse(`${name} must be a whole number from ${min} up.`)
  return value as number
}

function jobIdOf(fields: Fields): string {
  const jobId = text(fields, 'jobId', 256)
  if (!/^[\x21-\x7e]+$/.test(jobId)) refuse('jobId must be printable ASCII without blanks.')
  return jobId
}

function digestOf(fields: Fields): string {
  const digest = fields.digest
  if (typeof digest !== 'string' || !/^[0-9a-f]{64}$/.test(digest))
    refuse("digest must be the sha256 of the job's canonical JSON, 64 hexadecimal digits in lower case.")
  return digest
}

export function bindRequest(value: unknown): BindRequest {
  const fields = envelope(value, 'BindRequest', ['epoch', 'leaseId', 'ownerHash', 'incarnation'])
  return {
    v: 1,
    epoch: counter(fields, 'epoch', 1),
    leaseId: text(fields, 'leaseId'),
    ownerHash: text(fields, 'ownerHash'),
    incarnation: text(fields, 'incarnation'),
  }
}

export function ackRequest(value: unknown): AckRequest {
  const fields = envelope(value, 'AckRequest', ['jobId', 'digest'])
  return { v: 1, jobId: jobIdOf(fields), digest: digestOf(fields) }
}

export function cancelRequest(value: unknown): CancelRequest {
  return { v: 1, jobId: jobIdOf(envelope(value, 'CancelRequest', ['jobId'])) }
}

export function revokeRequest(value: unknown): RevokeRequest {
  return { v: 1, epoch: counter(envelope(value, 'RevokeRequest', ['epoch']), 'epoch', 0) }
}

export function drainRequest(value: unknown): DrainRequest {
  const fields = envelope(value, 'DrainRequest', ['drainId', 'epoch', 'useSeq'])
  return {
    v: 1,
    drainId: text(fields, 'drainId'),
    epoch: counter(fields, 'epoch', 0),
    useSeq: counter(fields, 'useSeq', 0),
  }
}

export function promoteRequest(value: unknown): void {
  envelope(value, 'promote', [])
}

/** @param bodyBytes of the whole request: its spec may not be larger than LIMIT.jobBytes */
export function jobRequest(value: unknown, bodyBytes: number): JobRequest {
  const fields = envelope(value, 'JobRequest', ['jobId', 'digest', 'epoch', 'spec'])
  const request = {
    v: 1 as const,
    jobId: jobIdOf(fields),
    digest: digestOf(fields),
    epoch: counter(fields, 'epoch', 1),
    spec: jobSpec(fields.spec),
  }
  if (bodyBytes > LIMIT.jobBytes + ENVELOPE_BYTES)
    refuse(
      `The job is ${bodyBytes} bytes of JSON; at most ${LIMIT.jobBytes} are allowed. Put large files into the pod by PUT /files, or let the job fetch them.`,
    )
  return request
}

const SPEC_FIELDS = ['command', 'env', 'cwd', 'stdin', 'files', 'collect', 'timeout', 'outputTo'] as const

function jobSpec(value: unknown): JobSpec {
  const spec = fieldsOf(value, 'job', SPEC_FIELDS)
  checkCommand(spec.command)
  if (spec.env !== undefined) checkEnv(spec.env)
  if (spec.cwd !== undefined) checkPath(spec.cwd, 'job.cwd', 'folder')
  if (spec.stdin !== undefined && typeof spec.stdin !== 'string') refuse('job.stdin must be a text.')
  if (spec.files !== undefined) for (const file of list(spec.files, 'job.files')) checkFile(file)
  if (spec.collect !== undefined)
    for (const path of list(spec.collect, 'job.collect')) checkPath(path, 'job.collect', 'file')
  if (spec.timeout !== undefined) timeoutMs(spec.timeout)
  if (spec.outputTo !== undefined) checkUrl(spec.outputTo)
  return spec as unknown as JobSpec
}

function checkCommand(command: unknown): void {
  const remedy = 'Give an argv such as ["python3", "run.py"], or a text for /bin/sh -c.'
  const words = typeof command === 'string' ? [command] : command
  if (!Array.isArray(words) || words.length === 0 || words.length > LIMIT.commandArgs)
    refuse(`job.command must be a text or a list of 1 to ${LIMIT.commandArgs} texts. ${remedy}`)
  for (const word of words) {
    if (typeof word !== 'string' || word.includes('\0'))
      refuse(`job.command must hold texts without NUL characters. ${remedy}`)
  }
  if (words[0].trim() === '') refuse(`job.command is empty. ${remedy}`)
}

function checkEnv(env: unknown): void {
  if (typeof env !== 'object' || env === null || Array.isArray(env))
    refuse('job.env must be an object of texts, such as {"MODE": "fast"}.')
  const entries = Object.entries(env)
  if (entries.length > LIMIT.envVars)
    refuse(
      `job.env has ${entries.length} variables; at most ${LIMIT.envVars} are allowed. Use a file instead.`,
    )
  for (const [name, value] of entries) {
    if (name === '' || /[=\0]/.test(name))
      refuse(
        `job.env has a variable named ${JSON.stringify(name.slice(0, 80))}. Names may not be empty nor hold "=" or NUL.`,
      )
    if (RESERVED_ENV.includes(name))
      refuse(`job.env may not set ${name}: the runner finds a job's processes by it. Choose another name.`)
    if (typeof value !== 'string' || value.includes('\0'))
      refuse(`job.env.${name.slice(0, 80)} must be a text without NUL characters.`)
  }
}

function list(value: unknown, name: string): unknown[] {
  if (!Array.isArray(value) || value.length > LIMIT.files)
    refuse(`${name} must be a list of at most ${LIMIT.files} entries. Pack many files into one archive.`)
  return value
}

function checkFile(value: unknown): asserts value is JobFile {
  const file = fieldsOf(value, 'job.files[]', ['path', 'content', 'encoding', 'mode'])
  checkPath(file.path, 'job.files[].path', 'file')
  if (typeof file.content !== 'string') refuse('job.files[].content must be a text.')
  if (file.encoding !== undefined && file.encoding !== 'utf8' && file.encoding !== 'base64')
    refuse('job.files[].encoding must be "utf8" or "base64".')
  if (file.encoding === 'base64' && !/^[A-Za-z0-9+/]*={0,2}$/.test(file.content))
    refuse(`The content of file ${file.path} is not base64. Encode it, or leave the encoding out for text.`)
  const { mode } = file
  if (mode !== undefined && !(Number.isInteger(mode) && (mode as number) >= 0 && (mode as number) <= 0o777))
    refuse('job.files[].mode must be permission bits from 0 to 511 (0o777).')
}

/**
 * Whether a path is one of the work folder by its text alone; symbolic links are looked at when it is used.
 * @throws FirepoolError InvalidRequest
 */
export function checkPath(path: unknown, name: string, kind: 'file' | 'folder'): asserts path is string {
  if (typeof path !== 'string' || path.length > PATH_CHARS_MAX || path.includes('\0'))
    refuse(`${name} must be a path of at most ${PATH_CHARS_MAX} characters without NUL.`)
  const normal = posix.normalize(path)
  if (posix.isAbsolute(normal) || normal === '..' || normal.startsWith('../'))
    refuse(
      `${name} ${JSON.stringify(path.slice(0, 200))} leaves the work folder. Give a path relative to the work folder, without "..".`,
    )
  if (kind === 'file' && (path === '' || normal === '.' || normal.endsWith('/')))
    refuse(`${name} ${JSON.stringify(path.slice(0, 200))} names a folder. Give the path of a file.`)
}

/**
 * Milliseconds of a job's time limit.
 * @throws FirepoolError InvalidRequest
 */
export function timeoutMs(timeout: unknown): number {
  const ms = durationMs(timeout)
  if (ms === undefined || !(ms >= LIMIT.jobMsMin && ms <= LIMIT.jobMsMax))
    refuse(
      `job.timeout is ${JSON.stringify(timeout)?.slice(0, 80)}. Give milliseconds or a text such as "30s", from ${formatMs(LIMIT.jobMsMin)} to ${formatMs(LIMIT.jobMsMax)}; leave it out for the default.`,
    )
  return Math.ceil(ms)
}

function checkUrl(value: unknown): void {
  const parsed = parseUrl(value)
  if (parsed === undefined || !/^https?:$/.test(parsed.protocol))
    refuse('job.outputTo must be an http or https URL to which output is POSTed.')
}

function parseUrl(value: unknown): URL | undefined {
  try {
    return typeof value === 'string' && value.length <= URL_CHARS_MAX ? new URL(value) : undefined
  } catch {
    return undefined
  }
}
