import { existsSync } from 'node:fs'
import { resolve } from 'node:path'
import { setImmediate as nextTurn } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import {
  type Backend,
  type LeaseNote,
  type ObservedPod,
  otherBackend,
  type PodOrder,
} from '../contract/index.js'
import { Janitor } from './janitor.js'
import { launchRunner } from './launch.js'
import { Observer } from './observation.js'
import { ProcessScanner } from './process.js'
import { isPodName, type PodEntry, Registry } from './registry.js'
import { Remover } from './removal.js'
import { Watcher } from './watcher.js'

/** A name that other workers keep removing under our hands is given up after this many tries. */
const CREATE_TRIES = 5

/** Pods looked at by list() in one turn of the event loop: about 2 ms. */
const LIST_SLICE = 25

export interface LocalBackendOptions {
  /** folder of the registry, on a disk of this machine; workers that share it share the pods */
  dir: string
  /** base64 of the broker's raw 32-byte Ed25519 public key */
  brokerPublicKey: string
  /** a folder with a file for each secret that jobs may use; absent: there are none */
  secretsDir?: string
  /** the runner's program; default the one of this package */
  runnerMain?: string
  log?: (line: string) => void
}

export interface LocalBackend extends Backend {
  /** Removes all registered pods (of one pool, if given). @returns how many there were */
  stopAll(pool?: string): Promise<number>
  /** Ends all watches; the pods live on. */
  close(): void
}

type Created = Awaited<ReturnType<Backend['create']>>[number]

/**
 * Pods as processes of this machine. They outlive the worker that started them; every process that opens the same
 * `dir` finds and adopts them. What such a pod isolates and what not stands in docs/local-backend.md.
 * @throws when `dir` cannot be made or the key is not one
 */
export function createLocalBackend(options: LocalBackendOptions): LocalBackend {
  return new ProcessBackend(options)
}

class ProcessBackend implements LocalBackend {
  readonly #registry: Registry
  readonly #observer: Observer
  readonly #watcher: Watcher
  readonly #remover: Remover
  readonly #janitor: Janitor
  readonly #runnerMain: string
  readonly #brokerKey: string
  readonly #secretsDir: string | undefined
  readonly #log: (line: string) => void

