/** On a server that others use as well (TEMPORAL_ADDRESS): who else serves Firepool's task queues, and with which pods. */
import { lstatSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { hostname, tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Connection } from '@temporalio/client'
import { QUEUE } from '../contract/index.js'
import { identify, identifySelf, isAlive, type ProcessId } from '../local/process.js'
import { withProcessLock } from '../server/process-lock.js'

/** temporal.api.enums.v1.TaskQueueType */
const ACTIVITY_QUEUE = 2
/** A poll lasts a minute: who has not polled for longer is gone. */
const POLL_MS = 70_000

export interface SharedFolder {
  dir: string
  /** pids of the demos that share it, ours too */
  pids(): number[]
  /** the last demo that leaves removes the folder */
  leave(): Promise<void>
}

/**
 * The folder of this user's demos on servers that are not theirs. Workers on one server take each other's tasks, so
 * they must know the same pods and the same key: two demos at once share both.
 * @throws Error when somebody else owns the folder
 */
export async function enterSharedFolder(parent = tmpdir()): Promise<SharedFolder> {
  const dir = join(parent, `firepool-demo-shared-${process.getuid?.() ?? 'user'}`)
  const usersDir = join(dir, 'users')
  const mine = join(usersDir, String(process.pid))
  const pids = () => aliveUsers(usersDir).map((user) => user.pid)
  await withProcessLock(dir, async () => {
    mkdirSync(dir, { recursive: true, mode: 0o700 })
    const found = lstatSync(dir)
    if (!found.isDirectory() || found.uid !== (process.getuid?.() ?? found.uid)) {
      throw new Error(`${dir} belongs to somebody else; remove it, or set TMPDIR to a folder of your own`)
    }
    mkdirSync(usersDir, { recursive: true })
    writeFileSync(mine, JSON.stringify(identifySelf()))
  })
  const leave = () =>
    withProcessLock(dir, async () => {
      rmSync(mine, { force: true })
      if (pids().length === 0) rmSync(dir, { recursive: true, force: true })
    })
  return { dir, pids, leave }
}

function aliveUsers(usersDir: string): ProcessId[] {
  let names: string[]
  try {
    names = readdirSync(usersDir)
  } catch {
    return []
  }
  return names.flatMap((name) => {
    try {
      const user = JSON.parse(readFileSync(join(usersDir, name), 'utf8')) as ProcessId
      return isAlive(user) ? [user] : []
    } catch {
      return []
    }
  })
}

/**
 * A Firepool worker that serves this namespace and is no demo that shares our folder: then its pods are the ones to
 * use, a second worker with other pods would take half of its tasks.
 * @param mates pids of this machine whose workers share our pods
 * @returns its identity, or null
 */
export async function otherWorker(
  connection: Connection,
  namespace: string,
  mates: readonly number[],
): Promise<string | null> {
  const { pollers } = await connection.workflowService.describeTaskQueue({
    namespace,
    taskQueue: { name: QUEUE.broker },
    taskQueueType: ACTIVITY_QUEUE,
  })
  for (const { identity, lastAccessTime } of pollers ?? []) {
    const ageMs = Date.now() - Number(lastAccessTime?.seconds ?? 0) * 1_000
    if (ageMs > POLL_MS || !identity || isMateOrDead(identity, mates)) continue
    return identity
  }
  return null
}

/** The SDKs' identity is pid@host: of this machine's processes we know whether they live. */
function isMateOrDead(identity: string, mates: readonly number[]): boolean {
  const [pid, host] = identity.split('@')
  if (host !== hostname() || !/^\d+$/.test(pid ?? '')) return false
  return mates.includes(Number(pid)) || identify(Number(pid)) === undefined
}
