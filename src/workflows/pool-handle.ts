import { getExternalWorkflowHandle, isCancellation, sleep } from '@temporalio/workflow'
import { isRecord } from '../contract/check.js'
import { type Problem, problem } from '../contract/errors.js'
import type { Grant } from '../contract/lease.js'
import { poolWorkflowId } from '../contract/names.js'

/** Attempts at a signal that the server refuses because too many are on their way. */
const SIGNAL_ATTEMPTS = 20
const SIGNAL_PAUSE_MS = 250

export function poolHandle(pool: string) {
  return getExternalWorkflowHandle(poolWorkflowId(pool))
}

/**
 * Sends a signal to a pool, again when the server is at its limit of pending signals.
 * @returns null when it arrived, PoolNotFound when there is no such pool
 */
export async function refuseMissingPool(pool: string, send: () => Promise<void>): Promise<Problem | null> {
  for (let attempt = 1; ; attempt++) {
    try {
      await send()
      return null
    } catch (error) {
      if (isCancellation(error)) throw error
      const message = error instanceof Error ? error.message : String(error)
      if (/not found/i.test(message)) {
        return problem(
          'PoolNotFound',
          `there is no pool '${pool}' in this namespace; create it with firepool pool apply, or look at firepool pool list`,
        )
      }
      if (!/limit/i.test(message) || attempt >= SIGNAL_ATTEMPTS) throw error
      await sleep(SIGNAL_PAUSE_MS)
    }
  }
}

/** The payload of `firepool.grant`, as far as we rely on it. */
export function grantIn(payload: unknown, leaseId: string): Grant | null {
  if (!isRecord(payload) || payload.v !== 1 || payload.leaseId !== leaseId) return null
  const { pod, address, epoch } = payload
  if (typeof pod !== 'string' || typeof address !== 'string' || typeof epoch !== 'number') return null
  return payload as unknown as Grant
}
