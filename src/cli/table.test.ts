import { expect, test } from 'vitest'
import { renderFacts, renderTable, textWidth } from './table.js'

test('columns are aligned, numbers to the right', () => {
  const table = renderTable(
    [
      { title: 'pool', cell: (row: [string, number]) => row[0] },
      { title: 'held', cell: (row) => String(row[1]), align: 'right' },
    ],
    [
      ['a', 1],
      ['longer', 1000],
    ],
  )
  expect(table).toBe('POOL    HELD\na          1\nlonger  1000\n')
})

test('what terminals show wide counts as two columns', () => {
  expect(textWidth('abc')).toBe(3)
  expect(textWidth('日本')).toBe(4)
  expect(textWidth('e\u0301')).toBe(1)
  expect(textWidth('🔥')).toBe(2)
})

test('a caller may be any text: it is one short line that steers no terminal', () => {
  const table = renderTable(
    [{ title: 'caller', cell: (row: string) => row, maxWidth: 8 }],
    ['\u001b[2Jgone', 'two\nlines', 'x'.repeat(500), '日本語日本語'],
  )
  expect(table).toBe('CALLER\n\ufffd[2Jgone\ntwo lin…\nxxxxxxx…\n日本語…\n')
})

test('facts', () => {
  expect(
    renderFacts([
      ['a', '1'],
      ['long', '2'],
    ]),
  ).toBe('a     1\nlong  2\n')
})
