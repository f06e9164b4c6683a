import { mkdtempSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { describe, expect, test } from 'vitest'
import { resultOf } from '../simulator/result.js'
import { Simulation } from '../simulator/simulation.js'
import { simulateCommand } from './commands/simulate.js'
import {
  latenciesOf,
  parseRange,
  poolsOf,
  SIMULATE_DEFAULTS,
  type SimulateFlags,
  workloadOf,
} from './simulate-options.js'
import { renderSimulations } from './simulation-view.js'

const folder = mkdtempSync(join(tmpdir(), 'firepool-simulate-'))

function file(name: string, text: string): string {
  const path = join(folder, name)
  writeFileSync(path, text)
  return path
}

function flags(said: Partial<SimulateFlags> = {}): SimulateFlags {
  return { ...SIMULATE_DEFAULTS, ...said }
}

async function small(said: Partial<SimulateFlags> = {}) {
  const all = flags({ sessions: 10, over: 60_000, ...said })
  const [spec] = poolsOf(undefined, all)
  const { seed, acquireTimeout: acquireMs, check: inspection } = all
  const simulation = new Simulation(
    { spec: spec!, seed, latencies: latenciesOf(all), acquireMs, inspection },
    workloadOf(all),
  )
  await simulation.run()
  return resultOf(simulation)
}

describe('the pools that are simulated', () => {
  const one = file('one.yaml', 'pools: [{ name: one, budget: 4, keepAlive: 30s }]')
  const two = file('two.yaml', 'pools: [{ name: one, budget: 8 }, { name: two, budget: 2, standby: 1 }]')

  test('are one of the file, and one of each beside it', () => {
    const [first, second] = poolsOf(one, flags({ compare: [two], pool: 'one' }))
    expect(first).toMatchObject({ name: 'one-1', budget: 4, keepAliveMs: 30_000 })
    expect(second).toMatchObject({ name: 'one-2', budget: 8, keepAliveMs: 60_000 })
    expect(poolsOf(two, flags({ pool: 'two' }))).toMatchObject([{ name: 'two', budget: 2 }])
  })

  test('take what was said in place of what the file says', () => {
    const [spec] = poolsOf(one, flags({ budget: 20, standby: 3, keepAlive: 5_000 }))
    expect(spec).toMatchObject({ budget: 20, guarantee: 20, standby: 3, maxPods: 26, keepAliveMs: 5_000 })
  })

  test.each([
    [two, {}, /two.yaml has 2 pools; name one of them with --pool: one, two/],
    [one, { pool: 'other' }, /has no pool other/],
    [one, { budget: 5_000 }, /budget/],
    [file('shards.yaml', 'pools: [{ name: s, budget: 4, shards: 2 }]'), {}, /2 shards.*shards: 1/],
    [join(folder, 'none.yaml'), {}, /there is no such file/],
  ])('of %s with %j are refused', (path, said, message) => {
    expect(() => poolsOf(path, flags(said))).toThrow(message)
  })
})

test('a range is two durations, or one', () => {
  expect(parseRange('20s..35s')).toEqual({ minMs: 20_000, maxMs: 35_000 })
  expect(parseRange('500ms')).toEqual({ minMs: 500, maxMs: 500 })
  for (const text of ['', '5', '35s..20s', '1s..', '..1s', '1s..2s..3s', 'often'])
    expect(() => parseRange(text), text).toThrow(/write 500ms or 20s..35s/)
})

test.each([
  [{ sessions: 0 }, /--sessions is 0; write a number from 1/],
  [{ trainers: 1, group: 0 }, /--group is 0/],
  [{ trainers: 1, trace: 'x' }, /--trace and --trainers are two workloads/],
  [{ trace: join(folder, 'none.csv') }, /there is no such file; give the path of a JSONL or CSV file/],
  [{ trace: folder }, /it is a folder/],
])('a workload of %j is refused', (said, message) => {
  expect(() => workloadOf(flags(said))).toThrow(message)
})

test('the help has every option with its default, and examples', () => {
  const help = simulateCommand().helpInformation()
  for (const option of ['--trace', '--compare', '--seed', '--cold-start', '--json'])
    expect(help).toContain(option)
  const said = simulateCommand()
  said
    .action(() => undefined)
    .parse(['--keep-alive', '20s', '--job', '1s..2s', '--duty', '20%'], { from: 'user' })
  expect(said.opts()).toEqual({ keepAlive: 20_000, job: { minMs: 1_000, maxMs: 2_000 }, duty: 0.2 })
})

describe('what is printed', () => {
  test('--json has every figure of the contract, and the inputs that they depend on', async () => {
    const result = JSON.parse(JSON.stringify(await small({ duty: 0.2, bursts: 2, break: 60_000 })))
    const number = expect.any(Number)
    const shares = { warm: number, standby: number, cold: number, unserved: number }
    expect(result).toEqual({
      v: 1,
      complete: true,
      seed: 1,
      pool: expect.objectContaining({ name: 'default', budget: 512 }),
      workload: expect.objectContaining({ workload: 'agent sessions', callers: 10, dutyPercent: 20 }),
      latencies: latenciesOf(flags()),
      acquireTimeoutMs: 300_000,
      simulatedSeconds: number,
      wallSeconds: number,
      cpuSeconds: number,
      events: number,
      steps: number,
      eventsPerSecond: number,
      jobs: { asked: number, finished: number, unserved: 0, unfinished: 0 },
      shares: { ...shares, hit: number },
      first: { jobs: 20, ...shares },
      later: { jobs: number, ...shares },
      startMs: { p50: number, p90: number, p99: number, max: number },
      seatSeconds: { held: number, used: number, floor: number, session: number, life: number, peak: number },
      heldOver: { session: number, life: number, peak: number, floor: number },
      podSeconds: number,
      sessions: 20,
      peakSeats: number,
      podsCreated: number,
      podsPerJob: number,
      unserved: 0,
      unservedBy: {},
      invariantViolations: 0,
      invariantsChecked: number,
    })
  })

  test('the table has a column for each pool, every measure by name, and all inputs', async () => {
    const [a, b] = [await small(), await small({ keepAlive: 0, standby: 0 })]
    const table = renderSimulations([a, { ...b, complete: false, pool: { ...b.pool, name: 'other' } }])
    expect(table).toMatch(/^seed +1\n/)
    expect(table).toMatch(/latencies +coldStart 20\.0s\.\.35\.0s, promotion 500ms/)
    expect(table).toMatch(/pool other +budget 512, standby 0, .* keepAlive 0ms/)
    expect(table).toMatch(/MEASURE +DEFAULT +OTHER/)
    for (const name of ['A_session', 'A_life', 'A_peak', '(B)', 'pods created per job', 'first of a session'])
      expect(table).toContain(name)
    expect(table).toMatch(
      /warm \/ standby \/ cold \/ unserved( +[\d.<]+% \/ [\d.<]+% \/ [\d.<]+% \/ 0\.0%){2}/,
    )
    expect(table).toContain('STOPPED before its end')
  })
})
