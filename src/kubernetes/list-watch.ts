import { setTimeout as pause } from 'node:timers/promises'
import type { Connection } from './connection.js'
import { type Asked, KubeError } from './kube-error.js'
import { type Applied, ObjectStore } from './object-store.js'
import { type KubeObject, withoutBulk } from './objects.js'
import { pagesOf } from './pages.js'
import type { Requests } from './requests.js'

/** The server ends each watch after about this long by itself, so that its load spreads; then it goes on from where it was. */
const WATCH_SECONDS = 300

export interface ListWatchOptions {
  /** e.g. 'pods' */
  resource: string
  path: string
  namespace?: string
  selector?: string
  /** a watch that says nothing for this long is taken for dead and listed anew; the server sends a bookmark about every minute */
  idleMs?: number
  /** listed anew in any case after this long: what a watch may have missed is seen then */
  resyncMs?: number
  /** the first pause after a failure; doubles up to thirty times this */
  backoffMs?: number
  log: (line: string) => void
  random?: () => number
}

export interface Listener<T> {
  changed(object: T): void
  gone(object: T): void
}

type WatchError = Error & { statusCode?: number }

const DEFAULTS = { idleMs: 30_000, resyncMs: 5 * 60_000, backoffMs: 500, random: Math.random }
const BACKOFF_TIMES_MAX = 30
const OK = 200
/** While it is not said yet it is asked a few times. */
const UNSAID_TIMES_MAX = 4

/**
 * Objects of the API server, kept up to date: lists, watches from there, and begins again whenever the watch cannot be trusted any
 * more. The client's own informer ends for good at errors other than 410 and never notices a silent watch.
 */
export class ListWatch<T extends KubeObject> {
  readonly store = new ObjectStore<T>()
  readonly #connection: Connection
  readonly #requests: Requests
  readonly #options: Required<Omit<ListWatchOptions, 'namespace' | 'selector'>> &
    Pick<ListWatchOptions, 'namespace' | 'selector'>
  readonly #listener: Listener<T>
  readonly #stop = new AbortController()
  readonly #synced: Promise<void>
  #settle: { resolve(): void; reject(error: Error): void } | undefined
  #aliveAt = Number.NEGATIVE_INFINITY
  #failures = 0
  #logged = ''
  /** why it cannot be listed, while it cannot; for people */
  problem: KubeError | null = null

