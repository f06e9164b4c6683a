import { setTimeout as pause } from 'node:timers/promises'
import type { ApiCall, Connection } from './connection.js'
import { type Asked, answerError, KubeError, networkError, refusalOf } from './kube-error.js'

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
  signal?: AbortSignal
}

/** Requests of one worker to one API server: bounded, patient with a busy one, typed when refused. */
export class Requests {
  readonly #connection: Connection
  readonly #random: () => number
  /** what was allowed once */
  readonly #granted = new Set<string>()
  #running = 0
  readonly #waiting: (() => void)[] = []
  /** nobody sends before: the server asked all of us to wait, by performance.now() */
  #quietUntil = 0
  /** of the server's clock from ours, ms; from the date of its last answer */
  #clockAheadMs = 0

  constructor(connection: Connection, random: () => number = Math.random) {
    this.#connection = connection
    this.#random = random
  }

  /** The API server's clock, ms since the epoch, as exact as a date header (a second). */
  serverNowMs(): number {
    return Date.now() + this.#clockAheadMs
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
        if (!error.isTransient && !this.#hadRight(request, error)) throw error
        const backoffMs = Math.min(BACKOFF_MAX_MS, BACKOFF_MS * 2 ** attempt)
        const waitMs = Math.max(error.retryAfterMs ?? 0, backoffMs * (0.5 + this.#random()))
        if (performance.now() + waitMs > until) throw error
        await pause(waitMs)
      }
    }
  }

  /** An API server that starts forbids everything until it has read the roles: a right that was there comes back. */
  #hadRight(request: Request, error: KubeError): boolean {
    return refusalOf(error)?.reason === 'Forbidden' && this.#granted.has(rightOf(request))
  }

  async #oneByOne(request: Request): Promise<string> {
    if (this.#running >= CONCURRENCY) await new Promise<void>((resolve) => this.#waiting.push(resolve))
    else this.#running++
    try {
      for (;;) {
        const quietMs = this.#quietUntil - performance.now()
        if (quietMs <= 0) break
        await pause(quietMs)
      }
      return await this.#send(request)
    } finally {
      // The place goes to who waited longest, or is free.
      const next = this.#waiting.shift()
      if (next) next()
      else this.#running--
    }
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
      throw networkError(request, error)
    }
    const { status, headers, text } = answer
    const dateMs = Date.parse(headers.date ?? '')
    // The header has whole seconds: on average it is half of one behind.
    if (Number.isFinite(dateMs)) this.#clockAheadMs = dateMs + 500 - Date.now()
    // Whatever else it answers, also that there is no such object: it asks for the right first.
    if (status !== 401 && status !== 403) this.#granted.add(rightOf(request))
    if (status >= 200 && status < 300) return text
    const error = answerError(request, status, headers, text)
    // The others would only be told the same.
    if (status === 429)
      this.#quietUntil = Math.max(this.#quietUntil, performance.now() + (error.retryAfterMs ?? FLOODED_MS))
    throw error
  }
}

function rightOf({ verb, resource, namespace = '' }: Asked): string {
  return `${verb} ${resource} ${namespace}`
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
