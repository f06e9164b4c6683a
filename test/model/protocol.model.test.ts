import { expect, it } from 'vitest'
import { aSpec } from '../support/broker-world.js'
import { Callers, type JobRecord, type Plan, Run } from '../support/protocol-caller.js'
import { Network } from '../support/protocol-network.js'
import type { JobStart } from '../support/protocol-pod.js'
import { ModelPool } from '../support/protocol-pool.js'
import { Random } from '../support/random.js'
import { Simulation } from '../support/simulation.js'

/**
 * The whole protocol in one process: caller library, lease workflow, the real `step`, the real fence, activities and
 * a network that delays, reorders, repeats and drops. Each history is one seed.
 */

const TIMES = Number(process.env.FIREPOOL_PROPERTY_RUNS ?? '1')
/** As in broker.property.test.ts: the same in every check, other ones in each soak. */
const FRESH = TIMES > 1 ? Date.now() % 1_000_000_000 : 20_261_130
const SEED = Number(process.env.FIREPOOL_MODEL_SEED ?? FRESH)
const HISTORIES = process.env.FIREPOOL_MODEL_SEED ? 1 : Math.ceil(3_000 * TIMES)
const MINUTE = 60_000

interface Totals {
  runs: number
  jobs: number
  outcomes: Record<string, number>
  killed: { superseded: number; expired: number }
  events: number
  steps: number
}

class History {
  readonly sim: Simulation
  readonly network: Network
  readonly pool: ModelPool
  readonly callers: Callers
  /** pod -> caller of its jobs */
  private readonly servedOn = new Map<string, string>()
  /** pod and job -> the epoch under which it started */
  private readonly startedUnder = new Map<string, number>()
  /** jobs of living callers that were killed because their lease ended under them */
  readonly killed = { superseded: 0, expired: 0 }
  private readonly callerOf = new Map<string, string>()

  constructor(seed: number) {
    this.sim = new Simulation(seed)
    const { random } = this.sim
    this.network = new Network(this.sim, random.pick([0, 0.3, 1, 1]))
    const spec = aSpec({
      budget: random.int(1, 4),
      standby: random.int(0, 2),
      maxPods: random.int(4, 8),
      keepAliveMs: random.pick([500, 5_000, 60_000]),
      podLifetimeMs: random.pick([90_000, 43_200_000]),
    })
    this.pool = new ModelPool(this.sim, this.network, spec, random.pick([50, 2_000, 20_000]))
    this.callers = new Callers(this.sim, this.network, this.pool)
    this.callers.workerDeaths = random.pick([0, 0.1, 0.4])
    this.pool.onStart = (start) => this.jobStarted(start)
    const callers = random.int(1, 4)
    for (let i = 0; i < callers; i++) this.caller(i)
    for (let i = random.int(0, 3); i > 0; i--) this.sim.at(random.int(0, 60_000), () => this.harmPod())
    for (let i = random.int(0, 3); i > 0; i--) this.sim.at(random.int(0, 60_000), () => this.pool.restart())
    const templates = new Random(seed)
    for (let i = templates.int(0, 2); i > 0; i--)
      this.sim.at(templates.int(0, 60_000), () => this.changeTemplate(templates))
  }

  /** A workflow of some caller, and what will happen to its runs. */
  private caller(i: number): void {
    const { random } = this.sim
    const plan: Plan = {
      caller: `caller${random.int(0, 1)}`,
      slot: String(random.int(0, 1)),
      workflowId: `wf${i}`,
      jobs: Array.from({ length: random.int(1, 4) }, () => ({
        pauseMs: random.pick([0, 10, 1_000, 7_000]),
        forMs: random.pick([1, 100, 3_000, 30_000]),
        cancelAfterMs: random.chance(0.1) ? random.int(0, 4_000) : null,
      })),
      replyTo: random.chance(0.4) ? 'token' : 'signal',
      acquireMs: random.pick([3_000, 60_000, 300_000]),
      priority: random.int(0, 2),
    }
    this.sim.at(random.int(0, 5_000), () => this.start(plan, 1, this.sim.random.uuid(), 0))
  }

  private start(plan: Plan, n: number, sandbox: string, first: number): void {
    const { random } = this.sim
    const runId = `${plan.workflowId}-${n}`
    this.callerOf.set(sandbox, plan.caller)
    const run = new Run(this.callers, plan, runId, sandbox, first)
    if (n >= 4 || random.chance(0.5)) return
    const fate = random.pick(['terminate', 'timeOut', 'reset', 'continueAsNew', 'retry'] as const)
    this.sim.at(random.pick([random.int(0, 200), random.int(0, 40_000)]), () => {
      if (run.closed) return
      run.close(fate === 'reset' ? 'reset' : 'closed')
      if (fate === 'terminate' || fate === 'timeOut') return
      const same = fate === 'reset'
      const back = same ? random.int(0, run.current) : 0
      this.sim.at(random.int(0, 50), () =>
        this.start(plan, n + 1, same ? sandbox : this.sim.random.uuid(), back),
      )
    })
  }

  private harmPod(): void {
    const pods = [...this.pool.pods.keys()]
    if (pods.length === 0) return
    this.pool.harm(this.sim.random.pick(pods), this.sim.random.pick(['failed', 'gone', 'restart']))
  }

  /** Goes to another template, back to one before, or to one whose pods do not start. */
  private changeTemplate(random: Random): void {
    const { spec } = this.pool.state
    const env: Record<string, string> = random.pick([{}, { A: '1' }, { BROKEN: 'PrepareFailed' }])
    this.pool.send({ kind: 'apply', spec: { ...spec, profile: { ...spec.profile, env } } })
  }

