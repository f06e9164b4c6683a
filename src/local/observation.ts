import type { ChildProcess } from 'node:child_process'
import { closeSync, existsSync, fstatSync, openSync, readSync } from 'node:fs'
import { join } from 'node:path'
import { CONTRACT_VERSION, type ObservedPod, type RunnerFailed, type RunnerReady } from '../contract/index.js'
import { endProcesses } from './ending.js'
import { LOG_FILE } from './launch.js'
import { isAlive, type ProcessScanner, processAgeMs } from './process.js'
import { isOtherVersion, type PodEnd, type PodEntry, type Registry } from './registry.js'

/** The end of the log that goes into a failure's message: enough for a stack trace, little for a history. */
const LOG_TAIL_BYTES = 2_048

type Failure = 'exited' | 'failed.json' | 'timeout' | 'version'

/** What the files and the process table say about a pod, without changing anything. */
export type Finding =
  | { kind: 'starting' }
  | { kind: 'ready'; ready: Pick<RunnerReady, 'address' | 'incarnation'> }
  /** it has failed, and what it held may still be there */
  | { kind: 'failing'; why: Failure }
  | { kind: 'failed'; end: PodEnd }
  /** its folder has gone, or is another run's now */
  | { kind: 'gone' }

/** Looks at pods, and brings those that failed to their end: a pod reported `failed` holds nothing any more. */
export class Observer {
  readonly #registry: Registry
  readonly #scanner: ProcessScanner
  readonly #log: (line: string) => void
  /** runners that this process started, by run folder; the others were adopted from the registry */
  readonly #children = new Map<string, ChildProcess>()
  readonly #settling = new Map<string, Promise<PodEnd>>()
  /** pods that this process is removing: their death is not a failure */
  readonly removing = new Set<string>()

  constructor(registry: Registry, scanner: ProcessScanner, log: (line: string) => void) {
    this.#registry = registry
    this.#scanner = scanner
    this.#log = log
  }

