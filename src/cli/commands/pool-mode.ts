import { Command } from 'commander'
import type { FirepoolClient } from '../../client/index.js'
import { counted, type PoolStatus } from '../../contract/index.js'
import { addServerOptions, type ServerOptions, withFirepool } from '../connection.js'
import { printJson, printOut } from '../terminal.js'

interface Mode {
  name: string
  description: string
  effect: string
  ask: (firepool: FirepoolClient, pool: string) => Promise<PoolStatus>
}

const MODES: readonly Mode[] = [
  {
    name: 'pause',
    description: 'grant nothing more; pods and leases stay, requests wait',
    effect: 'nothing new is granted until firepool pool resume',
    ask: (firepool, pool) => firepool.pausePool(pool),
  },
  {
    name: 'resume',
    description: 'grant again, after a pause or a drain',
    effect: 'requests are granted',
    ask: (firepool, pool) => firepool.resumePool(pool),
  },
  {
    name: 'drain',
    description: 'grant nothing more and let all pods go when their jobs are done',
    effect: 'pods end as their jobs do; nothing is granted until firepool pool resume',
    ask: (firepool, pool) => firepool.drainPool(pool),
  },
]

/** `firepool pool pause | resume | drain` */
export function poolModeCommands(): Command[] {
  return MODES.map(({ name, description, effect, ask }) => {
    const command = new Command(name)
      .description(description)
      .argument('<name>', 'of the pool')
      .option('--json', 'print { v, status }')
      .addHelpText('after', `\nExample:\n  firepool pool ${name} cpu`)
      .action(async (pool: string, options: ServerOptions & { json?: boolean }) => {
        const status = await withFirepool(options, ({ firepool }) => ask(firepool, pool))
        if (options.json) printJson({ v: 1, status })
        else printOut(`${pool}: ${status.mode}; ${effect} (${counted(status.leases, 'lease')} now)`)
      })
    return addServerOptions(command)
  })
}
