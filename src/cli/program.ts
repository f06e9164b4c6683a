import { Command, CommanderError } from 'commander'
import { outputWritten } from '../exit.js'
import { EXIT, EXIT_HELP } from './exit-code.js'
import { cliReport, reportOf } from './failure.js'
import { outputLost, printFailure, printNote, watchOutput, writeOut } from './terminal.js'

const EXAMPLES = `
Examples:
  firepool dev                                     a server, its UI, a worker and a pool 'cpu'
  firepool run --pool cpu -- echo hello            one job on a warm pod (in another terminal)
  firepool pool apply -f pools.yaml                create pools, or change them
  firepool pool list

Environment: TEMPORAL_ADDRESS, TEMPORAL_NAMESPACE, TEMPORAL_PROFILE, TEMPORAL_API_KEY, TEMPORAL_TLS* (server),
FIREPOOL_DIR (state folder), FIREPOOL_DATA_CONVERTER (encryption), NO_COLOR, FIREPOOL_DEBUG=1 (stack traces).`

export interface CommandEntry {
  name: string
  /** for the list of commands */
  summary: string
  load: () => Promise<Command>
}

export interface Program {
  /** @returns the exit code */
  run(): Promise<number>
}

/** The whole command line; of the commands only the one that `argv` asks for is loaded. */
export async function createProgram(
  version: string,
  commands: readonly CommandEntry[],
  argv: readonly string[],
): Promise<Program> {
  const root = new Command('firepool')
    .description('Broker of warm GPU pods: short isolated jobs on warm pods, on Temporal.')
    .version(version, '-V, --version', 'print the version')
    .helpOption('-h, --help', 'print this help, or that of a command')
    .helpCommand('help [command]', 'print the help of a command')
    .enablePositionalOptions()
    .showSuggestionAfterError()
    .exitOverride()
    .configureOutput({ writeOut, outputError: () => {} })
    .addHelpText('after', EXAMPLES)
    .addHelpText('after', EXIT_HELP)
  const wanted = argv[0] === 'help' ? argv[1] : argv[0]
  for (const { name, summary, load } of commands) {
    const command = name === wanted ? await load() : new Command(name)
    root.addCommand(command.summary(summary))
    inherit(command, root)
  }
  let active: Command | undefined
  root.hook('preAction', (_, command) => {
    active = command
  })
  return {
    async run() {
      watchOutput()
      return complete(await parse())
    },
  }
  async function parse(): Promise<number> {
    try {
      await root.parseAsync([...argv], { from: 'user' })
      return Number(process.exitCode ?? EXIT.ok)
    } catch (error) {
      return failed(error, active ? active.opts().json === true : wantsJson(argv))
    }
  }
}

/** Waits until the output is out. A command that did all that was asked fails when its result is lost. */
async function complete(exitCode: number): Promise<number> {
  await outputWritten()
  const error = outputLost()
  if (error === null) return exitCode
  const why = `standard output could not be written (${error.message}); what was asked is done`
  const report = cliReport(
    'OutputLost',
    why,
    'make room, or write it elsewhere, and look before you repeat it',
  )
  printFailure(report, false)
  return exitCode === EXIT.ok ? report.exitCode : exitCode
}

/** Commander copies settings only to commands that it makes itself. */
function inherit(command: Command, from: Command): void {
  command.copyInheritedSettings(from)
  command.enablePositionalOptions()
  for (const child of command.commands) inherit(child, command)
}

function wantsJson(argv: readonly string[]): boolean {
  const end = argv.indexOf('--')
  return argv.slice(0, end < 0 ? argv.length : end).includes('--json')
}

function failed(error: unknown, json: boolean): number {
  if (error instanceof CommanderError) {
    // Help and version are no failures; help that was shown in place of a missing command is.
    if (error.exitCode === 0) return EXIT.ok
    if (error.code === 'commander.help') return EXIT.usage
  }
  const report = reportOf(error)
  printFailure(report, json)
  if (process.env.FIREPOOL_DEBUG && error instanceof Error) printNote(error.stack ?? String(error))
  return report.exitCode
}
