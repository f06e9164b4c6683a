import type { Effect } from './effect.js'
import type { DeadlineKind } from './index-of-state.js'
import { effectBytes } from './size.js'
import type { PoolState } from './state.js'

/** One run of `step`: the state it owns, the time it was given, and what it decides on the way. */
export interface Turn {
  state: PoolState
  now: number
  /** handed to the driver at the end */
  effects: Effect[]
  /** leases that got their slot in this turn and look for a pod */
  newClaims: string[]
  /** pods that became idle in this turn and look for a lease of their owner */
  newIdle: string[]
  /** leases whose sender hears of a grant as the answer to this turn */
  answered: Set<string>
}

type Draft<E> = E extends Effect ? Omit<E, 'id' | 'attempt'> : never

/** Issues an effect: it counts from this moment until its result comes (F1, I8). */
export function issue(turn: Turn, draft: Draft<Effect>): string {
  const id = `e${turn.state.nextEffect++}`
  const effect = { ...draft, id, attempt: 1 } as Effect
  turn.state.effects.set(id, { ...effect, retryAt: 0 })
  turn.state.index.effectBytes += effectBytes(effect)
  turn.effects.push(effect)
  return id
}

/** The effect is over: answered, or nobody needs it any more. */
export function closeEffect(state: PoolState, effect: Effect): void {
  state.effects.delete(effect.id)
  state.index.effectBytes -= effectBytes(effect)
}

export function wakeAt(turn: Turn, at: number, kind: DeadlineKind, id: string): void {
  turn.state.index.deadlines.push({ at, kind, id })
}

/** A broken assertion fails the turn: the pool stalls and shows it, instead of corrupting its state. */
export function assert(condition: boolean, message: () => string): asserts condition {
  if (!condition) throw new Error(`Firepool broker assertion failed: ${message()}`)
}
