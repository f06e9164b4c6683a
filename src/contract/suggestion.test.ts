import { expect, test } from 'vitest'
import { closestWord, editDistance } from './suggestion.js'

const KEYS = ['name', 'budget', 'guarantee', 'standby', 'maxPods', 'keepAlive', 'podStart']

test.each([
  ['budgett', 'budget'],
  ['bugdet', 'budget'],
  ['keep_alive', 'keepAlive'],
  ['keepAliveMs', 'keepAlive'],
  ['maxpods', 'maxPods'],
  ['garantee', 'guarantee'],
  ['colour', undefined],
  ['x', undefined],
  ['b'.repeat(10_000), undefined],
])('%s', (word, meant) => {
  expect(closestWord(word, KEYS)).toBe(meant)
})

test('distance', () => {
  expect(editDistance('abc', 'abc')).toBe(0)
  expect(editDistance('abc', 'acb')).toBe(1)
  expect(editDistance('abc', 'xbcd')).toBe(2)
})
