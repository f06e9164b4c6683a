import type { Profile } from '../contract/pool.js'
import { createPod, hastenIdle, removePod } from './pods.js'
import { replenish } from './policy/replenish.js'
import { earlierPods, isStopped } from './policy/rollout.js'
import { jsonBytes } from './size.js'
import { closedBreaker, type PoolState, type Template } from './state.js'
import type { Turn } from './turn.js'

/**
 * The spec has another profile than before. Earlier pods serve on, those that start included (whoever waits has them sooner
 * than others); pods of the new template take their places one after the other, see `roll`. Going back to the template before
 * makes its pods the newest again.
 */
export function changeTemplate(turn: Turn, before: Profile): void {
  const { state } = turn
  if (state.coreVersion === 1) {
    replaceAtOnce(turn)
    return
  }
  const kept = state.rollout?.template ?? null
  const back = kept !== null && JSON.stringify(kept.profile) === JSON.stringify(state.spec.profile)
  const template = state.proven ? templateOf(state, before) : back ? null : kept
  state.generation = back ? kept.generation : ++state.generations
  state.breaker = closedBreaker()
  state.proven = back
  // Those of a template that is forgotten would come too late to be of use.
  for (const name of [...state.index.byKind.starting]) {
    const pod = state.pods.get(name)!
    if (pod.generation !== state.generation && pod.generation !== template?.generation) removePod(turn, pod)
  }
  state.rollout = template !== null || earlierPods(state) > 0 ? { template } : null
  if (back) hastenIdle(turn)
}

function templateOf({ generation, breaker }: PoolState, profile: Profile): Template {
  return { generation, profile, breaker, bytes: jsonBytes(JSON.stringify(profile)) }
}

/** Version 1: all pods of the earlier template that nobody holds go at once. */
function replaceAtOnce(turn: Turn): void {
  const { state } = turn
  state.generation = ++state.generations
  state.breaker = closedBreaker()
  state.proven = false
  for (const kind of ['starting', 'standby', 'idle'] as const) {
    for (const name of [...state.index.byKind[kind]]) removePod(turn, state.pods.get(name)!)
  }
}

/** Earlier pods whose places are taken go: those that start, then standbys. Idle and leased ones go by themselves (isStale). */
export function roll(turn: Turn): void {
  const { state, now } = turn
  if (state.rollout === null) return
  let { replaced } = replenish(state, now)
  for (; replaced > 0; replaced--) removePod(turn, state.pods.get(firstEarlier(state)!)!)
  if (state.proven && !isStopped(state) && earlierPods(state) === 0) state.rollout = null
}

/** One that starts before a standby, and of the oldest generation. */
function firstEarlier({ index, generation }: PoolState): string | undefined {
  const others = [...index.generations].filter(([of]) => of !== generation).sort(([a], [b]) => a - b)
  for (const kind of ['starting', 'standby'] as const)
    for (const [, pods] of others) for (const name of pods[kind]) return name
  return undefined
}

/** Pods for requests and stock: of the newest template, and while those do not start of the one before. */
export function createPods(turn: Turn): void {
  const { state, now } = turn
  const { create, createEarlier, plan } = replenish(state, now)
  const template = state.rollout?.template
  const newest = { generation: state.generation, profile: state.spec.profile }
  for (let i = 0; i < createEarlier + create; i++) {
    const set = plan ? (plan.missing.shift() ?? plan.nextStock()) : null
    // Sets that leave still have their GPUs.
    if (plan && set === null) return
    createPod(turn, template && i < createEarlier ? template : newest, set)
  }
}
