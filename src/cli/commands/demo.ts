import { Command, InvalidArgumentError, Option } from 'commander'
import { DEFAULT_SPEED, MAX_SPEED, QUICK_SPEED } from '../../demo/plan.js'
import { runDemo } from '../../demo/run.js'
import { CliError, splitMessage } from '../failure.js'
import { onOutputClosed, writeOut } from '../terminal.js'

interface Flags {
  json?: true
  keep?: true
  all?: true
  quick?: true
  seed: number
  speed?: number
}

/** `firepool demo`: a real RL loop and a real agent loop on warm pods, against a fresh pod for every job. */
export function demoCommand(): Command {
  return new Command('demo')
    .description('run an RL loop and an agent loop on warm pods, and the same with a fresh pod for every job')
    .option('--json', 'print one JSON object on standard output')
    .option('--keep', 'leave everything running, with the Temporal UI, until Ctrl-C')
    .addOption(
      new Option('--all', 'all 164 HumanEval problems in the RL loop (about 10 minutes)').conflicts('quick'),
    )
    .option('--quick', 'a small run of both loops (under a minute)')
    .option('--seed <n>', 'seed of the jobs and pauses', wholeNumber, 1)
    .option(
      '--speed <factor>',
      `divide pauses and cold starts by this, 1 to ${MAX_SPEED} (default: ${DEFAULT_SPEED}, with --quick ${QUICK_SPEED})`,
      speedFactor,
    )
    .action(async (flags: Flags) => {
      const { json, keep, all, quick, seed, speed } = flags
      const options = {
        json: json === true,
        keep: keep === true,
        all: all === true,
        quick: quick === true,
        seed,
        ...(speed === undefined ? {} : { speed }),
      }
      const { stderr, env } = process
      const streams = { stdout: { write: writeOut }, stderr, env, onClosed: onOutputClosed }
      process.exitCode = await runDemo(options, streams).catch(demoFailed)
    })
}

/** @throws CliError with the cause and the remedy of an error that ended the demo */
function demoFailed(error: Error): never {
  const { why, remedy } = splitMessage(error.message)
  throw new CliError('DemoFailed', why, remedy ?? 'run it again; FIREPOOL_DEBUG=1 shows where it failed')
}

function wholeNumber(text: string): number {
  const value = Number(text)
  if (!/^\d+$/.test(text) || !Number.isSafeInteger(value)) {
    throw new InvalidArgumentError('a seed is a whole number, 0 or more.')
  }
  return value
}

function speedFactor(text: string): number {
  const value = Number(text)
  if (text.trim() === '' || !(value >= 1 && value <= MAX_SPEED)) {
    throw new InvalidArgumentError(`a factor is a number from 1 to ${MAX_SPEED}.`)
  }
  return value
}
