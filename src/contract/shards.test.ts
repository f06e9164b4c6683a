import fc from 'fast-check'
import { expect, it } from 'vitest'
import { checkPoolName } from './check.js'
import { LIMIT } from './limits.js'
import { poolOfShard, routesIn, shardName, shardOfCaller, shareOf } from './shards.js'

const shards = fc.integer({ min: 1, max: LIMIT.shards })

it('splits a whole into parts that add up to it and differ by one at most', () => {
  fc.assert(
    fc.property(fc.nat(LIMIT.pods), shards, (whole, n) => {
      const parts = Array.from({ length: n }, (_, k) => shareOf(whole, n, k))
      expect(parts.reduce((sum, part) => sum + part, 0)).toBe(whole)
      expect(Math.max(...parts) - Math.min(...parts)).toBeLessThanOrEqual(1)
    }),
  )
})

it('gives no shard less of a larger whole: maxPods never falls below the budget in any of them', () => {
  fc.assert(
    fc.property(fc.nat(LIMIT.pods), fc.nat(LIMIT.pods), shards, (a, b, n) => {
      for (let k = 0; k < n; k++)
        expect(shareOf(Math.max(a, b), n, k)).toBeGreaterThanOrEqual(shareOf(Math.min(a, b), n, k))
    }),
  )
})

it('moves only the callers of a shard that comes or goes', () => {
  fc.assert(
    fc.property(fc.string({ minLength: 1, maxLength: 60 }), fc.integer({ min: 1, max: 15 }), (caller, n) => {
      const before = shardOfCaller(caller, n)
      expect(before).toBeLessThan(n)
      expect([before, n]).toContain(shardOfCaller(caller, n + 1))
    }),
  )
})

it.each(['agent-%', '%', 'firepool-run-0b0f9a7e-%', 'wörker/%/x'])(
  'spreads callers like %s evenly',
  (form) => {
    const callers = Array.from({ length: 4_000 }, (_, i) => form.replace('%', String(i)))
    for (const n of [2, 3, 4, 8, 16]) {
      const counts = new Array<number>(n).fill(0)
      let moved = 0
      for (const caller of callers) {
        counts[shardOfCaller(caller, n)]!++
        if (shardOfCaller(caller, n) !== shardOfCaller(caller, n - 1)) moved++
      }
      const fair = callers.length / n
      for (const count of counts) expect(Math.abs(count - fair)).toBeLessThan(5 * Math.sqrt(fair))
      expect(Math.abs(moved - fair)).toBeLessThan(5 * Math.sqrt(fair))
    }
  },
)

it('names shards as no user can name a pool', () => {
  expect(shardName('cpu', 0)).toBe('cpu')
  expect(shardName('cpu', 3)).toBe('cpu.3')
  expect(poolOfShard('cpu.3')).toBe('cpu')
  expect(checkPoolName('cpu.3').problem?.code).toBe('InvalidRequest')
})

it('takes a memo that it cannot read for that of a whole pool', () => {
  const whole = { routes: 1, all: 1 }
  for (const memo of [undefined, {}, { firepoolShards: 3 }, { firepoolShards: { routes: 3, all: 2 } }])
    expect(routesIn(memo)).toEqual(whole)
  expect(routesIn({ firepoolShards: { routes: 2, all: 3 } })).toEqual({ routes: 2, all: 3 })
})
