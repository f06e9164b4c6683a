import { createHash } from 'node:crypto'
import * as http from 'node:http'
import type { Readable } from 'node:stream'
import { canonicalJson } from '../contract/canonical.js'
import {
  type AckRequest,
  type BindReply,
  type BindRequest,
  CONTRACT_VERSION,
  type DrainReply,
  type DrainRequest,
  FirepoolError,
  isErrorCode,
  type JobOutcome,
  type JobReply,
  type JobRequest,
  type JobSpec,
  type Problem,
  problem,
  type RunnerStatus,
  TIMEOUT,
  versionProblem,
} from '../contract/index.js'

const PROBE_MS = 15_000
const ANSWER_BYTES_MAX = 16 * 1024 * 1024

/**
 * One agent for all pods of a process: connections are kept by address.
 * A job holds its connection while it runs, so their number is not bounded here but by the leases.
 */
const agent = new http.Agent({
  keepAlive: true,
  keepAliveMsecs: PROBE_MS,
  noDelay: true,
  scheduling: 'lifo',
})

/** The runner could not be reached, or the connection broke before an answer came. */
export class RunnerUnreachable extends Error {
  /** nobody listens at the address, so THIS call was certainly not accepted (an earlier one may have been) */
  readonly refused: boolean
  /** of the system, e.g. ECONNREFUSED, ECONNRESET, ETIMEDOUT */
  readonly code: string

  constructor(address: string, code: string, refused: boolean) {
    super(`the runner at ${address} ${refused ? 'does not listen' : 'did not answer'} (${code})`)
    this.name = 'RunnerUnreachable'
    this.code = code
    this.refused = refused
  }
}

export interface CallOptions {
  /** aborting cuts the connection; the job on the other side goes on */
  signal?: AbortSignal | undefined
  /** until the answer has come; default TIMEOUT.effectMs. For `jobs` there is no limit unless one is given */
  timeoutMs?: number | undefined
}

/**
 * Calls of one runner under one token. Every call may be repeated without harm. Each rejects with a FirepoolError for
 * a typed problem, with RunnerUnreachable when no answer came, and with the signal's reason when it was aborted.
 */
export interface RunnerClient {
  bind(request: BindRequest, options?: CallOptions): Promise<BindReply>
  /** resolves when the job is over */
  jobs(request: JobRequest, options?: CallOptions): Promise<JobOutcome>
  ack(request: AckRequest, options?: CallOptions): Promise<void>
  cancel(jobId: string, options?: CallOptions): Promise<void>
  revoke(epoch: number, options?: CallOptions): Promise<void>
  drain(request: DrainRequest, options?: CallOptions): Promise<DrainReply>
  promote(options?: CallOptions): Promise<RunnerStatus>
  status(options?: CallOptions): Promise<RunnerStatus>
  /** the bytes of a file; the stream ends with an error when the connection breaks */
  getFile(path: string, options?: CallOptions): Promise<Readable>
  putFile(path: string, content: Buffer | Readable, options?: CallOptions): Promise<void>
}

/**
 * @param address of the runner, http://host:port
 * @param token a lease's or the broker's token, or a function that gives the one to use now
 */
export function createRunnerClient(address: string, token: string | (() => string)): RunnerClient {
  const target: Target = { url: new URL(address), token: typeof token === 'string' ? () => token : token }
  const read = <Reply>(answer: string) => replyOf<Reply>(answer, target.url.origin)
  const post = async <Reply>(path: string, body: unknown, options: CallOptions = {}) =>
    read<Reply>(await exchange(target, 'POST', path, JSON.stringify(body), withLimit(options)))
  return {
    bind: (request, options) => post('/bind', request, options),
    jobs: async (request, options = {}) => {
      const answer = await exchange(target, 'POST', '/jobs', JSON.stringify(request), options)
      return read<JobReply>(answer).outcome
    },
    ack: async (request, options) => void (await post('/ack', request, options)),
    cancel: async (jobId, options) => void (await post('/cancel', { v: 1, jobId }, options)),
    revoke: async (epoch, options) => void (await post('/revoke', { v: 1, epoch }, options)),
    drain: (request, options) => post('/drain', request, options),
    promote: (options) => post('/promote', { v: 1 }, options),
    status: async (options = {}) =>
      read<RunnerStatus>(await exchange(target, 'GET', '/status', null, withLimit(options))),
    getFile: (path, options = {}) => call(target, 'GET', filesPath(path), null, options),
    putFile: async (path, content, options = {}) => {
      await exchange(target, 'PUT', filesPath(path), content, options)
    },
  }
}

/** sha256 (hex) of a job's canonical JSON: keys sorted at every depth, undefined left out. */
export function jobDigest(spec: JobSpec): string {
  return createHash('sha256').update(canonicalJson(spec)).digest('hex')
}

interface Target {
  url: URL
  token: () => string
}

function withLimit(options: CallOptions): CallOptions {
  return options.timeoutMs === undefined ? { ...options, timeoutMs: TIMEOUT.effectMs } : options
}

function filesPath(path: string): string {
  return `/files?path=${encodeURIComponent(path)}`
}

