import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { describe, expect, it } from 'vitest'

/** The core decides and does nothing else: it has no clock, no randomness, no I/O, and knows no SDK. */

const folder = fileURLToPath(new URL('.', import.meta.url))
const files = readdirSync(folder, { recursive: true, encoding: 'utf8' }).filter(
  (name) => name.endsWith('.ts') && !name.endsWith('.test.ts'),
)

describe.each(files)('src/broker/%s', (name) => {
  const text = readFileSync(join(folder, name), 'utf8')

  it('imports only the core and the contract', () => {
    const imported = [...text.matchAll(/(?:from|import)\s*\(?\s*'([^']+)'/g)].map((match) => match[1]!)
    const depth = name.split('/').length - 1
    const own = new RegExp(depth === 0 ? '^\\./' : '^\\.\\.?/(?!\\.)')
    const contract = `${'../'.repeat(depth + 1)}contract/`
    expect(imported.filter((from) => !own.test(from) && !from.startsWith(contract))).toEqual([])
  })

  it('has no clock, no randomness and no globals of a platform', () => {
    const forbidden =
      /\bDate\b|Math\.random|\bperformance\b|setTimeout|setInterval|\bprocess\.|\bcrypto\b|\bfetch\(|structuredClone|\bBuffer\b|console\./
    expect(text.replace(/\/\*[\s\S]*?\*\/|\/\/.*$/gm, '')).not.toMatch(forbidden)
  })
})

it('finds the core', () => {
  expect(files.length).toBeGreaterThan(15)
})
