import type { TraceProblem } from './trace-reader.js'
import type { World } from './world.js'

/** What is asked of a pool in a simulation. */
export interface Workload {
  /** for people, and for who wants to repeat it: names and values that say what it was */
  readonly inputs: Readonly<Record<string, string | number>>
  /** whether it has sessions, so that a seat for each of them is a measure */
  readonly hasSessions: boolean
  /** puts its first arrivals on the clock's agenda */
  start(world: World): void
  /** up to when all arrivals are on the agenda, ms since the epoch; Infinity: all there will be follow from it */
  readonly horizonAt: number
  /** reads on when the horizon is reached; resolves when it is further away */
  readOn(): Promise<void>
  /** nothing more will be asked, and all that was has ended */
  readonly isOver: boolean
  /** lines of a trace that were wrong, and the first of them */
  readonly leftOut?: { lines: number; first: readonly TraceProblem[] }
  /** how much of it is done, 0 to 1; null when nobody knows */
  readonly progress: number | null
}
