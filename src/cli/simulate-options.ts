import { createReadStream, fstatSync, openSync } from 'node:fs'
import { InvalidArgumentError } from 'commander'
import { checkPoolSpec, durationMs, type PoolSpec, TIMEOUT } from '../contract/index.js'
import { AgentSessions } from '../simulator/agent-sessions.js'
import type { Inspection } from '../simulator/inspector.js'
import { DEFAULT_LATENCIES, type Latencies, type Range } from '../simulator/latencies.js'
import { RlLoops } from '../simulator/rl-loops.js'
import { notSimulated } from '../simulator/simulation.js'
import { TraceJobs } from '../simulator/trace-jobs.js'
import { TraceReader } from '../simulator/trace-reader.js'
import type { Workload } from '../simulator/workload.js'
import { CliError, splitMessage, usageError } from './failure.js'
import { readPoolFile } from './pool-file.js'

/** What `firepool simulate` was asked for, as commander gives it. */
export interface SimulateFlags extends Partial<Latencies> {
  json?: true
  seed: number
  pool?: string
  compare?: string[]
  budget?: number
  standby?: number
  keepAlive?: number
  sessions: number
  over: number
  bursts: number
  break: number
  duty?: number
  trainers?: number
  group: number
  steps: number
  learner: Range
  job?: Range
  trace?: string
  acquireTimeout: number
  check: Inspection
}

/** What holds for what was not said; the help of the command says the same. */
export const SIMULATE_DEFAULTS = {
  seed: 1,
  sessions: 256,
  over: 10 * 60_000,
  bursts: 1,
  break: 300_000,
  group: 16,
  steps: 20,
  learner: { minMs: 10_000, maxMs: 10_000 },
  acquireTimeout: TIMEOUT.acquireMs,
  check: 'sampled',
} as const satisfies Partial<SimulateFlags>

/** Without a pool file: more seats than the default workload has callers, so that the keep-alive alone decides. */
const DEFAULT_POOL = { v: 1, name: 'default', budget: 512, standby: 8 }
/** Callers are made when they begin, so this bounds a typing error rather than memory. */
const CALLERS_MAX = 100_000_000

/** `20s..35s`, or one duration for always the same. */
export function parseRange(text: string): Range {
  const bounds = text.split('..').map((part) => durationMs(part.trim()))
  const [minMs, maxMs = minMs] = bounds.length === 1 ? [bounds[0]] : bounds
  if (bounds.includes(undefined) || bounds.length > 2 || !(minMs! <= maxMs!))
    throw new InvalidArgumentError(`'${text}' is not a duration or a range of two; write 500ms or 20s..35s.`)
  return { minMs: minMs!, maxMs: maxMs! }
}

export function parseMs(text: string): number {
  const ms = durationMs(text)
  if (ms === undefined) throw new InvalidArgumentError(`'${text}' is not a duration; write 90s, 5m or 1.5h.`)
  return ms
}

export function parseCount(text: string): number {
  const value = Number(text)
  if (!/^\d+$/.test(text) || !Number.isSafeInteger(value))
    throw new InvalidArgumentError(`'${text}' is not a whole number.`)
  return value
}

/** A share of the time, in percent. */
export function parsePercent(text: string): number {
  const value = Number(text.replace(/%$/, ''))
  if (!(value > 0 && value < 100))
    throw new InvalidArgumentError(`'${text}' is no percentage between 0 and 100.`)
  return value / 100
}

/**
 * The pools to simulate: of the file and of those beside it, with what was said on the command line in place of what they say.
 * @throws CliError or PoolFileError
 */
export function poolsOf(file: string | undefined, flags: SimulateFlags): PoolSpec[] {
  const files = [...(file === undefined ? [] : [file]), ...(flags.compare ?? [])]
  if (files.length === 0) return [changed(DEFAULT_POOL, flags)]
  const specs = files.map((each) => changed(chosen(readPoolFile(each), each, flags.pool), flags))
  const isNamedTwice = new Set(specs.map(({ name }) => name)).size < specs.length
  return isNamedTwice ? specs.map((spec, n) => ({ ...spec, name: `${spec.name}-${n + 1}` })) : specs
}

function chosen(specs: readonly PoolSpec[], file: string, name: string | undefined): PoolSpec {
  if (name === undefined && specs.length === 1) return specs[0]!
  const found = specs.find((spec) => spec.name === name)
  if (found) return found
  const names = specs.map((spec) => spec.name).join(', ')
  throw usageError(
    name === undefined ? `${file} has ${specs.length} pools` : `${file} has no pool ${name}`,
    `name one of them with --pool: ${names}`,
  )
}

function changed(spec: object, { budget, standby, keepAlive }: SimulateFlags): PoolSpec {
  const said = {
    ...(budget === undefined ? {} : { budget, guarantee: undefined, maxPods: undefined }),
    ...(standby === undefined ? {} : { standby, maxPods: undefined }),
    ...(keepAlive === undefined ? {} : { keepAliveMs: keepAlive }),
  }
  const checked = checkPoolSpec({ ...spec, ...said })
  if (checked.problem) {
    const { why, remedy } = splitMessage(checked.problem.message)
    throw usageError(why, remedy ?? 'docs/cli.md has the bounds')
  }
  const refusal = notSimulated(checked.value)
  if (refusal)
    throw usageError(`pool ${checked.value.name} cannot be simulated: ${refusal.why}`, refusal.remedy)
  return checked.value
}

export function latenciesOf(flags: SimulateFlags): Latencies {
  const names = Object.keys(DEFAULT_LATENCIES) as (keyof Latencies)[]
  return Object.fromEntries(
    names.map((name) => [name, flags[name] ?? DEFAULT_LATENCIES[name]]),
  ) as unknown as Latencies
}

/**
 * The workload that was asked for, at its beginning: one for each pool.
 * @throws CliError when a number is out of bounds, or a trace cannot be read
 */
export function workloadOf(flags: SimulateFlags): Workload {
  const { seed, over, group, steps, learner, job, trainers, trace } = flags
  if (trace !== undefined && trainers !== undefined)
    throw usageError('--trace and --trainers are two workloads', 'leave one of them out')
  if (trace !== undefined) return openTrace(trace)
  if (trainers === undefined) {
    const { sessions, bursts, duty } = flags
    atLeastOne({ sessions, bursts })
    return new AgentSessions({
      seed,
      callers: sessions,
      overMs: over,
      bursts,
      breakMs: flags.break,
      duty: duty ?? null,
    })
  }
  atLeastOne({ trainers, group, steps })
  return new RlLoops({ seed, trainers, overMs: over, group, steps, learner, job: job ?? null })
}

function atLeastOne(counts: Record<string, number>): void {
  for (const [name, value] of Object.entries(counts))
    if (value < 1 || value > CALLERS_MAX)
      throw usageError(`--${name} is ${value}`, `write a number from 1 to ${CALLERS_MAX}`)
}

function openTrace(file: string): TraceJobs {
  try {
    const descriptor = openSync(file, 'r')
    const stats = fstatSync(descriptor)
    if (stats.isDirectory()) throw new Error('it is a folder')
    const stream = createReadStream(file, { fd: descriptor })
    const bytes = stats.isFile() ? stats.size : null
    return new TraceJobs({ name: file, bytes, reader: new TraceReader(stream) })
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException
    const why = code === 'ENOENT' ? 'there is no such file' : message
    throw new CliError(
      'InvalidTrace',
      `the trace ${file} cannot be read: ${why}`,
      'give the path of a JSONL or CSV file; docs/simulate.md has the format',
    )
  }
}
