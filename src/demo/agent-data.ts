import { random } from './random.js'

/**
 * Quantiles measured on 156 recorded coding-agent sessions (7,790 tool calls; 3,757 pauses before shell calls):
 * how long an agent thinks before a job, how long the job runs, and how many jobs a session has. Facts only.
 */
export const AGENT_FIGURES = {
  percentiles: [
    0, 5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 55, 60, 65, 70, 75, 80, 85, 90, 95, 97, 98, 99, 99.5, 100,
  ],
  pauseSeconds: [
    0, 0, 0, 0.609, 0.992, 1.213, 1.429, 1.66, 1.877, 2.121, 2.355, 2.666, 3.109, 3.726, 4.66, 5.773, 7.423,
    9.129, 11.437, 15.92, 19.615, 22.155, 26.167, 36.485, 137.043,
  ],
  jobSeconds: [
    0.012, 0.02, 0.023, 0.027, 0.034, 0.053, 0.088, 0.259, 0.731, 1.29, 5.106, 6.503, 7.065, 7.529, 7.967,
    8.459, 9.017, 9.64, 10.572, 13.332, 15.816, 19.596, 29.471, 66.568, 307.925,
  ],
  jobsPerSession: [
    1, 4, 5, 7, 9, 11, 12, 14, 16, 18, 20, 21, 23, 26, 29, 33, 39, 44, 57, 70, 72, 90, 107, 123, 123,
  ],
} as const

export type AgentFigure = 'pauseSeconds' | 'jobSeconds' | 'jobsPerSession'

/**
 * The value below which `percent` of the measured values lie: linear interpolation between the table's quantiles.
 * @param percent 0 to 100
 */
export function quantile(figure: AgentFigure, percent: number): number {
  if (!(percent >= 0 && percent <= 100)) throw new RangeError(`a percentile lies in 0..100, got ${percent}`)
  const at: readonly number[] = AGENT_FIGURES.percentiles
  const values: readonly number[] = AGENT_FIGURES[figure]
  let right = 0
  while (at[right]! < percent) right++
  const high = values[right]!
  if (right === 0) return high
  const low = values[right - 1]!
  const from = at[right - 1]!
  return low + ((high - low) * (percent - from)) / (at[right]! - from)
}

export interface Sampler {
  /** the agent's pause before a job, seconds */
  pauseSeconds(): number
  /** how long a job runs, seconds; for simulation, the demo's jobs are real and take what they take */
  jobSeconds(): number
  /** jobs in one session, an integer >= 1 */
  jobsPerSession(): number
}

/** Draws from the measured distributions by inverse transform. The three streams are independent of each other. */
export function sampler(seed: string | number): Sampler {
  const pauses = random(`pauses ${seed}`)
  const jobs = random(`jobs ${seed}`)
  const sessions = random(`sessions ${seed}`)
  return {
    pauseSeconds: () => quantile('pauseSeconds', pauses.next() * 100),
    jobSeconds: () => quantile('jobSeconds', jobs.next() * 100),
    jobsPerSession: () => Math.max(1, Math.round(quantile('jobsPerSession', sessions.next() * 100))),
  }
}
