/** One small change of a Python function body that changes what it computes: the bugs people write. */
export interface Mutation {
  /** position in the list that mutations() gives for the same body */
  site: number
  /** e.g. 'line 3: < becomes <=' */
  what: string
  /** the whole changed body */
  body: string
}

/** Strings and comments come first so that nothing inside them is changed. */
const TOKEN =
  /(?<skip>"""[\s\S]*?"""|'''[\s\S]*?'''|'(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*"|#.*)|(?<compare><=|>=|==|!=|(?<![<\->])[<>](?![<>]))|(?<number>(?<![\w.])\d+(?![\w.]))|(?<sign> [+-] )|(?<word>\b(?:and|or|True|False|min|max)\b)/g

const REPLACEMENT: Record<string, string> = {
  '<': '<=',
  '<=': '<',
  '>': '>=',
  '>=': '>',
  '==': '!=',
  '!=': '==',
  ' + ': ' - ',
  ' - ': ' + ',
  and: 'or',
  or: 'and',
  True: 'False',
  False: 'True',
  min: 'max',
  max: 'min',
}

/**
 * Every off-by-one and swapped-operator mutation of a Python body, in source order: n becomes n + 1, < becomes <=,
 * == becomes !=, + becomes -, `and` becomes `or`, True becomes False, min becomes max, and each of them back.
 * Some of them do not change what the function returns: see BENIGN in rollouts.ts.
 */
export function mutations(body: string): Mutation[] {
  const found: Mutation[] = []
  for (const match of body.matchAll(TOKEN)) {
    if (match.groups?.skip !== undefined) continue
    const token = match[0]
    const replacement = match.groups?.number !== undefined ? String(Number(token) + 1) : REPLACEMENT[token]
    if (replacement === undefined) continue
    const line = body.slice(0, match.index).split('\n').length
    found.push({
      site: found.length,
      what: `line ${line}: ${token.trim()} becomes ${replacement.trim()}`,
      body: body.slice(0, match.index) + replacement + body.slice(match.index + token.length),
    })
  }
  return found
}
