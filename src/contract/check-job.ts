import { type Checked, checkNumber, invalid, isRecord, shown, utf8Bytes } from './check.js'
import type { JobSpec } from './job.js'
import { LIMIT, TIMEOUT } from './limits.js'
import { refuseUnknownNames } from './option-names.js'

/**
 * Checks of a job, the same wherever it passes: in the caller's workflow and in the client, so that a job which no pod
 * would take never acquires one; and in the runner, which trusts nobody. Only what the text of a job says is looked at;
 * links, permissions and missing programs are found when it starts.
 */

const JOB_FIELDS: Readonly<Record<keyof JobSpec, true>> = {
  command: true,
  env: true,
  secretEnv: true,
  cwd: true,
  stdin: true,
  files: true,
  collect: true,
  timeout: true,
  short: true,
  device: true,
  outputTo: true,
}
const FILE_FIELDS = ['path', 'content', 'encoding', 'mode'] as const
/** Variables by which the runner finds a job's processes again. */
export const RESERVED_ENV = ['FIREPOOL_POD', 'FIREPOOL_INCARNATION', 'FIREPOOL_EPOCH', 'FIREPOOL_JOB_ID']
const PATH_CHARS_MAX = 4_096
const URL_CHARS_MAX = 2_048

/**
 * A job as a caller gives it. Its size is looked at as well: Temporal refuses larger payloads in a way that fails the
 * CALLER's workflow task for ever.
 * @returns the job's time limit, ms
 */
export function checkJob(job: unknown): Checked<number> {
  if (!isRecord(job)) return invalid(`a job is { command, ... }, not ${shown(job)}`)
  const bytes = jsonBytes(job)
  if (bytes === null) return invalid(`the job cannot be written as JSON: ${shown(job)}`)
  if (bytes > LIMIT.jobBytes) {
    return invalid(
      `the job has ${bytes} bytes, at most ${LIMIT.jobBytes} are allowed (Temporal's payload limit); let the job fetch large input itself, or put it into the pod by several jobs`,
    )
  }
  // Other SDKs write null for a field that is not set.
  return checkJobFields(Object.fromEntries(Object.entries(job).filter(([, value]) => value !== null)))
}

/** null for what is no JSON: it contains itself, or has a bigint. */
function jsonBytes(value: unknown): number | null {
  try {
    return utf8Bytes(JSON.stringify(value) ?? '')
  } catch {
    return null
  }
}

/**
 * The fields of a job, but not its size. A field that is null is wrong here.
 * @returns the job's time limit, ms
 */
export function checkJobFields(job: unknown): Checked<number> {
  if (!isRecord(job)) return invalid(`a job is { command, ... }, not ${shown(job)}`)
  const checks: (Checked<unknown> | undefined)[] = [
    refuseUnknownNames('a job', 'field', job, Object.keys(JOB_FIELDS)),
    checkCommand(job.command),
    present(job.env, checkJobEnv),
    present(job.secretEnv, (env) => checkSecretEnv(env, job.env)),
    present(job.cwd, (cwd) => checkWorkPath(cwd, 'job.cwd', 'folder')),
    present(job.stdin, (stdin) =>
      typeof stdin === 'string' ? { value: stdin } : invalid(`job.stdin must be a text, not ${shown(stdin)}`),
    ),
    present(job.files, (files) => checkEach(files, 'job.files', checkFile)),
    present(job.collect, (paths) =>
      checkEach(paths, 'job.collect', (path) => checkWorkPath(path, 'job.collect', 'file')),
    ),
    present(job.short, (short) =>
      typeof short === 'boolean'
        ? { value: short }
        : invalid(`job.short is true or false, not ${shown(short)}`),
    ),
    present(job.device, (device) =>
      device === 'none'
        ? { value: device }
        : invalid(`job.device is "none" or not given, not ${shown(device)}`),
    ),
    present(job.outputTo, checkUrl),
  ]
  for (const checked of checks) if (checked?.problem) return checked
  if (job.timeout === undefined) return { value: TIMEOUT.jobMs }
  const bounds = { min: LIMIT.jobMsMin, max: LIMIT.jobMsMax, duration: true }
  return checkNumber('job.timeout', job.timeout, bounds)
}

function present(value: unknown, check: (value: unknown) => Checked<unknown>): Checked<unknown> | undefined {
  return value === undefined ? undefined : check(value)
}

function checkCommand(command: unknown): Checked<unknown> {
  const remedy = 'give an argv such as ["python3", "run.py"], or a text for /bin/sh -c'
  const words: unknown[] | null =
    typeof command === 'string' ? [command] : Array.isArray(command) ? command : null
  if (words === null || words.length === 0 || words.length > LIMIT.commandArgs) {
    const found = Array.isArray(command) ? `a list of ${command.length}` : shown(command)
    return invalid(
      `job.command must be a text or a list of 1 to ${LIMIT.commandArgs} texts, not ${found}; ${remedy}`,
    )
  }
  for (const word of words) {
    if (typeof word !== 'string' || word.includes('\u0000'))
      return invalid(`job.command must hold texts without NUL characters, not ${shown(word)}; ${remedy}`)
  }
  if ((words[0] as string).trim() === '') return invalid(`job.command is empty; ${remedy}`)
  return { value: command }
}

