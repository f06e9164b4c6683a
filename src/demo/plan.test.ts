import { expect, test } from 'vitest'
import { checkPoolSpec } from '../contract/index.js'
import {
  ALL_PROBLEMS,
  COLD_START_MS,
  chooseProblems,
  DEFAULT_SPEED,
  demoPlan,
  demoPool,
  MAX_SPEED,
  partOf,
  QUICK_SPEED,
  rlJobs,
} from './plan.js'

const CHOICES = { seed: 1, all: false, quick: false }

test('cold start and pauses are divided by the same factor, whichever is chosen', () => {
  for (const [choices, factor] of [
    [CHOICES, DEFAULT_SPEED],
    [{ ...CHOICES, quick: true }, QUICK_SPEED],
    [{ ...CHOICES, speed: 7 }, 7],
    [{ ...CHOICES, quick: true, speed: 1 }, 1],
  ] as const) {
    const plan = demoPlan(choices)
    expect(plan.compression).toBe(factor)
    expect(plan.startDelay.minMs).toBe(Math.round(COLD_START_MS.min / factor))
    expect(plan.startDelay.maxMs).toBe(Math.round(COLD_START_MS.max / factor))
  }
})

test('--all takes every problem, --quick few of them', () => {
  expect(rlJobs(demoPlan({ ...CHOICES, all: true }).rl)).toBe(3 * ALL_PROBLEMS)
  expect(rlJobs(demoPlan({ ...CHOICES, quick: true }).rl)).toBeLessThan(rlJobs(demoPlan(CHOICES).rl))
})

test('problems are chosen by seed, without repetition, in order', () => {
  const chosen = chooseProblems(7, 20, ALL_PROBLEMS)
  expect(new Set(chosen).size).toBe(20)
  expect(chosen).toEqual([...chosen].sort((a, b) => a - b))
  expect(chosen).toEqual(chooseProblems(7, 20, ALL_PROBLEMS))
  expect(chosen).not.toEqual(chooseProblems(8, 20, ALL_PROBLEMS))
  expect(chooseProblems(7, 500, 3)).toEqual([0, 1, 2])
})

test('the parts of a list are the list', () => {
  for (const length of [0, 1, 7, 20, 164]) {
    const list = Array.from({ length }, (_, i) => i)
    const parts = [0, 1, 2].map((step) => partOf(list, step, 3))
    expect(parts.flat()).toEqual(list)
    const sizes = parts.map((part) => part.length)
    expect(Math.max(...sizes) - Math.min(...sizes)).toBeLessThanOrEqual(1)
  }
})

test('both sides have valid pools with the same budget and start; only one of them keeps pods', () => {
  for (const speed of [1, DEFAULT_SPEED, MAX_SPEED]) {
    const plan = demoPlan({ ...CHOICES, speed })
    const [ours, fresh] = (['withFirepool', 'freshPod'] as const).map(
      (side) => checkPoolSpec(demoPool('demo-x', side, plan, 4)).value!,
    )
    expect(ours!.budget).toBe(fresh!.budget)
    expect(ours!.profile).toEqual(fresh!.profile)
    expect(ours!.profile.startDelay).toEqual(plan.startDelay)
    expect([fresh!.standby, fresh!.keepAliveMs]).toEqual([0, 0])
    expect(ours!.keepAliveMs).toBeGreaterThan(0)
  }
})
