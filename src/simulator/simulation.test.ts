import { describe, expect, it } from 'vitest'
import { createState } from '../broker/index.js'
import { AgentSessions, meanOf } from './agent-sessions.js'
import { Inspector } from './inspector.js'
import { DEFAULT_LATENCIES } from './latencies.js'
import { resultOf } from './result.js'
import { RlLoops } from './rl-loops.js'
import { aPool, FIXED, Script, simulate } from './script.fixture.js'
import { notSimulated, Simulation } from './simulation.js'

const MINUTE = 60_000

function agents(change: Partial<ConstructorParameters<typeof AgentSessions>[0]> = {}) {
  return new AgentSessions({
    ...{ seed: 1, callers: 40, overMs: 5 * MINUTE, bursts: 1, breakMs: 0, duty: null },
    ...change,
  })
}

function rl(change: Partial<ConstructorParameters<typeof RlLoops>[0]> = {}) {
  const learner = { minMs: 5_000, maxMs: 15_000 }
  return new RlLoops({
    ...{ seed: 1, trainers: 3, overMs: MINUTE, group: 8, steps: 6, learner, job: null },
    ...change,
  })
}

/** What a run gave, without its seed and how fast it was. */
async function figures(simulation: Simulation) {
  await simulation.run()
  const { wallSeconds: _, cpuSeconds: __, eventsPerSecond: ___, seed: ____, ...rest } = resultOf(simulation)
  return rest
}

describe('a tiny scenario, computed by hand', () => {
  it('a cold start, a warm job, a recall when the keep-alive is over', async () => {
    const script = new Script([
      { atMs: 0, caller: 'a', runMs: 2_000 },
      { atMs: 33_560, caller: 'a', runMs: 1_000 },
    ])
    const result = await figures(simulate(script, { spec: { keepAliveMs: 10_000 } }))
    // 10 request, 30,000 start of the pod, 500 promotion, 50 dispatch, 2,000 job; the second: 33,560 + 50 + 1,000.
    expect(script.ends).toEqual(['a ran at 32560', 'a ran at 34610'])
    expect(result.startMs).toEqual({ p50: 50, p90: 30_560, p99: 30_560, max: 30_560 })
    expect(result.shares).toEqual({ warm: 0.5, standby: 0, cold: 0.5, unserved: 0, hit: 0.5 })
    /*
     * Granted at 30,010; the answer of the delivery is there at 30,520. Asked at 40,520, the pod says at 40,530 that it has been idle for
     * 5,920; known at 40,540, so asked again after the other 4,080. Drained at 44,630, known at 44,640, handed back at 45,640.
     */
    expect(result.seatSeconds.held).toBe(15.63)
    expect(result.seatSeconds).toMatchObject({ used: 3, floor: 5, session: null, life: null, peak: null })
    expect(result.heldOver.floor).toBeCloseTo(15.63 / 5, 9)
    // The pod was ordered at 10.
    expect(result.podSeconds).toBe(45.63)
    expect(result).toMatchObject({ podsCreated: 1, podsPerJob: 0.5, simulatedSeconds: 45.64, complete: true })
  })

  it('a standby that was ready, and its successor', async () => {
    const script = new Script([{ atMs: 40_000, caller: 'a', runMs: 1_000, isLast: true }])
    const result = await figures(simulate(script, { spec: { standby: 1, keepAliveMs: 20_000 } }))
    // 10 request, 500 promotion, 50 dispatch.
    expect(result.startMs.max).toBe(560)
    expect(result.shares).toMatchObject({ standby: 1, hit: 1 })
    // Granted at 40,010, released at 41,570, kept for its caller until 61,570, handed back at 62,570.
    expect(result.seatSeconds.held).toBe(22.56)
    expect(result.podsCreated).toBe(2)
  })

  it('a call of firepool.runJob has its grant as an answer, and finds its pod warm the next time', async () => {
    const script = new Script(
      [
        { atMs: 40_000, caller: 'a', runMs: 1_000 },
        { atMs: 50_000, caller: 'a', runMs: 1_000 },
      ],
      'call',
    )
    const result = await figures(simulate(script, { spec: { standby: 1, keepAliveMs: 20_000 } }))
    // The second: 10 request, 10 answer, 50 dispatch.
    expect(script.ends).toEqual(['a ran at 41560', 'a ran at 51070'])
    expect(result.shares).toMatchObject({ warm: 0.5, standby: 0.5 })
    expect(result.startMs).toMatchObject({ p50: 70, max: 560 })
  })

  it('who waits longer than it wants to is not served, and that is a miss', async () => {
    const script = new Script([
      { atMs: 0, caller: 'a', runMs: MINUTE },
      { atMs: 0, caller: 'b', runMs: 1_000 },
    ])
    const result = await figures(simulate(script, { spec: { budget: 1 }, acquireMs: 40_000 }))
    // Its deadline is 40,000; the notice takes 10.
    expect(script.ends).toEqual(['b did not run at 40010', `a ran at ${30_560 + MINUTE}`])
    expect(result).toMatchObject({ unserved: 0.5, unservedBy: { QueueTimeout: 1 } })
    expect(result.shares).toMatchObject({ cold: 0.5, unserved: 0.5, hit: 0 })
  })
})

