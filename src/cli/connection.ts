import { Client, Connection } from '@temporalio/client'
import type { Command } from 'commander'
import {
  createFirepoolClient,
  type FirepoolClient,
  FirepoolUnavailableError,
  noWorker,
} from '../client/index.js'
import { DEFAULT_ADDRESS, DEFAULT_NAMESPACE } from '../server/connection.js'
import { stateFolder } from '../state-folder.js'
import { explainMissingPool } from './missing-pool.js'
import { readDevFile } from './state-folder.js'

const CONNECT_LIMIT = '5s'

/** Options of every command that talks to a server. */
export interface ServerOptions {
  address?: string
  namespace?: string
  dir?: string
}

export interface ServerChoice {
  /** host:port */
  address: string
  namespace: string
  /** for messages: why this one */
  because: string
}

export function addServerOptions(command: Command): Command {
  return command
    .option('--address <host:port>', 'Temporal server (else TEMPORAL_ADDRESS, a running dev, 127.0.0.1:7233)')
    .option(
      '--namespace <name>',
      'Temporal namespace (else TEMPORAL_NAMESPACE, that of a running dev, default)',
    )
    .option('--dir <folder>', 'state folder in which a running dev is looked for (else FIREPOOL_DIR)')
}

/** The server to use: what was asked for, else TEMPORAL_ADDRESS, else a dev server that runs, else the default. */
export function chooseServer(options: ServerOptions, env: NodeJS.ProcessEnv = process.env): ServerChoice {
  const asked = options.namespace || env.TEMPORAL_NAMESPACE
  const namespace = asked || DEFAULT_NAMESPACE
  if (options.address) return { address: options.address, namespace, because: 'named by --address' }
  if (env.TEMPORAL_ADDRESS)
    return { address: env.TEMPORAL_ADDRESS, namespace, because: 'named by TEMPORAL_ADDRESS' }
  const dir = stateFolder(options.dir, env)
  const dev = readDevFile(dir)
  if (dev)
    return { address: dev.address, namespace: asked || dev.namespace, because: 'of the running firepool dev' }
  return { address: DEFAULT_ADDRESS, namespace, because: `the default; no firepool dev runs on ${dir}` }
}

export interface OpenClient {
  firepool: FirepoolClient
  server: ServerChoice
}

/**
 * Connects, runs `action`, and closes the connection.
 * @throws FirepoolUnavailableError when the server does not answer, MissingPoolError for PoolNotFound
 */
export async function withFirepool<T>(
  options: ServerOptions,
  action: (open: OpenClient) => Promise<T>,
): Promise<T> {
  const server = chooseServer(options)
  const connection = await connect(server)
  try {
    const firepool = createFirepoolClient({ client: new Client({ connection, namespace: server.namespace }) })
    try {
      return await action({ firepool, server })
    } catch (error) {
      throw await explainMissingPool(error, firepool, server)
    }
  } finally {
    await connection.close()
  }
}

/** @throws FirepoolUnavailableError when the server does not answer */
export async function connect({
  address,
  because,
}: Pick<ServerChoice, 'address' | 'because'>): Promise<Connection> {
  try {
    return await Connection.connect({ address, connectTimeout: CONNECT_LIMIT })
  } catch (error) {
    throw new FirepoolUnavailableError(
      'NoServer',
      `no Temporal server answers at ${address} (${because})`,
      'start one with firepool dev, or name yours with TEMPORAL_ADDRESS=host:port',
      { cause: error },
    )
  }
}

/** @throws FirepoolUnavailableError: a job without a worker would wait in silence */
export async function requireWorker({ firepool, server }: OpenClient): Promise<void> {
  if (!(await firepool.hasWorker())) throw noWorker(server.namespace)
}