function checkJobEnv(env: unknown, where = 'job.env'): Checked<unknown> {
  if (!isRecord(env))
    return invalid(`${where} must be an object of texts, such as {"MODE": "fast"}, not ${shown(env)}`)
  const entries = Object.entries(env)
  if (entries.length > LIMIT.envVars)
    return invalid(
      `${where} has ${entries.length} variables, at most ${LIMIT.envVars} are allowed; use a file instead`,
    )
  for (const [name, value] of entries) {
    if (name === '' || name.includes('=') || name.includes('\u0000'))
      return invalid(
        `${where} has a variable named ${shown(name)}; names may not be empty nor hold "=" or NUL`,
      )
    if (RESERVED_ENV.includes(name))
      return invalid(
        `${where} may not set ${name}: the runner finds a job's processes by it; choose another name`,
      )
    if (typeof value !== 'string' || value.includes('\u0000'))
      return invalid(
        `${where}.${name.slice(0, 80)} must be a text without NUL characters, not ${shown(value)}`,
      )
  }
  return { value: env }
}

/** Also the name of a file in the folder of secrets: nothing that leads elsewhere. */
const SECRET_NAME = /^[A-Za-z0-9_-][A-Za-z0-9._-]{0,252}$/

/** The name under which an operator keeps a secret. */
export function checkSecretName(value: unknown, where: string): Checked<string> {
  if (typeof value === 'string' && SECRET_NAME.test(value)) return { value }
  // Somebody may have written the secret itself.
  return invalid(
    `${where} must be the name of a secret: 1 to 253 characters A-Z, a-z, 0-9, '_', '-' and '.', not beginning with '.' (what it is instead is not repeated here)`,
  )
}

function checkSecretEnv(value: unknown, env: unknown): Checked<unknown> {
  if (!isRecord(value))
    return invalid('job.secretEnv must be an object of names of secrets, such as {"API_KEY": "search-key"}')
  const names = checkJobEnv(Object.fromEntries(Object.keys(value).map((name) => [name, ''])), 'job.secretEnv')
  if (names.problem) return names
  for (const [name, secret] of Object.entries(value)) {
    if (isRecord(env) && Object.hasOwn(env, name))
      return invalid(`job.env and job.secretEnv both set ${shown(name)}; leave one of them out`)
    const checked = checkSecretName(secret, `job.secretEnv.${name.slice(0, 80)}`)
    if (checked.problem) return checked
  }
  return { value }
}

function checkEach(
  value: unknown,
  name: string,
  check: (entry: unknown) => Checked<unknown>,
): Checked<unknown> {
  if (!Array.isArray(value)) return invalid(`${name} must be a list, not ${shown(value)}`)
  if (value.length > LIMIT.files)
    return invalid(
      `${name} has ${value.length} entries, at most ${LIMIT.files} are allowed; pack many files into one archive`,
    )
  for (const entry of value) {
    const checked = check(entry)
    if (checked.problem) return checked
  }
  return { value }
}

function checkFile(file: unknown): Checked<unknown> {
  if (!isRecord(file))
    return invalid(`job.files[] must be { path, content, encoding?, mode? }, not ${shown(file)}`)
  const unknown = refuseUnknownNames('job.files[]', 'field', file, FILE_FIELDS)
  if (unknown.problem) return unknown
  const path = checkWorkPath(file.path, 'job.files[].path', 'file')
  if (path.problem) return path
  const { content, encoding, mode } = file
  if (typeof content !== 'string')
    return invalid(`the content of file ${shown(path.value)} must be a text, not ${shown(content)}`)
  if (encoding !== undefined && encoding !== 'utf8' && encoding !== 'base64')
    return invalid(`job.files[].encoding must be "utf8" or "base64", not ${shown(encoding)}`)
  if (encoding === 'base64' && !/^[A-Za-z0-9+/]*={0,2}$/.test(content))
    return invalid(
      `the content of file ${shown(path.value)} is not base64; encode it, or leave the encoding out for text`,
    )
  if (mode !== undefined && !(Number.isInteger(mode) && (mode as number) >= 0 && (mode as number) <= 0o777))
    return invalid(`job.files[].mode must be permission bits from 0 to 511 (0o777), not ${shown(mode)}`)
  return { value: file }
}

/**
 * Whether a path is one of the work folder by its text alone; symbolic links are looked at when it is used.
 * @param name how messages call it
 */
export function checkWorkPath(path: unknown, name: string, kind: 'file' | 'folder'): Checked<string> {
  if (typeof path !== 'string' || path.length > PATH_CHARS_MAX || path.includes('\u0000'))
    return invalid(
      `${name} must be a path of at most ${PATH_CHARS_MAX} characters without NUL, not ${shown(path)}`,
    )
  if (path.startsWith('/') || leaves(path))
    return invalid(
      `${name} ${shown(path)} leaves the work folder; give a path relative to the work folder, without ".."`,
    )
  const last = path.split('/').at(-1)
  if (kind === 'file' && (last === '' || last === '.' || last === '..'))
    return invalid(`${name} ${shown(path)} names a folder; give the path of a file`)
  return { value: path }
}

/** Whether a path's .. lead out of where it starts, at its end or on its way. */
function leaves(path: string): boolean {
  let depth = 0
  for (const step of path.split('/')) {
    if (step === '..') depth--
    else if (step !== '' && step !== '.') depth++
    if (depth < 0) return true
  }
  return false
}

function checkUrl(value: unknown): Checked<unknown> {
  if (typeof value === 'string' && value.length <= URL_CHARS_MAX && isHttpUrl(value)) return { value }
  return invalid(`job.outputTo must be an http or https URL to which output is POSTed, not ${shown(value)}`)
}

function isHttpUrl(text: string): boolean {
  try {
    return /^https?:$/.test(new URL(text).protocol)
  } catch {
    return false
  }
}
