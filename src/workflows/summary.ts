/** The documented bound of a summary is 400 bytes. Server 1.29 lets commands pass with more (tried); another may not. */
const SUMMARY_CHARS = 100

/**
 * Text for the summary of a timer, an activity or a child: one line, short enough in any script. A control character
 * or half of a surrogate pair would take six bytes in JSON, so they become blanks.
 */
export function summaryText(text: string): string {
  const start = text.slice(0, 4 * SUMMARY_CHARS)
  const line = start.replace(/[\s\p{Cc}\p{Cs}]+/gu, ' ').trim()
  if (line.length <= SUMMARY_CHARS) return line
  return `${line.slice(0, SUMMARY_CHARS - 3).replace(/\p{Cs}$/u, '')}...`
}
