import { execFile } from 'node:child_process'
import { access, mkdir, rename } from 'node:fs/promises'
import { delimiter, join } from 'node:path'
import { promisify } from 'node:util'
import { goInstall } from '../../src/server/go-install.js'
import { resolveBinary } from '../../src/server/resolve.js'
import { built, reportProgress } from './built.js'

const run = promisify(execFile)

/** The server that the CLI carries, so that both kinds of tests meet the same one; docker-compose.yml has it too. */
export const TEMPORAL_VERSION = 'v1.29.1'
const TEMPORAL_MODULE = 'go.temporal.io/server/cmd'
/** The reference implementation of the compose specification: `docker compose config` is this library. */
const COMPOSE_COMMAND = 'github.com/compose-spec/compose-go/v2/cmd@v2.16.2'
/** What Temporal's plugin postgres12 is tested with, the one of Debian 12 first. */
const POSTGRES_VERSIONS = [15, 16, 17, 14, 13]

/** Programs of which a Temporal server on PostgreSQL is made. */
export interface ProductionParts {
  /** a folder with `temporal-server` and `temporal-sql-tool` */
  temporal: string
  /** the path of the `temporal` CLI, which in the cache folder has another name */
  cli: string
  /** a folder with `initdb` and `postgres` */
  postgres: string
  /** who may run PostgreSQL, which refuses root; absent: we may */
  postgresUser?: { uid: number; gid: number }
}

/**
 * Finds PostgreSQL, and finds or builds the rest in Firepool's cache folder: minutes, once.
 * @throws Error with what is missing and how to get it
 */
export async function obtainProductionParts(): Promise<ProductionParts> {
  const postgres = await postgresFolder()
  const postgresUser = await unprivilegedUser()
  const temporal = await built(`temporal-server-${TEMPORAL_VERSION}`, 'with go install', async (folder) => {
    const commands = ['server', 'tools/sql'].map((path) => `${TEMPORAL_MODULE}/${path}@${TEMPORAL_VERSION}`)
    await goInstall(commands, { env: process.env, folder })
    const made = join(folder, 'made')
    await mkdir(made)
    await rename(join(folder, 'server'), join(made, 'temporal-server'))
    // The name that it has in Temporal's image, and so in our scripts.
    await rename(join(folder, 'sql'), join(made, 'temporal-sql-tool'))
    return made
  })
  const { path: cli } = await resolveBinary({ onProgress: reportProgress })
  return { temporal, cli, postgres, ...(postgresUser ? { postgresUser } : {}) }
}

/** The path of the command that reads and checks compose files. */
export function obtainCompose(): Promise<string> {
  return built(`compose-${COMPOSE_COMMAND.split('@')[1]}`, 'with go install', async (folder) => {
    await goInstall([COMPOSE_COMMAND], { env: process.env, folder })
    return join(folder, 'cmd')
  })
}

async function postgresFolder(): Promise<string> {
  // Debian keeps the server's programs off the PATH.
  const folders = POSTGRES_VERSIONS.map((version) => `/usr/lib/postgresql/${version}/bin`)
  folders.push(...(process.env.PATH ?? '').split(delimiter).filter((folder) => folder.startsWith('/')))
  for (const folder of folders) {
    const found = ['initdb', 'postgres'].map((program) => access(join(folder, program)))
    if ((await Promise.allSettled(found)).every(({ status }) => status === 'fulfilled')) return folder
  }
  throw new Error('PostgreSQL is not installed. On Debian: apt-get install postgresql (or run .ci/run)')
}

/** Root runs PostgreSQL as the user that its package made, or as nobody. */
async function unprivilegedUser(): Promise<ProductionParts['postgresUser']> {
  if (process.getuid?.() !== 0) return undefined
  for (const name of ['postgres', 'nobody']) {
    try {
      const [uid, gid] = await Promise.all(
        ['-u', '-g'].map(async (flag) => Number((await run('id', [flag, name])).stdout)),
      )
      return { uid: uid!, gid: gid! }
    } catch {
      // There is no such user.
    }
  }
  throw new Error('PostgreSQL refuses to run as root, and there is no user postgres or nobody to run it as')
}
