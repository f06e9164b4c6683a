import type { HitClass } from '../contract/lease.js'
import { Histogram } from './histogram.js'

/** A job that starts later than this is no hit, wherever its pod came from. */
export const HIT_WITHIN_MS = 3_500

/** Jobs by where their pod came from. `unserved`: they ended without a start. */
export type Classes = Record<HitClass | 'unserved', number>

const noJobs = (): Classes => ({ warm: 0, standby: 0, cold: 0, unserved: 0 })

/** All that is measured, in an amount of memory that does not grow with the jobs. */
export class Measures {
  /** jobs that somebody wished to run */
  asked = 0
  /** jobs that ran to their end */
  finished = 0
  /** the first job of each session has no pod of its own yet, whatever the policy: it is counted apart */
  readonly first = noJobs()
  readonly later = noJobs()
  /** warm or standby, and started within HIT_WITHIN_MS */
  hits = 0
  /** jobs that ended without a start, by the code that their caller heard */
  readonly unservedBy = new Map<string, number>()
  /** when the last job ended, ms since the beginning: so long a fixed pool would be kept */
  lastEndMs = 0
  /** from the wish to the start of the job, ms */
  readonly starts = new Histogram()
  /** seats on which a job ran, ms */
  usedMs = 0
  /** seats that pods with a caller kept from others, ms */
  heldMs = 0
  /** all pods, standbys and those that start included, ms */
  podMs = 0
  /** a seat held for each session, and for as long as each caller lives, if nobody ever waited: ms */
  sessionMs = 0
  lifeMs = 0
  sessions = 0
  /** seats that callers in a session would hold in a fixed pool, the most at once */
  peakSeats = 0
  private seats = 0

  jobAsked(): void {
    this.asked++
  }

  jobStarted(from: HitClass, waitedMs: number, isFirst: boolean): void {
    const classes = isFirst ? this.first : this.later
    classes[from]++
    this.starts.add(waitedMs)
    if (from !== 'cold' && waitedMs <= HIT_WITHIN_MS) this.hits++
  }

  /** @param atMs since the beginning */
  jobFinished(runMs: number, atMs: number): void {
    this.finished++
    this.lastEndMs = atMs
    this.usedMs += runMs
  }

  /** @param atMs since the beginning */
  jobUnserved(code: string, isFirst: boolean, atMs: number): void {
    this.lastEndMs = atMs
    const classes = isFirst ? this.first : this.later
    classes.unserved++
    this.unservedBy.set(code, (this.unservedBy.get(code) ?? 0) + 1)
  }

  /** @param seats that it would hold if each caller had its own */
  sessionBegins(seats: number): void {
    this.sessions++
    this.seats += seats
    this.peakSeats = Math.max(this.peakSeats, this.seats)
  }

  sessionEnds(seats: number): void {
    this.seats -= seats
  }

  /** Time of a session, without any wait for a pod. */
  sessionTook(ms: number, seats: number): void {
    this.sessionMs += ms * seats
    this.lifeMs += ms * seats
  }

  /** A caller lives on between two sessions. */
  breakTook(ms: number, seats: number): void {
    this.lifeMs += ms * seats
  }

  get unserved(): number {
    return this.first.unserved + this.later.unserved
  }
}
