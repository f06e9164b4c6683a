import { type ChildProcess, spawn } from 'node:child_process'
import { closeSync, fchmodSync, fstatSync, openSync } from 'node:fs'
import { open } from 'node:fs/promises'
import { dirname } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { Connection } from '@temporalio/client'
import { SEARCH_ATTRIBUTE } from '../contract/index.js'
import { makeFolder } from '../make-folder.js'
import { type ConnectionSettings, DEFAULT_NAMESPACE } from './connection.js'
import { freePort, HOST, isFreePort } from './free-port.js'
import {
  type OnProgress,
  type ResolvedBinary,
  type ResolveOptions,
  resolveBinary,
  resolveServer,
  type ServerSource,
} from './resolve.js'
import { watchOver } from './watchdog.js'

/** A start takes 0.4 s; the limit is for a machine that is busy with something else. */
const START_LIMIT_MS = 120_000
const STOP_GRACE_MS = 10_000
const POLL_MS = 50
const CONNECT_LIMIT_MS = 2_000
/** It says so as soon as it has taken its ports and serves; a binary that stays silent is believed after this. */
const SAYS_STARTED_MS = 5_000
/** Another process may take a port between our choice and the server's bind. */
const PORT_CONFLICT_RETRIES = 5
const LOG_TAIL_BYTES = 4096
/** It tells of workflows, and so of jobs. */
const LOG_MODE = 0o600

/**
 * Settings of the server that are right for one machine and a broker. Sizes (`limit.*`) stay at their
 * defaults: a workflow that breaks a limit in production must break it here too.
 */
export const DYNAMIC_CONFIG: Readonly<Record<string, number | boolean>> = {
  // The default of 20 polls a second rounds every hop up to 50 ms.
  'history.transferProcessorMaxPollRPS': 5000,
  'history.timerProcessorMaxPollRPS': 5000,
  // A pool's grants then come back with the answer to its workflow task, without a hop and a write (off by default in
  // the open-source server).
  'system.enableActivityEagerExecution': true,
  // While a workflow task is under way so many events may come; past that the server closes the task by force and the next
  // one repeats it with still more to do. At 600 signals a second the default of 100 allows a task 160 ms. No limit of
  // what a workflow may be: how soon the server loses patience.
  'history.maximumBufferedEventsBatch': 1000,
}

export interface DevServerOptions {
  /** receives what the server prints; its folder is created */
  logFile: string
  /** a file that survives a restart; without it everything is in memory, which is faster */
  dbFile?: string
  /** gRPC port; when it is taken the start fails. Default: the preferred one, or a free one */
  port?: number
  /** port of the web UI: absent for no UI, 0 for the preferred one or a free one */
  uiPort?: number
  /** ports to take when they are free */
  preferred?: { port?: number; uiPort?: number }
  /** created beside "default" */
  namespace?: string
  /** name -> type, default: Firepool's own */
  searchAttributes?: Readonly<Record<string, string>>
  /** more dynamic configuration, or other values */
  dynamicConfig?: Readonly<Record<string, number | boolean | string>>
  /** SQLite settings, by name */
  sqlitePragmas?: Readonly<Record<string, string>>
  /** default: as `resolveBinary` finds it */
  binary?: ResolvedBinary
  env?: NodeJS.ProcessEnv
  onProgress?: OnProgress
  signal?: AbortSignal
}

export interface TemporalServer {
  /** host:port of the gRPC service */
  address: string
  namespace: string
  /** how to speak to it */
  connection: ConnectionSettings
  /** undefined when there is no UI, or none that we know of */
  uiUrl: string | undefined
  /** undefined when the server is not ours */
  pid: number | undefined
  source: ServerSource
  /** one sentence for the user: which source was taken */
  description: string
  /** resolves when the process is gone; a second call waits for the same end; does nothing to a server not ours */
  stop(): Promise<void>
}

export interface DevServer extends TemporalServer {
  pid: number
  /** resolves when the process ends, however it ends */
  exited: Promise<string>
}

/**
 * The server to use: that of `TEMPORAL_ADDRESS` or of a profile that was named on purpose (nothing is started, `stop` does
 * nothing), else a dev server of our own.
 * @throws ServerNotFoundError, ConnectionSettingsError, PortConflictError, or Error with the tail of the server's log
 */
export async function openServer(options: DevServerOptions): Promise<TemporalServer> {
  const found = options.binary ?? (await resolveServer(resolveOptions(options)))
  if (found.kind === 'binary') return startDevServer({ ...options, binary: found })
  return {
    address: found.address,
    namespace: options.namespace ?? found.namespace ?? DEFAULT_NAMESPACE,
    connection: found.connection,
    uiUrl: undefined,
    pid: undefined,
    source: found.source,
    description: found.description,
    stop: async () => {},
  }
}

