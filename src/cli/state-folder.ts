import { existsSync, readFileSync, realpathSync, renameSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { identifySelf, isAlive } from '../local/process.js'
import { makeFolder } from '../make-folder.js'
import { withProcessLock } from '../server/process-lock.js'
import { CliError, usageError } from './failure.js'

/** Makes the folder; only its owner may read it. @returns its real path */
export function makeStateFolder(dir: string): string {
  try {
    makeFolder(dir, 0o700)
    return realpathSync(dir)
  } catch (error) {
    throw new CliError(
      'StateFolder',
      `the folder ${dir} cannot be made: ${(error as Error).message}`,
      'give another one with --dir or FIREPOOL_DIR',
    )
  }
}

/**
 * The folder of secrets for local pods: of the option, else of FIREPOOL_SECRETS.
 * @returns its real path, or undefined when there is none
 */
export function secretsFolder(option: string | undefined, env = process.env): string | undefined {
  const given = option ?? (env.FIREPOOL_SECRETS || undefined)
  if (given === undefined) return undefined
  try {
    const path = realpathSync(given)
    if (statSync(path).isDirectory()) return path
  } catch {
    // Said below, in the same words.
  }
  throw usageError(
    `--secrets ${given} is no folder that can be read`,
    'give a folder with a file for each secret, or leave it out',
  )
}

/** dev.json: how other commands find a dev server that runs. */
export interface DevFile {
  v: 1
  /** host:port */
  address: string
  namespace: string
  uiUrl: string | null
  dir: string
  pid: number
  /** when the process started, so that a pid used again is not taken for it */
  start: string
}

const fileIn = (dir: string) => join(dir, 'dev.json')

export function writeDevFile(dir: string, facts: Pick<DevFile, 'address' | 'namespace' | 'uiUrl'>): void {
  const content: DevFile = { v: 1, ...facts, dir, ...identifySelf() }
  const draft = `${fileIn(dir)}.${process.pid}`
  writeFileSync(draft, `${JSON.stringify(content, null, 2)}\n`, { mode: 0o600 })
  renameSync(draft, fileIn(dir))
}

export function removeDevFile(dir: string): void {
  rmSync(fileIn(dir), { force: true })
}

/** The dev server that runs on a folder, or undefined. What a killed one left behind does not count. */
export function readDevFile(dir: string): DevFile | undefined {
  try {
    const found = JSON.parse(readFileSync(fileIn(dir), 'utf8')) as Partial<DevFile>
    const { address, namespace, pid, start } = found
    if (typeof address !== 'string' || typeof namespace !== 'string') return undefined
    if (typeof pid !== 'number' || typeof start !== 'string') return undefined
    return isAlive({ pid, start }) ? (found as DevFile) : undefined
  } catch {
    return undefined
  }
}

/** Whether a dev server runs on the folder, or one that ran there was killed. */
export function hasDevFile(dir: string): boolean {
  return existsSync(fileIn(dir))
}

/**
 * Runs the one dev server of a folder.
 * @throws CliError at once when another process runs one
 */
export function asOnlyDev<T>(dir: string, action: () => Promise<T>): Promise<T> {
  return withProcessLock(`dev:${dir}`, action, {
    onWait: () => {
      const other = readDevFile(dir)
      const who = other ? ` (process ${other.pid}, at ${other.address})` : ''
      throw new CliError(
        'DevRunning',
        `another firepool dev runs on ${dir}${who}`,
        'use it, stop it with Ctrl-C, or start this one with another --dir',
      )
    },
  })
}
