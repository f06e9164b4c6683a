import { Heap } from '../../src/broker/heap.js'
import { Random } from './random.js'

/** What a program waits for: calls `resume` once, or never. */
export type Wait<T> = (resume: (value: T) => void) => void
// biome-ignore lint/suspicious/noExplicitAny: each yield has its own type, as in every coroutine library
export type Program<R> = Generator<Wait<any>, R, any>

/** A clock, an agenda and programs that wait: the part of a simulated world that knows nothing of it. */
export class Simulation {
  now = 1_900_000_000_000
  readonly random: Random
  private readonly agenda = new Heap<{ at: number; order: number; run: () => void }>((a, b) =>
    a.at !== b.at ? a.at < b.at : a.order < b.order,
  )
  private order = 0
  events = 0

  constructor(seed: number) {
    this.random = new Random(seed)
  }

  at(afterMs: number, run: () => void): void {
    this.agenda.push({ at: this.now + Math.max(0, afterMs), order: this.order++, run })
  }

  sleep(ms: number): Wait<void> {
    return (resume) => this.at(ms, () => resume())
  }

  /** Runs all that happens in the next `ms`. */
  run(ms: number): void {
    const until = this.now + ms
    for (;;) {
      const next = this.agenda.peek()
      if (!next || next.at > until) break
      this.agenda.pop()
      this.now = next.at
      this.events++
      next.run()
    }
    this.now = until
  }
}

/** A running program; once killed it never goes on. */
export class Process {
  alive = true

  constructor(program: Program<void>) {
    this.go(program, undefined)
  }

  kill(): void {
    this.alive = false
  }

  private go(program: Program<void>, value: unknown): void {
    const { done, value: wait } = program.next(value)
    if (done) {
      this.alive = false
      return
    }
    let resumed = false
    wait((result: unknown) => {
      if (resumed || !this.alive) return
      resumed = true
      this.go(program, result)
    })
  }
}

/** Whichever comes first. */
export function race<T>(...waits: Wait<T>[]): Wait<T> {
  return (resume) => {
    let over = false
    for (const wait of waits)
      wait((value) => {
        if (over) return
        over = true
        resume(value)
      })
  }
}

/** Something that happens once, and that anybody may wait for before or after. */
export class Happening<T> {
  private value: { is: T } | null = null
  private readonly waiting: ((value: T) => void)[] = []

  get happened(): boolean {
    return this.value !== null
  }

  set(value: T): void {
    if (this.value) return
    this.value = { is: value }
    for (const resume of this.waiting.splice(0)) resume(value)
  }

  wait: Wait<T> = (resume) => {
    if (this.value) resume(this.value.is)
    else this.waiting.push(resume)
  }
}
