import type { EffectResult } from '../../src/broker/effect.js'
import type { Reply } from './protocol-pod.js'
import type { Simulation } from './simulation.js'

/** Delays, reorders, repeats and drops whatever goes through it, as badly as it is told. */
export class Network {
  constructor(
    private readonly sim: Simulation,
    /** 0: only small delays; 1: terrible */
    public badness: number,
  ) {}

  private delay(): number {
    const { random } = this.sim
    return random.chance(0.15 * this.badness) ? random.int(20, 3_000) : random.int(1, 15)
  }

  /** A message that arrives for sure, some time, perhaps twice: a signal, whose sender tries until it is taken. */
  later(arrive: () => void): void {
    this.sim.at(this.delay(), arrive)
    if (this.sim.random.chance(0.1 * this.badness)) this.sim.at(this.delay() + 20, arrive)
  }

  /** An effect of the pool: a worker may die before it, or between it and its result, or it is done twice. */
  effect(execute: () => EffectResult, answer: (result: EffectResult) => void): void {
    const { random } = this.sim
    const fault = random.chance(0.2 * this.badness) ? random.pick(['before', 'between', 'again']) : 'none'
    this.sim.at(this.delay(), () => {
      if (fault === 'before') {
        this.sim.at(this.delay(), () => answer({ kind: 'undone', reason: 'worker lost' }))
        return
      }
      const result = execute()
      if (fault === 'between')
        this.sim.at(this.delay(), () => answer({ kind: 'undone', reason: 'worker lost' }))
      else this.sim.at(this.delay(), () => answer(result))
      // An attempt that was given up is carried out after all.
      if (fault === 'again') this.sim.at(this.delay() * 2, () => execute())
    })
  }

  /**
   * An HTTP call of a runner. It may be lost on the way there or back, arrive twice, and the connection may break
   * while it waits. Where nobody listens nothing of it was sent, so that no copy of it can arrive either.
   */
  call(arrive: (reply: (reply: Reply) => void) => void, answer: (reply: Reply) => void): void {
    const { random } = this.sim
    const p = 0.12 * this.badness
    let over = false
    const once = (reply: Reply) => {
      if (over) return
      over = true
      answer(reply)
    }
    const lostThere = random.chance(p)
    const lostBack = random.chance(p)
    const again = random.chance(p)
    this.sim.at(this.delay(), () => {
      let refused = false
      if (lostThere) once('broken')
      else
        arrive((reply) => {
          refused ||= reply === 'unreachable'
          this.sim.at(this.delay(), () => once(lostBack && !refused ? 'broken' : reply))
        })
      if (again && !refused) this.sim.at(this.delay() + random.int(0, 6_000), () => arrive(() => undefined))
    })
    if (random.chance(p)) this.sim.at(random.int(1, 4_000), () => once('broken'))
  }
}
