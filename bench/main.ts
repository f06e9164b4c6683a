/** `npm run bench -- NAME [--json] [--OPTION=N]`: benchmarks. JSON goes to standard output alone, all else to standard error. */
import { writeSync } from 'node:fs'
import { Interrupted } from '../dist/demo/interruption.js'
import { exitWithOutput } from '../dist/exit.js'
import * as handover from './handover.js'
import * as scale from './kubernetes-scale.js'
import * as lease from './lease.js'
import { type Bounds, optionsFrom } from './options.js'
import { DEFAULTS, warmPath } from './warm-path.js'
import { log, quiet } from './world.js'

interface Benchmark {
  measure(): Promise<unknown>
  /** its result for people; default: as Node shows objects */
  table?: (result: never) => string
}

const BENCHMARKS: Record<string, Benchmark> = {
  'warm-path': { measure: () => warmPath(optionsOf(DEFAULTS)) },
  handover: { measure: () => handover.handover(optionsOf(handover.DEFAULTS)) },
  lease: { measure: () => lease.lease(optionsOf(lease.DEFAULTS)) },
  'kubernetes-scale': {
    measure: () => scale.kubernetesScale(optionsOf(scale.DEFAULTS, scale.BOUNDS)),
    table: scale.table,
  },
}

function optionsOf<T extends object>(defaults: T, bounds: Bounds<T> = {}): T {
  const read = optionsFrom(
    process.argv.slice(3).filter((argument) => argument !== '--json'),
    defaults,
    bounds,
  )
  return 'problem' in read ? fail(read.problem) : read.options
}

function fail(message: string): never {
  writeSync(2, `error: ${message}\n`)
  process.exit(2)
}

const name = process.argv[2]
const benchmark = name === undefined ? undefined : BENCHMARKS[name]
if (!benchmark) fail(`which benchmark? npm run bench -- ${Object.keys(BENCHMARKS).join(' | ')} [--json]`)
quiet()
await exitWithOutput(await measured(benchmark))

/** @returns the exit code: 128 + n after a signal */
async function measured({ measure, table }: Benchmark): Promise<number> {
  try {
    const result = await measure()
    if (process.argv.includes('--json')) process.stdout.write(`${JSON.stringify(result, null, 2)}\n`)
    else if (table) process.stdout.write(table(result as never))
    else console.log(result)
    return 0
  } catch (error) {
    if (!(error instanceof Interrupted)) throw error
    log(`${error.message}: nothing was measured, everything is stopped`)
    return error.exitCode
  }
}
