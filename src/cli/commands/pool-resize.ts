import { Command } from 'commander'
import type { Resize } from '../../contract/index.js'
import { parseNumber } from '../arguments.js'
import { addServerOptions, type ServerOptions, withFirepool } from '../connection.js'
import { usageError } from '../failure.js'
import { budgetLine } from '../pool-view.js'
import { printJson, printNote, printOut } from '../terminal.js'

const HELP = `
A resize goes before the pool file and the fleet's budget until it is taken back with --reset.

Examples:
  firepool pool resize cpu --budget 8
  firepool pool resize cpu --standby 0
  firepool pool resize cpu --reset                 back to what the pool file says`

interface ResizeOptions extends ServerOptions {
  budget?: number
  standby?: number
  reset?: boolean
  json?: boolean
}

/** `firepool pool resize` */
export function poolResizeCommand(): Command {
  const command = new Command('resize')
    .description("change a pool's budget or standbys by hand, or take that back")
    .argument('<name>', 'of the pool')
    .option('--budget <n>', 'GPUs (seats) that pods with a caller may hold', parseNumber)
    .option('--standby <n>', 'started pods to keep ready', parseNumber)
    .option('--reset', 'take earlier resizes back (of what is not given here)')
    .option('--json', 'print { v, status }')
    .addHelpText('after', HELP)
    .action(resize)
  return addServerOptions(command)
}

async function resize(name: string, options: ResizeOptions): Promise<void> {
  const asked: Omit<Resize, 'v'> = options.reset ? { budget: null, standby: null } : {}
  if (options.budget !== undefined) asked.budget = options.budget
  if (options.standby !== undefined) asked.standby = options.standby
  if (Object.keys(asked).length === 0)
    throw usageError('nothing to resize is given', 'add --budget N, --standby N or --reset')
  const { status, spec } = await withFirepool(options, async ({ firepool }) => {
    const status = await firepool.resizePool(name, asked)
    return { status, spec: await firepool.poolSpec(name).catch(() => null) }
  })
  if (spec !== null && status.budget.inForce > spec.maxPods) {
    printNote(
      `note: maxPods of ${name} is ${spec.maxPods}: no more pods than that are started; raise it in the pool file and apply it`,
    )
  }
  if (options.json) printJson({ v: 1, status })
  else printOut(`${name}: budget ${budgetLine(status)}; standby target ${status.standby.target}`)
}
