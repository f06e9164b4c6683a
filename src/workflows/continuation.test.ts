import { describe, expect, test } from 'vitest'
import { continuation } from './continuation.js'

const run = (progress: Partial<Parameters<typeof continuation>[0]>) =>
  continuation({ signals: 0, updates: 0, events: 0, ...progress })

describe('a run of a pool continues as new', () => {
  test.each([
    ['signals', 8_000, 9_000, 9_500],
    ['events', 4_000, 6_000, 12_000],
  ] as const)('by its %s: due, then forced, then at once', (what, due, forced, must) => {
    const at = [due - 1, due, forced - 1, forced, must - 1, must].map((n) => run({ [what]: n }))
    expect(at).toEqual(['goOn', 'due', 'due', 'forced', 'forced', 'must'])
  })

  test('before the server refuses its signals (10,000), its updates (2,000) or its history (51,200 events)', () => {
    expect(run({ updates: 1_499 })).toBe('goOn')
    expect(run({ updates: 1_500 })).toBe('due')
    expect(run({ signals: 9_999 })).toBe('must')
    expect(run({ events: 51_199 })).toBe('must')
  })

  test('not at every suggestion: sooner only where it was told so', () => {
    const after = { signals: 12, events: 150 }
    const soon = (signals: number, events: number) => continuation({ signals, updates: 0, events }, after)
    expect([soon(11, 149), soon(12, 0), soon(0, 150)]).toEqual(['goOn', 'due', 'due'])
    expect([soon(0, 225), soon(0, 450), soon(9_000, 0)]).toEqual(['forced', 'must', 'forced'])
  })
})
