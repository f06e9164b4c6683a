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
} from 'yaml'

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
  const doc = parseDocument(text, { lineCounter: lines, prettyErrors: true })
  const lineAt = (offset: number) => Math.max(1, lines.linePos(offset).line)
  const problems = [...doc.errors, ...doc.warnings].map((error) => ({
    line: error.linePos?.[0].line ?? lineAt(error.pos[0]),
    why: `this is not valid YAML: ${firstLine(error.message)}`,
    remedy: remedyFor(error.code),
  }))
  let value: unknown
  if (problems.length === 0) {
    try {
      value = doc.toJS({ maxAliasCount: 100 })
    } catch (error) {
      problems.push({
        line: 1,
        why: firstLine((error as Error).message),
        remedy: 'write it out without aliases (*name)',
      })
    }
  }
  return { value, problems, lineOf: (place) => lineAt(offsetOf(doc, place)) }
}

function firstLine(message: string): string {
  return message
    .split('\n')[0]!
    .replace(/ at line \d+, column \d+:?$/, '')
    .replace(/; please use YAML.*/, '')
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
      const pair: Pair | undefined = node.items.find((item) => keyText(item.key) === String(step))
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

function keyText(key: unknown): string {
  return String(isScalar(key) ? key.value : key)
}

function startOf(node: unknown): number | undefined {
  return (node as Node | null)?.range?.[0]
}
