import { constants } from 'node:os'
import type { ErrorCode, JobResult, Problem } from '../contract/index.js'

/** Every exit code of the CLI; docs/cli.md and `--help` say the same. */
export const EXIT = {
  ok: 0,
  /** a bug, or a failure of the system that has no other code */
  internal: 1,
  /** the pool file has errors */
  poolFile: 2,
  /** well asked, but not in this state: live leases, another `dev`, a port in use, a question answered with no */
  refused: 3,
  /** wrong arguments, a number out of bounds (EX_USAGE): wrong on every server, at any time */
  usage: 64,
  /** well written, but this server has no such pool (EX_NOHOST): apply it, and the same succeeds */
  noPool: 68,
  /** no Temporal server, namespace or worker answers (EX_UNAVAILABLE) */
  unavailable: 69,
  /** done, but not all of the output could be written (EX_IOERR) */
  outputIncomplete: 74,
  /** an infrastructure failure: the same may succeed later (EX_TEMPFAIL) */
  temporary: 75,
  /** the job was killed at its time limit, as timeout(1) says it */
  jobTimeout: 124,
  /** the command cannot be executed, as shells say it */
  notExecutable: 126,
  /** there is no such command in the pod, as shells say it */
  notFound: 127,
  /** cancelled by Ctrl-C: 128 + SIGINT */
  cancelled: 130,
  /** the reader of our output has gone: 128 + SIGPIPE */
  pipeClosed: 141,
  /** the job wrote more than a disk should hold: 128 + SIGXFSZ */
  outputTooLarge: 153,
} as const

const BY_CODE: Record<ErrorCode, number> = {
  InvalidRequest: EXIT.usage,
  PoolNotFound: EXIT.noPool,
  QueueFull: EXIT.temporary,
  QueueTimeout: EXIT.temporary,
  SlotBusy: EXIT.temporary,
  PodBusy: EXIT.temporary,
  BudgetExhausted: EXIT.temporary,
  SeatUnavailable: EXIT.temporary,
  PodStartFailed: EXIT.temporary,
  PodLost: EXIT.temporary,
  LeaseRevoked: EXIT.temporary,
  JobTimeout: EXIT.jobTimeout,
  OutputTooLarge: EXIT.outputTooLarge,
  Cancelled: EXIT.cancelled,
}

/** The exit code of a typed failure. */
export function exitCodeOfProblem(problem: Problem): number {
  if (problem.code === 'InvalidRequest') {
    // A command that could not be started: its reason is the system's error code.
    const { reason, command, leases, waiting } = problem.details ?? {}
    if (command !== undefined && reason === 'ENOENT') return EXIT.notFound
    if (command !== undefined) return EXIT.notExecutable
    if (leases !== undefined && waiting !== undefined) return EXIT.refused
  }
  return BY_CODE[problem.code]
}

/** The exit code of a job that ended by itself: its own, or 128 + the signal that ended it. */
export function exitCodeOfJob(result: Pick<JobResult, 'exitCode' | 'signal'>): number {
  if (result.exitCode !== null) return result.exitCode
  const number = constants.signals[result.signal as NodeJS.Signals]
  return number === undefined ? EXIT.internal : 128 + number
}

/** For `--help`. */
export const EXIT_HELP = `
Exit codes:
  0    done                            69   no Temporal server or worker answers
  1    unexpected failure (a bug?)     75   infrastructure failure, try again later
  2    the pool file has errors        130  cancelled by Ctrl-C
  3    refused in this state           64   wrong arguments or request
  68   no such pool on this server     74   done, but output was lost`

export const EXIT_HELP_RUN = `
Exit codes: that of the job, and
  124  the job reached its time limit           64   wrong arguments or request
  126  the command cannot be executed           68   no such pool on this server
  127  there is no such command in the pod      69   no Temporal server or worker answers
  128+n  signal n ended the job                 75   infrastructure failure (pod lost, queue
  130  cancelled by Ctrl-C                           full, no pod in time...): try again
  153  the job wrote too much output            74   it succeeded, but output was lost
                                                1    unexpected failure (a bug?)
The job's own code may be one of these; --json tells them apart.`
