import { readFileSync } from 'node:fs'
import { expect, test } from 'vitest'

const ROW = /^\| ([A-Z]\d+) \| .* \| `([^`]+)`: (.+) \|$/

test('each rule of docs/SPEC.md has an id of its own and names a test that exists', () => {
  const lines = readFileSync('docs/SPEC.md', 'utf8').split('\n')
  const rules = lines.filter((line) => /^\| [A-Z]\d+ \|/.test(line)).map((line) => ROW.exec(line))
  expect(rules.length).toBeGreaterThan(30)
  const missing: string[] = []
  for (const rule of rules) {
    expect(rule, 'a row that names no test').not.toBeNull()
    const [, id, file, title] = rule!
    const source = readFileSync(file!, 'utf8')
    if (!source.includes(title!)) missing.push(`${id}: ${file} has no test "${title}"`)
  }
  expect(missing).toEqual([])
  const ids = rules.map((rule) => rule![1])
  expect(new Set(ids).size).toBe(ids.length)
  const places = ids.map((id) => Number(id!.slice(1)))
  const falls = ids.filter((id, at) => id![0] === ids[at - 1]?.[0] && places[at]! < places[at - 1]!)
  expect(falls, 'rows in the order of their ids').toEqual([])
})
