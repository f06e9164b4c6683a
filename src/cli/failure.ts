import { CommanderError } from 'commander'
import { FirepoolUnavailableError } from '../client/unavailable.js'
import { FirepoolError, type Problem } from '../contract/index.js'
import { EXIT, exitCodeOfProblem } from './exit-code.js'

/** A failure that the CLI itself finds: what is wrong, what to do, and the exit code. */
export class CliError extends Error {
  override readonly name = 'CliError'
  constructor(
    readonly code: string,
    readonly why: string,
    readonly remedy: string,
    readonly exitCode: number,
  ) {
    super(`${why}; ${remedy}`)
  }
}

export function usageError(why: string, remedy: string): CliError {
  return new CliError('Usage', why, remedy, EXIT.usage)
}

/** One thing that is wrong, as it is shown. */
export interface Complaint {
  code: string
  why: string
  remedy?: string
}

/** A failure as the CLI shows it. */
export interface FailureReport extends Complaint {
  exitCode: number
  origin?: Problem['origin']
  details?: Problem['details']
  /** when one file has several errors */
  all?: readonly (Complaint & { file: string; line: number; path: string })[]
}

/** A failure that brings its own report, such as that of a pool file. */
export interface Reported {
  report(): FailureReport
}

/** What to tell the user about any error. */
export function reportOf(error: unknown): FailureReport {
  if (isReported(error)) return error.report()
  if (error instanceof CliError) {
    return { code: error.code, why: error.why, remedy: error.remedy, exitCode: error.exitCode }
  }
  if (error instanceof FirepoolError) {
    const { code, origin, message, details } = error.problem
    const exitCode = exitCodeOfProblem(error.problem)
    const said = splitMessage(message)
    const remedy = said.remedy ?? REMEDY[origin]
    return { code, origin, why: said.why, remedy, exitCode, ...(details ? { details } : {}) }
  }
  if (error instanceof FirepoolUnavailableError) {
    return { code: error.reason, why: error.why, remedy: error.remedy, exitCode: EXIT.unavailable }
  }
  if (error instanceof CommanderError) return usageReport(error)
  const message = error instanceof Error ? error.message : String(error)
  return {
    code: 'Unexpected',
    why: message,
    remedy: 'set FIREPOOL_DEBUG=1 to see where this comes from; if it is a bug, please report it',
    exitCode: EXIT.internal,
  }
}

/** For a message that says no remedy of its own. */
const REMEDY: Record<Problem['origin'], string> = {
  caller: 'correct what you asked for: --help of the command and docs/cli.md have the bounds',
  infrastructure: 'try again later; firepool pool describe shows the state of the pool',
  job: 'look at the job itself: it, and not Firepool, ended this way',
}

function isReported(error: unknown): error is Reported {
  return error instanceof Error && 'report' in error && typeof error.report === 'function'
}

/** Commander's message: 'error: unknown command 'polo'\n(Did you mean pool?)'. */
function usageReport(error: CommanderError): FailureReport {
  const [first = '', ...rest] = error.message.split('\n')
  const why = first.replace(/^error: /, '').replace(/\.$/, '')
  const meant = /\((Did you mean .*\?)\)/.exec(rest.join(' '))?.[1]
  const remedy = meant ? meant.replace('Did you mean', 'did you mean') : 'see --help of the command'
  return { code: 'Usage', why, remedy, exitCode: EXIT.usage }
}

/**
 * A message of the contract says the cause first and the remedy after a semicolon or in the sentences that follow.
 * A colon after the remedy's start is not looked at: what is quoted may hold anything.
 */
export function splitMessage(message: string): { why: string; remedy?: string } {
  const semicolon = message.indexOf('; ')
  const sentence = /[.)] (?=[A-Z])/.exec(message)?.index ?? -1
  const atSentence = sentence >= 0 && (semicolon < 0 || sentence < semicolon)
  if (atSentence)
    return { why: trimDot(message.slice(0, sentence + 1)), remedy: trimDot(message.slice(sentence + 2)) }
  if (semicolon >= 0)
    return { why: message.slice(0, semicolon), remedy: trimDot(message.slice(semicolon + 2)) }
  return { why: trimDot(message) }
}

function trimDot(text: string): string {
  return text.endsWith('.') && !text.endsWith('..') ? text.slice(0, -1) : text
}
