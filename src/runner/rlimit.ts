import { accessSync, constants, existsSync, statSync } from 'node:fs'
import { delimiter, join } from 'node:path'
import type { Profile } from '../contract/index.js'

const PRLIMIT = '/usr/bin/prlimit'

/** How a job's processes are held to the profile's limits. */
export interface LimitWrapper {
  /** for the log: what enforces them */
  name: 'prlimit' | 'ulimit'
  /** the argv that sets the limits and then becomes the given one (no process stays between) */
  wrap(argv: string[]): string[]
}

/** The wrapper for a profile's limits, or null when it sets none: the common job then costs nothing more. */
export function limitWrapper(limits: Profile['limits'], prlimit: string = PRLIMIT): LimitWrapper | null {
  if (Object.values(limits).every((limit) => limit === null)) return null
  return existsSync(prlimit) ? byPrlimit(limits, prlimit) : byUlimit(limits)
}

function byPrlimit(limits: Profile['limits'], prlimit: string): LimitWrapper {
  const flags: string[] = []
  if (limits.memoryBytes !== null) flags.push(`--as=${limits.memoryBytes}`)
  // A hard limit one second later: SIGXCPU names the cause before SIGKILL ends it.
  if (limits.cpuSeconds !== null) flags.push(`--cpu=${limits.cpuSeconds}:${limits.cpuSeconds + 1}`)
  if (limits.openFiles !== null) flags.push(`--nofile=${limits.openFiles}`)
  if (limits.processes !== null) flags.push(`--nproc=${limits.processes}`)
  if (limits.fileBytes !== null) flags.push(`--fsize=${limits.fileBytes}`)
  return { name: 'prlimit', wrap: (argv) => [prlimit, ...flags, '--', ...argv] }
}

function byUlimit(limits: Profile['limits']): LimitWrapper {
  const commands: string[] = []
  if (limits.memoryBytes !== null) commands.push(`ulimit -v ${Math.ceil(limits.memoryBytes / 1024)}`)
  if (limits.cpuSeconds !== null) commands.push(`ulimit -S -t ${limits.cpuSeconds}`)
  if (limits.openFiles !== null) commands.push(`ulimit -n ${limits.openFiles}`)
  // dash and busybox spell it -p, bash -u
  if (limits.processes !== null)
    commands.push(`{ ulimit -u ${limits.processes} || ulimit -p ${limits.processes}; } 2>/dev/null`)
  if (limits.fileBytes !== null) commands.push(`ulimit -f ${Math.ceil(limits.fileBytes / 512)}`)
  return {
    name: 'ulimit',
    wrap: (argv) => ['/bin/sh', '-c', `${commands.join('; ')}; exec "$@"`, 'sh', ...argv],
  }
}

/**
 * Whether the system would find a command. Only asked where a wrapper would blur "there is no such command" into its
 * own exit code; elsewhere the spawn itself tells.
 */
export function commandExists(command: string, path: string, cwd: string): boolean {
  if (command.includes('/')) return isExecutable(command.startsWith('/') ? command : join(cwd, command))
  return path.split(delimiter).some((folder) => isExecutable(join(folder === '' ? cwd : folder, command)))
}

function isExecutable(path: string): boolean {
  try {
    accessSync(path, constants.X_OK)
    return statSync(path).isFile()
  } catch {
    return false
  }
}
