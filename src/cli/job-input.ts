import { isUtf8 } from 'node:buffer'
import { fstatSync, statSync } from 'node:fs'
import { basename } from 'node:path'
import type { Readable } from 'node:stream'
import { checkWorkPath, FirepoolError, type JobFile, LIMIT, shown } from '../contract/index.js'
import { NotRegularError, readUpTo, withRegularFile } from './bounded-read.js'
import { CliError, usageError } from './failure.js'

const ENV_NAME = /^[A-Za-z_][A-Za-z0-9_]*$/

/** `K=V`, or `K` alone for its value in our own environment. @throws CliError */
export function parseEnv(
  pairs: readonly string[],
  own: NodeJS.ProcessEnv = process.env,
): Record<string, string> {
  const env: Record<string, string> = {}
  for (const pair of pairs) {
    const equals = pair.indexOf('=')
    const name = equals < 0 ? pair : pair.slice(0, equals)
    if (name === '') throw usageError(`--env ${shown(pair)} has no name before '='`, 'write --env NAME=VALUE')
    if (!ENV_NAME.test(name)) {
      throw usageError(
        `--env has a name that no shell accepts: ${shown(name)}`,
        'a name has letters, digits and _, and does not begin with a digit: --env NAME=VALUE',
      )
    }
    const value = equals < 0 ? own[name] : pair.slice(equals + 1)
    if (value === undefined)
      throw usageError(
        `--env ${name} names a variable that is not set here`,
        `write --env ${name}=VALUE, or set it first`,
      )
    env[name] = value
  }
  return env
}

/**
 * Files for the pod's work folder, each `PATH` or `PATH:DEST`.
 * @throws CliError when one cannot be read, FirepoolError (InvalidRequest) when DEST is none of the work folder
 */
export function readFiles(specs: readonly string[]): JobFile[] {
  let bytes = 0
  return specs.map((spec) => {
    const { path, dest } = splitFileSpec(spec)
    const { problem } = checkWorkPath(dest, `the destination of --file ${shown(path)},`, 'file')
    if (problem) throw new FirepoolError(problem)
    const { content, mode } = readJobFile(path, LIMIT.jobBytes - bytes)
    bytes += content.length
    const permissions = { mode: mode & 0o777 }
    if (isUtf8(content)) return { path: dest, content: content.toString('utf8'), ...permissions }
    return { path: dest, content: content.toString('base64'), encoding: 'base64' as const, ...permissions }
  })
}

function readJobFile(path: string, bytesMax: number): { content: Buffer; mode: number } {
  try {
    return withRegularFile(path, (descriptor, { size, mode }) => {
      const before = LIMIT.jobBytes - bytesMax
      // Files of the system (/proc) say 0 and have more.
      const content = size > bytesMax ? null : readUpTo(descriptor, bytesMax)
      if (content === null) throw tooLarge(`with ${path} the job`, before + Math.max(size, bytesMax + 1))
      return { content, mode }
    })
  } catch (error) {
    if (error instanceof CliError) throw error
    const { code, message } = error as NodeJS.ErrnoException
    const missing = code === 'ENOENT' ? 'there is no such file' : message
    const why = error instanceof NotRegularError ? `it is ${message}` : missing
    throw usageError(`--file ${path} cannot be read: ${why}`, 'give PATH or PATH:DEST of a regular file')
  }
}

/** DEST is relative to the work folder; a path that exists with a colon in it is taken whole. */
function splitFileSpec(spec: string): { path: string; dest: string } {
  const colon = spec.lastIndexOf(':')
  if (colon <= 0 || exists(spec)) return { path: spec, dest: basename(spec) }
  const dest = spec.slice(colon + 1)
  if (dest === '')
    throw usageError(`--file ${spec} has nothing behind the colon`, 'write PATH:DEST, or PATH alone')
  return { path: spec.slice(0, colon), dest }
}

function exists(path: string): boolean {
  try {
    statSync(path)
    return true
  } catch {
    return false
  }
}

/**
 * What is piped or redirected into standard input; undefined when it is a terminal, a device or closed.
 * @throws CliError when it is larger than a job may be, or no text
 */
export async function readStdin(): Promise<string | undefined> {
  if (!isPiped()) return undefined
  return collectText(process.stdin)
}

function isPiped(): boolean {
  try {
    const stat = fstatSync(0)
    return stat.isFIFO() || stat.isFile() || stat.isSocket()
  } catch {
    return false
  }
}

/** All of a stream as text. @throws CliError as soon as it has more than a job may have */
export async function collectText(stream: Readable): Promise<string> {
  const chunks: Buffer[] = []
  let bytes = 0
  for await (const chunk of stream) {
    chunks.push(chunk as Buffer)
    bytes += (chunk as Buffer).length
    if (bytes > LIMIT.jobBytes) throw tooLarge('standard input', bytes)
  }
  const all = Buffer.concat(chunks)
  if (isUtf8(all)) return all.toString('utf8')
  throw usageError(
    'standard input is not UTF-8 text, and a job takes its standard input as text',
    'put it into a file and pass it with --file PATH (or use --no-stdin)',
  )
}

function tooLarge(what: string, bytes: number) {
  return usageError(
    `${what} has ${bytes} bytes or more, at most ${LIMIT.jobBytes} are allowed for a whole job (Temporal's payload limit)`,
    'let the job fetch large input itself',
  )
}
