import { execFile } from 'node:child_process'
import { rm } from 'node:fs/promises'
import { setTimeout as sleep } from 'node:timers/promises'
import { promisify } from 'node:util'
import { TIMEOUT } from '../contract/index.js'
import {
  isAlive,
  type MarkedProcess,
  type ProcessId,
  type ProcessScanner,
  type ProcessSnapshot,
  signalGroup,
  signalProcess,
} from './process.js'

/** How often a process that was told to end is looked at. */
const LOOK_MS = 20

/** After SIGKILL only a process stuck in the kernel stays; past this the caller is told and tries again later. */
const KILL_WAIT_MS = 10_000

const run = promisify(execFile)

/** What is to be ended: everything of a pod, or only what one run of it started. */
export interface EndTarget {
  pod: string
  run?: string
  runner?: ProcessId
  /** of its runner, once that was ready */
  incarnation?: string | undefined
}

/**
 * Ends a pod's processes: SIGTERM to the runner, which ends its jobs; after TIMEOUT.killGraceMs SIGKILL to its
 * process group, to what descends from it and to whatever carries the pod's mark. Resolves when none is left.
 * @throws when a process does not end by SIGKILL (stuck in the kernel, or of another user)
 */
export async function endProcesses(scanner: ProcessScanner, target: EndTarget): Promise<void> {
  const { runner } = target
  let family: ProcessId[] = []
  if (runner && isAlive(runner)) {
    // A job's process that dropped its environment is known only by its parents, while they live.
    family = (await scanner.scan()).descendants(runner)
    signalProcess(runner, 'SIGTERM')
    await ended(runner, TIMEOUT.killGraceMs)
  }
  const deadline = performance.now() + KILL_WAIT_MS
  for (;;) {
    if (runner) signalGroup(runner, 'SIGKILL')
    const left = remaining(await scanner.scan(), target, family)
    if (left.length === 0) return
    if (performance.now() > deadline) {
      const pids = left.map((id) => id.pid).join(', ')
      throw new Error(
        `pod ${target.pod}: process ${pids} did not end by SIGKILL within ${KILL_WAIT_MS} ms; ` +
          'it is stuck in the kernel or belongs to another user: look at it with ps',
      )
    }
    for (const id of left) signalProcess(id, 'SIGKILL')
    await sleep(LOOK_MS)
  }
}

function remaining(snapshot: ProcessSnapshot, target: EndTarget, family: ProcessId[]): ProcessId[] {
  const left = new Map<number, ProcessId>()
  for (const id of snapshot.marked) if (belongs(id, target)) left.set(id.pid, id)
  if (target.runner) {
    for (const id of [target.runner, ...snapshot.group(target.runner)]) if (isAlive(id)) left.set(id.pid, id)
  }
  for (const id of family) if (isAlive(id)) left.set(id.pid, id)
  return [...left.values()]
}

function belongs(id: MarkedProcess, target: EndTarget): boolean {
  if (id.pod !== target.pod) return false
  if (id.run !== undefined && (target.run === undefined || id.run === target.run)) return true
  return id.incarnation !== undefined && id.incarnation === target.incarnation
}

async function ended(id: ProcessId, limitMs: number): Promise<void> {
  const deadline = performance.now() + limitMs
  while (isAlive(id) && performance.now() < deadline) await sleep(LOOK_MS)
}

/**
 * Deletes a folder whatever jobs made of it: read-only folders, paths longer than the system takes at once.
 * @throws when something stays, e.g. a mount inside, or files of another user
 */
export async function deleteFolder(folder: string): Promise<void> {
  try {
    await rm(folder, { recursive: true, force: true })
  } catch {
    // chmod and rm walk folder by folder, relative to each: no path is too long, no symbolic link is followed.
    await run('chmod', ['-R', 'u+rwx', '--', folder]).catch(() => {})
    await run('rm', ['-rf', '--', folder])
  }
}
