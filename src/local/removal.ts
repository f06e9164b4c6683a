import { deleteFolder, type EndTarget, endProcesses } from './ending.js'
import type { Observer } from './observation.js'
import type { ProcessScanner } from './process.js'
import type { PodEntry, Registry } from './registry.js'

/** Another worker may create the pod anew while we remove it; it is removed again, but not for ever. */
const REMOVE_ROUNDS = 5

/** Removes pods: their processes first, their place in the registry next, their files last. */
export class Remover {
  readonly #registry: Registry
  readonly #scanner: ProcessScanner
  readonly #observer: Observer
  readonly #underWay = new Map<string, Promise<void>>()

  constructor(registry: Registry, scanner: ProcessScanner, observer: Observer) {
    this.#registry = registry
    this.#scanner = scanner
    this.#observer = observer
  }

  /**
   * Ends everything in the pod and deletes it; an unknown pod is success.
   * @throws when something of it stays: a process that SIGKILL does not end, a file that cannot be deleted
   */
  remove(pod: string): Promise<void> {
    const known = this.#underWay.get(pod)
    if (known) return known
    this.#observer.removing.add(pod)
    const work = this.#remove(pod).finally(() => {
      this.#underWay.delete(pod)
      this.#observer.removing.delete(pod)
    })
    this.#underWay.set(pod, work)
    return work
  }

  async #remove(pod: string): Promise<void> {
    for (let round = 0; round < REMOVE_ROUNDS; round++) {
      const read = this.#registry.read(pod)
      const entry = read.kind === 'entry' ? read.entry : undefined
      if (read.kind === 'entry') this.#registry.markRemoving(pod)
      // Also when there is no folder: somebody may have deleted it by hand under a running pod.
      await endProcesses(this.#scanner, this.#target(pod, entry))
      const discarded = this.#registry.discard(pod)
      if (discarded && discarded.run !== entry?.run) {
        // Registered by another worker since we read the entry: what it started ends too.
        await endProcesses(this.#scanner, { pod })
      }
      for (const folder of this.#registry.trash(pod)) await deleteFolder(folder)
      if (this.#registry.read(pod).kind === 'none') return
    }
    throw new Error(`pod ${pod} is created anew as fast as it is removed: two workers disagree about it`)
  }

  #target(pod: string, entry: PodEntry | undefined): EndTarget {
    if (!entry) return { pod }
    return { pod, runner: entry.runner, incarnation: this.#registry.readReady(pod, entry.run)?.incarnation }
  }
}
