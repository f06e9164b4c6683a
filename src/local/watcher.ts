import { type FSWatcher, watch as watchFolder } from 'node:fs'
import type { ObservedPod } from '../contract/index.js'
import type { Observer } from './observation.js'
import type { PodEntry, Registry } from './registry.js'

/** While a pod starts: ready.json is noticed within this. */
const FAST_MS = 20
/** Otherwise: the registry is listed and adopted pods are looked at this often. */
const SLOW_MS = 250
/** A folder without pod.json keeps the fast pace this long; its creator needs milliseconds. */
const UNFINISHED_MS = 2_000

interface Watch {
  pool: string
  onChange: (pod: ObservedPod) => void
  /** what it was told last about each pod, as text */
  told: Map<string, string>
  /** it has not been told yet what is known already */
  fresh: boolean
}

interface Tracked {
  entry: PodEntry
  state: ObservedPod | undefined
  /** being looked at or brought to its end */
  busy: boolean
  /** something happened meanwhile: look once more */
  again: boolean
}

/**
 * One poller for all watches of a backend; it runs only while there is a watch. Own pods tell by themselves when
 * they exit; a change of the registry's folder is a hint to look at once; all else is found by looking.
 */
export class Watcher {
  readonly #registry: Registry
  readonly #observer: Observer
  readonly #log: (line: string) => void
  readonly #watches = new Set<Watch>()
  readonly #tracked = new Map<string, Tracked>()
  readonly #unfinished = new Map<string, number>()
  #timer: NodeJS.Timeout | undefined
  #folderWatch: FSWatcher | undefined
  #slowTickAt = 0

  constructor(registry: Registry, observer: Observer, log: (line: string) => void) {
    this.#registry = registry
    this.#observer = observer
    this.#log = log
  }

