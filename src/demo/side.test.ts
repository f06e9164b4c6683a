import { expect, test } from 'vitest'
import { Census } from './side.js'

test('pod-seconds are the area under what was seen', () => {
  const census = new Census(1_000, 2)
  census.count(3_000, 2)
  expect(census.podSeconds).toBe(4)
  census.count(4_000, 4)
  expect(census.podSeconds).toBe(7)
  census.count(4_000, 0)
  census.count(9_000, 0)
  expect(census.podSeconds).toBe(7)
})
