import { type PoolSpec, TIMEOUT } from '../contract/index.js'
import { random } from './random.js'

/** What a newcomer may choose on the command line. */
export interface DemoChoices {
  seed: string | number
  /** all problems of the set in the RL loop */
  all: boolean
  /** a small run of both loops */
  quick: boolean
  /** recorded pauses and the imitated cold start are divided by this; absent: DEFAULT_SPEED or QUICK_SPEED */
  speed?: number
}

/** Which way a loop gets its pods. */
export type Side = 'withFirepool' | 'freshPod'

/** All sizes and times of one demo; the same plan gives the same jobs. */
export interface DemoPlan {
  seed: string | number
  /** the printed factor: real pauses and cold starts divided by it, jobs never */
  compression: number
  startDelay: { minMs: number; maxMs: number }
  /** of Firepool's pools; the other side's pods are deleted after each job */
  keepAliveMs: number
  standby: number
  rl: RlPlan
  agent: AgentPlan
}

export interface RlPlan {
  problems: number
  /** broken variants of each problem, beside its reference solution */
  broken: number
  steps: number
  /** verifier jobs at once */
  slots: number
  /** the trainer's own work after each step */
  learnerMs: number
}

export interface AgentPlan {
  sessions: number
  /** recorded sessions have up to 123 steps; here they are cut */
  maxSteps: number
}

export const DEFAULT_SPEED = 10
export const QUICK_SPEED = 20
/** Past this an imitated start would be shorter than the real start of a local pod. */
export const MAX_SPEED = 100

/** How long a GPU pod takes to start with its image on the node (the Firepool paper, arXiv 2611.10832). */
export const COLD_START_MS = { min: 20_000, max: 35_000 } as const
/** Covers 97 of 100 recorded pauses; a standby makes a miss cheap. */
const KEEP_ALIVE_MS = 20_000
/** Assumed: a short training step between two batches. */
const LEARNER_MS = 10_000
/** The pool asks a pod for its end no sooner than this. */
const KEEP_ALIVE_MS_MIN = 500
export const ALL_PROBLEMS = 164

/** A demo's plan from what was chosen. */
export function demoPlan(choices: DemoChoices): DemoPlan {
  const compression = choices.speed ?? (choices.quick ? QUICK_SPEED : DEFAULT_SPEED)
  const scaled = (ms: number) => Math.round(ms / compression)
  const quick = choices.quick
  return {
    seed: choices.seed,
    compression,
    startDelay: { minMs: scaled(COLD_START_MS.min), maxMs: scaled(COLD_START_MS.max) },
    keepAliveMs: Math.max(KEEP_ALIVE_MS_MIN, scaled(KEEP_ALIVE_MS)),
    standby: quick ? 1 : 2,
    rl: {
      problems: choices.all ? ALL_PROBLEMS : quick ? 4 : 16,
      broken: 2,
      steps: choices.all ? 8 : quick ? 2 : 3,
      slots: quick ? 3 : 4,
      learnerMs: scaled(LEARNER_MS),
    },
    agent: quick ? { sessions: 3, maxSteps: 4 } : { sessions: 6, maxSteps: 10 },
  }
}

/** Jobs of the RL loop on one side. */
export function rlJobs({ problems, broken }: RlPlan): number {
  return problems * (1 + broken)
}

/** A seeded choice of `count` out of `of` problems, in the set's own order. */
export function chooseProblems(seed: string | number, count: number, of: number): number[] {
  const draw = random(`problems ${seed}`)
  const left = Array.from({ length: of }, (_, i) => i)
  const chosen: number[] = []
  while (chosen.length < Math.min(count, of)) chosen.push(left.splice(draw.below(left.length), 1)[0]!)
  return chosen.sort((a, b) => a - b)
}

/** The part of a list that belongs to one of `steps` steps; all parts together are the list, their sizes differ by at most 1. */
export function partOf<T>(list: readonly T[], step: number, steps: number): T[] {
  return list.slice(Math.floor((list.length * step) / steps), Math.floor((list.length * (step + 1)) / steps))
}

/** The pool of one side of a loop: both sides have the same budget and the same imitated start. */
export function demoPool(name: string, side: Side, plan: DemoPlan, budget: number): unknown {
  const held = side === 'withFirepool'
  return {
    v: 1,
    name,
    budget,
    standby: held ? plan.standby : 0,
    keepAliveMs: held ? plan.keepAliveMs : 0,
    podStartMs: plan.startDelay.maxMs + TIMEOUT.podStartMs / 2,
    profile: { backend: 'local', startDelay: plan.startDelay },
  } satisfies Partial<Omit<PoolSpec, 'profile'>> & { profile: unknown }
}