  /** See Backend.watch. */
  watch(pool: string, onChange: (pod: ObservedPod) => void): () => void {
    const watch: Watch = { pool, onChange, told: new Map(), fresh: true }
    this.#watches.add(watch)
    this.#startFolderWatch()
    this.nudge()
    return () => {
      this.#watches.delete(watch)
      if (this.#watches.size === 0) this.#stop()
    }
  }

  /** Something has changed: look at everything in the next turn of the event loop. */
  nudge(): void {
    if (this.#watches.size === 0) return
    this.#slowTickAt = 0
    this.#schedule(0)
  }

  close(): void {
    this.#watches.clear()
    this.#stop()
  }

  #stop(): void {
    clearTimeout(this.#timer)
    this.#timer = undefined
    this.#folderWatch?.close()
    this.#folderWatch = undefined
    this.#tracked.clear()
    this.#unfinished.clear()
  }

  #startFolderWatch(): void {
    if (this.#folderWatch) return
    try {
      this.#folderWatch = watchFolder(this.#registry.podsDir, { persistent: false }, () => this.nudge())
      this.#folderWatch.on('error', () => this.#folderWatch?.close())
    } catch {
      // No watches left in the kernel: pods of other workers are then noticed by the slow pace alone.
    }
  }

  #schedule(delayMs: number): void {
    clearTimeout(this.#timer)
    this.#timer = setTimeout(() => this.#tick(), delayMs)
    // Whoever watches has a reason of his own to stay alive.
    this.#timer.unref()
  }

  #tick(): void {
    const now = performance.now()
    try {
      if (now >= this.#slowTickAt) {
        this.#slowTickAt = now + SLOW_MS
        this.#readRegistry(now)
      }
      this.#lookAtPods(this.#slowTickAt === now + SLOW_MS)
      this.#tellNewWatches()
    } catch (error) {
      this.#log(`watch: ${(error as Error).message}`)
    }
    if (this.#watches.size === 0) return
    this.#schedule(this.#someStart() ? FAST_MS : Math.max(FAST_MS, this.#slowTickAt - performance.now()))
  }

  /** Pods that came and went. An entry never changes, so those known are not read again. */
  #readRegistry(now: number): void {
    const names = new Set(this.#registry.names())
    for (const pod of this.#tracked.keys()) if (!names.has(pod)) this.#forget(pod)
    for (const pod of this.#unfinished.keys()) if (!names.has(pod)) this.#unfinished.delete(pod)
    for (const pod of names) if (!this.#tracked.has(pod)) this.#meet(pod, now)
  }

  #meet(pod: string, now: number): void {
    const read = this.#registry.read(pod)
    if (read.kind === 'unfinished') {
      const since = this.#unfinished.get(pod)
      if (since === undefined) this.#unfinished.set(pod, now)
      return
    }
    this.#unfinished.delete(pod)
    if (read.kind === 'entry')
      this.#tracked.set(pod, { entry: read.entry, state: undefined, busy: false, again: false })
  }

  #forget(pod: string): void {
    const tracked = this.#tracked.get(pod)
    if (!tracked) return
    this.#tracked.delete(pod)
    this.#tell(tracked.entry.order.pool, { pod, generation: tracked.entry.order.generation, phase: 'gone' })
  }

  #lookAtPods(slow: boolean): void {
    const now = performance.now()
    for (const [pod, since] of this.#unfinished) {
      if (now - since < UNFINISHED_MS) this.#meet(pod, since)
    }
    for (const tracked of this.#tracked.values()) {
      if (!tracked.busy && this.#isWatched(tracked) && this.#needsLook(tracked, slow)) this.#look(tracked)
    }
  }

  #needsLook(tracked: Tracked, slow: boolean): boolean {
    const { entry, state } = tracked
    if (state === undefined) return true
    if (state.phase === 'starting' && this.#observer.hasNews(entry)) return true
    if (state.phase === 'failed' || this.#observer.isChild(entry)) return false
    return slow && !this.#observer.isRunning(entry)
  }

  #look(tracked: Tracked): void {
    const { pod, pool } = tracked.entry.order
    tracked.busy = true
    tracked.again = false
    this.#observer
      .look(tracked.entry)
      .then((state) => {
        if (this.#tracked.get(pod) !== tracked) return
        if (state.phase === 'gone') {
          // Removed, or removed and made anew since the registry was listed.
          this.#forget(pod)
          this.nudge()
          return
        }
        tracked.state = state
        this.#tell(pool, state)
      })
      // A process that would not end: the pod is looked at again.
      .catch((error) => this.#log(`pod ${pod}: ${(error as Error).message}`))
      .finally(() => {
        tracked.busy = false
        if (tracked.again && this.#tracked.get(pod) === tracked) this.#look(tracked)
      })
  }

  /** This process heard that one of its pods has exited. */
  exited(entry: PodEntry): void {
    const tracked = this.#tracked.get(entry.order.pod)
    if (tracked?.entry.run !== entry.run || !this.#isWatched(tracked)) return
    if (tracked.busy) tracked.again = true
    else this.#look(tracked)
  }

  #tellNewWatches(): void {
    for (const watch of this.#watches) {
      if (!watch.fresh) continue
      watch.fresh = false
      for (const { entry, state } of this.#tracked.values()) {
        if (state && entry.order.pool === watch.pool) this.#tellOne(watch, state)
      }
    }
  }

  #tell(pool: string, state: ObservedPod): void {
    for (const watch of [...this.#watches]) if (watch.pool === pool) this.#tellOne(watch, state)
  }

  #tellOne(watch: Watch, state: ObservedPod): void {
    if (!this.#watches.has(watch)) return
    const text = `${state.phase} ${state.generation} ${state.address} ${state.incarnation} ${state.reason}`
    const before = watch.told.get(state.pod)
    if (state.phase === 'gone') {
      if (!watch.told.delete(state.pod)) return
    } else {
      if (before === text) return
      watch.told.set(state.pod, text)
    }
    try {
      watch.onChange({ ...state })
    } catch (error) {
      this.#log(`watch of pool ${watch.pool}: its callback threw: ${(error as Error).message}`)
    }
  }

  #isWatched(tracked: Tracked): boolean {
    for (const watch of this.#watches) if (watch.pool === tracked.entry.order.pool) return true
    return false
  }

  #someStart(): boolean {
    const now = performance.now()
    for (const since of this.#unfinished.values()) if (now - since < UNFINISHED_MS) return true
    for (const tracked of this.#tracked.values()) {
      if (this.#isWatched(tracked) && (tracked.busy || tracked.state?.phase === 'starting')) return true
    }
    return false
  }
}
