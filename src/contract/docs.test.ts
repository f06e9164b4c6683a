/** docs/contract.md is the published contract: its tables say what the code says. */
import { readFileSync } from 'node:fs'
import { expect, test } from 'vitest'
import { durationMs } from './duration.js'
import { ORIGIN_OF } from './errors.js'
import { LIMIT, TIMEOUT } from './limits.js'
import { ACTIVITY, QUERY, QUEUE, SEARCH_ATTRIBUTE, SIGNAL, UPDATE, WORKFLOW } from './names.js'

const text = readFileSync(new URL('../../docs/contract.md', import.meta.url), 'utf8')

/** The tables of the document: by their first column's title, as rows of cells without backticks. */
function tableOf(title: string): string[][] {
  const lines = text.split('\n')
  const start = lines.findIndex((line) => line.startsWith(`| ${title} |`))
  expect(start, `a table whose first column is '${title}'`).toBeGreaterThan(-1)
  const rows: string[][] = []
  for (const line of lines.slice(start + 2)) {
    if (!line.startsWith('|')) break
    rows.push(
      line
        .slice(1, -1)
        .split('|')
        .map((cell) => cell.trim().replaceAll('`', '')),
    )
  }
  return rows
}

const firstColumn = (title: string) =>
  tableOf(title)
    .map(([first]) => first)
    .sort()

test.each([
  ['task queue', QUEUE],
  ['workflow', WORKFLOW],
  ['activity', ACTIVITY],
  ['signal', SIGNAL],
  ['update of a pool', UPDATE],
  ['query of a pool', QUERY],
])('the table of each %s has the names of the code', (title, names) => {
  expect(firstColumn(title)).toEqual(Object.values(names).sort())
})

test('search attributes have their types', () => {
  expect(Object.fromEntries(tableOf('search attribute'))).toEqual(SEARCH_ATTRIBUTE)
})

test('error codes have their origins, a meaning and a remedy', () => {
  const rows = tableOf('code')
  expect(Object.fromEntries(rows.map(([code, origin]) => [code, origin]))).toEqual(ORIGIN_OF)
  for (const [code, , meaning, remedy] of rows) expect(meaning && remedy, code).toBeTruthy()
})

/** Rows of a section's table of numbers: durations, or numbers with thousands separators. */
function numbers(heading: string): Record<string, number> {
  const from = text.indexOf(`\n## ${heading}\n`)
  const section = text.slice(from, text.indexOf('\n## ', from + 4) + 1 || undefined)
  const rows = section.matchAll(/^\| `(\w+)` \| ([^|]+) \|/gm)
  return Object.fromEntries(
    [...rows].map(([, name, value]) => [name, durationMs(value) ?? Number(value!.replaceAll(',', ''))]),
  )
}

test('every default of a time', () => {
  expect(numbers('Times')).toEqual(TIMEOUT)
})

test('every limit', () => {
  expect(numbers('Limits')).toEqual(LIMIT)
})
