import { join, resolve } from 'node:path'
import { Command } from 'commander'
import { stateFolder } from '../../state-folder.js'
import { parsePort } from '../arguments.js'
import { builtInPool, type DevSession, startDev } from '../dev-session.js'
import { EXIT, EXIT_HELP } from '../exit-code.js'
import { reportOf } from '../failure.js'
import { takeInterrupts } from '../interrupt.js'
import { readPoolFile } from '../pool-file.js'
import { asOnlyDev, makeStateFolder } from '../state-folder.js'
import { renderFacts } from '../table.js'
import { Teardown } from '../teardown.js'
import { onOutputClosed, paint, printFailure, printJson, printNote, printOut } from '../terminal.js'
import { outcomeJson, outcomeLine } from './pool-apply.js'

const HELP = `
Starts a Temporal server with its UI (or uses that of TEMPORAL_ADDRESS), a worker and pools of local pods, and runs
until Ctrl-C, which stops all of it; a second Ctrl-C does not wait. Other commands find it by the file dev.json in
the state folder. The server keeps everything in memory unless --db-file is given.

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
  json?: boolean
}

/** `firepool dev` */
export function devCommand(): Command {
  return new Command('dev')
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
    .option('--json', 'print { v, address, namespace, uiUrl, dir, pools } as one line when all is ready')
    .addHelpText('after', HELP)
    .addHelpText('after', EXIT_HELP)
    .action(dev)
}

async function dev(options: DevCommandOptions): Promise<void> {
  const pools = options.file === undefined ? [builtInPool()] : readPoolFile(options.file)
  const dir = makeStateFolder(stateFolder(options.dir))
  await asOnlyDev(dir, async () => {
    const teardown = new Teardown()
    // Nobody reads what we print: the pods are to be stopped all the same.
    onOutputClosed(() => {})
    let forced: Promise<never> | null = null
    const interrupt = takeInterrupts(() => {
      forced = force(teardown)
    })
    interrupt.signal.addEventListener('abort', () => printNote('stopping; Ctrl-C again does not wait'))
    try {
      const { installRuntime } = await import('../temporal-runtime.js')
      const log = installRuntime(join(dir, 'worker.log'))
      const { file: _, dbFile, ...rest } = options
      const own = { dir, pools, log, note: printNote, signal: interrupt.signal }
      const session = await startDev(
        { ...rest, ...(dbFile ? { dbFile: resolve(dbFile) } : {}), ...own },
        teardown,
      )
      show(session, dir, options.json === true)
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

/** How long a stop in a hurry may take, ms. */
const FORCE_MS = 3_000

/** The second Ctrl-C: whatever step hangs is left behind, the others get their chance, and this process ends. */
async function force(teardown: Teardown): Promise<never> {
  printNote('stopping at once')
  const limit = new Promise((resolve) => setTimeout(resolve, FORCE_MS))
  await Promise.race([teardown.run(), limit])
  return process.exit(EXIT.cancelled)
}

function aborted(signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal.aborted) resolve()
    signal.addEventListener('abort', () => resolve(), { once: true })
  })
}

function show({ server, outcomes, searchAttributes }: DevSession, dir: string, json: boolean): void {
  const { address, namespace, uiUrl = null } = server
  if (searchAttributes) printNote(`note: ${searchAttributes}`)
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
  if (pool) printOut(`Try in another terminal: firepool run --pool ${pool} -- echo hello`)
  printOut('Ctrl-C stops all of it.')
}
