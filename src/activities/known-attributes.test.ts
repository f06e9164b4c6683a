import { expect, test } from 'vitest'
import { SEARCH_ATTRIBUTE } from '../contract/names.js'
import { KnownAttributes } from './known-attributes.js'

const ALL = Object.keys(SEARCH_ATTRIBUTE)
const settled = () => new Promise((resolve) => setImmediate(resolve))

test('they may be set when all have been there for a while, and no longer when one is gone', async () => {
  let now = 0
  let there: string[] | Error = ALL.slice(1)
  let looks = 0
  const read = async () => {
    looks++
    if (there instanceof Error) throw there
    return there
  }
  const known = new KnownAttributes(read, () => now)
  const maySet = async (at: number) => {
    now = at
    void known.maySet
    await settled()
    return known.maySet
  }
  expect(await maySet(20_000)).toBe(false)
  there = ALL
  expect(await maySet(30_000)).toBe(false)
  expect(await maySet(39_000)).toBe(false)
  expect(await maySet(40_000)).toBe(true)
  expect(looks).toBe(2)
  // Nobody can say: none is set.
  there = new Error('away')
  expect(await maySet(59_000)).toBe(true)
  expect(await maySet(60_000)).toBe(false)
  there = ALL
  expect(await maySet(90_000)).toBe(false)
  expect(await maySet(100_000)).toBe(true)
  there = []
  expect(await maySet(130_000)).toBe(false)
})
