import { cpus } from 'node:os'
import { join } from 'node:path'
import type { DataConverter } from '@temporalio/common'
import { createFirepoolClient, type FirepoolClient } from '../client/index.js'
import { checkPoolSpec, counted, type PoolSpec } from '../contract/index.js'
import { openServer, PortConflictError, type TemporalServer } from '../server/dev-server.js'
import { isFreePort } from '../server/free-port.js'
import type { FirepoolWorker } from '../worker.js'
import { applyPools, type PoolOutcome } from './commands/pool-apply.js'
import { connect } from './connection.js'
import { CliError } from './failure.js'
import { removeDevFile, writeDevFile } from './state-folder.js'
import type { Teardown } from './teardown.js'

/** Temporal's own defaults: other programs look there first. */
const USUAL_PORT = 7233
const USUAL_UI_PORT = 8233

/** A pod may be on its way while pods are stopped: they are counted again until none is left. */
const STOP_ROUNDS = 5

export interface DevOptions {
  /** the state folder, made already */
  dir: string
  pools: readonly PoolSpec[]
  dbFile?: string
  port?: number
  uiPort?: number
  namespace?: string
  /** how payloads are encrypted */
  dataConverter?: DataConverter | undefined
  /** where pods find secrets */
  secretsDir?: string | undefined
  /** adds a line to the worker's log */
  log: (line: string) => void
  note: (text: string) => void
  signal: AbortSignal
}

export interface DevSession {
  server: TemporalServer
  firepool: FirepoolClient
  outcomes: PoolOutcome[]
  /** why Temporal cannot search for pools by their state, or '' */
  searchAttributes: string
  /** rejects when the server or the worker ends by itself */
  broken: Promise<never>
}

/**
 * Starts server, worker and pools.
 * @param teardown what is to be stopped later is added to it as soon as it runs, also when a later step fails
 */
export async function startDev(options: DevOptions, teardown: Teardown): Promise<DevSession> {
  const { dir, signal, note, dataConverter } = options
  const server = await startServer(options)
  teardown.add('server', () => server.stop())
  signal.throwIfAborted()
  // Asked first for a clear error; the worker makes connections of its own.
  if (server.pid === undefined)
    await (await connect({ ...server, because: 'named by TEMPORAL_ADDRESS or its profile' })).close()
  const { startFirepoolWorker } = await import('../worker.js')
  const { address, namespace } = server
  const worker = await startFirepoolWorker({
    address,
    namespace,
    ...server.connection,
    dir,
    log: options.log,
    ...(dataConverter ? { dataConverter } : {}),
    ...(options.secretsDir === undefined ? {} : { secretsDir: options.secretsDir }),
  })
  // The worker goes first: a pool whose pods end would start others in their place.
  teardown.add('pods', () => stopPods(worker))
  teardown.add('worker', () => worker.shutdown())
  signal.throwIfAborted()
  // A dev server that was killed left pods; nothing in a new server's memory knows them.
  if (server.pid !== undefined && options.dbFile === undefined) {
    const left = await worker.backend.stopAll()
    if (left > 0) note(`stopped ${counted(left, 'pod')} that an earlier firepool dev left behind`)
  }
  const firepool = createFirepoolClient({ client: worker.client })
  const outcomes = await applyPools(firepool, options.pools)
  signal.throwIfAborted()
  writeDevFile(dir, { address, namespace, uiUrl: server.uiUrl ?? null })
  teardown.add('dev.json', () => removeDevFile(dir))
  const { searchAttributes } = worker
  return { server, firepool, outcomes, searchAttributes, broken: brokenBy(server, worker) }
}

async function startServer({
  dir,
  dbFile,
  port,
  uiPort,
  namespace,
  note,
  signal,
}: DevOptions): Promise<TemporalServer> {
  const given = { port, uiPort }
  return openServer({
    logFile: join(dir, 'server.log'),
    ...(port === undefined ? {} : { port }),
    uiPort: uiPort ?? 0,
    preferred: { port: USUAL_PORT, uiPort: USUAL_UI_PORT },
    ...(dbFile === undefined ? {} : { dbFile }),
    ...(namespace === undefined ? {} : { namespace }),
    onProgress: ({ message, elapsedSeconds }) =>
      note(elapsedSeconds > 0 ? `${message} (${elapsedSeconds} s)` : message),
    signal,
  }).catch(async (error: unknown) => {
    throw error instanceof PortConflictError ? await portTaken(error, given) : error
  })
}

/** A conflict in the words of the command line: which port, and which option to change. */
export async function portTaken(
  error: PortConflictError,
  given: { port?: number | undefined; uiPort?: number | undefined },
): Promise<Error> {
  const ours = [
    { flag: '--port', port: given.port },
    { flag: '--ui-port', port: given.uiPort },
  ].filter((one): one is { flag: string; port: number } => one.port !== undefined)
  if (ours.length === 0) return error
  const taken: typeof ours = []
  for (const one of ours) if (!(await isFreePort(one.port))) taken.push(one)
  // It is free again, or both options name one port.
  const named = taken.length > 0 ? taken : ours
  const flags = named.map(({ flag }) => flag).join(' and ')
  const ports = named.map(({ flag, port }) => `${port} (${flag})`).join(' and ')
  return new CliError(
    'PortTaken',
    `${named.length === 1 ? 'port' : 'ports'} ${ports} cannot be had: in use already`,
    `give another number with ${flags}, or leave ${named.length === 1 ? 'it' : 'them'} out for a free one`,
  )
}

async function stopPods(worker: FirepoolWorker): Promise<void> {
  for (let round = 0; round < STOP_ROUNDS; round++) if ((await worker.backend.stopAll()) === 0) return
}

function brokenBy(server: TemporalServer, worker: FirepoolWorker): Promise<never> {
  const exited = 'exited' in server ? (server.exited as Promise<string>) : new Promise<string>(() => {})
  const broken = Promise.race([
    exited.then((how) => Promise.reject(new Error(`the Temporal server ended by itself (${how})`))),
    worker.done.then(() => Promise.reject(new Error('the worker ended by itself'))),
  ])
  broken.catch(() => undefined)
  return broken
}

/** The pool of a `firepool dev` without a file: small enough for a laptop. */
export function builtInPool(): PoolSpec {
  const budget = Math.max(1, Math.min(4, cpus().length))
  return checkPoolSpec({ v: 1, name: 'cpu', budget, standby: 1 }).value!
}
