import { setTimeout as pause } from 'node:timers/promises'
import type { ApiCall, Connection } from './connection.js'
import { type Asked, answerError, KubeError, networkError } from './kube-error.js'
import { RequestStats } from './request-stats.js'
import { Rights } from './rights.js'

/** Requests under way at once, watches aside: an API server's own fairness gives one user about this much. */
const CONCURRENCY = 16
/** One request must be answered within this. */
const REQUEST_MS = 10_000
/** All attempts together: an effect of a pool has 30 s, and what it did is to be told before. */
const TRY_MS = 18_000
const BACKOFF_MS = 200
const BACKOFF_MAX_MS = 5_000
/** A server that is flooded says so with 429 and often with no time. */
const FLOODED_MS = 1_000

export interface Request extends Asked {
  path: string
  query?: Record<string, string>
  body?: unknown
  contentType?: string
  /** do not try again; default: what is transient is tried until TRY_MS are over */
  once?: boolean
  /** the right to it may be missing for good: that is an answer too, and not waited for */
  optional?: boolean
  signal?: AbortSignal
}

export interface RequestsOptions {
  random?: () => number
  rights?: Rights
  stats?: RequestStats
}

/** Requests of one worker to one API server: bounded, patient with a busy one, typed when refused. */
export class Requests {
  readonly #connection: Connection
  readonly #random: () => number
  readonly rights: Rights
  readonly stats: RequestStats
  #running = 0
  readonly #waiting: (() => void)[] = []
  /** nobody sends before: the server asked all of us to wait, by performance.now() */
  #quietUntil = 0
  /** ms since the epoch on the server's clock when performance.now() was 0, by the date of its last answer; before one, on ours */
  #serverEpochMs = Date.now() - performance.now()

  constructor(connection: Connection, options: RequestsOptions = {}) {
    const { random = Math.random, rights = new Rights(), stats = new RequestStats() } = options
    this.#connection = connection
    this.#random = random
    this.rights = rights
    this.stats = stats
  }

  /** The API server's clock, ms since the epoch, as exact as a date header (a second). Our own may be set at any time: it does not count. */
  serverNowMs(): number {
    return this.#serverEpochMs + performance.now()
  }

  /**
   * @returns the answer's body as JSON
   * @throws KubeError
   */
  async json<T>(request: Request): Promise<T> {
    return JSON.parse(await this.text(request)) as T
  }

  async text(request: Request): Promise<string> {
    const until = performance.now() + TRY_MS
    for (let attempt = 0; ; attempt++) {
      try {
        return await this.#oneByOne(request)
      } catch (error) {
        if (!(error instanceof KubeError) || request.once || request.signal?.aborted) throw error
        if (!error.isTransient && (request.optional || !this.rights.mayComeBack(error))) throw error
        const backoffMs = Math.min(BACKOFF_MAX_MS, BACKOFF_MS * 2 ** attempt)
        const waitMs = Math.max(error.retryAfterMs ?? 0, backoffMs * (0.5 + this.#random()))
        if (performance.now() + waitMs > until) throw error
        await pause(waitMs)
      }
    }
  }

  async #oneByOne(request: Request): Promise<string> {
    const cameAt = performance.now()
    if (this.#running >= CONCURRENCY) {
      await new Promise<void>((resolve) => this.#waiting.push(resolve))
      this.stats.waited('places', performance.now() - cameAt)
    } else this.#running++
    try {
      await this.#quiet()
      return await this.#send(request)
    } finally {
      // The place goes to who waited longest, or is free.
      const next = this.#waiting.shift()
      if (next) next()
      else this.#running--
    }
  }

  /** Waits for as long as the server asked for. */
  async #quiet(): Promise<void> {
    const from = performance.now()
    if (this.#quietUntil <= from) return
    while (this.#quietUntil > performance.now()) await pause(this.#quietUntil - performance.now())
    this.stats.waited('throttled', performance.now() - from)
  }

  async #send(request: Request): Promise<string> {
    const { path, query, body, contentType, signal } = request
    const limit = AbortSignal.timeout(REQUEST_MS)
    const call: ApiCall = {
      method: METHOD[request.verb],
      path,
      signal: signal ? AbortSignal.any([signal, limit]) : limit,
      ...(query ? { query } : {}),
      ...(body === undefined ? {} : { body }),
      ...(contentType ? { contentType } : {}),
    }
    let answer: Awaited<ReturnType<Connection['send']>>
    try {
      answer = await this.#connection.send(call)
    } catch (error) {
      // An open connection may have been dead for long, and every request on it would wait as long as this one.
      if (limit.aborted) this.#connection.reset()
      this.stats.answered(request, 0)
      throw networkError(request, error)
    }
    const { status, headers, text } = answer
    this.stats.answered(request, status)
    const dateMs = Date.parse(headers.date ?? '')
    // The header has whole seconds: on average it is half of one behind.
    if (Number.isFinite(dateMs)) this.#serverEpochMs = dateMs + 500 - performance.now()
    // Whatever else it answers, also that there is no such object: it asks for the right first.
    if (status !== 401 && status !== 403) this.rights.granted(request)
    if (status >= 200 && status < 300) return text
    const error = answerError(request, status, headers, text)
    // The others would only be told the same.
    if (status === 429)
      this.#quietUntil = Math.max(this.#quietUntil, performance.now() + (error.retryAfterMs ?? FLOODED_MS))
    throw error
  }
}

const METHOD = {
  get: 'GET',
  list: 'GET',
  watch: 'GET',
  create: 'POST',
  patch: 'PATCH',
  delete: 'DELETE',
} as const satisfies Record<Asked['verb'], ApiCall['method']>

/** Path of namespaced objects of the core API. */
export function corePath(namespace: string, resource: string, name?: string): string {
  return objectPath('/api/v1', namespace, resource, name)
}

/** @param api e.g. '/apis/apps/v1' */
export function objectPath(api: string, namespace: string, resource: string, name?: string): string {
  const [kind, subresource] = resource.split('/')
  const base = `${api}/namespaces/${encodeURIComponent(namespace)}/${kind}`
  if (name === undefined) return base
  return `${base}/${encodeURIComponent(name)}${subresource === undefined ? '' : `/${subresource}`}`
}
