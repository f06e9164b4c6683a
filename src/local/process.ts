import { closeSync, openSync, readdirSync, readFileSync, readSync } from 'node:fs'
import { setImmediate as nextTurn } from 'node:timers/promises'

/** Linux has /proc. Elsewhere a start time is unknown (''), pid reuse goes unnoticed and no snapshot can be taken. */
export const HAS_PROC = process.platform === 'linux'

/** Clock ticks in /proc are 1/100 s on every Linux that Node runs on (USER_HZ). */
const TICK_MS = 10

/** Processes read in one turn of the event loop: about 2 ms of reading, then others get their turn. */
const SCAN_SLICE = 100

/** A process for certain: a pid alone may since belong to somebody else. */
export interface ProcessId {
  pid: number
  /** '{boot id}-{start, clock ticks since boot}', or '' where there is no /proc */
  start: string
}

interface ProcessStat {
  state: string
  parent: number
  group: number
  start: string
}

let bootId: string | undefined
let self: ProcessId | undefined

function currentBootId(): string {
  bootId ??= readFileSync('/proc/sys/kernel/random/boot_id', 'latin1').slice(0, 8)
  return bootId
}

/** A line of /proc/{pid}/stat has some 50 numbers and a name of at most 64 bytes. */
const statBuffer = Buffer.alloc(2_048)

/** Read by hand into one buffer: a third of the time of readFileSync, and adopted pods are looked at all the time. */
function readStat(pid: number): ProcessStat | undefined {
  let text: string
  try {
    const descriptor = openSync(`/proc/${pid}/stat`, 'r')
    try {
      text = statBuffer.toString('latin1', 0, readSync(descriptor, statBuffer, 0, statBuffer.length, 0))
    } finally {
      closeSync(descriptor)
    }
  } catch {
    return undefined
  }
  // The second field is the program's name in brackets and may hold spaces and brackets itself.
  const fields = text.slice(text.lastIndexOf(')') + 2).split(' ')
  return {
    state: fields[0] ?? 'X',
    parent: Number(fields[1]),
    group: Number(fields[2]),
    start: `${currentBootId()}-${fields[19]}`,
  }
}

/** A zombie still has a pid and answers kill(pid, 0), but it runs no more. */
function runs(stat: ProcessStat): boolean {
  return stat.state !== 'Z' && stat.state !== 'X' && stat.state !== 'x'
}

/**
 * The identity of a process that is known to exist now, e.g. a child just started.
 * @returns undefined when there is no such process
 */
export function identify(pid: number): ProcessId | undefined {
  if (!HAS_PROC) return { pid, start: '' }
  const stat = readStat(pid)
  return stat ? { pid, start: stat.start } : undefined
}

/** The identity of this process, which does not change. */
export function identifySelf(): ProcessId {
  self ??= identify(process.pid) as ProcessId
  return self
}

/** Whether this very process still runs; a zombie, or a later process under the same pid, does not count. */
export function isAlive(id: ProcessId): boolean {
  if (HAS_PROC) {
    const stat = readStat(id.pid)
    return stat !== undefined && stat.start === id.start && runs(stat)
  }
  try {
    return process.kill(id.pid, 0)
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM'
  }
}

/**
 * Milliseconds since the process started, on the machine's monotonic clock: all workers agree, and nobody's
 * wall clock matters.
 * @returns undefined where there is no /proc, or for a process of an earlier boot
 */
export function processAgeMs(id: ProcessId): number | undefined {
  const [boot, ticks] = id.start.split('-')
  const [selfBoot, selfTicks] = identifySelf().start.split('-')
  if (boot === '' || boot !== selfBoot) return undefined
  return process.uptime() * 1_000 + (Number(selfTicks) - Number(ticks)) * TICK_MS
}

/** Sends the signal if this very process is still there; one that has ended is not an error. */
export function signalProcess(id: ProcessId, signal: NodeJS.Signals): void {
  if (isAlive(id)) kill(id.pid, signal)
}

/**
 * Sends the signal to the process group of `leader`, while the leader (or its zombie) holds the group's number.
 * Later the number may be that of another group, and who is in it can no longer be told.
 */
export function signalGroup(leader: ProcessId, signal: NodeJS.Signals): void {
  const held = HAS_PROC ? readStat(leader.pid)?.start === leader.start : isAlive(leader)
  if (held) kill(-leader.pid, signal)
}

function kill(pid: number, signal: NodeJS.Signals): void {
  try {
    process.kill(pid, signal)
  } catch {
    // ESRCH: it has ended in the meantime. EPERM: not ours to end; whoever waits for its end says so.
  }
}

