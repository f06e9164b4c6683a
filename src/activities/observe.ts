import { randomUUID } from 'node:crypto'
import { setTimeout as pause } from 'node:timers/promises'
import { Context } from '@temporalio/activity'
import type { Backend, ObservedPod } from '../contract/backend.js'
import { TIMEOUT } from '../contract/limits.js'
import { createRunnerClient } from '../runner/client.js'
import type { Signer } from '../token/token.js'
import type { Observation, ObserveInput } from '../workflows/pool-observation.js'
import { beating } from './heartbeat.js'
import { CONTROL_MS } from './pods.js'

/** Changes come in bursts (a hundred pods become Ready): what follows within this time goes into one observation. */
const COALESCE_MS = 15
/** Changes remembered for a cursor; an older cursor gets everything. */
const LOG_ENTRIES = 10_000

/** A feed that nobody reads for this long is closed: its pool is gone, or another worker watches it. */
const UNREAD_MS = 60_000
/** Pods hear from the broker this often while they are watched, or they end themselves. */
const TOUCH_MS = TIMEOUT.brokerGoneMs / 5

/** The changes of one pool's pods since this worker began to watch, numbered. */
class PodFeed {
  readonly id = randomUUID()
  private readonly log: { seq: number; pod: ObservedPod }[] = []
  private seq = 0
  private waiters = new Set<() => void>()
  private readonly ready = new Map<string, string>()
  private readonly stop: () => void
  private readAt = Date.now()

  constructor(
    backend: Backend,
    pool: string,
    touch: (pod: string, address: string) => void,
    onClose: () => void,
  ) {
    const unwatch = backend.watch(pool, (pod) => {
      this.log.push({ seq: ++this.seq, pod })
      if (pod.phase === 'ready' && pod.address) this.ready.set(pod.pod, pod.address)
      else this.ready.delete(pod.pod)
      if (this.log.length > LOG_ENTRIES) this.log.splice(0, LOG_ENTRIES / 2)
      for (const wake of this.waiters) wake()
      this.waiters.clear()
    })
    const touching = setInterval(() => {
      for (const [name, address] of this.ready) touch(name, address)
    }, TOUCH_MS)
    const unread = setInterval(() => {
      if (this.waiters.size > 0) this.readAt = Date.now()
      else if (Date.now() - this.readAt > UNREAD_MS) this.close()
    }, UNREAD_MS / 4)
    touching.unref()
    unread.unref()
    this.stop = () => {
      clearInterval(touching)
      clearInterval(unread)
      unwatch()
      onClose()
    }
  }

  close(): void {
    this.stop()
  }

  get cursor(): string {
    return `${this.id}:${this.seq}`
  }

  /** The last state of each pod that changed since the cursor, or null when the cursor is not of this feed. */
  since(cursor: string | null): ObservedPod[] | null {
    this.readAt = Date.now()
    const [id, at] = cursor?.split(':') ?? []
    const seq = Number(at)
    if (id !== this.id || !(seq <= this.seq)) return null
    const first = this.log[0]
    if (first && first.seq > seq + 1) return null
    const last = new Map<string, ObservedPod>()
    for (const entry of this.log) if (entry.seq > seq) last.set(entry.pod.pod, entry.pod)
    return [...last.values()]
  }

  /** Resolves at the next change, after `ms`, or rejects when the signal aborts. */
  async change(ms: number, signal: AbortSignal): Promise<void> {
    let wake = () => {}
    const changed = new Promise<void>((resolve) => {
      wake = resolve
      this.waiters.add(resolve)
    })
    const timer = new AbortController()
    try {
      await Promise.race([changed, pause(ms, undefined, { signal: AbortSignal.any([signal, timer.signal]) })])
    } finally {
      timer.abort()
      this.waiters.delete(wake)
    }
  }
}

/**
 * The activity that watches a backend for a pool: returns at once with everything for a cursor it does not know, else
 * when something changed since, or after a long while with nothing.
 */
export function createObserve({ backend, signer }: { backend: Backend; signer: Signer }) {
  const feeds = new Map<string, PodFeed>()
  const touch = (pod: string, address: string) => {
    // Only the contact counts: whether the pod lives, the backend knows.
    createRunnerClient(address, () => signer(pod, 'broker', 0, ''))
      .status({ timeoutMs: CONTROL_MS })
      .catch(() => undefined)
  }
  return async ({ pool, cursor }: ObserveInput): Promise<Observation> => {
    let feed = feeds.get(pool)
    if (!feed) {
      feed = new PodFeed(backend, pool, touch, () => feeds.delete(pool))
      feeds.set(pool, feed)
    }
    const { cancellationSignal } = Context.current()
    if (feed.since(cursor) === null) {
      // The cursor is read before the list: what changes while the list is made comes again with the next one.
      const from = feed.cursor
      return { v: 1, cursor: from, full: true, pods: await backend.list(pool) }
    }
    const watch = async () => {
      if (feed.since(cursor)?.length !== 0) return
      await feed.change(TIMEOUT.observeMs, cancellationSignal)
      await pause(COALESCE_MS)
    }
    await beating(Context.current(), { v: 1 }, watch())
    const pods = feed.since(cursor)
    if (pods !== null) return { v: 1, cursor: feed.cursor, full: false, pods }
    const from = feed.cursor
    return { v: 1, cursor: from, full: true, pods: await backend.list(pool) }
  }
}
