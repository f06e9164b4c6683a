import { rmdirSync } from 'node:fs'
import { deleteFolder, endProcesses } from './ending.js'
import type { ProcessId, ProcessScanner } from './process.js'
import type { Registry } from './registry.js'

/** What dead workers leave is rare and harmless for a while; a sweep reads every pod's folder. */
const SWEEP_MS = 10_000

/** Clears what workers that died half-way left behind: strays of create, and half-deleted folders of remove. */
export class Janitor {
  readonly #registry: Registry
  readonly #scanner: ProcessScanner
  readonly #log: (line: string) => void
  #sweptAt = Number.NEGATIVE_INFINITY

  constructor(registry: Registry, scanner: ProcessScanner, log: (line: string) => void) {
    this.#registry = registry
    this.#scanner = scanner
    this.#log = log
  }

  async sweepIfDue(): Promise<void> {
    const now = performance.now()
    if (now - this.#sweptAt < SWEEP_MS) return
    this.#sweptAt = now
    try {
      for (const pod of this.#registry.names()) await this.clearStrays(pod)
      for (const folder of this.#registry.trash()) await deleteFolder(folder)
    } catch (error) {
      this.#log(`janitor: ${(error as Error).message}`)
    }
  }

  /** Ends and deletes the runs of this pod that no entry names and whose creator is dead. */
  async clearStrays(pod: string): Promise<void> {
    for (const run of this.#registry.strayRuns(pod)) {
      this.#log(`pod ${pod}: clearing ${run}, left by a worker that died`)
      await this.clearRun(pod, run)
    }
    if (this.#registry.read(pod).kind === 'unfinished') this.#removeIfEmpty(pod)
  }

  /** Ends what one run started, and deletes its folder. */
  async clearRun(pod: string, run: string, runner?: ProcessId): Promise<void> {
    await endProcesses(this.#scanner, runner ? { pod, run, runner } : { pod, run })
    await deleteFolder(this.#registry.runFolder(pod, run))
    this.#removeIfEmpty(pod)
  }

  #removeIfEmpty(pod: string): void {
    try {
      rmdirSync(this.#registry.podFolder(pod))
    } catch {
      // Somebody else's run is in it, or it has gone: either is fine.
    }
  }
}
