import {
  type Document,
  isAlias,
  isMap,
  isScalar,
  isSeq,
  LineCounter,
  type Node,
  type Pair,
  parseDocument,
  visit,
  type YAMLMap,
} from 'yaml'
import { cut } from './terminal.js'

/** A map that merges itself would be looked through for ever. */
const MERGE_DEPTH_MAX = 10

/** A file of another kind has an error in each line; nobody reads more of them. */
export const PROBLEMS_MAX = 100

/** Keys and indices that lead to a value. */
export type Place = readonly (string | number)[]

/** A YAML text as plain values, with the lines that they stand on. */
export interface YamlFile {
  /** undefined when the text is not YAML */
  value: unknown
  /** syntax errors, in the order of the file */
  problems: { line: number; why: string; remedy: string }[]
  /** the line (from 1) of a key or a list entry; of the nearest thing around it that exists */
  lineOf(place: Place): number
}

/** Parses one YAML document. Never throws. */
export function parseYaml(text: string): YamlFile {
  const lines = new LineCounter()
  const doc = parseDocument(text, { lineCounter: lines, prettyErrors: false, merge: true })
  const lineAt = (offset: number) => Math.max(1, lines.linePos(offset).line)
  const problems = [...doc.errors, ...doc.warnings].slice(0, PROBLEMS_MAX).map((error) => ({
    line: lineAt(error.pos[0]),
    why: `this is not valid YAML: ${firstLine(error.message)}`,
    remedy: remedyFor(error.code),
  }))
  let value: unknown
  if (problems.length === 0) {
    try {
      value = doc.toJS({ maxAliasCount: 100 })
    } catch (error) {
      problems.push(unresolved(doc, error as Error, lineAt))
    }
  }
  return { value, problems, lineOf: (place) => lineAt(offsetOf(doc, place)) }
}

/** A message may quote a line of any length. */
const MESSAGE_CHARS_MAX = 200

function firstLine(message: string): string {
  const line = message
    .split('\n')[0]!
    .replace(/ at line \d+, column \d+:?$/, '')
    .replace(/; please use YAML.*/, '')
  return cut(line, MESSAGE_CHARS_MAX)
}

/** What is valid by itself, but cannot be put together: too many aliases, or a merge of what is no map. */
function unresolved(
  doc: Document,
  error: Error,
  lineAt: (offset: number) => number,
): YamlFile['problems'][0] {
  const why = firstLine(error.message)
  let offset = 0
  visit(doc, {
    Pair(_, { key, value }) {
      if (!isMergeKey(key) || sourcesOf(doc, value).every(isMap)) return
      offset = startOf(key) ?? 0
      return visit.BREAK
    },
  })
  return /merge/i.test(why)
    ? { line: lineAt(offset), why, remedy: 'write <<: *name of a map, or <<: [*one, *other]' }
    : { line: 1, why, remedy: 'write it out without aliases (*name)' }
}

/** A `<<` in quotes is a key like any other. */
function isMergeKey(key: unknown): boolean {
  return isScalar(key) && typeof key.value === 'symbol'
}

/** The maps that a merge key takes keys from. */
function sourcesOf(doc: Document, value: unknown): unknown[] {
  const resolved = isAlias(value) ? value.resolve(doc) : value
  return isSeq(resolved)
    ? resolved.items.map((item) => (isAlias(item) ? item.resolve(doc) : item))
    : [resolved]
}

function remedyFor(code: string): string {
  switch (code) {
    case 'DUPLICATE_KEY':
      return 'remove one of the two'
    case 'TAB_AS_INDENT':
      return 'indent with spaces, not with tabs'
    case 'BAD_INDENT':
      return 'indent all keys of one map by the same number of spaces'
    case 'MULTIPLE_DOCS':
      return "put all pools into one document, without '---' between them"
    default:
      return 'look at the indentation, the quotes and the colons around this line'
  }
}

function offsetOf(doc: Document, place: Place): number {
  let node: unknown = doc.contents
  let offset = startOf(node) ?? 0
  for (const step of place) {
    if (isAlias(node)) node = node.resolve(doc)
    if (isMap(node)) {
      const pair = pairIn(doc, node, String(step))
      if (!pair) break
      offset = startOf(pair.key) ?? offset
      node = pair.value
    } else if (isSeq(node)) {
      node = node.items[Number(step)]
      if (node === undefined) break
      offset = startOf(node) ?? offset
    } else break
  }
  return offset
}

/** A map's pair of that key: its own, else one of a map that is merged into it. */
function pairIn(doc: Document, map: YAMLMap, key: string, depth = 0): Pair | undefined {
  const own = map.items.find((item) => keyText(item.key) === key)
  if (own || depth > MERGE_DEPTH_MAX) return own
  for (const merged of map.items.filter((item) => isMergeKey(item.key))) {
    for (const source of sourcesOf(doc, merged.value)) {
      const pair = isMap(source) ? pairIn(doc, source, key, depth + 1) : undefined
      if (pair) return pair
    }
  }
  return undefined
}

function keyText(key: unknown): string {
  return String(isScalar(key) ? key.value : key)
}

function startOf(node: unknown): number | undefined {
  return (node as Node | null)?.range?.[0]
}