it.each(['loop', 'call'] as const)('a %s that is refused at the door hears of it once', async (manner) => {
  const script = new Script([{ atMs: 0, caller: 'a', runMs: 1_000 }], manner)
  const result = await figures(simulate(script, { spec: { queueLimit: 0 } }))
  expect(script.ends).toEqual(['a did not run at 20'])
  expect(result).toMatchObject({ jobs: { asked: 1, unserved: 1 }, unservedBy: { QueueFull: 1 } })
})

describe('a run', () => {
  const latencies = DEFAULT_LATENCIES
  const options = { seed: 1, latencies, acquireMs: 20_000, inspection: 'none' as const }

  it.each([
    ['agent sessions', (seed: number) => agents({ seed, bursts: 2, breakMs: 90_000 })],
    ['RL loops', (seed: number) => rl({ seed })],
  ])('of %s is the same for the same seed, and another for another seed', async (_, workload) => {
    const spec = aPool({ budget: 12, standby: 2, keepAliveMs: 15_000 })
    const of = (seed: number) => figures(new Simulation({ ...options, seed, spec }, workload(seed)))
    const first = await of(1)
    expect(await of(1)).toEqual(first)
    expect(await of(2)).not.toEqual(first)
  })

  it('asks the same of each pool: pauses, jobs and sessions do not depend on what the pool does', async () => {
    const of = async (budget: number) => {
      const spec = aPool({ budget, standby: 1, keepAliveMs: budget * 1_000 })
      return figures(new Simulation({ ...options, acquireMs: 3_600_000, spec }, agents()))
    }
    const [few, many] = [await of(8), await of(60)]
    expect(few.jobs).toEqual(many.jobs)
    expect(few.seatSeconds.used).toBe(many.seatSeconds.used)
    expect(few.seatSeconds.session).toBe(many.seatSeconds.session)
    expect(few.startMs.p99).toBeGreaterThan(many.startMs.p99!)
  })

  it('ends each job once, also where there are too few pods, and leaves nothing behind', async () => {
    const spec = aPool({ budget: 10, standby: 2, keepAliveMs: 15_000 })
    const simulation = new Simulation({ ...options, spec }, agents())
    const result = await figures(simulation)
    const { asked, finished, unserved, unfinished } = result.jobs
    expect(asked).toBeGreaterThan(500)
    expect(finished + unserved).toBe(asked)
    expect(unfinished).toBe(0)
    expect(unserved).toBeGreaterThan(0)
    const { world } = simulation
    expect(world.measures.starts.count).toBe(finished)
    expect(result.first.jobs + result.later.jobs).toBe(asked)
    expect(result.first.jobs).toBe(40)
    expect(world.holders.size).toBe(0)
    expect(world.pool.state.leases.size).toBe(0)
    expect([...world.pool.state.pods.values()].filter(({ heldSince }) => heldSince >= 0)).toEqual([])
  })

  it('keeps every invariant of the core in every step of 200 sessions', { timeout: 300_000 }, async () => {
    // A few callers at once: each check costs O(pods + leases).
    const spec = aPool({ budget: 16, standby: 2, keepAliveMs: 15_000 })
    const workload = agents({ callers: 200, overMs: 50 * MINUTE })
    const simulation = new Simulation({ ...options, spec, acquireMs: 60_000, inspection: 'all' }, workload)
    const result = await figures(simulation)
    expect(simulation.world.inspector.first).toEqual([])
    expect(result.invariantViolations).toBe(0)
    expect(result.invariantsChecked).toBe(result.steps)
    expect(result.sessions).toBe(200)
    expect(result.jobs.finished).toBeGreaterThan(4_000)
  })

  it('that is stopped says what was measured so far', async () => {
    const simulation = new Simulation({ ...options, spec: aPool({ budget: 60 }) }, agents({ callers: 2_000 }))
    const stop = new AbortController()
    await simulation.run({
      signal: stop.signal,
      onProgress: ({ world }) => world.measures.finished > 1_000 && stop.abort(),
    })
    const result = resultOf(simulation)
    expect(result.complete).toBe(false)
    expect(result.jobs.unfinished).toBeGreaterThan(0)
    expect(result.jobs.finished).toBeGreaterThan(0)
    expect(
      result.shares.warm! + result.shares.standby! + result.shares.cold! + result.shares.unserved!,
    ).toBeCloseTo(1, 9)
  })
})

