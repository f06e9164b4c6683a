/** `npm run bench -- NAME [--json]`: benchmarks. JSON goes to standard output alone, all else to standard error. */
import { writeSync } from 'node:fs'
import { Interrupted } from '../dist/demo/interruption.js'
import { exitWithOutput } from '../dist/exit.js'
import * as handover from './handover.js'
import * as lease from './lease.js'
import { DEFAULTS, warmPath } from './warm-path.js'
import { log, quiet } from './world.js'

const BENCHMARKS: Record<string, () => Promise<unknown>> = {
  'warm-path': () => warmPath(optionsOf(DEFAULTS)),
  handover: () => handover.handover(optionsOf(handover.DEFAULTS)),
  lease: () => lease.lease(optionsOf(lease.DEFAULTS)),
}

/** `--serial=50` and so on: any number of a benchmark's defaults. */
function optionsOf<T extends object>(defaults: T): T {
  const options = { ...defaults } as Record<string, number>
  for (const argument of process.argv.slice(3)) {
    const match = /^--([A-Za-z]+)=(\d+)$/.exec(argument)
    if (match && match[1]! in options) options[match[1]!] = Number(match[2])
    else if (argument !== '--json')
      fail(
        `unknown option ${argument}; known: --json, ${Object.keys(options)
          .map((k) => `--${k}=N`)
          .join(', ')}`,
      )
  }
  return options as T
}

function fail(message: string): never {
  writeSync(2, `error: ${message}\n`)
  process.exit(2)
}

const name = process.argv[2]
const benchmark = name === undefined ? undefined : BENCHMARKS[name]
if (!benchmark) fail(`which benchmark? npm run bench -- ${Object.keys(BENCHMARKS).join(' | ')} [--json]`)
quiet()
await exitWithOutput(await measure(benchmark))

/** @returns the exit code: 128 + n after a signal */
async function measure(benchmark: () => Promise<unknown>): Promise<number> {
  try {
    const result = await benchmark()
    if (process.argv.includes('--json')) process.stdout.write(`${JSON.stringify(result, null, 2)}\n`)
    else console.log(result)
    return 0
  } catch (error) {
    if (!(error instanceof Interrupted)) throw error
    log(`${error.message}: nothing was measured, everything is stopped`)
    return error.exitCode
  }
}
