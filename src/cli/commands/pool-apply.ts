import { Command } from 'commander'
import type { FirepoolClient } from '../../client/index.js'
import type { PoolSpec, PoolStatus } from '../../contract/index.js'
import { addServerOptions, type ServerOptions, withFirepool } from '../connection.js'
import { errorJson, reportOf } from '../failure.js'
import { readPoolFile } from '../pool-file.js'
import { startDelayLine } from '../pool-view.js'
import { printFailure, printJson, printOut } from '../terminal.js'

const HELP = `
The file:
  pools:
    - name: cpu              # a-z, 0-9 and '-'
      budget: 4              # GPUs (seats) that pods with a caller may hold
      standby: 1             # started pods to keep ready
      keepAlive: 60s         # how long an idle pod stays with its caller
      profile:
        limits: { memory: 512MiB }
docs/cli.md has every key with its default and bounds.

Examples:
  firepool pool apply -f pools.yaml
  generate-pools | firepool pool apply -f -`

/** `firepool pool apply` */
export function poolApplyCommand(): Command {
  const command = new Command('apply')
    .description('create the pools of a file, or change those that are there')
    .requiredOption('-f, --file <file>', "YAML file with pools; '-' for standard input")
    .option('--json', 'print { v, pools: [{ name, outcome, spec, error? }] }')
    .addHelpText('after', HELP)
    .action(apply)
  return addServerOptions(command)
}

async function apply(options: ServerOptions & { file: string; json?: boolean }): Promise<void> {
  const specs = readPoolFile(options.file)
  const outcomes = await withFirepool(options, ({ firepool }) => applyPools(firepool, specs))
  const failures = outcomes.filter((outcome) => outcome.error !== undefined)
  if (options.json) printJson({ v: 1, pools: outcomes.map(outcomeJson) })
  else for (const outcome of outcomes) if (!outcome.error) printOut(outcomeLine(outcome))
  for (const { error } of failures) printFailure(reportOf(error), false)
  if (failures.length > 0) process.exitCode = reportOf(failures[0]!.error).exitCode
}

export interface PoolOutcome {
  spec: PoolSpec
  outcome: 'created' | 'changed' | 'unchanged' | 'failed'
  status?: PoolStatus
  error?: unknown
}

/** Applies one pool after the other; one that fails does not keep the others from it. */
export async function applyPools(
  firepool: FirepoolClient,
  specs: readonly PoolSpec[],
): Promise<PoolOutcome[]> {
  const outcomes: PoolOutcome[] = []
  for (const spec of specs) {
    try {
      outcomes.push(await firepool.applyPool(spec))
    } catch (error) {
      outcomes.push({ spec, outcome: 'failed', error })
    }
  }
  return outcomes
}

/** e.g. 'cpu: created, budget 4, standby 1' */
export function outcomeLine({ spec, outcome, status }: PoolOutcome): string {
  const { name, budget, standby, shards, profile } = spec
  const parts = [`${name}: ${outcome}`, `budget ${budget}`, `standby ${standby}`]
  if (shards > 1) parts.push(`${shards} shards`)
  if (profile.startDelay) parts.push(startDelayLine(profile.startDelay))
  const resized = status?.budget.operator
  if (typeof resized === 'number')
    parts.push(`an operator's resize to ${resized} stays in force until firepool pool resize ${name} --reset`)
  return parts.join(', ')
}

/** For `--json`. */
export function outcomeJson({ spec, outcome, error }: PoolOutcome) {
  return {
    name: spec.name,
    outcome,
    spec,
    ...(error === undefined ? {} : { error: errorJson(reportOf(error)) }),
  }
}
