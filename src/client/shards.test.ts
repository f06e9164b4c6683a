import fc from 'fast-check'
import { expect, it } from 'vitest'
import type { Page } from '../contract/index.js'
import { pageOfAll } from './shards.js'

it('pages over all shards as over one list: every row once, in the order of the shards', async () => {
  const lists = fc.array(fc.array(fc.nat(), { maxLength: 7 }), { minLength: 1, maxLength: 5 })
  await fc.assert(
    fc.asyncProperty(lists, fc.integer({ min: 1, max: 9 }), async (shards, limit) => {
      const ask = async (shard: number, page: { offset?: number; limit?: number }): Promise<Page<number>> => {
        const all = shards[shard]!
        const { offset = 0, limit: most = 500 } = page
        const rows = all.slice(offset, offset + most)
        const next = offset + rows.length
        return { v: 1, rows, total: all.length, next: next < all.length ? next : null }
      }
      const seen: number[] = []
      for (let offset: number | null = 0; offset !== null; ) {
        const page: Page<number> = await pageOfAll(shards.length, { offset, limit }, ask)
        expect(page.rows.length).toBeLessThanOrEqual(limit)
        expect(page.total).toBe(shards.flat().length)
        seen.push(...page.rows)
        offset = page.next
      }
      expect(seen).toEqual(shards.flat())
    }),
  )
})

it('leaves out a shard that has just ended', async () => {
  const page = await pageOfAll<string>(2, {}, async (shard) =>
    shard === 0 ? { v: 1, rows: ['a'], total: 1, next: null } : null,
  )
  expect(page).toEqual({ v: 1, rows: ['a'], total: 1, next: null })
})
