import { expect, test } from 'vitest'
import { random } from '../demo/random.js'
import { percentile } from '../demo/result.js'
import { Histogram } from './histogram.js'

test('short values are exact, also at the edges of a rank', () => {
  const histogram = new Histogram()
  const values = [50, 50, 50, 50, 50, 50, 50, 50, 50, 2_047]
  for (const value of values) histogram.add(value)
  for (const percent of [1, 50, 90, 91, 100])
    expect(histogram.percentile(percent)).toBe(percentile(values, percent))
  expect(histogram.count).toBe(10)
  expect(histogram.max).toBe(2_047)
})

test('long values are at most 0.1 % too high, and never above the longest', () => {
  const draw = random('histogram')
  const histogram = new Histogram()
  const values = Array.from({ length: 5_000 }, () => Math.round(10 ** (draw.next() * 9)))
  for (const value of values) histogram.add(value)
  for (const percent of [1, 10, 50, 90, 99, 100]) {
    const exact = percentile(values, percent)
    const found = histogram.percentile(percent)
    expect(found).toBeGreaterThanOrEqual(exact)
    expect(found).toBeLessThanOrEqual(exact * 1.001)
  }
  expect(histogram.percentile(100)).toBe(Math.max(...values))
})

test('what is out of bounds counts as the bound, and an empty one has no quantiles', () => {
  const histogram = new Histogram()
  expect(histogram.percentile(50)).toBeNaN()
  for (const value of [-5, 2 ** 40]) histogram.add(value)
  expect(histogram.percentile(50)).toBe(0)
  expect(histogram.percentile(100)).toBe(2 ** 31 - 1)
})
