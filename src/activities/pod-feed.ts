import { randomUUID } from 'node:crypto'
import { setTimeout as pause } from 'node:timers/promises'
import type { Backend, ObservedPod } from '../contract/backend.js'
import { TIMEOUT } from '../contract/limits.js'

/** Changes come in bursts (a hundred pods become Ready): what follows within this time goes into one observation. */
const COALESCE_MS = 15
/**
 * Where pods change all the time, each observation waits until the one before is so old: it costs the server an activity and the pool a
 * workflow task, and a pod that took seconds to start can be heard of a moment later. After a pause the first change is told at once.
 */
const STEADY_MS = 100
/** Changes remembered for a cursor; an older cursor gets everything. */
const LOG_ENTRIES = 10_000

/** A feed that nobody reads for this long is closed: its pool is gone, or another worker watches it. */
const UNREAD_MS = 60_000
/** Pods hear from the broker this often while they are watched, or they end themselves. */
const TOUCH_MS = TIMEOUT.brokerGoneMs / 5
/** Not all of thousands in one moment: a part of them in each of so many rounds. */
const TOUCH_ROUNDS = 60

/** The changes of one pool's pods since this worker began to watch, numbered. */
export class PodFeed {
  readonly id = randomUUID()
  /** in the order of their numbers, none is missing */
  private readonly log: { seq: number; pod: ObservedPod }[] = []
  private seq = 0
  private waiters = new Set<() => void>()
  /** addresses of pods that are ready; who was touched longest ago is first */
  private readonly ready = new Map<string, string>()
  private readonly stop: () => void
  private readAt = Date.now()
  private toldAt = Number.NEGATIVE_INFINITY

  constructor(
    backend: Pick<Backend, 'watch'>,
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
    const touching = setInterval(() => this.touchSome(touch), TOUCH_MS / TOUCH_ROUNDS)
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
    for (let n = first ? seq + 1 - first.seq : 0; n < this.log.length; n++) {
      const { pod } = this.log[n]!
      last.set(pod.pod, pod)
    }
    return [...last.values()]
  }

  /**
   * Resolves when something has changed since the cursor and what comes with it has come too, or after `ms`.
   * @throws when the signal aborts
   */
  async changedSince(cursor: string | null, ms: number, signal: AbortSignal): Promise<void> {
    const isNews = this.since(cursor)?.length === 0
    if (isNews) await this.change(ms, signal)
    const waitMs = Math.max(isNews ? COALESCE_MS : 0, this.toldAt + STEADY_MS - performance.now())
    if (waitMs > 0) await pause(waitMs, undefined, { signal })
    this.toldAt = performance.now()
  }

  /** Resolves at the next change, after `ms`, or rejects when the signal aborts. */
  private async change(ms: number, signal: AbortSignal): Promise<void> {
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

  private touchSome(touch: (pod: string, address: string) => void): void {
    let left = Math.ceil(this.ready.size / TOUCH_ROUNDS)
    for (const [name, address] of this.ready) {
      if (left-- <= 0) return
      // To the end of the row.
      this.ready.delete(name)
      this.ready.set(name, address)
      touch(name, address)
    }
  }
}
