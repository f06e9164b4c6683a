import { Client, Connection } from '@temporalio/client'
import type { Command } from 'commander'
import { meaningOf } from '../client/errors.js'
import {
  createFirepoolClient,
  type FirepoolClient,
  FirepoolUnavailableError,
  noWorker,
} from '../client/index.js'
import { notAuthorized } from '../client/unavailable.js'
import {
  type ConnectionSettings,
  DEFAULT_ADDRESS,
  DEFAULT_NAMESPACE,
  settingsGiven,
} from '../server/connection.js'
import { whyUnreachable } from '../server/diagnosis.js'
import { stateFolder } from '../state-folder.js'
import { addDataConverterOption, explaining, loadDataConverter } from './data-converter.js'
import { explainMissingPool } from './missing-pool.js'
import { hasDevFile, readDevFile } from './state-folder.js'

const CONNECT_LIMIT = '5s'

/** Options of every command that talks to a server. */
export interface ServerOptions {
  address?: string
  namespace?: string
  dir?: string
  dataConverter?: string
}

export interface ServerChoice {
  /** host:port */
  address: string
  namespace: string
  /** how to speak to it; holds secrets */
  connection: ConnectionSettings
  /** for messages: why this one */
  because: string
}

export function addServerOptions(command: Command): Command {
  command
    .option(
      '--address <host:port>',
      'Temporal server (else TEMPORAL_ADDRESS or the profile, a running dev, 127.0.0.1:7233)',
    )
    .option(
      '--namespace <name>',
      'Temporal namespace (else TEMPORAL_NAMESPACE or the profile, that of a running dev, default)',
    )
    .option('--dir <folder>', 'state folder in which a running dev is looked for (else FIREPOOL_DIR)')
  return addDataConverterOption(command)
}

/**
 * The server to use: what was asked for, else that of the environment or the profile, else a dev server that runs, else the
 * default. A dev server is spoken to without TLS and without secrets.
 * @throws ConnectionSettingsError; FirepoolUnavailableError when the state folder was named and its dev server is dead
 */
export function chooseServer(options: ServerOptions, env: NodeJS.ProcessEnv = process.env): ServerChoice {
  const given = settingsGiven(env)
  const { connection } = given
  const asked = options.namespace || given.namespace
  const namespace = asked || DEFAULT_NAMESPACE
  if (options.address)
    return { address: options.address, namespace, connection, because: 'named by --address' }
  if (given.address) return { address: given.address, namespace, connection, because: given.because }
  const dir = stateFolder(options.dir, env)
  const dev = readDevFile(dir)
  if (dev) {
    const because = 'of the running firepool dev'
    return { address: dev.address, namespace: asked || dev.namespace, connection: {}, because }
  }
  if ((options.dir || env.FIREPOOL_DIR) && hasDevFile(dir)) throw deadDev(dir)
  const because = `the default; no firepool dev runs on ${dir}`
  return { address: DEFAULT_ADDRESS, namespace, connection, because }
}

/** Who names a folder means the server of its dev: when that has been killed, another server would be another deployment. */
function deadDev(dir: string): FirepoolUnavailableError {
  return new FirepoolUnavailableError(
    'NoServer',
    `the firepool dev on ${dir} runs no more, and it did not end in order (its dev.json is still there)`,
    `start it again with firepool dev --dir ${dir}, name a server with --address, or remove ${dir}/dev.json`,
  )
}

export interface OpenClient {
  firepool: FirepoolClient
  server: ServerChoice
}

/**
 * Connects and runs `action`. The connection is left open until the process ends: closed under a call that waits for its
 * next attempt, because the server went, it throws out of a timer and ends the process with a stack.
 * @throws FirepoolUnavailableError when the server does not answer, MissingPoolError for PoolNotFound
 */
export async function withFirepool<T>(
  options: ServerOptions,
  action: (open: OpenClient) => Promise<T>,
): Promise<T> {
  const server = chooseServer(options)
  const dataConverter = explaining(await loadDataConverter(options.dataConverter))
  const connection = await connect(server)
  const client = new Client({ connection, namespace: server.namespace, dataConverter })
  const firepool = createFirepoolClient({ client })
  try {
    return await action({ firepool, server })
  } catch (error) {
    throw await explainMissingPool(error, firepool, server)
  }
}

/** @throws FirepoolUnavailableError when the server does not answer, or refuses us */
export async function connect({
  address,
  connection,
  because,
}: Pick<ServerChoice, 'address' | 'connection' | 'because'>): Promise<Connection> {
  try {
    return await Connection.connect({ address, ...connection, connectTimeout: CONNECT_LIMIT })
  } catch (error) {
    const server = `the Temporal server at ${address} (${because})`
    if (meaningOf(error).kind === 'notAuthorized') throw notAuthorized(server, error)
    throw notConnected(
      error,
      `${address} (${because})`,
      await whyUnreachable(address, connection),
      connection,
    )
  }
}

function notConnected(
  cause: unknown,
  server: string,
  why: string | undefined,
  { tls }: ConnectionSettings,
): FirepoolUnavailableError {
  return new FirepoolUnavailableError(
    'NoServer',
    `no Temporal server answers at ${server}${why === undefined ? '' : `: ${why}`}`,
    tls
      ? 'start it, or correct the address, the CA and the certificates in TEMPORAL_ADDRESS, TEMPORAL_TLS* or the profile'
      : 'start one with firepool dev, or name yours with TEMPORAL_ADDRESS=host:port',
    { cause },
  )
}

/** @throws FirepoolUnavailableError: a job without a worker would wait in silence */
export async function requireWorker({ firepool, server }: OpenClient): Promise<void> {
  if (!(await firepool.hasWorker())) throw noWorker(server.namespace)
}
