import { Command } from 'commander'
import type { FirepoolClient } from '../../client/index.js'
import { LIMIT, type Page, type PageRequest } from '../../contract/index.js'
import { addServerOptions, type ServerOptions, withFirepool } from '../connection.js'
import { renderPool } from '../pool-view.js'
import { printJson, printOut } from '../terminal.js'

/** Rows that a screen holds. */
const SHORT_ROWS = 15

const HELP = `
Examples:
  firepool pool describe cpu
  firepool pool describe cpu --all --json | jq .queue.rows`

/** `firepool pool describe` */
export function poolDescribeCommand(): Command {
  const command = new Command('describe')
    .description('budget, pods, leases and queue of a pool')
    .argument('<name>', 'of the pool')
    .option('--all', `all pods and all of the queue, not only the first ${SHORT_ROWS} of each`)
    .option('--json', 'print { v, spec, status, pods: { rows, total }, queue: { rows, total } }')
    .addHelpText('after', HELP)
    .action(describe)
  return addServerOptions(command)
}

async function describe(
  name: string,
  options: ServerOptions & { all?: boolean; json?: boolean },
): Promise<void> {
  const view = await withFirepool(options, ({ firepool }) => readPool(firepool, name, options.all === true))
  if (options.json) printJson({ v: 1, ...view })
  else printOut(renderPool(view, Date.now()))
}

async function readPool(firepool: FirepoolClient, name: string, all: boolean) {
  const status = await firepool.describePool(name)
  const [spec, pods, queue] = await Promise.all([
    firepool.poolSpec(name),
    readRows((page) => firepool.pods(name, page), all),
    readRows((page) => firepool.queue(name, page), all),
  ])
  return { spec, status, pods, queue }
}

/** The first rows, or page by page all of them. Rows may move between pages while the pool works. */
async function readRows<Row>(
  read: (page: PageRequest) => Promise<Page<Row>>,
  all: boolean,
): Promise<{ rows: Row[]; total: number }> {
  const rows: Row[] = []
  for (let offset: number | null = 0; offset !== null; ) {
    const page: Page<Row> = await read({ offset, limit: all ? LIMIT.pageRows : SHORT_ROWS })
    rows.push(...page.rows)
    if (!all) return { rows, total: page.total }
    offset = page.next
  }
  return { rows, total: rows.length }
}
