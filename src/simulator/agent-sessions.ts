import { AGENT_FIGURES, type AgentFigure, type Sampler, sampler } from '../demo/agent-data.js'
import { type Random, random } from '../demo/random.js'
import { Sandbox } from './sandbox.js'
import type { Workload } from './workload.js'
import type { World } from './world.js'

export interface AgentOptions {
  seed: string | number
  /** callers in all */
  callers: number
  /** they begin within about this time, as a Poisson process, ms */
  overMs: number
  /** sessions of one caller, with breaks in between */
  bursts: number
  /** the mean break; each is uniform within half of it, ms */
  breakMs: number
  /** job / (job + pause): pauses are stretched for it; null: as recorded */
  duty: number | null
}

/** The mean of a figure: straight lines between its quantiles. */
export function meanOf(figure: AgentFigure): number {
  const at: readonly number[] = AGENT_FIGURES.percentiles
  const values: readonly number[] = AGENT_FIGURES[figure]
  let sum = 0
  for (let i = 1; i < at.length; i++) sum += ((values[i]! + values[i - 1]!) / 2) * (at[i]! - at[i - 1]!)
  return sum / 100
}

/**
 * Closed loops as recorded coding agents run them: think, run a job, think about its result. Pauses, jobs and lengths of sessions are
 * drawn from the figures of src/demo/agent-data.ts, and are the same for a seed whatever the pool does.
 */
export class AgentSessions implements Workload {
  readonly hasSessions = true
  readonly horizonAt = Number.POSITIVE_INFINITY
  readonly inputs
  private arrived = 0
  private ended = 0
  private readonly arrivals: Random
  private readonly stretch: number

  constructor(private readonly options: AgentOptions) {
    const { callers, overMs, bursts, breakMs, duty } = options
    this.arrivals = random(`arrivals ${options.seed}`)
    const [job, pause] = [meanOf('jobSeconds'), meanOf('pauseSeconds')]
    this.stretch = duty === null ? 1 : (job * (1 - duty)) / duty / pause
    this.inputs = {
      workload: 'agent sessions',
      callers,
      overSeconds: overMs / 1_000,
      ...(bursts === 1 ? {} : { sessionsPerCaller: bursts, breakSeconds: breakMs / 1_000 }),
      dutyPercent: Math.round((100 * job) / (job + pause * this.stretch)),
      figures: '156 recorded coding-agent sessions (src/demo/agent-data.ts)',
    }
  }

  get isOver(): boolean {
    return this.ended === this.options.callers
  }

  get progress(): number {
    return this.ended / this.options.callers
  }

  readOn(): Promise<void> {
    return Promise.resolve()
  }

  start(world: World): void {
    if (this.arrived === this.options.callers) return
    const { callers, overMs, seed } = this.options
    const gapMs = (-Math.log(1 - this.arrivals.next()) * overMs) / callers
    world.clock.after(gapMs, () => {
      const name = `agent${++this.arrived}`
      new Agent(world, name, sampler(`${seed} ${name}`), this.options, this.stretch, () => this.ended++)
      this.start(world)
    })
  }
}

/** One caller: its sessions one after the other, the lease held between their jobs. */
class Agent {
  private readonly sandbox: Sandbox
  private readonly breaks: Random
  private bursts = 0
  private jobsLeft = 0
  private isFirst = true

  constructor(
    private readonly world: World,
    name: string,
    private readonly figures: Sampler,
    private readonly options: AgentOptions,
    private readonly stretch: number,
    private readonly onEnd: () => void,
  ) {
    this.breaks = random(`breaks ${options.seed} ${name}`)
    const who = { workflowId: name, caller: name, slot: '0', tenant: 'default', priority: 5 }
    this.sandbox = new Sandbox(world, who, 'loop')
    this.begin()
  }

  private begin(): void {
    this.bursts++
    this.jobsLeft = this.figures.jobsPerSession()
    this.isFirst = true
    this.world.measures.sessionBegins(1)
    this.think()
  }

  private think(): void {
    const { clock, measures } = this.world
    const pauseMs = Math.round(this.figures.pauseSeconds() * this.stretch * 1_000)
    const runMs = Math.round(this.figures.jobSeconds() * 1_000)
    clock.after(pauseMs, () => {
      const job = { runMs, isFirst: this.isFirst }
      this.isFirst = false
      this.sandbox.run(job, (ran) => {
        measures.sessionTook(pauseMs + (ran ? runMs : 0), 1)
        if (--this.jobsLeft > 0) this.think()
        else this.endSession()
      })
    })
  }

  private endSession(): void {
    const { clock, measures } = this.world
    measures.sessionEnds(1)
    if (this.bursts === this.options.bursts) {
      this.sandbox.close()
      this.onEnd()
      return
    }
    const breakMs = Math.round(this.options.breakMs * (0.5 + this.breaks.next()))
    clock.after(breakMs, () => {
      measures.breakTook(breakMs, 1)
      this.begin()
    })
  }
}
