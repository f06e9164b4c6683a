import { COLD_START_MS } from '../demo/plan.js'
import type { Random } from '../demo/random.js'

/** A duration that is drawn uniformly between two bounds, ms; both alike: always the same. */
export interface Range {
  minMs: number
  maxMs: number
}

/** How long things take outside of the pool's own decisions. */
export interface Latencies {
  /** from the order of a pod until the pool knows that it is Ready */
  coldStart: Range
  /** a standby becomes its first caller's: bind, device memory, grant */
  promotion: Range
  /** from the end of a pod (or of a job, in the floor) until its GPU may be another's */
  handBack: Range
  /** from a caller's wish until its job runs on a pod that it holds */
  dispatch: Range
  /** one message between a caller, the pool and a pod */
  message: Range
}

/**
 * A cold start as in the Firepool paper (arXiv 2611.10832); promotion and hand-back as they were reasoned from driver sources. The
 * dispatch is of the order of a normal activity on Temporal with PostgreSQL (54 ms; 17 ms in memory), the message a part of that.
 */
export const DEFAULT_LATENCIES: Latencies = {
  coldStart: { minMs: COLD_START_MS.min, maxMs: COLD_START_MS.max },
  promotion: { minMs: 500, maxMs: 500 },
  handBack: { minMs: 200, maxMs: 1_000 },
  dispatch: { minMs: 50, maxMs: 50 },
  message: { minMs: 10, maxMs: 10 },
}

/** One duration of a range, ms. */
export function drawMs({ minMs, maxMs }: Range, random: Random): number {
  return minMs === maxMs ? minMs : minMs + (maxMs - minMs) * random.next()
}

export function meanMs({ minMs, maxMs }: Range): number {
  return (minMs + maxMs) / 2
}
