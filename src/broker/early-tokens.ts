import { LIMIT, TIMEOUT } from '../contract/limits.js'
import { textBytes } from './size.js'
import type { PoolState } from './state.js'
import { type Turn, wakeAt } from './turn.js'

/** Tokens offered before their request came; the signals of a lease may overtake each other. */

/** Keeps a token until its attempt is over; the oldest go when there are too many. */
export function keepEarlyToken(turn: Turn, leaseId: string, token: string): void {
  const { state, now } = turn
  takeEarlyToken(state, leaseId)
  if (state.earlyTokens.size >= LIMIT.queue) {
    const oldest = state.earlyTokens.keys().next().value
    if (oldest !== undefined) takeEarlyToken(state, oldest)
  }
  const expiresAt = now + TIMEOUT.awaitLeaseMs
  state.earlyTokens.set(leaseId, { token, expiresAt })
  state.index.earlyBytes += earlyBytes(leaseId, token)
  wakeAt(turn, expiresAt, 'token', leaseId)
}

/** The token that came before, which is then no longer kept here; null when there is none. */
export function takeEarlyToken(state: PoolState, leaseId: string): string | null {
  const early = state.earlyTokens.get(leaseId)
  if (!early) return null
  state.earlyTokens.delete(leaseId)
  state.index.earlyBytes -= earlyBytes(leaseId, early.token)
  return early.token
}

export function earlyBytes(leaseId: string, token: string): number {
  return 30 + textBytes(leaseId) + textBytes(token)
}