  constructor(connection: Connection, requests: Requests, options: ListWatchOptions, listener: Listener<T>) {
    this.#connection = connection
    this.#requests = requests
    this.#options = { ...DEFAULTS, ...options }
    this.#listener = listener
    this.#synced = new Promise((resolve, reject) => {
      this.#settle = { resolve, reject }
    })
    this.#synced.catch(() => {})
  }

  start(): this {
    void this.#loop()
    return this
  }

  stop(): void {
    this.#stop.abort()
    this.#settle?.reject(new Error('it was stopped'))
  }

  /** Resolves when the first list is in. */
  synced(): Promise<void> {
    return this.#synced
  }

  get isSynced(): boolean {
    return Number.isFinite(this.#aliveAt)
  }

  /** How old what is known may be, ms: since the server last said anything. */
  ageMs(): number {
    return performance.now() - this.#aliveAt
  }

  async #loop(): Promise<void> {
    while (!this.#stop.signal.aborted) {
      try {
        await this.#list()
        this.#failures = 0
        this.problem = null
        this.#logged = ''
        await this.#watch()
      } catch (error) {
        await this.#failed(error)
      }
    }
  }

  async #failed(error: unknown): Promise<void> {
    if (this.#stop.signal.aborted) return
    const { backoffMs, resource, log, random } = this.#options
    const isSaid = !(error instanceof KubeError && this.#requests.rights.mayComeBack(error))
    if (isSaid && error instanceof KubeError) this.problem = error
    const times = Math.min(isSaid ? BACKOFF_TIMES_MAX : UNSAID_TIMES_MAX, 2 ** this.#failures++)
    const waitMs = backoffMs * times * (0.5 + random())
    const line = `${resource} cannot be watched, it is tried again: ${(error as Error).message}`
    // A right that is missing is missing for a while.
    if (isSaid && line !== this.#logged) log(line)
    if (isSaid) this.#logged = line
    await pause(waitMs, undefined, { signal: this.#stop.signal }).catch(() => {})
  }

  async #list(): Promise<void> {
    const { resource, path, namespace, selector } = this.#options
    const all: T[] = []
    let resourceVersion = ''
    const pages = pagesOf<T>(this.#requests, {
      resource,
      namespace,
      path,
      // A failed list is listed anew from the start by the loop: its pages may have expired (410).
      once: true,
      signal: this.#stop.signal,
      ...(selector === undefined ? {} : { query: { labelSelector: selector } }),
    })
    for await (const page of pages) {
      all.push(...page.items)
      resourceVersion = page.resourceVersion
    }
    this.#aliveAt = performance.now()
    const { changed, gone } = this.store.replace(all, resourceVersion)
    for (const object of gone) this.#listener.gone(object)
    for (const object of changed) this.#listener.changed(object)
    this.#settle?.resolve()
  }

  /** Watches on and on; returns when the objects have to be listed anew. */
  async #watch(): Promise<void> {
    const { idleMs, resyncMs, backoffMs, random } = this.#options
    const resyncAt = performance.now() + resyncMs * (0.8 + 0.4 * random())
    for (;;) {
      const end = new AbortController()
      const resync = setTimeout(() => end.abort(), Math.max(0, resyncAt - performance.now()))
      resync.unref()
      let verdict: Applied<T>['kind'] | null = null
      const startedAt = performance.now()
      const error = await this.#connection.watch(this.#options.path, this.#query(), {
        idleMs,
        signal: AbortSignal.any([this.#stop.signal, end.signal]),
        onEvent: (event) => {
          if (verdict !== null) return
          this.#aliveAt = performance.now()
          this.#requests.rights.granted(this.#watched)
          const applied = this.store.apply({ ...event, object: withoutBulk(event.object as T) })
          if (applied.kind === 'changed') this.#listener.changed(applied.object)
          if (applied.kind === 'gone') this.#listener.gone(applied.object)
          if (applied.kind !== 'expired' && applied.kind !== 'failed') return
          verdict = applied.kind
          end.abort()
        },
      })
      clearTimeout(resync)
      const { statusCode = isQuiet(error) ? OK : 0 } = (error ?? {}) as WatchError
      this.#requests.stats.answered(this.#watched, statusCode)
      if (this.#stop.signal.aborted || performance.now() >= resyncAt || verdict !== null) return
      if (error === null) {
        // An ordinary end: the server closes every watch after a while. What closes them at once must not be asked without end.
        if (performance.now() - startedAt < backoffMs) await pause(backoffMs)
        continue
      }
      return this.#watchFailed(error)
    }
  }

  #watchFailed(error: WatchError): void {
    // Silence, which is normal in a quiet cluster; or 410 as the answer to the request. A list says more than another try.
    if (isQuiet(error) || error.statusCode === 410) return
    const { statusCode = 0, message } = error
    throw new KubeError(this.#watched, statusCode, error.name, message)
  }

  get #watched(): Asked {
    const { resource, namespace } = this.#options
    return { verb: 'watch', resource, namespace }
  }

  #query(): Record<string, string> {
    const { selector, random } = this.#options
    return {
      ...(selector === undefined ? {} : { labelSelector: selector }),
      resourceVersion: this.store.resourceVersion,
      allowWatchBookmarks: 'true',
      timeoutSeconds: String(Math.round(WATCH_SECONDS * (0.8 + 0.4 * random()))),
    }
  }
}

/** Whether a watch ended as watches do: by the server, by its silence, or by us. */
function isQuiet(error: Error | null): boolean {
  return error === null || error.name === 'TimeoutError' || error.name === 'AbortError'
}