  /** A runner started by this process: its exit is heard at once, and its exit code is known. */
  addChild(entry: PodEntry, child: ChildProcess, onExit: () => void): void {
    const key = this.#key(entry)
    this.#children.set(key, child)
    child.once('exit', () => {
      // Also without a watch: what the pod left running must end, and only this process knows the exit code.
      this.look(entry)
        .catch((error) => this.#log(`pod ${entry.order.pod}: ${(error as Error).message}`))
        .finally(() => {
          this.#children.delete(key)
          onExit()
        })
    })
  }

  isChild(entry: PodEntry): boolean {
    return this.#children.has(this.#key(entry))
  }

  /** Whether the runner still runs. Of a child only its exit event counts: with it comes the exit code. */
  isRunning(entry: PodEntry): boolean {
    const child = this.#children.get(this.#key(entry))
    return child ? child.exitCode === null && child.signalCode === null : isAlive(entry.runner)
  }

  /** Cheap, and changes nothing. */
  find(entry: PodEntry): Finding {
    const { pod } = entry.order
    const end = this.#registry.readEnd(pod, entry.run)
    if (end) return { kind: 'failed', end }
    const ready = this.#registry.readReady(pod, entry.run)
    const why =
      this.#failure(entry, ready !== undefined) ?? (isOtherVersion(ready?.v) ? 'version' : undefined)
    if (why !== undefined) {
      if (!existsSync(this.#registry.runFolder(pod, entry.run))) return { kind: 'gone' }
      // Its death is wanted: it stays what it was until it is gone.
      const removing = this.removing.has(pod) || this.#registry.isBeingRemoved(pod)
      if (!removing) return { kind: 'failing', why }
    }
    return ready ? { kind: 'ready', ready } : { kind: 'starting' }
  }

  #failure(entry: PodEntry, ready: boolean): Failure | undefined {
    if (this.#has(entry, 'failed.json')) return 'failed.json'
    if (!this.isRunning(entry)) return 'exited'
    return !ready && this.#isOverdue(entry) ? 'timeout' : undefined
  }

  /** Whether a pod that starts has news: the cheapest question, asked every few milliseconds. */
  hasNews(entry: PodEntry): boolean {
    return this.#has(entry, 'ready.json') || this.#has(entry, 'failed.json') || this.#isOverdue(entry)
  }

  /** Whether it has had its time to start. */
  #isOverdue(entry: PodEntry): boolean {
    const ageMs = processAgeMs(entry.runner) ?? Date.now() - entry.createdAtMs
    return ageMs > entry.order.startTimeoutMs
  }

  /** The pod's state as the port wants it; ends what a failed pod left behind. */
  async look(entry: PodEntry): Promise<ObservedPod> {
    const finding = this.find(entry)
    const base = { pod: entry.order.pod, generation: entry.order.generation }
    switch (finding.kind) {
      case 'starting':
        return { ...base, phase: 'starting' }
      case 'ready':
        return {
          ...base,
          phase: 'ready',
          address: finding.ready.address,
          incarnation: finding.ready.incarnation,
        }
      case 'gone':
        return { ...base, phase: 'gone' }
      case 'failed':
        return { ...base, phase: 'failed', reason: finding.end.reason, message: finding.end.message }
      case 'failing':
        return { ...base, ...(await this.#settled(entry, finding.why)) }
    }
  }

  async #settled(entry: PodEntry, why: Failure): Promise<Omit<ObservedPod, 'pod' | 'generation'>> {
    try {
      const end = await this.#settle(entry, why)
      return { phase: 'failed', reason: end.reason, message: end.message }
    } catch (error) {
      // A process of it is stuck in the kernel: until that ends the pod still holds something, so it is not
      // `failed`, and one such pod must not hide the others from list(). The next look tries again.
      this.#log(`pod ${entry.order.pod}: ${(error as Error).message}`)
      return { phase: 'starting' }
    }
  }

  #settle(entry: PodEntry, why: Failure): Promise<PodEnd> {
    const key = this.#key(entry)
    const known = this.#settling.get(key)
    if (known) return known
    const work = this.#bringToEnd(entry, why).finally(() => this.#settling.delete(key))
    this.#settling.set(key, work)
    return work
  }

  async #bringToEnd(entry: PodEntry, why: Failure): Promise<PodEnd> {
    const { pod } = entry.order
    // Read before the end is forced: afterwards the exit would be that of our own signal.
    const exit = why === 'exited' ? this.#exitText(entry) : ''
    const incarnation = this.#registry.readReady(pod, entry.run)?.incarnation
    await endProcesses(this.#scanner, { pod, run: entry.run, runner: entry.runner, incarnation })
    const end = this.#registry.recordEnd(pod, entry.run, this.#describeEnd(entry, why, exit))
    this.#log(`pod ${pod} failed: ${end.reason}: ${end.message}`)
    return end
  }

  #describeEnd(entry: PodEntry, why: Failure, exit: string): PodEnd {
    const folder = this.#registry.runFolder(entry.order.pod, entry.run)
    const log = logTail(join(folder, LOG_FILE))
    const tail = log ? `; end of its log: ${log}` : '; its log is empty'
    if (why === 'version') {
      const v = this.#registry.readReady(entry.order.pod, entry.run)?.v
      const message = `the runner speaks version ${v} of the contract, this worker version ${CONTRACT_VERSION}; use a worker and a pod image of matching versions`
      return { v: 1, reason: 'ContractVersion', message }
    }
    if (why === 'timeout') {
      const message = `not ready within ${entry.order.startTimeoutMs} ms of its start; raise podStart, or make prepare shorter`
      return { v: 1, reason: 'StartTimeout', message: message + tail }
    }
    const failed = this.#registry.readJson(entry.order.pod, entry.run, 'failed.json') as
      | RunnerFailed
      | undefined
    if (typeof failed?.reason === 'string' && typeof failed.message === 'string') {
      return { v: 1, reason: failed.reason, message: failed.message }
    }
    return {
      v: 1,
      reason: 'Exited',
      message: `the runner ${exit || 'wrote an unreadable failed.json'}${tail}`,
    }
  }

  #exitText(entry: PodEntry): string {
    const child = this.#children.get(this.#key(entry))
    if (!child) return 'ended; its exit code is not known, since the worker that started it has gone'
    if (child.signalCode === 'SIGKILL') {
      return 'was ended by SIGKILL, by somebody or by the kernel for want of memory'
    }
    return child.signalCode ? `was ended by ${child.signalCode}` : `ended with exit code ${child.exitCode}`
  }

  #has(entry: PodEntry, file: string): boolean {
    return existsSync(`${this.#registry.podsDir}/${entry.order.pod}/${entry.run}/${file}`)
  }

  #key(entry: PodEntry): string {
    return `${entry.order.pod}/${entry.run}`
  }
}

/** The last part of a log as one piece of text; empty when there is none. */
function logTail(file: string): string {
  let descriptor: number
  try {
    descriptor = openSync(file, 'r')
  } catch {
    return ''
  }
  try {
    const { size } = fstatSync(descriptor)
    const tail = Buffer.alloc(Math.min(size, LOG_TAIL_BYTES))
    readSync(descriptor, tail, 0, tail.length, size - tail.length)
    return tail.toString('utf8').trim()
  } finally {
    closeSync(descriptor)
  }
}