  private jobStarted({ pod, jobId, epoch }: JobStart): void {
    const caller = this.callerOf.get(jobId.split('/')[0]!)!
    const other = this.servedOn.get(pod)
    if (other !== undefined && other !== caller)
      throw new Error(`pod ${pod} ran jobs of ${other} and of ${caller}`)
    this.servedOn.set(pod, caller)
    if (this.startedUnder.has(`${pod} ${jobId}`)) throw new Error(`job ${jobId} started twice on pod ${pod}`)
    this.startedUnder.set(`${pod} ${jobId}`, epoch)
  }

  /** Faults stop, everybody comes to an end, time passes. */
  play(): void {
    this.sim.run(2 * MINUTE)
    this.network.badness = 0
    this.callers.workerDeaths = 0
    // Pods that never stop being replaced would always leave something on its way.
    const { spec } = this.pool.state
    const profile = { ...spec.profile, env: {} }
    this.pool.send({ kind: 'apply', spec: { ...spec, profile, podLifetimeMs: 43_200_000 } })
    this.sim.run(45 * MINUTE)
  }

  check(): void {
    for (const record of this.callers.records) this.checkRecord(record)
    for (const { pod, epoch, jobId } of this.callers.revokedWords)
      if (this.startedUnder.get(`${pod} ${jobId}`) === epoch)
        throw new Error(`job ${jobId} was called LeaseRevoked, but it started on ${pod} under epoch ${epoch}`)
    for (const run of this.callers.runs.values())
      if (!run.closed) throw new Error(`run ${run.runId} hangs in job ${run.current + 1}`)
    for (const pod of this.pool.pods.values()) expect(pod.fence.invariants()).toEqual([])
    this.checkLeaks()
  }

  private checkRecord({ jobId, grant, podGone, outcome }: JobRecord): void {
    if (outcome.kind === 'result') {
      expect(outcome.result).toMatchObject({ jobId, stdout: jobId })
      return
    }
    const { code, details } = outcome.problem
    expect(['QueueTimeout', 'SlotBusy', 'PodStartFailed', 'PodLost', 'Cancelled', 'QueueFull']).toContain(
      code,
    )
    if (code !== 'PodLost' || !grant || outcome.kind === 'acquire') return
    if (details?.reason !== 'Revoked') {
      if (!podGone) throw new Error(`job ${jobId} is PodLost (${details?.reason}), but ${grant.pod} lives`)
      return
    }
    // Its lease ended under the job. A reset run attaches to what the run before it started, under that run's lease.
    const epoch = this.startedUnder.get(`${grant.pod} ${jobId}`)
    if (epoch === undefined)
      throw new Error(`job ${jobId} was killed by a revoke, but never started on ${grant.pod}`)
    if (epoch !== grant.epoch) return
    const end = this.pool.ends.get(grant.leaseId) ?? 'released'
    if (end !== 'superseded' && end !== 'expired')
      throw new Error(`job ${jobId} was killed on ${grant.pod}, because its lease ended: ${end}`)
    this.killed[end]++
  }

  private checkLeaks(): void {
    const { state, pods } = this.pool
    expect([...state.leases.values()].map((l) => `${l.request.leaseId} ${l.kind}`)).toEqual([])
    expect([...state.effects.values()].map((e) => e.kind)).toEqual([])
    expect([...state.pods.values()].map((p) => p.kind)).toEqual(Array(state.spec.standby).fill('standby'))
    for (const pod of pods.values()) {
      expect(pod.fence.running).toBeNull()
      expect(state.pods.has(pod.order.pod)).toBe(true)
    }
    expect(this.callers.tokens.size).toBe(0)
  }

  addTo(totals: Totals): void {
    totals.runs += this.callers.runs.size
    totals.jobs += this.callers.records.length
    totals.events += this.sim.events
    totals.steps += this.pool.steps
    for (const { outcome } of this.callers.records) {
      const name = outcome.kind === 'result' ? 'result' : outcome.problem.code
      totals.outcomes[name] = (totals.outcomes[name] ?? 0) + 1
    }
    for (const why of ['superseded', 'expired'] as const) totals.killed[why] += this.killed[why]
    totals.outcomes.LeaseRevoked = (totals.outcomes.LeaseRevoked ?? 0) + this.callers.revokedWords.length
  }
}

it(`holds in ${HISTORIES} histories`, () => {
  const totals: Totals = {
    runs: 0,
    jobs: 0,
    outcomes: {},
    killed: { superseded: 0, expired: 0 },
    events: 0,
    steps: 0,
  }
  for (let i = 0; i < HISTORIES; i++) {
    const seed = SEED + i
    try {
      const history = new History(seed)
      history.play()
      history.check()
      history.addTo(totals)
    } catch (error) {
      throw new Error(`FIREPOOL_MODEL_SEED=${seed} plays this again\n${(error as Error).stack}`)
    }
  }
  console.log(`protocol model, seeds ${SEED}..${SEED + HISTORIES - 1}: ${JSON.stringify(totals)}`)
  // The histories must be worth something: each kind of outcome was seen.
  if (HISTORIES >= 1_000)
    expect(Object.keys(totals.outcomes)).toEqual(
      expect.arrayContaining(['result', 'PodLost', 'LeaseRevoked', 'Cancelled', 'QueueTimeout', 'SlotBusy']),
    )
})
