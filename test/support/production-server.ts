import { execFile } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { chown, copyFile, mkdir, readFile, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { Connection } from '@temporalio/client'
import { HOST } from '../../src/server/free-port.js'
import { untilServing, withFreePorts } from './free-ports.js'
import { Keeper, type Part } from './keeper.js'
import type { ProductionParts } from './production-parts.js'

const run = promisify(execFile)

/** What docker-compose.yml runs and mounts; here the same files do the same. */
const DEPLOY = fileURLToPath(new URL('../../deploy/docker', import.meta.url))
const DATABASE_USER = 'temporal'
// As in docker-compose.yml.
const HISTORY_SHARDS = 64
const DATABASE_CONNECTIONS = 200
/** Each of the four services has one for gRPC and one for the membership ring; the frontend has one for HTTP. */
const TEMPORAL_PORTS = 9
const CONNECT_LIMIT_MS = 2_000
const LOG_TAIL_CHARS = 4_000
/** grpc.health.v1.HealthCheckResponse.ServingStatus */
const SERVING = 1

/** A Temporal server as one runs it in production: PostgreSQL on disk, four services, many shards. */
export interface ProductionServer {
  /** host:port of the gRPC service */
  address: string
  namespace: string
  /** the server's own processes; the database has children */
  pids: { postgres: number; temporal: number }
  /** ends the processes and removes the folder */
  stop(): Promise<void>
}

/**
 * Starts PostgreSQL and a Temporal server on it, on free ports of the loopback, sets up the schema and a namespace, and
 * waits until it serves. Nothing of it outlives us.
 * @throws Error with the tail of the log of what failed; by then all is undone
 */
export async function startProductionServer(
  parts: ProductionParts,
  namespace = 'default',
): Promise<ProductionServer> {
  const keeper = await Keeper.open('firepool-production-')
  try {
    const password = randomBytes(12).toString('hex')
    const database = await withFreePorts(1, ([port]) => startPostgres(keeper, parts, port!, password))
    await setUpSchema(parts, database.port, password)
    const temporal = await withFreePorts(TEMPORAL_PORTS, (ports) =>
      startTemporal(keeper, parts, ports, { port: database.port, password }),
    )
    const { address } = temporal
    await createNamespace(parts, address, namespace)
    return {
      address,
      namespace,
      pids: { postgres: database.part.pid, temporal: temporal.part.pid },
      async stop() {
        await temporal.part.stop()
        // Its "fast" shutdown; at SIGTERM it would wait for its clients.
        await database.part.stop('SIGINT')
        await keeper.close()
      },
    }
  } catch (error) {
    await keeper.close()
    throw error
  }
}

/** Creates a namespace on a server that runs, unless it is there. */
export function createNamespace(
  { cli }: Pick<ProductionParts, 'cli'>,
  address: string,
  namespace: string,
): Promise<void> {
  return script('create-namespace.sh', [], {
    TEMPORAL_CLI: cli,
    TEMPORAL_ADDRESS: address,
    TEMPORAL_NAMESPACE: namespace,
  })
}

interface Database {
  part: Part
  port: number
}

async function startPostgres(
  keeper: Keeper,
  { postgres, postgresUser }: ProductionParts,
  port: number,
  password: string,
): Promise<Database> {
  const data = join(keeper.folder, `data-${port}`)
  const passwordFile = join(keeper.folder, `password-${port}`)
  await mkdir(data, { mode: 0o700 })
  await writeFile(passwordFile, password, { mode: 0o600 })
  if (postgresUser) {
    const { uid, gid } = postgresUser
    // The folder as well: only its owner may pass through it. We are root, and may anyway.
    for (const path of [keeper.folder, data, passwordFile]) await chown(path, uid, gid)
  }
  const who = postgresUser ?? {}
  // C: the locales of this machine have no say in the order of texts.
  const init = ['-D', data, '-U', DATABASE_USER, '--auth=scram-sha-256', `--pwfile=${passwordFile}`]
  await run(join(postgres, 'initdb'), [...init, '--encoding=UTF8', '--locale=C', '--no-sync'], {
    ...who,
    cwd: data,
    env: { PATH: '/usr/bin:/bin' },
  })
  const settings = {
    port,
    listen_addresses: HOST,
    // The path of a socket in a temporary folder may be longer than the system takes.
    unix_socket_directories: '',
    max_connections: DATABASE_CONNECTIONS,
    // Shared memory that is not a file of our folder would outlive a killed server.
    dynamic_shared_memory_type: 'mmap',
  }
  const part = keeper.start(
    join(postgres, 'postgres'),
    ['-D', data, ...Object.entries(settings).flatMap(([name, value]) => ['-c', `${name}=${value}`])],
    {
      name: `postgresql-${port}`,
      env: { PATH: '/usr/bin:/bin' },
      ...(postgresUser ? { as: postgresUser } : {}),
    },
  )
  await untilServing('PostgreSQL', part, /could not bind|could not create any TCP/, async () => {
    // Its last line is the state; what answers on the port could be somebody else's.
    const pidFile = await readFile(join(data, 'postmaster.pid'), 'utf8').catch(() => '')
    return /^ready *$/m.test(pidFile)
  })
  return { part, port }
}

function setUpSchema(parts: ProductionParts, port: number, password: string): Promise<void> {
  return script('set-up-schema.sh', [parts.temporal], {
    SQL_PLUGIN: 'postgres12',
    SQL_HOST: HOST,
    SQL_PORT: String(port),
    SQL_USER: DATABASE_USER,
    SQL_PASSWORD: password,
  })
}

async function script(name: string, folders: string[], env: NodeJS.ProcessEnv): Promise<void> {
  // Not our home: the CLI has settings there.
  const plain = { HOME: '/nonexistent', PATH: [...folders, '/usr/bin', '/bin'].join(':') }
  try {
    await run(join(DEPLOY, name), [], { env: { ...plain, ...env } })
  } catch (error) {
    const { stdout = '', stderr = '' } = error as { stdout?: string; stderr?: string }
    throw new Error(
      `${name} failed: ${`${stdout}${stderr}`.slice(-LOG_TAIL_CHARS) || (error as Error).message}`,
    )
  }
}

async function startTemporal(
  keeper: Keeper,
  parts: ProductionParts,
  ports: number[],
  database: { port: number; password: string },
): Promise<{ part: Part; address: string }> {
  const address = `${HOST}:${ports[0]}`
  const config = join(keeper.folder, `config-${ports[0]}`)
  await mkdir(config)
  await copyFile(join(DEPLOY, 'dynamic-config.yaml'), join(config, 'dynamic-config.yaml'))
  // JSON is YAML.
  await writeFile(join(config, 'production.yaml'), JSON.stringify(serverConfig(config, ports, database)), {
    mode: 0o600,
  })
  const part = keeper.start(
    join(parts.temporal, 'temporal-server'),
    ['--root', '/', '--config', config, '--env', 'production', 'start'],
    { name: `temporal-${ports[0]}`, env: { PATH: '/usr/bin:/bin' } },
  )
  await untilServing('The Temporal server', part, /address already in use/, () => isServing(address))
  return { part, address }
}

/** What docker/config_template.yaml of the server gives for the environment that docker-compose.yml sets, on one host. */
function serverConfig(
  folder: string,
  ports: number[],
  database: { port: number; password: string },
): unknown {
  const sql = (databaseName: string, connections: number) => ({
    sql: {
      pluginName: 'postgres12',
      databaseName,
      connectAddr: `${HOST}:${database.port}`,
      connectProtocol: 'tcp',
      user: DATABASE_USER,
      password: database.password,
      maxConns: connections,
      maxIdleConns: connections,
      maxConnLifetime: '1h',
    },
  })
  const [frontendPort, ...others] = ports
  const port = () => others.pop()!
  const rpc = (grpcPort: number, more = {}) => ({
    rpc: { grpcPort, membershipPort: port(), bindOnIP: HOST, ...more },
  })
  return {
    log: { stdout: true, level: 'error' },
    persistence: {
      defaultStore: 'default',
      visibilityStore: 'visibility',
      numHistoryShards: HISTORY_SHARDS,
      datastores: { default: sql('temporal', 20), visibility: sql('temporal_visibility', 10) },
    },
    global: { membership: { maxJoinDuration: '30s', broadcastAddress: HOST } },
    services: {
      frontend: rpc(frontendPort!, { httpPort: port() }),
      matching: rpc(port()),
      history: rpc(port()),
      worker: rpc(port()),
    },
    clusterMetadata: {
      enableGlobalNamespace: false,
      failoverVersionIncrement: 10,
      masterClusterName: 'active',
      currentClusterName: 'active',
      clusterInformation: {
        active: {
          enabled: true,
          initialFailoverVersion: 1,
          rpcName: 'frontend',
          rpcAddress: `${HOST}:${frontendPort}`,
        },
      },
    },
    dcRedirectionPolicy: { policy: 'noop' },
    dynamicConfigClient: { filepath: join(folder, 'dynamic-config.yaml'), pollInterval: '60s' },
  }
}

async function isServing(address: string): Promise<boolean> {
  let connection: Connection | undefined
  try {
    connection = await Connection.connect({ address, connectTimeout: CONNECT_LIMIT_MS })
    const service = 'temporal.api.workflowservice.v1.WorkflowService'
    return (await connection.healthService.check({ service })).status === SERVING
  } catch {
    return false
  } finally {
    await connection?.close()
  }
}
