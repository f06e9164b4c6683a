import { randomBytes } from 'node:crypto'
import {
  chmodSync,
  existsSync,
  linkSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  realpathSync,
  renameSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { CONTRACT_VERSION, type LeaseNote, type PodOrder, type RunnerReady } from '../contract/index.js'
import { makeFolder } from '../make-folder.js'
import { identifySelf, isAlive, type ProcessId } from './process.js'

/** A file name has 255 bytes, and the trash adds a suffix. */
const POD_NAME_CHARS = 200
const POD_NAME = /^[a-z0-9-]+$/
const RUN_NAME = /^run-(\d+)-([0-9a-f]*-?\d*)-[0-9a-f]{8}$/

/** pod.json: written once, complete, by whoever wins the name; never changed afterwards. */
export interface PodEntry {
  v: 1
  order: PodOrder
  /** the run folder's name: this start of the pod, not an earlier one of the same name */
  run: string
  runner: ProcessId
  /** ms since the epoch; for people, and for start time-outs where there is no /proc */
  createdAtMs: number
}

/** ended.json in the run folder: how a pod came to its end; the first worker to know writes it. */
export interface PodEnd {
  v: 1
  reason: string
  message: string
}

export type EntryRead =
  | { kind: 'entry'; entry: PodEntry }
  /** a folder without pod.json: being made, or left half-made */
  | { kind: 'unfinished' }
  /** pod.json is not ours to understand */
  | { kind: 'broken' }
  | { kind: 'none' }

/**
 * The pods of this machine, on disk, so that they outlive the worker that started them.
 *
 *     {dir}/pods/{pod}/pod.json          the pod's entry
 *     {dir}/pods/{pod}/removing.json     who is removing it
 *     {dir}/pods/{pod}/lease.json        whom it serves, for people
 *     {dir}/pods/{pod}/run-.../          FIREPOOL_POD_DIR: runner.log, ready.json, failed.json, ended.json, home/, work/
 *     {dir}/trash/{pod}.{random}         removed pods whose folder is being deleted
 *
 * A creator starts the runner in a run folder of its own and then links a complete pod.json into place, which
 * exactly one of several creators can do. Nothing registered is ever half made; what a dead creator leaves behind
 * is a run folder that no pod.json names, with the creator in its name.
 */
export class Registry {
  readonly podsDir: string
  readonly trashDir: string

  /** @param dir made when it does not exist; only its owner may read it */
  constructor(dir: string) {
    makeFolder(dir, 0o700)
    // Workers may spell the folder differently, and its path is the mark by which a pod's processes are known.
    const root = realpathSync(dir)
    this.podsDir = join(root, 'pods')
    this.trashDir = join(root, 'trash')
    mkdirSync(this.podsDir, { recursive: true, mode: 0o700 })
    mkdirSync(this.trashDir, { recursive: true, mode: 0o700 })
  }

  podFolder(pod: string): string {
    return join(this.podsDir, pod)
  }

  runFolder(pod: string, run: string): string {
    return join(this.podsDir, pod, run)
  }

  /** Names of all pod folders; what is not named like a pod is not looked at. */
  names(): string[] {
    return readdirSync(this.podsDir, { withFileTypes: true })
      .filter((item) => item.isDirectory() && isPodName(item.name))
      .map((item) => item.name)
  }

  read(pod: string): EntryRead {
    let text: string
    try {
      text = readFileSync(join(this.podFolder(pod), 'pod.json'), 'utf8')
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'ENOENT') return { kind: 'broken' }
      return { kind: existsSync(this.podFolder(pod)) ? 'unfinished' : 'none' }
    }
    const entry = parse(text)
    return isEntry(entry, pod) ? { kind: 'entry', entry } : { kind: 'broken' }
  }

  /**
   * Makes an empty run folder for a pod that is about to be started.
   * @returns the run's name, which says who makes it
   */
  makeRun(pod: string): string {
    const self = identifySelf()
    const run = `run-${self.pid}-${self.start}-${randomBytes(4).toString('hex')}`
    mkdirSync(this.runFolder(pod, run), { recursive: true, mode: 0o700 })
    return run
  }

  /**
   * Registers a started pod, if nobody else has.
   * @returns false when the name is taken, or the folder was removed meanwhile: the caller then ends what it started
   */
  register(entry: PodEntry): boolean {
    const draft = join(this.runFolder(entry.order.pod, entry.run), 'entry.json')
    try {
      writeFileSync(draft, JSON.stringify(entry), { mode: 0o600 })
      linkSync(draft, join(this.podFolder(entry.order.pod), 'pod.json'))
      rmSync(draft)
      return true
    } catch (error) {
      const code = (error as NodeJS.ErrnoException).code
      if (code === 'EEXIST' || code === 'ENOENT') return false
      throw error
    }
  }

  /** Run folders that no entry names and whose creator is dead. */
  strayRuns(pod: string): string[] {
    const read = this.read(pod)
    const named = read.kind === 'entry' ? read.entry.run : undefined
    return listFolder(this.podFolder(pod)).filter((run) => {
      const match = RUN_NAME.exec(run)
      if (!match || run === named) return false
      return !isAlive({ pid: Number(match[1]), start: match[2] ?? '' })
    })
  }

  /** @returns how the pod came to its end, if that is known */
  readEnd(pod: string, run: string): PodEnd | undefined {
    const end = this.readJson(pod, run, 'ended.json') as PodEnd | undefined
    return typeof end?.reason === 'string' ? end : undefined
  }

  /** Records how the pod came to its end. @returns the record in force: the first one written */
  recordEnd(pod: string, run: string, end: PodEnd): PodEnd {
    const folder = this.runFolder(pod, run)
    const draft = join(folder, `ended-${randomBytes(4).toString('hex')}.json`)
    try {
      writeFileSync(draft, JSON.stringify(end), { mode: 0o600 })
      linkSync(draft, join(folder, 'ended.json'))
    } catch {
      // EEXIST: another worker was first. ENOENT: the pod is being removed. A full disk: it is found again next time.
    }
    rmSync(draft, { force: true })
    return this.readEnd(pod, run) ?? end
  }

  /** A JSON file of the run folder; undefined when it is not there or not JSON. */
  readJson(pod: string, run: string, file: string): unknown {
    try {
      return parse(readFileSync(join(this.runFolder(pod, run), file), 'utf8'))
    } catch {
      return undefined
    }
  }

  /**
   * @returns what the runner wrote when it began to listen; undefined before that. Of another version (`v`) of the contract nothing
   * else is sure to be there
   */
  readReady(pod: string, run: string): (Omit<RunnerReady, 'v'> & { v: number }) | undefined {
    const ready = this.readJson(pod, run, 'ready.json') as RunnerReady | undefined
    if (isOtherVersion(ready?.v)) return ready
    return typeof ready?.address === 'string' && typeof ready.incarnation === 'string' ? ready : undefined
  }

  /** lease.json, for people: whom the pod serves now. Never read here, so nothing waits for it. */
  noteLease(pod: string, lease: LeaseNote): void {
    const text = `${JSON.stringify(lease)}\n`
    // The pod may be on its way out, and its folder gone.
    writeFile(join(this.podFolder(pod), 'lease.json'), text, { mode: 0o600 }).catch(() => {})
  }

  /** Says to other workers that the pod's end is wanted. */
  markRemoving(pod: string): void {
    try {
      writeFileSync(join(this.podFolder(pod), 'removing.json'), JSON.stringify(identifySelf()))
    } catch {
      // Without the note another worker may report `failed` before `gone`: both are true.
    }
  }

  /** Whether a worker that still runs is removing the pod. */
  isBeingRemoved(pod: string): boolean {
    try {
      const remover = parse(readFileSync(join(this.podFolder(pod), 'removing.json'), 'utf8'))
      return isProcessId(remover) && isAlive(remover)
    } catch {
      return false
    }
  }

  /**
   * Takes the pod's folder out of the registry, in one step.
   * @returns the folder in the trash and the run it was for, or undefined when there was none
   */
  discard(pod: string): { folder: string; run: string | undefined } | undefined {
    const folder = join(this.trashDir, `${pod}.${randomBytes(4).toString('hex')}`)
    try {
      // A job may have taken its own write permission; without it a folder cannot move.
      chmodSync(this.podFolder(pod), 0o700)
      renameSync(this.podFolder(pod), folder)
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined
      throw error
    }
    let entry: unknown
    try {
      entry = parse(readFileSync(join(folder, 'pod.json'), 'utf8'))
    } catch {
      // A half-made pod has no entry.
    }
    return { folder, run: isEntry(entry, pod) ? entry.run : undefined }
  }

  /** Folders in the trash: of one pod, or all. */
  trash(pod?: string): string[] {
    return listFolder(this.trashDir)
      .filter((name) => pod === undefined || name.startsWith(`${pod}.`))
      .map((name) => join(this.trashDir, name))
  }
}

export function isOtherVersion(v: unknown): v is number {
  return Number.isSafeInteger(v) && v !== CONTRACT_VERSION
}

/** Whether a text may be a pod's name, and so a folder's. */
export function isPodName(text: string): boolean {
  return text.length <= POD_NAME_CHARS && POD_NAME.test(text)
}

function listFolder(folder: string): string[] {
  try {
    return readdirSync(folder)
  } catch {
    return []
  }
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}

function isProcessId(value: unknown): value is ProcessId {
  const id = value as ProcessId | undefined
  // Zero and negative numbers are process groups to kill(2): a broken file must not reach it.
  return Number.isInteger(id?.pid) && (id as ProcessId).pid > 1 && typeof id?.start === 'string'
}

function isEntry(value: unknown, pod: string): value is PodEntry {
  const entry = value as PodEntry | undefined
  return (
    entry?.v === 1 &&
    entry.order?.pod === pod &&
    typeof entry.order.pool === 'string' &&
    typeof entry.run === 'string' &&
    RUN_NAME.test(entry.run) &&
    isProcessId(entry.runner)
  )
}
