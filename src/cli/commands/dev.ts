import { type Stats, statSync } from 'node:fs'
import { dirname, join, resolve } from 'node:path'
import { Command } from 'commander'
import { exitWithOutput, HURRY_MS } from '../../exit.js'
import { stateFolder } from '../../state-folder.js'
import { parsePort } from '../arguments.js'
import { chooseServer } from '../connection.js'
import { addDataConverterOption, loadDataConverter } from '../data-converter.js'
import { builtInPool, type DevSession, startDev } from '../dev-session.js'
import { EXIT, EXIT_HELP } from '../exit-code.js'
import { reportOf, usageError } from '../failure.js'
import { takeInterrupts } from '../interrupt.js'
import { readPoolFile } from '../pool-file.js'
import { asOnlyDev, makeStateFolder, secretsFolder } from '../state-folder.js'
import { renderFacts } from '../table.js'
import { Teardown } from '../teardown.js'
import { paint, printFailure, printJson, printNote, printOut } from '../terminal.js'
import { outcomeJson, outcomeLine } from './pool-apply.js'

const HELP = `
Starts a Temporal server with its UI (or uses that of TEMPORAL_ADDRESS or TEMPORAL_PROFILE), a worker and pools of
local pods, and runs until Ctrl-C, which stops all of it; a second Ctrl-C does not wait. Other commands find it by the
file dev.json in the state folder. The server keeps everything in memory unless --db-file is given.

Examples:
  firepool dev
  firepool dev -f pools.yaml --db-file state.db
  TEMPORAL_ADDRESS=temporal:7233 firepool dev -f pools.yaml`

interface DevCommandOptions {
  file?: string
  dir?: string
  dbFile?: string
  port?: number
  uiPort?: number
  namespace?: string
  dataConverter?: string
  secrets?: string
  json?: boolean
}

/** `firepool dev` */
export function devCommand(): Command {
  const command = new Command('dev')
    .description('a server with its UI, a worker and pools on this machine, until Ctrl-C')
    .option('-f, --file <file>', "YAML file with pools (default: one pool 'cpu')")
    .option('--dir <folder>', 'state folder (else FIREPOOL_DIR, else in ~/.local/state)')
    .option(
      '--db-file <file>',
      "the server's database, so that workflows survive a restart (default: in memory)",
    )
    .option('--port <port>', 'of the server (default: 7233, or a free one when it is taken)', parsePort)
    .option('--ui-port <port>', 'of the UI (default: 8233, or a free one when it is taken)', parsePort)
    .option('--namespace <name>', 'to use, and to create (default: default)')
    .option('--secrets <folder>', 'a file for each secret of jobs (else FIREPOOL_SECRETS)')
    .option('--json', 'print { v, address, namespace, uiUrl, dir, pools } as one line when all is ready')
    .addHelpText('after', HELP)
    .addHelpText('after', EXIT_HELP)
    .action(dev)
  return addDataConverterOption(command)
}

async function dev(options: DevCommandOptions): Promise<void> {
  const dbFile = options.dbFile === undefined ? undefined : databaseFile(options.dbFile)
  const pools = options.file === undefined ? [builtInPool()] : readPoolFile(options.file)
  const dataConverter = await loadDataConverter(options.dataConverter)
  const secretsDir = secretsFolder(options.secrets)
  const dir = makeStateFolder(stateFolder(options.dir))
  await asOnlyDev(dir, async () => {
    const teardown = new Teardown()
    let forced: Promise<never> | null = null
    const interrupt = takeInterrupts(() => {
      forced = force(teardown)
    })
    interrupt.signal.addEventListener('abort', () => printNote('stopping; Ctrl-C again does not wait'))
    try {
      const { installRuntime } = await import('../temporal-runtime.js')
      const log = installRuntime(join(dir, 'worker.log'))
      const { file: _, dbFile: __, secrets: ___, ...rest } = options
      const own = { dir, pools, log, note: printNote, signal: interrupt.signal, dataConverter, secretsDir }
      const session = await startDev({ ...rest, ...(dbFile ? { dbFile } : {}), ...own }, teardown)
      show(session, dir, options)
      await Promise.race([session.broken, aborted(interrupt.signal)])
    } catch (error) {
      if (!interrupt.signal.aborted) throw error
    } finally {
      const failures = await teardown.run()
      for (const failure of failures) printNote(`not stopped in order: ${failure}`)
      if (failures.length > 0) process.exitCode = EXIT.internal
      // In a hurry the other one has taken the rest of the steps, and ends this process.
      if (forced) await forced
      interrupt.release()
    }
    printNote('stopped')
  })
}

/** A path that was mistyped would be a new and empty database. @throws CliError when its folder is not there */
export function databaseFile(path: string): string {
  const file = resolve(path)
  const folder = dirname(file)
  if (statsOf(folder)?.isDirectory() !== true)
    throw usageError(`--db-file ${path}: there is no folder ${folder}`, 'make it first, or give another path')
  if (statsOf(file)?.isFile() === false)
    throw usageError(
      `--db-file ${path} is no regular file`,
      'give the path of a file, which need not be there yet',
    )
  return file
}

/** undefined when it is not there, or cannot be looked at */
function statsOf(path: string): Stats | undefined {
  try {
    return statSync(path)
  } catch {
    return undefined
  }
}

/** How long a stop in a hurry may take, ms. */
const FORCE_MS = 3_000

/** The second Ctrl-C: whatever step hangs is left behind, the others get their chance, and this process ends. */
async function force(teardown: Teardown): Promise<never> {
  printNote('stopping at once')
  const limit = new Promise((resolve) => setTimeout(resolve, FORCE_MS))
  await Promise.race([teardown.run(), limit])
  return exitWithOutput(EXIT.cancelled, HURRY_MS)
}

function aborted(signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal.aborted) resolve()
    signal.addEventListener('abort', () => resolve(), { once: true })
  })
}

function show(
  { server, outcomes, searchAttributes }: DevSession,
  dir: string,
  { json, dataConverter }: DevCommandOptions,
): void {
  const { address, namespace, uiUrl = null } = server
  if (searchAttributes) printNote(`note: ${searchAttributes}`)
  noteOthers(dir, address)
  for (const { error } of outcomes) if (error !== undefined) printFailure(reportOf(error), false)
  if (json) {
    const pools = outcomes.map(outcomeJson)
    printJson({ v: 1, address, namespace, uiUrl, dir, server: server.description, pools })
    return
  }
  printOut(paint('bold', 'Firepool is running.'))
  printOut(
    renderFacts([
      ['server', server.description],
      ['address', `${address}, namespace ${namespace}`],
      ['UI', uiUrl ?? 'that of your server'],
      ['state', `${dir} (server.log, worker.log, pods)`],
      ...outcomes.map((outcome, at): [string, string] => [at === 0 ? 'pools' : '', outcomeLine(outcome)]),
    ]),
  )
  const pool = outcomes[0]?.spec.name
  const converter = dataConverter === undefined ? '' : ` --data-converter ${dataConverter}`
  if (pool) printOut(`Try in another terminal: firepool run --pool ${pool}${converter} -- echo hello`)
  printOut('Ctrl-C stops all of it.')
}

/** The usual profile is not followed by `dev`, which starts a server of its own; but by the other commands. */
function noteOthers(dir: string, address: string): void {
  try {
    const others = chooseServer({ dir })
    if (others.address === address) return
    const where = `${others.address} (${others.because})`
    printNote(`note: other commands use the server at ${where}; for this one set TEMPORAL_ADDRESS=${address}`)
  } catch (error) {
    printNote(`note: other commands will fail: ${(error as Error).message}`)
  }
}
