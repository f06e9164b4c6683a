import { expect, test } from 'vitest'
import type { DemoResult, SideResult } from './result.js'
import { percentile, sharesOf, speedupOf, startPercentiles } from './result.js'
import { Progress, type ProgressState, renderProgress, renderTable } from './table.js'

const ours: SideResult = {
  totalMs: 41_200,
  startMs: { p50: 3.2, p90: 12, p99: 900 },
  shares: { warm: 0.95, standby: 0.05, cold: 0 },
  startsNotMeasured: 0,
  podSecondsHeld: 120,
  podSecondsExisting: 150,
  alwaysOnPodSeconds: 240,
  podsCreated: 6,
}
const fresh: SideResult = {
  totalMs: 500_000,
  startMs: { p50: 27_500, p90: 33_000, p99: 34_900 },
  shares: { warm: 0, standby: 0, cold: 1 },
  startsNotMeasured: 2,
  podSecondsHeld: 480,
  podSecondsExisting: 900,
  alwaysOnPodSeconds: 480,
  podsCreated: 492,
}

function demo(change: Partial<DemoResult> = {}): DemoResult {
  const loop = { jobs: 492, failures: 1, rewards: { expected: 492, right: 491 }, complaints: ['lost one'] }
  return {
    v: 1,
    seed: 7,
    startDelay: { minMs: 1_000, maxMs: 1_750 },
    compression: 20,
    loops: [
      { name: 'RL loop', ...loop, speedup: speedupOf(ours, fresh), withFirepool: ours, freshPod: fresh },
      { name: 'Agent loop', ...loop, speedup: 2, withFirepool: ours, freshPod: fresh },
    ],
    notRun: [],
    ...change,
  }
}

test('the table has every figure of both loops and both sides', () => {
  const text = renderTable(demo())
  expect(text).toContain('RL loop: 492 jobs, 12.1 times as fast with Firepool')
  expect(text).toContain('Agent loop: 492 jobs, 2.0 times')
  expect(text).toMatch(/total time +41\.2s +8m20s/)
  expect(text).toMatch(/start p50 .* 3\.2ms \/ 12ms \/ 900ms +27\.5s \/ 33\.0s \/ 34\.9s/)
  expect(text).toMatch(/warm .* 95% \/ 5% \/ 0% +0% \/ 0% \/ 100%/)
  expect(text).toMatch(/pod-seconds held +120\.0 +480\.0/)
  expect(text).toMatch(/pod-seconds existing +150\.0 +900\.0/)
  expect(text).toMatch(/held of always-on +50% of 240\.0 +100% of 480\.0/)
  expect(text).toMatch(/pods created +6 +492/)
  expect(text).toMatch(/ended at the time limit +0, start not measured +2, start not measured/)
  expect(text).toContain('! lost one')
  expect(text).toMatch(/right results +491 of 492/)
  expect(text).toMatch(/failures +1/)
  for (const line of text.split('\n')) expect(line.length).toBeLessThanOrEqual(110)
})

test('the table says what is imitated and compressed, and only then', () => {
  expect(renderTable(demo())).toMatch(
    /divided by 20, the jobs are real[^;]*;\ncold starts are IMITATED: 1\.00s to 1\.75s.*20-35 s/,
  )
  const plain = renderTable(demo({ startDelay: null, compression: 1 }))
  expect(plain).not.toContain('IMITATED')
  expect(plain).not.toContain('divided')
  expect(plain).toContain('no start of a GPU pod is imitated')
})

test('a loop that could not be run is named with its reason', () => {
  const text = renderTable(demo({ notRun: [{ name: 'RL loop', reason: 'no network' }] }))
  expect(text).toContain('RL loop: NOT RUN. no network')
})

