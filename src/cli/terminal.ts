import { fstatSync, writeSync } from 'node:fs'
import { errorJson, type FailureReport } from './failure.js'

/** What is written where: results to standard output, all else to standard error. */

type Style = 'bold' | 'dim' | 'red' | 'cyan' | 'green' | 'yellow'
const CODE: Record<Style, [number, number]> = {
  bold: [1, 22],
  dim: [2, 22],
  red: [31, 39],
  cyan: [36, 39],
  green: [32, 39],
  yellow: [33, 39],
}

/** Colour only on a terminal, and never against the user's word (https://no-color.org). */
export function colours(stream: { isTTY?: boolean }, env: NodeJS.ProcessEnv = process.env): boolean {
  if (env.NO_COLOR !== undefined && env.NO_COLOR !== '') return false
  return stream.isTTY === true && env.TERM !== 'dumb'
}

export function paint(style: Style, text: string, stream: { isTTY?: boolean } = process.stdout): string {
  if (!colours(stream)) return text
  const [on, off] = CODE[style]
  return `\u001b[${on}m${text}\u001b[${off}m`
}

/** A result for people. */
export function printOut(text: string): void {
  writeOut(text.endsWith('\n') ? text : `${text}\n`)
}

/** A result for machines: one object, on standard output. */
export function printJson(value: unknown): void {
  writeOut(`${JSON.stringify(value, null, process.stdout.isTTY ? 2 : 0)}\n`)
}

/**
 * Text on standard output. Node takes a write to a file for done when the disk had room for a part of it only: files are
 * written here, to their end.
 */
export function writeOut(text: string): void {
  const { fd } = process.stdout
  if (!isFile(fd)) {
    process.stdout.write(text)
    return
  }
  try {
    const bytes = Buffer.from(text)
    for (let at = 0; at < bytes.length; ) at += writeSync(fd, bytes, at)
  } catch (error) {
    lost = error as NodeJS.ErrnoException
  }
}

function isFile(fd: number): boolean {
  try {
    return fstatSync(fd).isFile()
  } catch {
    return false
  }
}

/** Everything that is not the result. */
export function printNote(text: string): void {
  process.stderr.write(text.endsWith('\n') ? text : `${text}\n`)
}

/** Longer texts of a failure are cut: a log's end fits, a file of another kind does not. */
const FAILURE_CHARS_MAX = 6_000

/** A failure: for people on standard error, with `json` for machines on standard output as well. */
export function printFailure(report: FailureReport, json: boolean): void {
  for (const { code, why, remedy } of report.all ?? [report]) {
    const [cause, hint] = [why, remedy].map((text) => printable(cut(text, FAILURE_CHARS_MAX)))
    printNote(`${paint('red', 'error:', process.stderr)} ${cause} [${code}]`)
    if (hint) printNote(`${paint('cyan', 'hint:', process.stderr)} ${hint}`)
  }
  if (!json) return
  const problems = report.all?.map(({ code, why, remedy, file, line, path }) => {
    return { code, message: why, hint: remedy, file, line, path }
  })
  printJson({ v: 1, error: errorJson(report), ...(problems ? { problems } : {}) })
}

/** At most so many characters, the last of them an ellipsis when something is missing. */
export function cut(text: string, charsMax: number): string {
  if (text.length <= charsMax) return text
  // Not in the middle of a character of two units.
  return `${text.slice(0, charsMax - 1).replace(/[\ud800-\udbff]$/, '')}…`
}

// biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
const CONTROL = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g

/** Text of others without what would steer a terminal (escape sequences, changes of writing direction). */
export function printable(text: string): string {
  return text.replace(CONTROL, '\ufffd')
}

let onClosed: () => void = () => {}
let lost: NodeJS.ErrnoException | null = null

/**
 * `| head` closes our output: that is no failure, and the command goes on to its end, with its exit code. One that would
 * work for nobody sets its own `then`.
 */
export function onOutputClosed(then: () => void): void {
  onClosed = then
}

/** Why a part of the result could not be written although somebody wants it (a full disk), or null. */
export function outputLost(): NodeJS.ErrnoException | null {
  return lost
}

export function watchOutput(): void {
  for (const stream of [process.stdout, process.stderr]) {
    stream.on('error', (error: NodeJS.ErrnoException) => {
      if (error.code === 'EPIPE') onClosed()
      else if (stream === process.stdout) lost = error
    })
  }
}
