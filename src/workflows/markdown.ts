/**
 * Text of a user or of a pod inside of Markdown: one line, short, and inert. A caller's name must neither break a table
 * nor draw a link or a picture on the page of an operator.
 */
export function plain(text: string, maxChars = 60): string {
  const line = text
    .slice(0, 4 * maxChars)
    .replace(/[\s\p{Cc}\p{Cs}]+/gu, ' ')
    .trim()
  const cut = line.length > maxChars ? `${line.slice(0, maxChars - 3).replace(/\p{Cs}$/u, '')}...` : line
  // The colon, the dot and the at sign: without them nothing turns into a link by itself.
  return cut.replace(/[\\`*_{}[\]<>#|!~&:.@]/g, '\\$&')
}

/** The last line of each page: the UI cuts it off (seen in 2.42). A no-break space, because it shows entities as they are. */
export const LAST_LINE = '\u00a0'

/** A Markdown table. Its cells are Markdown already. */
export function table(titles: readonly string[], rows: readonly (readonly string[])[]): string {
  const line = (cells: readonly string[]) => `| ${cells.join(' | ')} |`
  return [line(titles), line(titles.map(() => '---')), ...rows.map(line)].join('\n')
}

const DAY_MS = 24 * 60 * 60_000

/** A moment, in UTC: the time of day, and the date as well when it is not within a day of `now`. */
export function clock(atMs: number, now: number): string {
  const [date, time] = new Date(atMs).toISOString().slice(0, 19).split('T')
  return Math.abs(atMs - now) < DAY_MS ? `${time}` : `${date} ${time}`
}
