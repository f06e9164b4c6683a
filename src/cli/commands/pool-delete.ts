import { createInterface } from 'node:readline/promises'
import { Command } from 'commander'
import type { FirepoolClient } from '../../client/index.js'
import { counted, FirepoolError, type PoolStatus } from '../../contract/index.js'
import { addServerOptions, type ServerOptions, withFirepool } from '../connection.js'
import { CliError } from '../failure.js'
import { printJson, printNote, printOut } from '../terminal.js'

const HELP = `
A pool with live leases or waiting requests is not deleted without --force: their jobs are killed and their callers
get a typed failure. On a terminal you are asked first, unless --yes.

Examples:
  firepool pool delete cpu
  firepool pool delete cpu --force --yes`

interface DeleteOptions extends ServerOptions {
  force?: boolean
  yes?: boolean
  json?: boolean
}

/** `firepool pool delete` */
export function poolDeleteCommand(): Command {
  const command = new Command('delete')
    .description('delete a pool and its pods')
    .argument('<name>', 'of the pool')
    .option('--force', 'even when callers hold its pods or wait for one')
    .option('-y, --yes', 'do not ask')
    .option('--json', 'print { v, deleted }')
    .addHelpText('after', HELP)
    .action(deletePool)
  return addServerOptions(command)
}

async function deletePool(name: string, options: DeleteOptions): Promise<void> {
  await withFirepool(options, async ({ firepool }) => {
    const status = await firepool.describePool(name)
    if (process.stdin.isTTY && process.stderr.isTTY && !options.yes) await ask(name, status)
    await deleteNow(firepool, name, options.force === true)
  })
  if (options.json) printJson({ v: 1, deleted: name })
  else printOut(`${name}: deleted`)
}

async function deleteNow(firepool: FirepoolClient, name: string, force: boolean): Promise<void> {
  let shown = ''
  const onProgress = (status: PoolStatus) => {
    const left = Object.values(status.pods).reduce((sum, count) => sum + count, 0)
    const line = `${name}: ${counted(left, 'pod')} left`
    if (line !== shown && left > 0) printNote(line)
    shown = line
  }
  try {
    await firepool.deletePool(name, { force, onProgress })
  } catch (error) {
    if (error instanceof FirepoolError && error.problem.details?.leases !== undefined)
      throw liveLeases(name, error)
    throw error
  }
}

function liveLeases(name: string, { problem }: FirepoolError): CliError {
  const { leases, waiting } = problem.details!
  return new CliError(
    'LiveLeases',
    `pool ${name} has ${counted(leases!, 'live lease')} and ${counted(waiting!, 'waiting request')}`,
    `wait, let it run dry with firepool pool drain ${name}, or delete it with --force (their jobs are then killed)`,
    problem.details,
  )
}

async function ask(name: string, { leases, queue }: PoolStatus): Promise<void> {
  const waiting = queue.capacity + queue.slotBusy
  const terminal = createInterface({ input: process.stdin, output: process.stderr })
  try {
    const answer = await terminal.question(
      `Delete pool ${name} (${counted(leases, 'live lease')}, ${counted(waiting, 'waiting request')})? Type yes: `,
    )
    if (/^y(es)?$/i.test(answer.trim())) return
  } finally {
    terminal.close()
  }
  throw new CliError('NotConfirmed', `pool ${name} was not deleted`, 'answer yes, or use --yes')
}