/**
 * Starts `temporal server start-dev` and waits until it serves.
 *
 * The server has a process group of its own, so that a Ctrl-C reaches only us and we stop in order; a
 * watchdog ends it when our process dies without `stop`. It does not keep our event loop alive.
 * @throws ServerNotFoundError, PortConflictError, or Error with the tail of the server's log
 */
export async function startDevServer(options: DevServerOptions): Promise<DevServer> {
  const binary = options.binary ?? (await resolveBinary(resolveOptions(options)))
  makeFolder(dirname(options.logFile))
  if (options.dbFile !== undefined) makeFolder(dirname(options.dbFile))
  for (let attempt = 0; ; attempt++) {
    try {
      return await startOnce(options, binary, attempt === 0 ? options.preferred : undefined)
    } catch (error) {
      const chosenByUs = options.port === undefined || options.uiPort === 0
      const another = error instanceof PortConflictError && chosenByUs && attempt < PORT_CONFLICT_RETRIES
      if (!another || (await isGivenTaken(options))) throw error
    }
  }
}

/** Asked after our own server has ended: whoever has the port now keeps it. */
async function isGivenTaken({ port, uiPort }: DevServerOptions): Promise<boolean> {
  for (const given of [port, uiPort]) if (given && !(await isFreePort(given))) return true
  return false
}

/** A port of the server was taken, by the words of its log: one that was given, or ours again and again. */
export class PortConflictError extends Error {}

async function startOnce(
  options: DevServerOptions,
  binary: ResolvedBinary,
  preferred: DevServerOptions['preferred'] = {},
): Promise<DevServer> {
  const port = options.port ?? (await thatOrFree(preferred.port))
  const uiPort = options.uiPort === 0 ? await thatOrFree(preferred.uiPort) : options.uiPort
  const logFd = openSync(options.logFile, 'a', LOG_MODE)
  // An older one may be readable by everybody.
  fchmodSync(logFd, LOG_MODE)
  const log: LogPart = { file: options.logFile, fromByte: fstatSync(logFd).size }
  let child: ChildProcess
  try {
    child = spawn(binary.path, serverArguments(options, port, uiPort), {
      stdio: ['ignore', logFd, logFd],
      detached: true,
      env: serverEnvironment(options.env ?? process.env),
    })
  } finally {
    closeSync(logFd)
  }
  const exited = exitOf(child)
  if (child.pid === undefined) throw new Error(`${binary.path} did not start: ${await exited}`)
  const pid = child.pid
  const watchdog = watchOver(pid, STOP_GRACE_MS)
  exited.then(() => watchdog.dismiss())

  let stopping: Promise<void> | undefined
  const stop = () => {
    stopping ??= stopProcess(child, pid, exited)
    return stopping
  }
  try {
    const namespace = options.namespace ?? DEFAULT_NAMESPACE
    await untilServing(`${HOST}:${port}`, namespace, exited, log, options.signal)
    child.unref()
    return {
      address: `${HOST}:${port}`,
      namespace,
      connection: {},
      uiUrl: uiPort === undefined ? undefined : `http://${HOST}:${uiPort}`,
      pid,
      source: binary.source,
      description: binary.description,
      exited,
      stop,
    }
  } catch (error) {
    await stop()
    throw error
  }
}

/** Somebody may take the port between this look and the server's bind: that is a conflict, and others are chosen. */
async function thatOrFree(port: number | undefined): Promise<number> {
  return port !== undefined && (await isFreePort(port)) ? port : freePort()
}

function serverArguments(options: DevServerOptions, port: number, uiPort: number | undefined): string[] {
  const pairs = (
    flag: string,
    values: Readonly<Record<string, unknown>>,
    quote = String as (v: unknown) => string,
  ) => Object.entries(values).flatMap(([key, value]) => [flag, `${key}=${quote(value)}`])
  return [
    ...['server', 'start-dev', '--ip', HOST, '--port', String(port), '--log-level', 'error'],
    ...(uiPort === undefined ? ['--headless'] : ['--ui-port', String(uiPort)]),
    ...(options.dbFile === undefined ? [] : ['--db-filename', options.dbFile]),
    ...(options.namespace === undefined ? [] : ['--namespace', options.namespace]),
    ...pairs('--dynamic-config-value', { ...DYNAMIC_CONFIG, ...options.dynamicConfig }, JSON.stringify),
    ...pairs('--search-attribute', options.searchAttributes ?? SEARCH_ATTRIBUTE),
    ...pairs('--sqlite-pragma', options.sqlitePragmas ?? {}),
  ]
}

