import { counted } from './count.js'

/** Failures are typed: whose fault it is, a closed set of codes, and a text with cause and remedy. */

export type Origin = 'caller' | 'infrastructure' | 'job'

/** The closed set of codes and whose fault each one is. */
export const ORIGIN_OF = {
  InvalidRequest: 'caller',
  PoolNotFound: 'caller',
  QueueFull: 'infrastructure',
  QueueTimeout: 'infrastructure',
  SlotBusy: 'caller',
  PodBusy: 'caller',
  BudgetExhausted: 'infrastructure',
  SeatUnavailable: 'infrastructure',
  PodStartFailed: 'infrastructure',
  PodLost: 'infrastructure',
  LeaseRevoked: 'infrastructure',
  JobTimeout: 'job',
  OutputTooLarge: 'job',
  Cancelled: 'caller',
} as const satisfies Record<string, Origin>

export type ErrorCode = keyof typeof ORIGIN_OF

/** A failure as plain JSON: what crosses an edge. */
export interface Problem {
  code: ErrorCode
  origin: Origin
  /** the cause and what to do about it */
  message: string
  /** structured facts (numbers, ids); never secrets */
  details?: Record<string, string | number | boolean>
}

export function problem(code: ErrorCode, message: string, details?: Problem['details']): Problem {
  return { code, origin: ORIGIN_OF[code], message, ...(details ? { details } : {}) }
}

export function isErrorCode(value: unknown): value is ErrorCode {
  return typeof value === 'string' && Object.hasOwn(ORIGIN_OF, value)
}

/** Reason of a pod's end, and of failures: its seat set has too few GPUs that are well, and waiting does not help. The node agent's code. */
export const SEAT_SET_SICK = 'SeatSetSick'

/** Reason of a pod's end, and of PodLost: a GPU failed under its lease. */
export const SEAT_LOST = 'SeatLost'

/** A Problem as an Error, for code outside of workflows (runner, CLI, backends). */
export class FirepoolError extends Error {
  readonly problem: Problem

  constructor(p: Problem) {
    super(`${p.code}: ${p.message}`)
    this.name = 'FirepoolError'
    this.problem = p
  }
}

/** A pool that somebody uses is not deleted without force. Null when nobody does. */
export function livePool(pool: string, leases: number, waiting: number): Problem | null {
  if (leases + waiting === 0) return null
  return problem(
    'InvalidRequest',
    `pool ${pool} has ${counted(leases, 'live lease')} and ${counted(waiting, 'waiting request')}; wait, drain it, or delete it with force (their jobs are then killed)`,
    { leases, waiting },
  )
}

/** What a caller says by itself when its pool has told it nothing, long after it should have. */
export function silentPool(pool: string, waitedMs: number): Problem {
  return problem(
    'QueueTimeout',
    `pool ${pool} has not answered within ${waitedMs} ms, neither with a pod nor with why there is none: no worker serves it, or its workflow is stuck or paused. Look whether firepool worker runs, and at the workflow pool/${pool} in Temporal; then ask again`,
    { reason: 'PoolSilent', waitedMs },
  )
}

/** A pool that cannot take a signal at this moment, though it is there. */
export function poolTakesNoSignal(pool: string, why: string): Problem {
  return problem(
    'QueueFull',
    `pool ${pool} took no signal (${why}): so many wait for it that the server takes no more. Try again in some seconds; when that lasts, look whether firepool worker runs, and at the workflow pool/${pool} in Temporal`,
    { reason: 'SignalLimit' },
  )
}

/** Why a shard that leaves ends a request: its caller belongs to another shard now. */
export function shardMoved(pool: string): Problem {
  return problem('LeaseRevoked', `the shard of this caller in pool ${pool} has moved; ask again`, {
    reason: 'ShardMoved',
  })
}

/** What whoever names a pool is told that is not there; `why` when more is known. */
export function noSuchPool(pool: string, why = `there is no pool '${pool}' in this namespace`): Problem {
  return problem(
    'PoolNotFound',
    `${why}; create it with firepool pool apply -f FILE, or look at firepool pool list`,
    { pool },
  )
}