/** A process that carries a pod's mark in its environment. */
export interface MarkedProcess extends ProcessId {
  pod: string
  /** name of the run folder of this registry that its environment mentions, if any */
  run: string | undefined
  /** FIREPOOL_INCARNATION: the runner gives it to its jobs, and no job's own variables replace it */
  incarnation: string | undefined
}

/** All processes of the machine at one time, and which of them belong to pods of this registry. */
export class ProcessSnapshot {
  readonly marked: MarkedProcess[] = []
  readonly #stats = new Map<number, ProcessStat>()

  /** @param podsDir the registry's pods folder: pods of the same name in another registry are none of ours */
  static async take(podsDir: string): Promise<ProcessSnapshot> {
    const snapshot = new ProcessSnapshot()
    if (!HAS_PROC) return snapshot
    let sliced = 0
    for (const name of readdirSync('/proc')) {
      const pid = Number(name)
      if (!Number.isInteger(pid)) continue
      snapshot.#add(pid, podsDir)
      if (++sliced % SCAN_SLICE === 0) await nextTurn()
    }
    return snapshot
  }

  #add(pid: number, podsDir: string): void {
    const stat = readStat(pid)
    if (!stat || !runs(stat)) return
    this.#stats.set(pid, stat)
    const mark = readMark(pid, podsDir)
    if (mark) this.marked.push({ pid, start: stat.start, ...mark })
  }

  /** Members of the process group of `leader`, while it lives. */
  group(leader: ProcessId): ProcessId[] {
    if (this.#stats.get(leader.pid)?.start !== leader.start) return []
    return this.#select((stat) => stat.group === leader.pid)
  }

  /** Children of `root`, their children and so on, without root itself. */
  descendants(root: ProcessId): ProcessId[] {
    if (this.#stats.get(root.pid)?.start !== root.start) return []
    const family = new Set([root.pid])
    const found: ProcessId[] = []
    // A child's pid may be smaller than its parent's (numbers wrap around), so go on until nobody joins.
    for (let joined = true; joined; ) {
      joined = false
      for (const id of this.#select((stat) => family.has(stat.parent))) {
        if (family.has(id.pid)) continue
        family.add(id.pid)
        found.push(id)
        joined = true
      }
    }
    return found
  }

  #select(wanted: (stat: ProcessStat) => boolean): ProcessId[] {
    const found: ProcessId[] = []
    for (const [pid, stat] of this.#stats) if (wanted(stat)) found.push({ pid, start: stat.start })
    return found
  }
}

/**
 * A pod's process has FIREPOOL_POD in its environment, and either a path below the pod's folder (FIREPOOL_POD_DIR,
 * HOME, TMPDIR...) or the incarnation of its runner. The name alone does not do: another registry may hold a pod of
 * the same name. Nor does the path: an operator's shell that stands in the folder is not the pod's.
 */
function readMark(pid: number, podsDir: string): Omit<MarkedProcess, 'pid' | 'start'> | undefined {
  let environment: string
  try {
    environment = `\0${readFileSync(`/proc/${pid}/environ`, 'utf8')}`
  } catch {
    return undefined
  }
  const pod = /\0FIREPOOL_POD=([a-z0-9-]+)\0/.exec(environment)?.[1]
  if (pod === undefined) return undefined
  const folder = `${podsDir}/${pod}/`
  const at = environment.indexOf(folder)
  const run = at < 0 ? undefined : /^[^/\0:]*/.exec(environment.slice(at + folder.length))?.[0]
  return { pod, run, incarnation: /\0FIREPOOL_INCARNATION=([^\0]*)\0/.exec(environment)?.[1] }
}

/** Takes snapshots for many askers: whoever asks while one is being taken shares the next one. */
export class ProcessScanner {
  readonly #podsDir: string
  #current: Promise<ProcessSnapshot> | undefined
  #next: Promise<ProcessSnapshot> | undefined

  constructor(podsDir: string) {
    this.#podsDir = podsDir
  }

  /** A snapshot that began after this call. */
  scan(): Promise<ProcessSnapshot> {
    if (this.#next) return this.#next
    const before = this.#current ?? Promise.resolve()
    const mine = before
      // One turn of patience, so that all who ask in this turn share.
      .then(
        () => nextTurn(),
        () => nextTurn(),
      )
      .then(() => {
        this.#current = mine
        this.#next = undefined
        return ProcessSnapshot.take(this.#podsDir)
      })
      .finally(() => {
        if (this.#current === mine) this.#current = undefined
      })
    this.#next = mine
    return mine
  }
}