/** The CLI also reads client settings from TEMPORAL_*, and none of them is meant for this server. */
function serverEnvironment(env: NodeJS.ProcessEnv): NodeJS.ProcessEnv {
  return Object.fromEntries(Object.entries(env).filter(([name]) => !name.startsWith('TEMPORAL_')))
}

/** Waits for a real answer of the gRPC service about the namespace. */
async function untilServing(
  address: string,
  namespace: string,
  exited: Promise<string>,
  log: LogPart,
  signal: AbortSignal | undefined,
): Promise<void> {
  const startedMs = performance.now()
  const ended = exited.then((how) => ({ how }))
  let lastFailure: unknown
  while (performance.now() - startedMs < START_LIMIT_MS) {
    signal?.throwIfAborted()
    // The answer may be another server's, on a port that ours is about to find taken: ours must have said that it serves.
    const asked = await Promise.race([askHealth(address, namespace), ended])
    const outcome = await Promise.race([ended, asked === SERVING ? saysStarted(log) : sleep(POLL_MS)])
    if (outcome !== undefined) throw await startFailure(`ended early (${outcome.how})`, log)
    if (asked === SERVING) return
    lastFailure = asked
  }
  const seconds = START_LIMIT_MS / 1000
  throw await startFailure(`did not serve within ${seconds} s (${String(lastFailure)})`, log)
}

/** Resolves when the log says that the server has started, or when its version does not seem to say so. */
async function saysStarted(log: LogPart): Promise<undefined> {
  const untilMs = performance.now() + SAYS_STARTED_MS
  while (performance.now() < untilMs && !/^Server:/m.test(await tailOf(log))) await sleep(POLL_MS)
}

/** The health status, or the failure to get one. */
async function askHealth(address: string, namespace: string): Promise<unknown> {
  let connection: Connection | undefined
  try {
    connection = await Connection.connect({ address, connectTimeout: CONNECT_LIMIT_MS })
    const { status } = await connection.healthService.check({ service: SERVICE })
    await connection.workflowService.describeNamespace({ namespace })
    return status
  } catch (error) {
    return error
  } finally {
    await connection?.close()
  }
}

const SERVICE = 'temporal.api.workflowservice.v1.WorkflowService'
/** grpc.health.v1.HealthCheckResponse.ServingStatus */
const SERVING = 1

/** What this start wrote; an older start's words would mislead. */
interface LogPart {
  file: string
  fromByte: number
}

async function startFailure(what: string, log: LogPart): Promise<Error> {
  const tail = await tailOf(log)
  const message = `The Temporal dev server ${what}. Its log, ${log.file}, ends with:\n${tail}`
  return /address already in use|can't set (frontend|UI|metrics) port|can't use default UI port/.test(tail)
    ? new PortConflictError(message)
    : new Error(message)
}

async function tailOf({ file, fromByte }: LogPart): Promise<string> {
  const handle = await open(file)
  try {
    const { size } = await handle.stat()
    const length = Math.min(Math.max(0, size - fromByte), LOG_TAIL_BYTES)
    const { buffer, bytesRead } = await handle.read(Buffer.alloc(length), 0, length, size - length)
    return buffer.subarray(0, bytesRead).toString('utf8').trim() || '(nothing)'
  } finally {
    await handle.close()
  }
}

function exitOf(child: ChildProcess): Promise<string> {
  return new Promise((resolve) => {
    child.once('error', (error) => resolve(error.message))
    child.once('exit', (code, signal) => resolve(signal === null ? `exit code ${code}` : signal))
  })
}

async function stopProcess(child: ChildProcess, pid: number, exited: Promise<string>): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return
  child.ref()
  signalGroup(pid, 'SIGTERM')
  const killer = setTimeout(() => signalGroup(pid, 'SIGKILL'), STOP_GRACE_MS)
  await exited
  clearTimeout(killer)
}

function signalGroup(pid: number, signal: NodeJS.Signals): void {
  try {
    process.kill(-pid, signal)
  } catch {
    // It ended meanwhile.
  }
}

function resolveOptions(options: DevServerOptions): ResolveOptions {
  return {
    ...(options.env === undefined ? {} : { env: options.env }),
    ...(options.onProgress === undefined ? {} : { onProgress: options.onProgress }),
    ...(options.signal === undefined ? {} : { signal: options.signal }),
  }
}
