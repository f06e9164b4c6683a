import { LIMIT } from '../../contract/limits.js'
import type { Breaker, PoolState } from '../state.js'
import { hasRoomForPods } from './admission.js'
import { earlierPods, earlierServes, isStopped, surge } from './rollout.js'
import { ruleOf } from './seat-rule.js'
import { placesLeft, planSeats, type SeatPlan, setsAllowed } from './seat-sets.js'
import { ownShare, podsAllowed } from './shares.js'

export interface Replenishment {
  /** pods of the newest template to create now */
  create: number
  /** pods of the template before, while those of the newest do not start */
  createEarlier: number
  /** standbys that nobody needs */
  excess: number
  /** those of them that go at once: somebody waits for a pod in another seat set, and there is no room for both */
  inTheWay: number
  /** starting pods and standbys of earlier templates whose place is taken, or is needed */
  replaced: number
  /** of a pool with seat sets */
  plan: SeatPlan | null
  reason: string
}

const NOTHING = { create: 0, createEarlier: 0, excess: 0, inTheWay: 0, replaced: 0, plan: null }

/** Of the whole pool. */
export function standbyOfWhole(state: PoolState): number {
  return state.operator.standby ?? state.spec.standby
}

/** Of this entity. */
export function standbyTarget(state: PoolState): number {
  return ownShare(state, standbyOfWhole(state))
}

/**
 * How many pods without a caller there should be: one for each request that may get a seat, plus the standby
 * target. What is on its way counts (F16), and so does everything else up to maxPods (F8).
 */
export function replenish(state: PoolState, now: number): Replenishment {
  const { byKind, claims } = state.index
  const have = byKind.standby.size + byKind.starting.size
  if (state.mode === 'draining' || state.mode === 'deleting') {
    return { ...NOTHING, excess: byKind.standby.size, reason: `the pool is ${state.mode}` }
  }
  const rule = ruleOf(state)
  if (rule && setsAllowed(state, rule, now) === 0)
    return { ...NOTHING, excess: byKind.standby.size, reason: 'the budget is less than a seat set' }
  const plan = rule && planSeats(state, rule, now)
  const served = plan ? plan.claims : Math.min(claims.size, placesLeft(state, now))
  const maxPods = podsAllowed(state)
  // A lowered maxPods leaves room for fewer than the target.
  const others = state.pods.size - have - byKind.deleting.size
  const wanted = Math.min(served + standbyTarget(state), Math.max(0, maxPods - others))
  if (state.mode === 'paused') return { ...NOTHING, reason: 'the pool is paused' }
  // Those that start to take the places of others are no reason to let others go.
  const there = state.rollout ? byKind.standby.size : have
  const lacking = plan?.missing.length ?? 0
  const inTheWay = Math.max(0, lacking - Math.max(0, maxPods - state.pods.size) - byKind.deleting.size)
  const excess = Math.min(byKind.standby.size, Math.max(inTheWay, there - wanted))
  const replaced = state.rollout ? placesTaken(state, wanted) : 0
  // A pod costs bytes as well, and its grant more.
  if (!hasRoomForPods(state)) return { ...NOTHING, excess, inTheWay, replaced, reason: 'the state is full' }
  const reason = 'requests and standby target'
  const room = Math.min(maxPods - state.pods.size, LIMIT.starting - byKind.starting.size)
  if (!state.rollout) {
    const starts = startsAllowed(state.breaker, now) - byKind.starting.size
    const create = Math.max(0, Math.min(Math.max(wanted - have, lacking), room, starts))
    return { ...NOTHING, create, excess, inTheWay, plan, reason }
  }
  const needed = newestNeeded(state, wanted, now)
  const earlier = earlierNeeded(state, wanted, now)
  const upTo = (count: number, places: number) => Math.max(0, Math.min(count, places))
  // Where neither starts the newest is tried first: it would never be beside an earlier pod that has the only place.
  const isNewestFirst = state.coreVersion >= 4 && (state.rollout.template?.breaker.openUntil ?? null) !== null
  const create = upTo(needed, isNewestFirst ? room : room - upTo(earlier, room))
  const createEarlier = upTo(earlier, isNewestFirst ? room - create : room)
  // Where there is no room beside what serves, one earlier pod makes it; never for a template that does not start.
  const makesRoom =
    needed > 0 && !isStopped(state) && maxPods <= state.pods.size && byKind.deleting.size === 0 ? 1 : 0
  return {
    create,
    createEarlier,
    excess,
    inTheWay,
    plan,
    replaced: Math.min(stockOfEarlier(state), Math.max(replaced, makesRoom)),
    reason,
  }
}

/** Pods without a caller, of earlier templates. */
function stockOfEarlier({ index, generation }: PoolState): number {
  const { byKind } = index
  const own = index.ofGeneration(generation)
  return byKind.starting.size + byKind.standby.size - own.starting.size - own.standby.size
}

/** Earlier pods that go because as many as are wanted stand Ready without them. */
function placesTaken(state: PoolState, wanted: number): number {
  const { index, proven, generation } = state
  const over = index.byKind.standby.size - wanted
  if (!proven || isStopped(state) || over < 0) return 0
  const starting = index.byKind.starting.size - index.ofGeneration(generation).starting.size
  return Math.min(stockOfEarlier(state), starting + over)
}

/** Pods of the newest template to start: all that is wanted in the end, but only a few beside those that do serve. */
function newestNeeded(state: PoolState, wanted: number, now: number): number {
  const { byKind } = state.index
  const own = state.index.ofGeneration(state.generation)
  // A pool that needs no pod just now tries the template all the same, as long as others serve.
  const tries = (!state.proven || isStopped(state)) && earlierPods(state) > 0 ? 1 : 0
  const lacking = Math.max(wanted - own.standby.size, tries) - own.starting.size
  const missing = wanted - byKind.standby.size - byKind.starting.size
  const beside = Math.max(missing, surge(state, standbyTarget(state)) - own.starting.size)
  return Math.min(lacking, beside, startsAllowed(state.breaker, now) - own.starting.size)
}

/** While pods of the newest template do not start, those of the one before do what is needed; its own breaker counts. */
function earlierNeeded(state: PoolState, wanted: number, now: number): number {
  const template = state.rollout?.template
  if (!template || !isStopped(state) || !earlierServes(state, now)) return 0
  const { byKind } = state.index
  const starting = byKind.starting.size - state.index.ofGeneration(state.generation).starting.size
  const own = state.index.ofGeneration(template.generation).starting.size
  return Math.min(wanted - byKind.standby.size - starting, startsAllowed(template.breaker, now) - own)
}

/** Pods of a template that may be starting at once; none while its breaker is open, one to probe it. */
function startsAllowed({ openUntil, failures }: Breaker, now: number): number {
  if (openUntil !== null) return now < openUntil ? 0 : 1
  // After a first failure fewer pods start at once: a broken template must not fail a hundred times in parallel.
  return failures > 0 ? LIMIT.breakerFailures : LIMIT.starting
}