test('the table never rounds to all or nothing, and shows absent values as such', () => {
  const side = {
    ...ours,
    startMs: startPercentiles([]),
    shares: { warm: 0.9999, standby: 0.0001, cold: 0 },
    alwaysOnPodSeconds: 0,
  }
  const loop = { ...demo().loops[0]!, withFirepool: side, speedup: Number.NaN }
  const text = renderTable(demo({ loops: [loop] }))
  expect(text).toContain('>99.9% / <0.1% / 0%')
  expect(text).toContain('- / - / -')
  expect(text).toContain(', - times as fast')
})

test('percentile is nearest-rank', () => {
  const values = [15, 20, 35, 40, 50]
  expect([5, 30, 40, 50, 100].map((p) => percentile(values, p))).toEqual([15, 20, 20, 35, 50])
  expect(percentile([3, 1, 2], 99)).toBe(3)
  expect(percentile([], 50)).toBeNaN()
  expect(() => percentile(values, 0)).toThrow(RangeError)
  expect(() => percentile(values, 101)).toThrow(RangeError)
})

test('shares add up to 1 and are 0 without jobs', () => {
  expect(sharesOf(['warm', 'warm', 'cold', 'standby'])).toEqual({ warm: 0.5, standby: 0.25, cold: 0.25 })
  expect(sharesOf([])).toEqual({ warm: 0, standby: 0, cold: 0 })
})

const state: ProgressState = {
  loop: 'RL loop',
  side: 'with Firepool',
  done: 0,
  total: 4,
  failures: 0,
  warm: 0,
  standby: 0,
  cold: 0,
}

/** A stream that keeps what was written, and a clock to move. */
function recorder(isTTY: boolean) {
  const written: string[] = []
  const clock = { ms: 0 }
  const stream = { isTTY, columns: 40, write: (text: string) => written.push(text) }
  return { written, clock, progress: new Progress(stream, () => clock.ms) }
}

test('a progress line tells how far, from where, and failures', () => {
  expect(renderProgress({ ...state, done: 1, warm: 1 })).toBe(
    'RL loop, with Firepool  [##........]  1/4  warm 1',
  )
  expect(renderProgress({ ...state, done: 4, warm: 2, standby: 1, cold: 1 })).toBe(
    'RL loop, with Firepool  [##########]  4/4  warm 2, standby 1, cold 1',
  )
  const longest = { ...state, loop: 'Agent loop', done: 492, total: 492, warm: 480, standby: 2, cold: 10 }
  expect(renderProgress(longest).length).toBeLessThan(80)
  expect(renderProgress({ ...state, failures: 2 })).toContain('FAILED 2')
  expect(renderProgress({ ...state, total: 0 })).toContain('0/0')
})

test('on a terminal one line is drawn anew, never wider than the terminal, and ends', () => {
  const { written, clock, progress } = recorder(true)
  progress.update(state)
  progress.update({ ...state, done: 1 })
  expect(written.length).toBe(1)
  clock.ms = 150
  progress.update({ ...state, done: 2 })
  progress.update({ ...state, done: 4 })
  expect(written.length).toBe(4)
  expect(written[3]).toBe('\n')
  for (const text of written.slice(0, 3)) {
    expect(text.startsWith('\r\u001b[2K')).toBe(true)
    expect(text.length - '\r\u001b[2K'.length).toBeLessThan(40)
  }
})

test('elsewhere plain whole lines come now and then, and one at each end', () => {
  const { written, clock, progress } = recorder(false)
  progress.update(state)
  clock.ms = 1_000
  progress.update({ ...state, done: 1 })
  expect(written).toEqual([])
  clock.ms = 6_000
  progress.update({ ...state, done: 2 })
  progress.update({ ...state, side: 'a fresh pod per job', done: 0 })
  progress.update({ ...state, side: 'a fresh pod per job', done: 4 })
  progress.finish()
  expect(written.length).toBe(2)
  expect(written[0]).toContain('with Firepool')
  expect(written[1]).toContain('a fresh pod per job')
  expect(written[1]).toContain('4/4')
  for (const text of written) {
    expect(text).not.toContain('\r')
    expect(text.indexOf('\n')).toBe(text.length - 1)
  }
})
