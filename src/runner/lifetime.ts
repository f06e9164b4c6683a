/** When a pod ends itself, as a pure decision. All times are ms. */
export interface LifetimeFacts {
  ageMs: number
  lifetimeMs: number
  /** past its lifetime the pod may finish its job this long */
  graceMs: number
  sinceContactMs: number
  brokerGoneMs: number
  /** something runs, waits or is undelivered */
  isOccupied: boolean
  /** it accepts nothing new already */
  isRetired: boolean
}

export type LifetimeVerdict = { kind: 'live' } | { kind: 'retire' } | { kind: 'end'; why: string }

/**
 * A pod whose broker is gone ends, jobs and all. One that is past its lifetime accepts nothing new, and ends when it
 * is empty or its grace is over, whatever the broker does (failure F17).
 */
export function lifetimeVerdict(facts: LifetimeFacts): LifetimeVerdict {
  if (facts.sinceContactMs >= facts.brokerGoneMs)
    return { kind: 'end', why: `nobody spoke to it for ${Math.round(facts.sinceContactMs)} ms` }
  if (facts.ageMs < facts.lifetimeMs) return { kind: 'live' }
  if (!facts.isOccupied) return { kind: 'end', why: `its lifetime of ${facts.lifetimeMs} ms is over` }
  if (facts.ageMs >= facts.lifetimeMs + facts.graceMs)
    return { kind: 'end', why: `its lifetime and the grace for its last job are over` }
  return facts.isRetired ? { kind: 'live' } : { kind: 'retire' }
}