describe('the measures of honest benchmarks', () => {
  it('a seat for each session is its pauses and jobs; breaks count while the caller lives', async () => {
    const workload = agents({ callers: 100, bursts: 3, breakMs: 300_000 })
    const options = { seed: 1, latencies: FIXED, acquireMs: MINUTE, inspection: 'none' as const }
    const result = await figures(
      new Simulation({ ...options, spec: aPool({ budget: 100, keepAliveMs: 20_000 }) }, workload),
    )
    const { session, life, peak, floor, used, held } = result.seatSeconds
    expect(result.sessions).toBe(300)
    // 300 sessions of 25.6 jobs, whose lengths differ by a factor of a hundred.
    const expected = 300 * meanOf('jobsPerSession') * (meanOf('jobSeconds') + meanOf('pauseSeconds'))
    expect(session! / expected).toBeGreaterThan(0.8)
    expect(session! / expected).toBeLessThan(1.2)
    expect(life! - session!).toBeGreaterThan(200 * 290)
    expect(life! - session!).toBeLessThan(200 * 310)
    expect(floor).toBeCloseTo(used + result.jobs.finished, 6)
    expect(held).toBeGreaterThan(floor)
    expect(peak!).toBeGreaterThan(session!)
    expect(result.peakSeats).toBeLessThanOrEqual(100)
  })

  it('a wished duty stretches the pauses', async () => {
    const options = { seed: 1, latencies: FIXED, acquireMs: MINUTE, inspection: 'none' as const }
    const of = async (duty: number) => {
      const spec = aPool({ budget: 100, keepAliveMs: 20_000 })
      const { seatSeconds } = await figures(
        new Simulation({ ...options, spec }, agents({ callers: 100, duty })),
      )
      return seatSeconds.used / seatSeconds.session!
    }
    for (const duty of [0.2, 0.9]) expect(Math.abs((await of(duty)) - duty)).toBeLessThan(0.05)
  })

  it('an RL loop has a seat for each of its slots', async () => {
    const job = { minMs: 2_000, maxMs: 2_000 }
    const learner = { minMs: 10_000, maxMs: 10_000 }
    const simulation = simulate(rl({ trainers: 1, overMs: 0, group: 4, steps: 3, job, learner }), {
      spec: { budget: 4, keepAliveMs: 20_000 },
    })
    const result = await figures(simulation)
    // Three steps of 2 s and two pauses of 10 s, four seats.
    expect(result.seatSeconds).toMatchObject({ session: 104, life: 104, used: 24 })
    expect(result.shares).toMatchObject({ warm: 8 / 12, cold: 4 / 12 })
    expect(result.peakSeats).toBe(4)
    // 30,560 the first start; 3 jobs; 2 learner's pauses and dispatches.
    expect(result.seatSeconds.peak).toBeCloseTo(4 * (30.56 + 3 * 2 + 2 * 10.05), 9)
  })
})

it('a broken invariant is counted and named', () => {
  const state = createState(aPool({ budget: 1, maxPods: 1 }), 'simulator', 1)
  const inspector = new Inspector('sampled')
  inspector.before(state)
  state.spec = { ...state.spec, maxPods: 0 }
  state.pods.set('p', { ...POD, pod: 'p' })
  inspector.after({ events: [], effects: [], now: 2, state })
  expect(inspector.first.map(({ id }) => id)).toContain('F1')
  expect(inspector.violations).toBeGreaterThan(0)
})

it('what is not simulated is refused with a remedy', () => {
  expect(notSimulated(aPool())).toBeNull()
  expect(notSimulated(aPool({ budget: 4, shards: 2 }))?.remedy).toContain('shards: 1')
  const gpu = { provider: 'dra', deviceClass: 'gpu.example', colocation: true, idle: 'park', agent: true }
  const profile = { backend: 'kubernetes', image: 'i', gpu } as never
  expect(notSimulated(aPool({ profile }))?.remedy).toContain("'hold'")
})

const POD = {
  kind: 'standby',
  generation: 1,
  createdAt: 1,
  since: 1,
  epoch: 0,
  address: 'http://p',
  incarnation: 'p',
  useSeq: 0,
  ackedAt: 1,
  owner: null,
  slot: null,
  set: null,
  tenant: '',
  leaseId: null,
  keepAliveAt: 0,
  reserved: false,
  heldSince: -1,
  startBy: 2,
  oldAt: 1_000_000,
} as const
