/** At most this many letters wrong, and less than half of the word. */
const MOST_EDITS = 3

/** The known word that was probably meant, or undefined. Case and a unit at the end (keepAliveMs) do not count. */
export function closestWord(word: string, known: readonly string[]): string | undefined {
  const plain = (text: string) => text.toLowerCase().replace(/[-_]/g, '')
  const given = plain(word)
  let best: string | undefined
  let bestEdits = Number.POSITIVE_INFINITY
  for (const candidate of known) {
    const target = plain(candidate)
    const extended = given.startsWith(target) && /^(ms|s|seconds|bytes|mib)$/.test(given.slice(target.length))
    const edits = extended ? 0 : editDistance(given, target)
    if (edits < bestEdits && edits <= MOST_EDITS && edits < Math.max(given.length, target.length) / 2) {
      best = candidate
      bestEdits = edits
    }
  }
  return best
}

/** Letters to insert, delete, replace or swap with their neighbour (optimal string alignment). */
export function editDistance(a: string, b: string): number {
  // Words of a file may have any length; known ones are short.
  if (Math.abs(a.length - b.length) > MOST_EDITS) return MOST_EDITS + 1
  const rows: number[][] = [Array.from({ length: b.length + 1 }, (_, j) => j)]
  for (let i = 1; i <= a.length; i++) {
    const row = [i]
    for (let j = 1; j <= b.length; j++) {
      const same = a[i - 1] === b[j - 1]
      let edits = Math.min(rows[i - 1]![j]! + 1, row[j - 1]! + 1, rows[i - 1]![j - 1]! + (same ? 0 : 1))
      if (i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1])
        edits = Math.min(edits, rows[i - 2]![j - 2]! + 1)
      row.push(edits)
    }
    rows.push(row)
  }
  return rows[a.length]![b.length]!
}
