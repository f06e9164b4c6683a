import { expect, test } from 'vitest'
import { callerKeyword } from './lease-attributes.js'

test('a caller is its own keyword up to 255 characters; a longer one is cut, with a hash that tells it apart', () => {
  expect(callerKeyword('agent-7')).toBe('agent-7')
  const long = 'x'.repeat(255)
  expect(callerKeyword(long)).toBe(long)
  const [one, other] = [callerKeyword(`${long}1`), callerKeyword(`${long}2`)]
  expect([one!.length, other!.length]).toEqual([255, 255])
  expect(one).toMatch(/^x{242}-[0-9a-f]{12}$/)
  expect(one).not.toBe(other)
  // No half of a character stays.
  expect(callerKeyword(`${'x'.repeat(241)}\u{1F525}${'y'.repeat(20)}`)).toMatch(/^x{241}-[0-9a-f]{12}$/)
})
