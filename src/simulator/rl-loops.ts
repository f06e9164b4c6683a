import { type Sampler, sampler } from '../demo/agent-data.js'
import { type Random, random } from '../demo/random.js'
import { drawMs, type Range } from './latencies.js'
import { Sandbox } from './sandbox.js'
import type { Workload } from './workload.js'
import type { World } from './world.js'

export interface RlOptions {
  seed: string | number
  /** trainers in all */
  trainers: number
  /** they begin within about this time, as a Poisson process, ms */
  overMs: number
  /** rollouts of one step, each on a slot of its own */
  group: number
  steps: number
  /** the trainer's own work after each step */
  learner: Range
  /** how long a rollout runs; null: as the jobs of recorded agents */
  job: Range | null
}

/** RL loops: each step runs a group of rollouts at once and waits for the last of them, then the trainer learns. */
export class RlLoops implements Workload {
  readonly hasSessions = true
  readonly horizonAt = Number.POSITIVE_INFINITY
  readonly inputs
  private arrived = 0
  private ended = 0
  private readonly arrivals: Random

  constructor(private readonly options: RlOptions) {
    const { trainers, overMs, group, steps, learner, job, seed } = options
    this.arrivals = random(`arrivals ${seed}`)
    this.inputs = {
      workload: 'RL loops',
      trainers,
      overSeconds: overMs / 1_000,
      group,
      steps,
      learnerSeconds: `${learner.minMs / 1_000}..${learner.maxMs / 1_000}`,
      jobSeconds: job ? `${job.minMs / 1_000}..${job.maxMs / 1_000}` : 'as recorded (src/demo/agent-data.ts)',
    }
  }

  get isOver(): boolean {
    return this.ended === this.options.trainers
  }

  get progress(): number {
    return this.ended / this.options.trainers
  }

  readOn(): Promise<void> {
    return Promise.resolve()
  }

  start(world: World): void {
    if (this.arrived === this.options.trainers) return
    const { trainers, overMs } = this.options
    const gapMs = (-Math.log(1 - this.arrivals.next()) * overMs) / trainers
    world.clock.after(gapMs, () => {
      new Trainer(world, `trainer${++this.arrived}`, this.options, () => this.ended++)
      this.start(world)
    })
  }
}

class Trainer {
  private readonly slots: Sandbox[]
  private readonly figures: Sampler
  private readonly draws: Random
  private step = 0
  private running = 0

  constructor(
    private readonly world: World,
    name: string,
    private readonly options: RlOptions,
    private readonly onEnd: () => void,
  ) {
    this.figures = sampler(`${options.seed} ${name}`)
    this.draws = random(`rollouts ${options.seed} ${name}`)
    const who = { workflowId: name, caller: name, tenant: 'default', priority: 5 }
    this.slots = Array.from(
      { length: options.group },
      (_, slot) => new Sandbox(world, { ...who, slot: String(slot) }, 'loop'),
    )
    world.measures.sessionBegins(options.group)
    this.roll()
  }

  private roll(): void {
    const { job, group, learner } = this.options
    const isFirst = ++this.step === 1
    this.running = group
    let longestMs = 0
    for (const slot of this.slots) {
      const runMs = Math.round(job ? drawMs(job, this.draws) : this.figures.jobSeconds() * 1_000)
      slot.run({ runMs, isFirst }, (ran) => {
        if (ran) longestMs = Math.max(longestMs, runMs)
        if (--this.running > 0) return
        this.world.measures.sessionTook(longestMs, group)
        this.learn(Math.round(drawMs(learner, this.draws)))
      })
    }
  }

  private learn(ms: number): void {
    const { world, options } = this
    if (this.step === options.steps) {
      for (const slot of this.slots) slot.close()
      world.measures.sessionEnds(options.group)
      this.onEnd()
      return
    }
    world.clock.after(ms, () => {
      world.measures.sessionTook(ms, options.group)
      this.roll()
    })
  }
}
