import fc from 'fast-check'
import { expect, test } from 'vitest'
import { StartedIds } from './started-ids.js'

test('remembers exactly the ids that were added, in any order', () => {
  const id = fc.oneof(
    fc.tuple(fc.constantFrom('a', 'b', 'a/b'), fc.nat(12)).map(([sandbox, n]) => `${sandbox}/${n}`),
    fc.constantFrom('plain', 'a/01', 'a/-1', 'a/1e1', 'a/', '/3', 'a/9007199254740993'),
  )
  fc.assert(
    fc.property(fc.array(id, { maxLength: 60 }), fc.array(id), (added, asked) => {
      const ids = new StartedIds()
      const model = new Set<string>()
      for (const one of added) {
        ids.add(one)
        model.add(one)
        expect(ids.has(one)).toBe(true)
      }
      for (const one of asked) expect(ids.has(one), one).toBe(model.has(one))
    }),
  )
})

test('a sandbox that counts its calls costs one entry', () => {
  const ids = new StartedIds()
  for (let n = 0; n < 10_000; n += 2) ids.add(`s/${n}`)
  expect(ids.entries).toBe(5_000)
  for (let n = 1; n < 10_000; n += 2) ids.add(`s/${n}`)
  expect(ids.entries).toBe(1)
  expect(ids.has('s/9999')).toBe(true)
  expect(ids.has('s/10000')).toBe(false)
})