  constructor(options: LocalBackendOptions) {
    if (Buffer.from(options.brokerPublicKey, 'base64').length !== 32) {
      throw new Error('brokerPublicKey is not the base64 of 32 bytes: give the raw Ed25519 public key')
    }
    this.#brokerKey = options.brokerPublicKey
    this.#secretsDir = options.secretsDir === undefined ? undefined : resolve(options.secretsDir)
    // The runner starts in the pod's folder, where a relative path would mean another file.
    this.#runnerMain = resolve(options.runnerMain ?? packagedRunner())
    this.#log = options.log ?? (() => {})
    this.#registry = new Registry(options.dir)
    const scanner = new ProcessScanner(this.#registry.podsDir)
    this.#observer = new Observer(this.#registry, scanner, this.#log)
    this.#watcher = new Watcher(this.#registry, this.#observer, this.#log)
    this.#remover = new Remover(this.#registry, scanner, this.#observer)
    this.#janitor = new Janitor(this.#registry, scanner, this.#log)
  }

  async create(orders: PodOrder[]): Promise<Created[]> {
    const results: Created[] = []
    for (const order of orders) {
      results.push(await this.#createOne(order))
      // A spawn blocks for milliseconds; a hundred of them must not hold up heartbeats.
      await nextTurn()
    }
    return results
  }

  async #createOne(order: PodOrder): Promise<Created> {
    const { pod } = order
    const failed = (reason: string, message: string) => ({ pod, problem: { reason, message } })
    const { backend } = order.profile
    if (backend !== 'local') return { pod, problem: otherBackend(backend, 'local') }
    if (!isPodName(pod)) {
      return failed('InvalidPodName', `${JSON.stringify(pod)} is no pod name: use a-z, 0-9 and -`)
    }
    if (!existsSync(this.#runnerMain)) {
      return failed('RunnerMissing', `the runner ${this.#runnerMain} does not exist: build the package first`)
    }
    try {
      for (let tries = 0; tries < CREATE_TRIES; tries++) {
        if (await this.#exists(pod)) return { pod }
        if (await this.#start(order)) return { pod }
      }
      return failed('NameContended', `pod ${pod} is being removed by another worker: try again`)
    } catch (error) {
      const { code, message } = error as NodeJS.ErrnoException
      return failed('CreateFailed', `pod ${pod} could not be started (${code ?? 'error'}): ${message}`)
    }
  }

  /** Whether the pod is registered; what stands in the way of registering it is cleared. */
  async #exists(pod: string): Promise<boolean> {
    const read = this.#registry.read(pod)
    if (read.kind === 'entry') return true
    // An entry that cannot be read (a power cut) would keep the name for ever.
    if (read.kind === 'broken') await this.#remover.remove(pod)
    if (read.kind === 'unfinished') await this.#janitor.clearStrays(pod)
    return false
  }

  /** @returns whether the pod was registered, by us or meanwhile by somebody else */
  async #start(order: PodOrder): Promise<boolean> {
    const { pod } = order
    let run: string
    try {
      run = this.#registry.makeRun(pod)
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'ENOENT') return false
      throw error
    }
    const folder = this.#registry.runFolder(pod, run)
    let entry: PodEntry | undefined
    try {
      const { child, runner } = await launchRunner(
        order,
        folder,
        this.#runnerMain,
        this.#brokerKey,
        this.#secretsDir,
      )
      // From here to register() nothing waits: a worker that is killed right now leaves a stray at most.
      entry = { v: 1, order, run, runner, createdAtMs: Date.now() }
      if (this.#registry.register(entry)) {
        const registered = entry
        this.#observer.addChild(registered, child, () => this.#watcher.exited(registered))
        this.#watcher.nudge()
        return true
      }
    } catch (error) {
      await this.#janitor.clearRun(pod, run, entry?.runner)
      throw error
    }
    await this.#janitor.clearRun(pod, run, entry.runner)
    return this.#registry.read(pod).kind === 'entry'
  }

  async remove(pods: string[]): Promise<void> {
    const names = [...new Set(pods)]
    const wrong = names.filter((pod) => !isPodName(pod))
    // Nothing can be registered under such a name, and it must not become a path.
    if (wrong.length > 0)
      this.#log(`remove: not a pod name: ${wrong.map((pod) => JSON.stringify(pod)).join(', ')}`)
    const outcomes = await Promise.allSettled(names.filter(isPodName).map((pod) => this.#remover.remove(pod)))
    this.#watcher.nudge()
    const errors = outcomes.flatMap((outcome) =>
      outcome.status === 'rejected' ? [outcome.reason as Error] : [],
    )
    if (errors.length === 0) return
    throw new Error(`${errors.length} of ${names.length} pods could not be removed: ${errors[0]?.message}`)
  }

  async list(pool: string): Promise<ObservedPod[]> {
    await this.#janitor.sweepIfDue()
    const looks: Promise<ObservedPod>[] = []
    for (const pod of this.#registry.names()) {
      const read = this.#registry.read(pod)
      if (read.kind === 'broken')
        this.#log(`pod ${pod}: its pod.json cannot be read; remove or create it anew`)
      if (read.kind !== 'entry' || read.entry.order.pool !== pool) continue
      looks.push(this.#observer.look(read.entry))
      if (looks.length % LIST_SLICE === 0) await nextTurn()
    }
    return (await Promise.all(looks)).filter((pod) => pod.phase !== 'gone')
  }

  watch(pool: string, onChange: (pod: ObservedPod) => void): () => void {
    return this.#watcher.watch(pool, onChange)
  }

  annotate(pod: string, lease: LeaseNote): void {
    if (isPodName(pod)) this.#registry.noteLease(pod, lease)
  }

  /** Nothing is kept for a pool as such. */
  async forget(): Promise<void> {}

  async stopAll(pool?: string): Promise<number> {
    const pods = this.#registry.names().filter((pod) => {
      const read = this.#registry.read(pod)
      return pool === undefined || (read.kind === 'entry' && read.entry.order.pool === pool)
    })
    await this.remove(pods)
    return pods.length
  }

  close(): void {
    this.#watcher.close()
  }
}

/** The built runner: beside this file in dist/, or in dist/ when this file runs from its source. */
function packagedRunner(): string {
  const beside = fileURLToPath(new URL('../runner/main.js', import.meta.url))
  return existsSync(beside) ? beside : fileURLToPath(new URL('../../dist/runner/main.js', import.meta.url))
}
