import { type ChildProcess, spawn } from 'node:child_process'
import { createHash } from 'node:crypto'
import { closeSync, openSync } from 'node:fs'
import { join } from 'node:path'
import { type PodOrder, type RunnerEnv, TIMEOUT } from '../contract/index.js'
import { startDelayMs } from '../start-delay.js'
import { identify, type ProcessId } from './process.js'

/** All that a pod inherits from the worker: where programs are, and how text and time are written. */
const INHERITED = ['PATH', 'LANG', 'LANGUAGE', 'LC_ALL', 'LC_CTYPE', 'TZ', 'TZDIR'] as const

/** The file in the run folder that takes the runner's standard output and error. */
export const LOG_FILE = 'runner.log'

export interface Launch {
  child: ChildProcess
  runner: ProcessId
}

/**
 * Starts the runner of a pod in its run folder: a session of its own, nothing inherited but an allow-list.
 * @throws with the system's error when no process can be started (EAGAIN, EMFILE, ENOENT...)
 */
export async function launchRunner(
  order: PodOrder,
  runFolder: string,
  runnerMain: string,
  brokerKey: string,
  secretsDir?: string,
): Promise<Launch> {
  const log = openSync(join(runFolder, LOG_FILE), 'a', 0o600)
  let child: ChildProcess
  try {
    child = spawn(process.execPath, [runnerMain], {
      cwd: runFolder,
      env: { ...inheritedEnv(process.env), ...runnerEnv(order, runFolder, brokerKey, secretsDir) },
      // A new session: a Ctrl-C in the worker's terminal is not for the pods, and its group can be killed as one.
      detached: true,
      stdio: ['ignore', log, log],
    })
  } finally {
    closeSync(log)
  }
  if (child.pid === undefined) {
    throw await new Promise<Error>((resolve) => child.once('error', resolve))
  }
  // Something to listen always stands: a later 'error' (a kill that failed) must not end the worker.
  child.on('error', () => {})
  // The pod outlives the worker, so it must not keep the worker alive either.
  child.unref()
  const runner = identify(child.pid)
  // A child stays in /proc as a zombie until the event loop turns, so this cannot happen on Linux.
  if (!runner) throw new Error(`process ${child.pid} ended before it could be registered`)
  return { child, runner }
}

function inheritedEnv(from: NodeJS.ProcessEnv): Record<string, string> {
  const env: Record<string, string> = {}
  for (const name of INHERITED) {
    const value = from[name]
    if (value !== undefined) env[name] = value
  }
  return env
}

function runnerEnv(
  order: PodOrder,
  runFolder: string,
  brokerKey: string,
  secretsDir?: string,
): RunnerEnv & Record<string, string> {
  return {
    FIREPOOL_POD: order.pod,
    FIREPOOL_POD_DIR: runFolder,
    FIREPOOL_LISTEN: `${loopbackAddress(order.pod)}:0`,
    FIREPOOL_BROKER_KEY: brokerKey,
    FIREPOOL_LIFETIME_MS: String(order.lifetimeMs),
    FIREPOOL_BROKER_GONE_MS: String(TIMEOUT.brokerGoneMs),
    FIREPOOL_START_DELAY_MS: String(startDelayMs(order)),
    FIREPOOL_PROFILE: JSON.stringify(order.profile),
    ...(secretsDir === undefined ? {} : { FIREPOOL_SECRETS: secretsDir }),
  }
}

/**
 * The pod's own loopback address, derived from its name. On Linux all of 127.0.0.0/8 is local, so each pod gets
 * an address of its own, as on a cluster; 127.0.x.y is left alone, the system's own services live there. Two pods
 * that share one by chance differ in their port. macOS and others answer only on 127.0.0.1: there pods differ
 * in the port alone.
 */
export function loopbackAddress(pod: string): string {
  if (process.platform !== 'linux') return '127.0.0.1'
  const hash = createHash('sha256').update(`address/${pod}`).digest()
  return `127.${1 + (hash.readUInt16BE(0) % 254)}.${hash[2]}.${1 + (hash.readUInt16BE(3) % 254)}`
}
