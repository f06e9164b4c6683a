import { Command, Option } from 'commander'
import { formatMs, type PoolSpec } from '../../contract/index.js'
import { resultOf, type SimulationResult } from '../../simulator/result.js'
import { Simulation } from '../../simulator/simulation.js'
import { TraceError, type TraceProblem } from '../../simulator/trace-reader.js'
import { EXIT, EXIT_HELP } from '../exit-code.js'
import { CliError } from '../failure.js'
import { takeInterrupts } from '../interrupt.js'
import {
  latenciesOf,
  parseCount,
  parseMs,
  parsePercent,
  parseRange,
  poolsOf,
  SIMULATE_DEFAULTS,
  type SimulateFlags,
  workloadOf,
} from '../simulate-options.js'
import { renderSimulations } from '../simulation-view.js'
import { printJson, printNote, printOut } from '../terminal.js'

const HELP = `
The decisions are those of the production core, on simulated time; docs/simulate.md says what is modelled, what each
figure means, and the format of a trace. The same seed and inputs give the same figures.

Examples:
  firepool simulate                                           256 recorded-like agent sessions, keep-alive 60s
  firepool simulate --keep-alive 20s --standby 16 --seed 2
  firepool simulate pools.yaml --pool h200 --sessions 2000 --over 2h
  firepool simulate --compare before.yaml after.yaml          the same workload on two pools, side by side
  firepool simulate pools.yaml --trace requests.jsonl --json
  firepool simulate --trainers 8 --group 32 --job 1s..3s --budget 256`

/** Nothing is said of runs that are over before. */
const PROGRESS_MS = 3_000

/** `firepool simulate` */
export function simulateCommand(): Command {
  return new Command('simulate')
    .description('what a pool would do for a workload: the production decisions on simulated time')
    .argument('[file]', "YAML file with the pool; '-' for standard input (default: a pool of 512 seats)")
    .option('--pool <name>', 'which pool of the file')
    .option('--compare <files...>', 'pool files to simulate beside it, with the same workload')
    .option('--budget <n>', "in place of the pool's", parseCount)
    .option('--standby <n>', "in place of the pool's", parseCount)
    .option('--keep-alive <duration>', "in place of the pool's", parseMs)
    .option('--seed <n>', 'of everything that is drawn (default: 1)', parseCount)
    .option('--sessions <n>', 'agent callers (default: 256)', parseCount)
    .option('--over <duration>', 'they begin within about this time (default: 10m)', parseMs)
    .option('--bursts <n>', 'sessions of each caller (default: 1)', parseCount)
    .option('--break <duration>', 'between two sessions of a caller, on average (default: 5m)', parseMs)
    .option(
      '--duty <percent>',
      'stretch the pauses: job / (job + pause) (default: as recorded, 55)',
      parsePercent,
    )
    .option('--trainers <n>', 'RL loops in place of agents', parseCount)
    .option('--group <n>', 'rollouts of an RL step at once (default: 16)', parseCount)
    .option('--steps <n>', 'steps of an RL loop (default: 20)', parseCount)
    .option('--learner <range>', "the trainer's own work after each step (default: 10s)", parseRange)
    .option('--job <range>', 'how long a rollout runs (default: as recorded agents run jobs)', parseRange)
    .option('--trace <file>', 'jobs of a JSONL or CSV file in place of both')
    .option('--cold-start <range>', 'from the order of a pod to Ready (default: 20s..35s)', parseRange)
    .option('--promotion <range>', "a standby becomes a caller's (default: 500ms)", parseRange)
    .option(
      '--hand-back <range>',
      'until the GPU of a pod that ended is free (default: 200ms..1s)',
      parseRange,
    )
    .option('--dispatch <range>', 'a job comes to a pod that is held (default: 50ms)', parseRange)
    .option('--message <range>', 'one message to or from the pool (default: 10ms)', parseRange)
    .option('--acquire-timeout <duration>', 'how long a request waits (default: 5m)', parseMs)
    .addOption(
      new Option(
        '--check <steps>',
        'check the invariants after: all steps (slow), sampled ones (default), none',
      ).choices(['all', 'sampled', 'none']),
    )
    .option('--json', 'print the figures as one object (docs/simulate.md)')
    .addHelpText('after', HELP)
    .addHelpText('after', EXIT_HELP)
    .action(simulate)
}

async function simulate(file: string | undefined, said: Partial<SimulateFlags>): Promise<void> {
  const flags = { ...SIMULATE_DEFAULTS, ...said }
  const specs = poolsOf(file, flags)
  const interrupt = takeInterrupts(() => process.exit(EXIT.cancelled))
  const results: SimulationResult[] = []
  for (const spec of specs) {
    if (interrupt.signal.aborted) break
    results.push(await simulatePool(spec, flags, interrupt.signal))
  }
  interrupt.release()
  for (const problem of results[0]?.leftOut?.first ?? []) printNote(`${flags.trace}:${lineOf(problem)}`)
  if (flags.json) printJson(specs.length === 1 ? results[0] : { v: 1, runs: results })
  else printOut(renderSimulations(results))
  if (interrupt.signal.aborted) process.exitCode = EXIT.cancelled
  else if (results.some(({ invariantViolations }) => invariantViolations > 0))
    process.exitCode = EXIT.internal
}

async function simulatePool(
  spec: PoolSpec,
  flags: SimulateFlags,
  signal: AbortSignal,
): Promise<SimulationResult> {
  const { seed, acquireTimeout: acquireMs, check: inspection } = flags
  const simulation = new Simulation(
    { spec, seed, latencies: latenciesOf(flags), acquireMs, inspection },
    workloadOf(flags),
  )
  try {
    await simulation.run({ signal, onProgress: progress() })
  } catch (error) {
    if (!(error instanceof TraceError)) throw error
    throw new CliError('InvalidTrace', `${flags.trace}:${error.line}: ${error.why}`, error.remedy)
  }
  for (const { id, text } of simulation.world.inspector.first) printNote(`invariant ${id} is broken: ${text}`)
  return resultOf(simulation)
}

function lineOf({ line, why, remedy }: TraceProblem): string {
  return `${line}: left out: ${why}; ${remedy}`
}

/** How far a long run is, now and then. */
function progress(): (simulation: Simulation) => void {
  let saidAt = performance.now()
  return ({ world, workload, wallMs }) => {
    if (performance.now() - saidAt < PROGRESS_MS) return
    saidAt = performance.now()
    const part = workload.progress === null ? '' : `${Math.floor(100 * workload.progress)}%, `
    const { clock, measures } = world
    const rate = Math.round(clock.events / (wallMs / 1_000)).toLocaleString('en')
    printNote(
      `firepool: ${part}${measures.finished.toLocaleString('en')} jobs, ${formatMs(clock.elapsedMs)} simulated, ${rate} events/s`,
    )
  }
}
