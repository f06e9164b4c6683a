import { Command } from 'commander'
import { addServerOptions, type ServerOptions, withFirepool } from '../connection.js'
import { errorJson, reportOf } from '../failure.js'
import { renderPoolList } from '../pool-view.js'
import { printFailure, printJson, printNote, printOut } from '../terminal.js'

/** `firepool pool list` */
export function poolListCommand(): Command {
  const command = new Command('list')
    .alias('ls')
    .description('all pools of the namespace')
    .option('--json', 'print { v, pools: [{ name, status, error? }] }')
    .addHelpText(
      'after',
      '\nExamples:\n  firepool pool list\n  firepool pool list --json | jq -r ".pools[].name"',
    )
    .action(list)
  return addServerOptions(command)
}

async function list(options: ServerOptions & { json?: boolean }): Promise<void> {
  const entries = await withFirepool(options, ({ firepool }) => firepool.listPools())
  const silent = entries.find((entry) => entry.error)
  if (options.json) {
    const pools = entries.map(({ pool, status, error }) => ({
      name: pool,
      status,
      ...(error ? { error: errorJson(reportOf(error)) } : {}),
    }))
    printJson({ v: 1, pools })
  } else if (entries.length === 0)
    printNote('there is no pool yet; create one with firepool pool apply -f pools.yaml')
  else printOut(renderPoolList(entries))
  if (!silent) return
  const report = reportOf(silent.error)
  printFailure(report, false)
  process.exitCode = report.exitCode
}
