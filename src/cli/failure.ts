import { CommanderError } from 'commander'
import { meaningOf } from '../client/errors.js'
import { encodingOf } from '../client/payload.js'
import { FirepoolUnavailableError, type UnavailableReason } from '../client/unavailable.js'
import { type ErrorCode, FirepoolError, type Problem } from '../contract/index.js'
import { KubernetesSettingsError } from '../kubernetes/settings-error.js'
import { ConnectionSettingsError } from '../server/settings-error.js'
import { EXIT, exitCodeOfProblem } from './exit-code.js'

interface CodeFacts {
  origin: Problem['origin']
  exitCode: number
}

/** What may go wrong that is no code of the contract: whose fault it is, and the exit code. docs/cli.md has the table. */
export const CLI_CODES = {
  Usage: { origin: 'caller', exitCode: EXIT.usage },
  ConnectionSettings: { origin: 'caller', exitCode: EXIT.usage },
  KubernetesSettings: { origin: 'caller', exitCode: EXIT.usage },
  CodecFailed: { origin: 'caller', exitCode: EXIT.usage },
  InvalidPoolFile: { origin: 'caller', exitCode: EXIT.poolFile },
  InvalidTrace: { origin: 'caller', exitCode: EXIT.usage },
  StateFolder: { origin: 'caller', exitCode: EXIT.usage },
  LiveLeases: { origin: 'caller', exitCode: EXIT.refused },
  NotConfirmed: { origin: 'caller', exitCode: EXIT.refused },
  DevRunning: { origin: 'caller', exitCode: EXIT.refused },
  PortTaken: { origin: 'caller', exitCode: EXIT.refused },
  NoServer: { origin: 'infrastructure', exitCode: EXIT.unavailable },
  NotAuthorized: { origin: 'caller', exitCode: EXIT.unavailable },
  NoNamespace: { origin: 'infrastructure', exitCode: EXIT.unavailable },
  NoWorker: { origin: 'infrastructure', exitCode: EXIT.unavailable },
  NoAnswer: { origin: 'infrastructure', exitCode: EXIT.unavailable },
  OutputLost: { origin: 'caller', exitCode: EXIT.outputIncomplete },
  DemoFailed: { origin: 'infrastructure', exitCode: EXIT.internal },
  Unexpected: { origin: 'infrastructure', exitCode: EXIT.internal },
} as const satisfies Record<UnavailableReason, CodeFacts> & Record<string, CodeFacts>

export type CliCode = keyof typeof CLI_CODES

/** A failure that the CLI itself finds: what is wrong, and what to do. */
export class CliError extends Error {
  override readonly name = 'CliError'
  constructor(
    readonly code: CliCode,
    readonly why: string,
    readonly remedy: string,
    readonly details?: Problem['details'],
  ) {
    super(`${why}; ${remedy}`)
  }
}

export function usageError(why: string, remedy: string): CliError {
  return new CliError('Usage', why, remedy)
}

/** One thing that is wrong, as it is shown. */
export interface Complaint {
  code: CliCode | ErrorCode
  why: string
  remedy: string
}

/** A failure as the CLI shows it. */
export interface FailureReport extends Complaint {
  exitCode: number
  origin: Problem['origin']
  details?: Problem['details']
  /** when one file has several errors */
  all?: readonly (Complaint & { file: string; line: number; path: string })[]
}

/** A failure as `--json` prints it: always these fields. */
export interface ErrorJson {
  code: string
  origin: Problem['origin']
  message: string
  hint: string
  details: NonNullable<Problem['details']>
  exitCode: number
}

export function errorJson({ code, origin, why, remedy, details = {}, exitCode }: FailureReport): ErrorJson {
  return { code, origin, message: why, hint: remedy, details, exitCode }
}

/** A failure that brings its own report, such as that of a pool file. */
export interface Reported {
  report(): FailureReport
}

/** What to tell the user about any error. */
export function reportOf(error: unknown): FailureReport {
  if (isReported(error)) return error.report()
  if (error instanceof CliError) return cliReport(error.code, error.why, error.remedy, error.details)
  if (error instanceof FirepoolError) {
    const { code, origin, message, details } = error.problem
    const exitCode = exitCodeOfProblem(error.problem)
    const said = splitMessage(message)
    const remedy = said.remedy ?? REMEDY[origin]
    return { code, origin, why: said.why, remedy, exitCode, ...(details ? { details } : {}) }
  }
  if (error instanceof FirepoolUnavailableError) return cliReport(error.reason, error.why, error.remedy)
  if (error instanceof ConnectionSettingsError)
    return cliReport('ConnectionSettings', error.why, error.remedy)
  if (error instanceof KubernetesSettingsError)
    return cliReport('KubernetesSettings', error.why, error.remedy)
  if (error instanceof CommanderError) return usageReport(error)
  const encoding = encodingOf(error)
  if (encoding !== null) {
    return cliReport(
      'CodecFailed',
      `the answer is encoded (${encoding}), and no codec given here decodes it; what was asked may be done all the same`,
      'look before you repeat it, and name the data converter of the Firepool worker with --data-converter or FIREPOOL_DATA_CONVERTER',
    )
  }
  const meaning = meaningOf(error)
  if (meaning.kind === 'noServer') {
    return cliReport(
      'NoServer',
      `the Temporal server does not answer (${meaning.detail})`,
      'look whether it still runs, and try again',
    )
  }
  const message = error instanceof Error ? error.message : String(error)
  return cliReport(
    'Unexpected',
    message,
    'set FIREPOOL_DEBUG=1 to see where this comes from; if it is a bug, please report it',
  )
}

/** How a payload is encoded that the SDK cannot read; null for any other error. */
/** The report of a failure of ours. */
export function cliReport(
  code: CliCode,
  why: string,
  remedy: string,
  details?: Problem['details'],
): FailureReport {
  return { code, ...CLI_CODES[code], why, remedy, ...(details ? { details } : {}) }
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
  return cliReport('Usage', why, remedy)
}

/**
 * A message of the contract says the cause first and the remedy after a semicolon or in the sentences that follow. What
 * stands in brackets belongs to the cause: a command or the end of a log may be quoted there.
 */
export function splitMessage(message: string): { why: string; remedy?: string } {
  const at = remedyStart(message, true) ?? remedyStart(message, false)
  if (at === undefined) return { why: trimDot(message) }
  return { why: trimDot(message.slice(0, at).replace(/;? $/, '')), remedy: trimDot(message.slice(at)) }
}

/** Where the remedy begins; undefined when there is none outside of brackets. */
function remedyStart(message: string, minded: boolean): number | undefined {
  let depth = 0
  for (let at = 0; at < message.length; at++) {
    if (message[at] === '(') depth++
    if (message[at] === ')') depth = Math.max(0, depth - 1)
    if (minded && depth > 0) continue
    if (message.startsWith('; ', at) || /^[.)] [A-Z]/.test(message.slice(at, at + 3))) return at + 2
  }
  return undefined
}

function trimDot(text: string): string {
  return text.endsWith('.') && !text.endsWith('..') ? text.slice(0, -1) : text
}
