import { ApplicationFailure } from '@temporalio/common'
import type { Checked } from '../contract/check.js'
import { isErrorCode, type Problem } from '../contract/errors.js'

/** A Problem as Temporal knows failures: its type is the code, its first detail the whole Problem. */
export function failureOf(problem: Problem): ApplicationFailure {
  return ApplicationFailure.create({
    type: problem.code,
    message: problem.message,
    details: [problem],
    nonRetryable: true,
  })
}

/** The Problem inside of a failure of ours, however deep; null when it is somebody else's. */
export function problemOf(error: unknown): Problem | null {
  for (
    let cause: unknown = error, depth = 0;
    cause instanceof Error && depth < 20;
    cause = cause.cause, depth++
  ) {
    if (!(cause instanceof ApplicationFailure) || !isErrorCode(cause.type)) continue
    const detail = cause.details?.[0] as Partial<Problem> | undefined
    if (detail?.code === cause.type && typeof detail.message === 'string') return detail as Problem
  }
  return null
}

/** @throws ApplicationFailure with the problem, if there is one */
export function checkedValue<T>(checked: Checked<T>): T {
  if (checked.problem) throw failureOf(checked.problem)
  return checked.value
}
