import { type Checked, invalid, shown } from './check.js'
import { closestWord } from './suggestion.js'

/**
 * Refuses what nobody would read: a misspelt option would be ignored in silence, and its default used.
 * A name whose value is undefined or null counts as absent.
 * @param what has the names, e.g. 'openPool' @param kind of name, e.g. 'option'
 */
export function refuseUnknownNames(
  what: string,
  kind: 'option' | 'field',
  given: Readonly<Record<string, unknown>>,
  known: readonly string[],
): Checked<true> {
  for (const [name, value] of Object.entries(given)) {
    if (value === undefined || value === null || known.includes(name)) continue
    const meant = closestWord(name, known)
    const remedy = meant ? `did you mean '${meant}'? Known are: ` : 'known are: '
    return invalid(`${what} has no ${kind} ${shown(name)}; ${remedy}${known.join(', ')}`)
  }
  return { value: true }
}
