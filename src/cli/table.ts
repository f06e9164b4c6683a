import { paint, printable } from './terminal.js'

export interface Column<Row> {
  title: string
  cell: (row: Row) => string
  align?: 'left' | 'right'
  /** longer cells are cut with an ellipsis; default 40 */
  maxWidth?: number
}

const GAP = '  '
const MAX_WIDTH = 40

/** Rows under a heading, aligned; the empty table is its heading. */
export function renderTable<Row>(columns: readonly Column<Row>[], rows: readonly Row[]): string {
  const cells = rows.map((row) =>
    columns.map((column) => fitted(column.cell(row), column.maxWidth ?? MAX_WIDTH)),
  )
  const widths = columns.map((column, at) =>
    cells.reduce((most, row) => Math.max(most, textWidth(row[at]!)), textWidth(column.title)),
  )
  const line = (texts: readonly string[]) =>
    texts
      .map((text, at) => padded(text, widths[at]!, columns[at]!.align ?? 'left'))
      .join(GAP)
      .trimEnd()
  const heading = paint('bold', line(columns.map((column) => column.title.toUpperCase())))
  return `${[heading, ...cells.map(line)].join('\n')}\n`
}

/** Names and values, one pair a line. */
export function renderFacts(facts: readonly (readonly [name: string, value: string])[]): string {
  const width = facts.reduce((most, [name]) => Math.max(most, textWidth(name)), 0)
  return facts
    .map(([name, value]) => `${paint('dim', padded(name, width, 'left'))}${GAP}${printable(value)}\n`)
    .join('')
}

function padded(text: string, width: number, align: 'left' | 'right'): string {
  const space = ' '.repeat(Math.max(0, width - textWidth(text)))
  return align === 'left' ? text + space : space + text
}

/** One line of at most `width` columns, without control characters. */
function fitted(text: string, width: number): string {
  const line = printable(text.replace(/[\n\r\t]/g, ' '))
  if (textWidth(line) <= width) return line
  let out = ''
  let used = 0
  for (const { segment } of new Intl.Segmenter().segment(line)) {
    used += textWidth(segment)
    if (used > width - 1) break
    out += segment
  }
  return `${out}…`
}

const WIDE =
  /[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6\u{1f300}-\u{1faff}\u{20000}-\u{3fffd}]/u
const NO_WIDTH = /^(\p{Mark}|\u200b|\u200c|\u200d|\ufe0f)/u

/** Columns that a terminal gives a text: East Asian characters and emoji take two, combining marks none. */
export function textWidth(text: string): number {
  let width = 0
  for (const { segment } of new Intl.Segmenter().segment(text)) {
    const first = segment.codePointAt(0)!
    if (first < 0x300) width += segment.length > 1 && segment.includes('\ufe0f') ? 2 : 1
    else if (!NO_WIDTH.test(segment)) width += WIDE.test(segment) ? 2 : 1
  }
  return width
}
