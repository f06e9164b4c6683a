import { isRecord, shown, utf8Bytes } from '../contract/check.js'
import { LIMIT } from '../contract/limits.js'
import { closestWord } from '../contract/suggestion.js'

/** One job of a trace. */
export interface TraceRow {
  /** on the trace's own clock, ms */
  atMs: number
  caller: string
  runMs: number
  slot: string
  tenant: string
  priority: number
}

/** What is wrong with a line of a trace. */
export interface TraceProblem {
  /** from 1 */
  line: number
  why: string
  remedy: string
}

/** A trace that says nothing at all: its first line is no header, or it cannot be read. */
export class TraceError extends Error {
  override readonly name = 'TraceError'
  constructor(
    readonly line: number,
    readonly why: string,
    readonly remedy: string,
  ) {
    super(`line ${line}: ${why}; ${remedy}`)
  }
}

const REQUIRED = ['atSeconds', 'caller', 'runSeconds'] as const
const FIELDS = [...REQUIRED, 'slot', 'tenant', 'priority']
/** A row has five short fields: what is longer is another kind of file, and is not kept in memory. */
const LINE_BYTES_MAX = 64 * 1024
/** A trace of another kind is wrong in each line: the first ones say it. */
const PROBLEMS_KEPT = 20

/** Reads rows of a JSONL or CSV trace as a stream. Lines that are wrong are counted and left out; the first of them are kept. */
export class TraceReader {
  /** lines that were left out */
  problems = 0
  readonly first: TraceProblem[] = []
  bytes = 0
  private readonly lines: AsyncGenerator<string | null>
  private line = 0
  /** of a CSV: its columns; null before the first line, and in JSONL */
  private columns: string[] | null = null
  private isBegun = false
  private lastAtMs = Number.NEGATIVE_INFINITY
  private lastLine = 0
  /** caller and slot of rows at `lastAtMs` */
  private readonly sameMoment = new Map<string, number>()

  /** @param pieces bytes of the file, in UTF-8 */
  constructor(pieces: AsyncIterable<Uint8Array>) {
    this.lines = linesOf(pieces, (bytes) => {
      this.bytes += bytes
    })
  }

  /**
   * @returns the next good row; null at the end
   * @throws TraceError when the first line is neither JSON nor a header
   */
  async next(): Promise<TraceRow | null> {
    for (;;) {
      const { value, done } = await this.lines.next()
      if (done) return null
      this.line++
      const text = value === null ? null : value.trim()
      if (text === '') continue
      if (!this.isBegun) {
        this.isBegun = true
        if (text !== null && this.isHeader(text)) continue
      }
      const row = text === null ? tooLong : this.rowOf(text)
      const problem = 'why' in row ? row : this.outOfOrder(row)
      if (!problem) return row as TraceRow
      this.problems++
      if (this.first.length < PROBLEMS_KEPT) this.first.push({ line: this.line, ...problem })
    }
  }

  private isHeader(text: string): boolean {
    if (text.startsWith('{')) return false
    const columns = cellsOf(text)
    const missing = REQUIRED.filter((name) => !columns.includes(name))
    const unknown = columns.find((name) => !FIELDS.includes(name))
    const twice = columns.find((name, at) => columns.indexOf(name) !== at)
    const remedy = `begin a CSV with a header such as atSeconds,caller,runSeconds (and ${FIELDS.slice(3).join(', ')} where you have them), or write JSON objects, one a line`
    if (missing.length > 0)
      throw new TraceError(this.line, `this header has no column ${missing.join(', ')}`, remedy)
    if (unknown !== undefined)
      throw new TraceError(this.line, `unknown column ${shown(unknown)}`, meant(unknown))
    if (twice !== undefined) throw new TraceError(this.line, `column ${shown(twice)} is there twice`, remedy)
    this.columns = columns
    return true
  }

  private rowOf(text: string): TraceRow | Wrong {
    if (this.columns === null) return rowOfJson(text)
    const cells = cellsOf(text)
    if (cells.length !== this.columns.length)
      return wrong(
        `the line has ${cells.length} values, and the header ${this.columns.length} columns`,
        'write one value for each column; one that contains a comma goes in double quotes',
      )
    const given: Record<string, unknown> = {}
    for (const [at, name] of this.columns.entries()) {
      const cell = cells[at]!
      if (cell === '') continue
      given[name] = NUMBERS.includes(name) ? numberOf(cell) : cell
    }
    return checkRow(given)
  }

  private outOfOrder({ atMs, caller, slot }: TraceRow): Wrong | null {
    if (atMs < this.lastAtMs)
      return wrong(
        `it is at ${atMs / 1_000} s, before line ${this.lastLine} at ${this.lastAtMs / 1_000} s`,
        'sort the trace by atSeconds',
      )
    if (atMs > this.lastAtMs) this.sameMoment.clear()
    const key = JSON.stringify([caller, slot])
    const other = this.sameMoment.get(key)
    if (other !== undefined)
      return wrong(
        `line ${other} is of the same caller and slot at the same moment`,
        'leave one of them out, or give parallel jobs of a caller different slots',
      )
    this.sameMoment.set(key, this.line)
    this.lastAtMs = atMs
    this.lastLine = this.line
    return null
  }
}

