import { workflowInfo } from '@temporalio/workflow'
import { problem } from '../contract/errors.js'
import { failureOf } from './failure.js'
import { undecodable, undecodableReason } from './payload-converter.js'

/**
 * For the beginning of a workflow. One whose carried state cannot be decoded holds pods and answers all the same: it stands still and
 * shows, until a worker with the right codec comes. A new one holds nothing, and fails.
 * @throws ApplicationFailure of type InvalidRequest, or what fails the workflow task again and again
 */
export function checkInput(input: unknown, what: string): void {
  const reason = undecodableReason(input)
  if (reason === null) return
  const wrong = undecodable(what, reason)
  if (workflowInfo().continuedFromExecutionRunId !== undefined) throw new Error(wrong.message)
  throw failureOf(wrong)
}

/** For what an update was given. @throws ApplicationFailure of type InvalidRequest */
export function checkArgument(argument: unknown, what: string): void {
  const reason = undecodableReason(argument)
  if (reason !== null) throw failureOf(undecodable(`the argument of ${what}`, reason))
}

/**
 * A job's result from another worker of Firepool. With another codec there the job has run, and its result is of no use to
 * anybody: it must not run again for that.
 * @throws ApplicationFailure of type InvalidRequest
 */
export function decodedResult<T>(result: T): T {
  const isNone = typeof result !== 'object' || result === null
  const reason = isNone ? 'it is no object' : undecodableReason(result)
  if (reason === null) return result
  const why = `the job has run, but its result cannot be decoded (${reason}); give all Firepool workers the same payload codec and keys`
  throw failureOf(problem('InvalidRequest', why, { reason: 'ResultUndecodable' }))
}
