import { readdirSync, readFileSync, rmSync } from 'node:fs'

/** What there is to kill and remove at once, without waiting for anything. */
export interface ForcedEnd {
  /** process group of a server of our own */
  serverPid?: number | undefined
  /** a folder of our own, with the pods' files */
  dir?: string
}

/**
 * Kills the server and every pod process whose files stand in the folder, and removes the folder. For a second
 * Ctrl-C only: the orderly end asks first. Where there is no /proc the pods end themselves when no broker speaks to
 * them any more.
 */
export function forceEnd({ serverPid, dir }: ForcedEnd): void {
  if (serverPid !== undefined) kill(-serverPid)
  if (dir === undefined) return
  for (const pid of podProcesses(dir)) kill(pid)
  rmSync(dir, { recursive: true, force: true, maxRetries: 3 })
}

/** Processes that carry a pod's name and a path below the folder in their environment. */
function podProcesses(folder: string): number[] {
  let names: string[]
  try {
    names = readdirSync('/proc')
  } catch {
    return []
  }
  return names.filter((name) => /^\d+$/.test(name) && isPod(name, folder)).map(Number)
}

function isPod(pid: string, folder: string): boolean {
  try {
    const environment = readFileSync(`/proc/${pid}/environ`, 'utf8')
    return environment.includes('FIREPOOL_POD=') && environment.includes(`${folder}/`)
  } catch {
    return false
  }
}

/** A negative number is a process group. */
function kill(pid: number): void {
  try {
    process.kill(pid, 'SIGKILL')
  } catch {
    // It has ended in the meantime.
  }
}
