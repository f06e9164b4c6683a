import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'

/** Beginnings of lines by which a module would keep what one workflow has told it: variables, and containers that are empty at first. */
const KEEPS = /^(export )?((let|var) .*|const \w+(: [^=]*)? = (new (Weak)?(Map|Set)(<.*>)?\(\)|\[\]|\{\}))$/gm

test('code that is loaded once for all workflows keeps nothing in its modules', () => {
  const kept = ['broker', 'contract'].flatMap((folder) =>
    readdirSync(join(import.meta.dirname, folder), { recursive: true, encoding: 'utf8' })
      .filter((name) => name.endsWith('.ts') && !name.endsWith('.test.ts'))
      .flatMap((name) => {
        const source = readFileSync(join(import.meta.dirname, folder, name), 'utf8')
        return [...source.matchAll(KEEPS)].map(([line]) => `${folder}/${name}: ${line}`)
      }),
  )
  expect(kept).toEqual([])
  expect(
    ['let x = 1', 'const m = new Map<string, number>()', 'export const a: string[] = []']
      .join('\n')
      .match(KEEPS),
  ).toHaveLength(3)
})
