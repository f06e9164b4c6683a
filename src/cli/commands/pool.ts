import { Command } from 'commander'
import { EXIT_HELP } from '../exit-code.js'
import { poolApplyCommand } from './pool-apply.js'
import { poolDeleteCommand } from './pool-delete.js'
import { poolDescribeCommand } from './pool-describe.js'
import { poolListCommand } from './pool-list.js'
import { poolModeCommands } from './pool-mode.js'
import { poolResizeCommand } from './pool-resize.js'

/** `firepool pool ...` */
export function poolCommand(): Command {
  const pool = new Command('pool')
    .description('create, look at, change and delete pools')
    .addHelpText('after', EXIT_HELP)
  for (const command of [
    poolApplyCommand(),
    poolListCommand(),
    poolDescribeCommand(),
    poolResizeCommand(),
    ...poolModeCommands(),
    poolDeleteCommand(),
  ]) {
    pool.addCommand(command)
  }
  return pool
}
