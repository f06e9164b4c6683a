import { expect, test } from 'vitest'
import type { PoolStatus } from '../contract/index.js'
import {
  count,
  isRight,
  type JobRecord,
  loopResult,
  newProgress,
  type SideRun,
  sideResult,
  sumOf,
} from './records.js'
import { MAX_COMPLAINTS } from './result.js'

function status(grants: PoolStatus['grants'], heldPodMs: number, podsCreated: number): PoolStatus {
  return { grants, heldPodMs, podsCreated } as PoolStatus
}

const right = (startMs: number, hit: JobRecord['hit']): JobRecord => ({ startMs, hit, verdict: 'right' })

function sideRun(jobs: JobRecord[], change: Partial<SideRun> = {}): SideRun {
  return {
    record: { v: 1, totalMs: 10_000, jobs },
    before: status({ warm: 1, standby: 1, cold: 1 }, 500, 2),
    after: status({ warm: 1, standby: 2, cold: 4 }, 20_500, 6),
    podSecondsExisting: 33,
    concurrency: 4,
    ...change,
  }
}

test('a side with records of where pods came from: its shares are those of the jobs', () => {
  const side = sideResult(
    sideRun([right(5, 'standby'), right(1, 'warm'), right(2, 'warm'), right(3, 'warm')]),
  )
  expect(side.shares).toEqual({ warm: 0.75, standby: 0.25, cold: 0 })
  expect(side.startMs).toEqual({ p50: 2, p90: 5, p99: 5 })
  expect(side).toMatchObject({
    totalMs: 10_000,
    podSecondsHeld: 20,
    podSecondsExisting: 33,
    alwaysOnPodSeconds: 40,
    podsCreated: 6,
    startsNotMeasured: 0,
  })
})

test('without such records the pool knows: its grants since the loop began', () => {
  const side = sideResult(sideRun([right(5, null), right(6, null)]))
  expect(side.shares).toEqual({ warm: 0, standby: 0.25, cold: 0.75 })
})

test('a job without a result has no start, and its start is counted as not measured', () => {
  const side = sideResult(sideRun([right(5, 'warm'), { startMs: null, hit: 'warm', verdict: 'right' }]))
  expect(side.startMs.p99).toBe(5)
  expect(side.startsNotMeasured).toBe(1)
})

test('a loop counts failures and right results of both sides, and says what was wrong', () => {
  const none: JobRecord = { startMs: null, hit: null, verdict: 'none', why: 'PodLost: gone' }
  const wrong: JobRecord = { startMs: 1, hit: 'warm', verdict: 'wrong', why: 'reward 1 instead of 0' }
  const loop = loopResult('a loop', sideRun([right(1, 'warm'), none]), sideRun([right(1, null), wrong]))
  expect(loop).toMatchObject({ jobs: 2, failures: 1, rewards: { expected: 4, right: 2 }, speedup: 1 })
  expect(loop.complaints).toEqual([
    'with Firepool: PodLost: gone',
    'a fresh pod per job: reward 1 instead of 0',
  ])
  expect(isRight(loop)).toBe(false)
  const good = loopResult('a loop', sideRun([right(1, 'warm')]), sideRun([right(1, null)]))
  expect(isRight(good)).toBe(true)
  expect(isRight(loopResult('nothing', sideRun([]), sideRun([])))).toBe(false)
  const many = loopResult('bad', sideRun(Array.from({ length: 500 }, () => none)), sideRun([]))
  expect(many.complaints.length).toBe(MAX_COMPLAINTS + 1)
  expect(many.complaints.at(-1)).toBe(`and ${500 - MAX_COMPLAINTS} more`)
})

test('progress counts jobs, and several workflows are summed up', () => {
  const one = newProgress(3)
  count(one, right(1, 'cold'))
  count(one, { startMs: null, hit: null, verdict: 'none', why: 'x' })
  const two = newProgress(2)
  count(two, right(1, 'warm'))
  expect(sumOf([one, two])).toEqual({
    v: 1,
    done: 3,
    total: 5,
    failures: 1,
    hits: { warm: 1, standby: 0, cold: 1 },
  })
})