/** Resolves with the answer of a success; once more when a kept connection turned out to be closed. */
async function call(
  target: Target,
  method: string,
  path: string,
  body: string | Buffer | Readable | null,
  options: CallOptions,
): Promise<http.IncomingMessage> {
  let attempt = await send(target, method, path, body, options, false)
  const isRepeatable = body === null || typeof body === 'string' || Buffer.isBuffer(body)
  if (attempt instanceof StaleConnection && isRepeatable)
    attempt = await send(target, method, path, body, options, true)
  if (attempt instanceof StaleConnection) throw new RunnerUnreachable(target.url.origin, attempt.code, false)
  const status = attempt.statusCode ?? 0
  if (status === 200) return attempt
  throw new FirepoolError(problemOf(await text(attempt).catch(() => ''), status, target.url.origin))
}

/** The whole body of a successful answer. */
async function exchange(
  target: Target,
  method: string,
  path: string,
  body: string | Buffer | Readable | null,
  options: CallOptions,
): Promise<string> {
  const answer = await call(target, method, path, body, options)
  try {
    return await text(answer)
  } catch (error) {
    if (options.signal?.aborted === true) throw options.signal.reason
    throw new RunnerUnreachable(
      target.url.origin,
      String((error as NodeJS.ErrnoException).code ?? error),
      false,
    )
  }
}

/** A kept connection that broke before an answer: closed since its last use, or the runner died with the request. */
class StaleConnection {
  constructor(readonly code: string) {}
}

function send(
  target: Target,
  method: string,
  path: string,
  body: string | Buffer | Readable | null,
  options: CallOptions,
  /** an attempt before this one may have been read: that nobody listens NOW does not say that it was not */
  wasSentBefore: boolean,
): Promise<http.IncomingMessage | StaleConnection> {
  const { signal, timeoutMs } = options
  return new Promise((resolve, reject) => {
    if (signal?.aborted === true) return reject(signal.reason)
    const headers: http.OutgoingHttpHeaders = { authorization: `Bearer ${target.token()}` }
    if (typeof body === 'string') headers['content-type'] = 'application/json'
    if (typeof body === 'string' || Buffer.isBuffer(body)) headers['content-length'] = Buffer.byteLength(body)
    const request = http.request({
      agent,
      host: target.url.hostname.replace(/^\[|\]$/g, ''),
      port: target.url.port || 80,
      method,
      path,
      headers,
    })
    const onAbort = () => request.destroy(new Error('aborted'))
    signal?.addEventListener('abort', onAbort, { once: true })
    const timer =
      timeoutMs === undefined
        ? undefined
        : setTimeout(
            () => request.destroy(Object.assign(new Error('no answer'), { code: 'ETIMEDOUT' })),
            timeoutMs,
          )
    const settle = () => {
      clearTimeout(timer)
      signal?.removeEventListener('abort', onAbort)
    }
    request.on('response', (response) => {
      // The body belongs to the call as well: its limit and its signal hold to the end.
      response.on('close', settle)
      resolve(response)
    })
    request.on('error', (error: NodeJS.ErrnoException) => {
      settle()
      if (signal?.aborted === true) return reject(signal.reason)
      const code = error.code ?? error.message
      if (request.reusedSocket && (code === 'ECONNRESET' || code === 'EPIPE'))
        return resolve(new StaleConnection(code))
      reject(new RunnerUnreachable(target.url.origin, code, code === 'ECONNREFUSED' && !wasSentBefore))
    })
    if (body !== null && typeof body !== 'string' && !Buffer.isBuffer(body)) {
      body.on('error', (error) => request.destroy(error))
      body.pipe(request)
    } else request.end(body ?? undefined)
  })
}

/** The whole body of an answer. */
function text(response: http.IncomingMessage): Promise<string> {
  return new Promise((resolve, reject) => {
    const chunks: Buffer[] = []
    let bytes = 0
    response.on('data', (chunk: Buffer) => {
      bytes += chunk.length
      if (bytes > ANSWER_BYTES_MAX) response.destroy(new Error('the answer is too large'))
      else chunks.push(chunk)
    })
    response.on('end', () => resolve(Buffer.concat(chunks).toString('utf8')))
    response.on('error', reject)
  })
}

/** The shapes of another version are not ours to guess at. Acknowledgements have none: they are empty. */
function otherVersion(v: unknown, origin: string): Problem | null {
  if (v === undefined || v === CONTRACT_VERSION) return null
  const what = `The runner at ${origin} speaks version ${JSON.stringify(v).slice(0, 20)} of the contract, this worker version ${CONTRACT_VERSION}`
  return versionProblem('PodLost', what)
}

/** A successful answer. @throws FirepoolError when it is of another version */
function replyOf<Reply>(answer: string, origin: string): Reply {
  const reply = JSON.parse(answer) as Reply & { v?: unknown }
  const refused = otherVersion(reply.v, origin)
  if (refused) throw new FirepoolError(refused)
  return reply
}

function problemOf(body: string, status: number, origin: string): Problem {
  try {
    const { v, problem: found } = JSON.parse(body) as { v?: unknown; problem?: Problem }
    const other = otherVersion(v, origin)
    if (other) return other
    if (found !== undefined && isErrorCode(found.code)) return found
  } catch {
    // not one of ours; told below
  }
  return problem(
    'PodLost',
    `What answers at ${origin} is no Firepool runner (HTTP ${status}). Replace the pod.`,
    {
      status,
    },
  )
}
