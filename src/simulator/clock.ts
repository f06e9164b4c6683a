import { Heap } from '../broker/heap.js'

/** Where simulated time begins, ms since the epoch: the same in every run, so that nothing depends on today. */
const BEGINNING_MS = 1_900_000_000_000

interface Entry {
  at: number
  /** of two entries for one moment the one that was made first happens first */
  order: number
  run: () => void
}

/** Simulated time in whole milliseconds, and all that will happen in it. */
export class Clock {
  /** ms since the epoch */
  now = BEGINNING_MS
  /** entries that have happened */
  events = 0
  private readonly agenda = new Heap<Entry>((a, b) => (a.at !== b.at ? a.at < b.at : a.order < b.order))
  private order = 0

  /** ms since the beginning */
  get elapsedMs(): number {
    return this.now - BEGINNING_MS
  }

  /** When the next entry happens, ms since the epoch; Infinity when there is none. */
  get nextAt(): number {
    return this.agenda.peek()?.at ?? Number.POSITIVE_INFINITY
  }

  /** Something that happens in so many ms, rounded to a whole one; not before now. */
  after(ms: number, run: () => void): void {
    this.agenda.push({ at: this.now + Math.max(0, Math.round(ms)), order: this.order++, run })
  }

  /** Goes on to a moment and lets happen what is due until then, also what that makes due at once. */
  advanceTo(at: number): void {
    this.now = Math.max(this.now, at)
    for (let next = this.agenda.peek(); next && next.at <= this.now; next = this.agenda.peek()) {
      this.agenda.pop()
      this.events++
      next.run()
    }
  }
}
