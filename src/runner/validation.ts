import {
  type AckRequest,
  type BindRequest,
  type CancelRequest,
  CONTRACT_VERSION,
  checkJobFields,
  checkWorkPath,
  type DrainRequest,
  FirepoolError,
  type JobRequest,
  type JobSpec,
  LIMIT,
  problem,
  type RevokeRequest,
  versionProblem,
} from '../contract/index.js'

/** Checks of what comes over the wire, by hand: the runner starts with every pod and carries no schema library. */

type Fields = Record<string, unknown>

const KEY_CHARS_MAX = 512
/** what a job request has beside its spec, generously */
const ENVELOPE_BYTES = 2_048

/** Refuses a request with a typed InvalidRequest. */
function refuse(message: string): never {
  throw new FirepoolError(problem('InvalidRequest', message))
}

function fieldsOf(value: unknown, name: string): Fields {
  if (typeof value !== 'object' || value === null || Array.isArray(value))
    refuse(`${name} must be a JSON object. See the runner's API for its fields.`)
  return value as Fields
}

function checkNames(value: Fields, name: string, allowed: readonly string[]): void {
  for (const key of Object.keys(value)) {
    if (!allowed.includes(key))
      refuse(
        `${name} has a field ${JSON.stringify(key.slice(0, 80))} that this runner does not know. Known are: ${allowed.join(', ')}. Correct the name, or replace the pod by one of a newer image.`,
      )
  }
}

/**
 * The fields of a request. One of another version is refused by name, before its fields are looked at: the broker replaces the pod
 * (PodLost), and the caller of a job, which never started here, acquires again (LeaseRevoked).
 */
function envelope(value: unknown, name: string, fields: readonly string[]): Fields {
  const found = fieldsOf(value, name)
  const { v } = found
  if (v !== CONTRACT_VERSION) {
    const what = `${name} has version ${JSON.stringify(v)?.slice(0, 20) ?? 'none'}, this runner speaks version ${CONTRACT_VERSION}`
    if (!Number.isSafeInteger(v)) refuse(`${what}. Give it as a number, v.`)
    const code = name === 'JobRequest' ? 'LeaseRevoked' : 'PodLost'
    throw new FirepoolError(versionProblem(code, what))
  }
  checkNames(found, name, ['v', ...fields])
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

function jobSpec(value: unknown): JobSpec {
  const { problem: why } = checkJobFields(value)
  if (why) throw new FirepoolError(why)
  return value as JobSpec
}

/**
 * Whether a path is one of the work folder by its text alone; symbolic links are looked at when it is used.
 * @throws FirepoolError InvalidRequest
 */
export function checkPath(path: unknown, name: string, kind: 'file' | 'folder'): asserts path is string {
  const { problem: why } = checkWorkPath(path, name, kind)
  if (why) throw new FirepoolError(why)
}