const NUMBERS = ['atSeconds', 'runSeconds', 'priority']

interface Wrong {
  why: string
  remedy: string
}

function wrong(why: string, remedy: string): Wrong {
  return { why, remedy }
}

const tooLong = wrong(
  `the line has more than ${LINE_BYTES_MAX / 1024} KiB`,
  'a row is one short line: is this a trace?',
)

function meant(name: string): string {
  const close = closestWord(name, FIELDS)
  return close ? `did you mean '${close}'?` : `use some of: ${FIELDS.join(', ')}`
}

function rowOfJson(text: string): TraceRow | Wrong {
  let value: unknown
  try {
    value = JSON.parse(text)
  } catch {
    return wrong(`it is no JSON: ${shown(text)}`, 'write one whole JSON object in each line')
  }
  if (!isRecord(value))
    return wrong(`it is ${shown(value)}, not an object`, 'write one JSON object in each line')
  const unknown = Object.keys(value).find((name) => !FIELDS.includes(name))
  if (unknown !== undefined) return wrong(`unknown field ${shown(unknown)}`, meant(unknown))
  return checkRow(value)
}

/** A number, or the text for the message. */
function numberOf(cell: string): unknown {
  const number = Number(cell)
  return Number.isNaN(number) ? cell : number
}

function checkRow(given: Record<string, unknown>): TraceRow | Wrong {
  const missing = REQUIRED.find((name) => given[name] === undefined)
  if (missing) return wrong(`${missing} is missing`, `each row has ${REQUIRED.join(', ')}`)
  const { atSeconds, runSeconds, caller, slot = '0', tenant = 'default', priority = 5 } = given
  if (!isWithin(atSeconds, 0, Number.MAX_SAFE_INTEGER / 1_000))
    return wrong(`atSeconds is ${shown(atSeconds)}`, 'write a number of seconds, 0 or more, such as 12.5')
  if (!isWithin(runSeconds, 0, LIMIT.jobMsMax / 1_000))
    return wrong(
      `runSeconds is ${shown(runSeconds)}`,
      `write how long the job ran in seconds, from 0 to ${LIMIT.jobMsMax / 1_000}, such as 5.9`,
    )
  const keys = { caller, slot, tenant }
  for (const [name, value] of Object.entries(keys)) {
    const most = name === 'caller' ? LIMIT.callerBytes : LIMIT.keyBytes
    if (typeof value !== 'string' || utf8Bytes(value) > most || (name === 'caller' && value === ''))
      return wrong(`${name} is ${shown(value)}`, `write a text of at most ${most} bytes`)
  }
  if (!isWithin(priority, LIMIT.priorityMin, LIMIT.priorityMax) || !Number.isInteger(priority))
    return wrong(
      `priority is ${shown(priority)}`,
      `write a whole number from ${LIMIT.priorityMin} to ${LIMIT.priorityMax}`,
    )
  const [atMs, runMs] = [Math.round(atSeconds * 1_000), Math.round(runSeconds * 1_000)]
  return { atMs, runMs, priority, ...(keys as { caller: string; slot: string; tenant: string }) }
}

function isWithin(value: unknown, least: number, most: number): value is number {
  return typeof value === 'number' && value >= least && value <= most
}

/** The cells of a line of CSV; a quote inside of quotes is doubled. */
function cellsOf(line: string): string[] {
  const cells: string[] = []
  const cell = /\s*(?:"((?:[^"]|"")*)"|([^,]*?))\s*(,|$)/y
  for (;;) {
    const match = cell.exec(line)
    if (!match) return cells
    cells.push(match[1] === undefined ? match[2]! : match[1].replaceAll('""', '"'))
    if (match[3] === '') return cells
  }
}

/** Lines without their ends; null for one that is too long to be kept. */
async function* linesOf(
  pieces: AsyncIterable<Uint8Array>,
  onBytes: (bytes: number) => void,
): AsyncGenerator<string | null> {
  const decoder = new TextDecoder()
  let rest = ''
  let isTooLong = false
  for await (const piece of pieces) {
    onBytes(piece.byteLength)
    const lines = (rest + decoder.decode(piece, { stream: true })).split('\n')
    rest = lines.pop()!
    for (const line of lines) {
      yield isTooLong || line.length > LINE_BYTES_MAX ? null : line
      isTooLong = false
    }
    if (rest.length > LINE_BYTES_MAX) {
      isTooLong = true
      rest = ''
    }
  }
  rest += decoder.decode()
  if (isTooLong || rest !== '') yield isTooLong ? null : rest
}
