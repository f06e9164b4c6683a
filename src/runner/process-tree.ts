import { readdirSync, readFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'

/**
 * Which processes to find: those whose environment has all of these variables. A process keeps the environment
 * it was started with whatever it does to its parents, groups and sessions, so a double fork does not hide it.
 */
export interface Marker {
  env: Record<string, string>
  /** FIREPOOL_EPOCH at most this, and one there is: the preloaded interpreter is of no epoch */
  epochMax?: number
}

/** a process that forks faster than it is killed must not hold the runner for ever */
const ROUNDS_MAX = 200
const ROUND_PAUSE_MS = 5

/** Pids of all marked processes but this one. Processes whose environment may not be read are not ours. */
export function markedPids(marker: Marker): number[] {
  const wanted = Object.entries(marker.env).map(([name, value]) => `${name}=${value}`)
  const found: number[] = []
  for (const entry of readdirSync('/proc')) {
    const pid = Number(entry)
    if (!Number.isInteger(pid) || pid === process.pid) continue
    const env = environOf(pid)
    if (env === undefined || !wanted.every((pair) => env.includes(pair))) continue
    if (marker.epochMax !== undefined && !(epochOf(env) <= marker.epochMax)) continue
    found.push(pid)
  }
  return found
}

/** SIGKILLs all marked processes until none is left. @returns how many were killed */
export async function killMarked(marker: Marker): Promise<number> {
  const killed = new Set<number>()
  for (let round = 0; round < ROUNDS_MAX; round++) {
    const pids = markedPids(marker)
    if (pids.length === 0) break
    for (const pid of pids) {
      sendSignal(pid, 'SIGKILL')
      killed.add(pid)
    }
    await sleep(ROUND_PAUSE_MS)
  }
  return killed.size
}

/** A process, told apart from a later one with the same pid. */
interface Process {
  pid: number
  /** clock ticks since boot */
  startTicks: string
}

/**
 * Everything that descends from a process now. Finds what dropped its environment, as long as its parents live:
 * take it before the first of them is killed.
 */
export function descendants(root: number): Process[] {
  const children = new Map<number, Process[]>()
  for (const entry of readdirSync('/proc')) {
    const pid = Number(entry)
    const stat = Number.isInteger(pid) ? statOf(pid) : undefined
    if (stat === undefined) continue
    const siblings = children.get(stat.parent)
    if (siblings === undefined) children.set(stat.parent, [{ pid, startTicks: stat.startTicks }])
    else siblings.push({ pid, startTicks: stat.startTicks })
  }
  const found = [...(children.get(root) ?? [])]
  for (const { pid } of found) found.push(...(children.get(pid) ?? []))
  return found
}

/** SIGKILLs those of the processes that are still the same ones. */
export function killProcesses(processes: Process[]): void {
  for (const { pid, startTicks } of processes) {
    if (statOf(pid)?.startTicks === startTicks) sendSignal(pid, 'SIGKILL')
  }
}

function statOf(pid: number): { parent: number; startTicks: string } | undefined {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'latin1')
    // After the name, which may hold anything: state is field 3, parent 4, start time 22.
    const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
    return { parent: Number(fields[1]), startTicks: fields[19] ?? '' }
  } catch {
    return undefined
  }
}

/** Sends a signal; a target (pid, or -pgid for a group) that is gone is success. */
export function sendSignal(target: number, signal: NodeJS.Signals): void {
  // After every job its group is gone already, as a rule: a stack trace for that is a measurable part of a warm job.
  const { stackTraceLimit } = Error
  Error.stackTraceLimit = 0
  try {
    process.kill(target, signal)
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException
    if (code !== 'ESRCH' && code !== 'EPERM') throw error
  } finally {
    Error.stackTraceLimit = stackTraceLimit
  }
}

function environOf(pid: number): string[] | undefined {
  try {
    const env = readFileSync(`/proc/${pid}/environ`, 'latin1')
    return env.includes('FIREPOOL_') ? env.split('\0') : undefined
  } catch {
    return undefined // gone, or another user's
  }
}

function epochOf(env: string[]): number {
  const prefix = 'FIREPOOL_EPOCH='
  const pair = env.find((entry) => entry.startsWith(prefix))
  return pair === undefined ? Number.NaN : Number(pair.slice(prefix.length))
}
