import {
  isGrpcDeadlineError,
  isGrpcServiceError,
  WorkflowUpdateRPCTimeoutOrCancelledError,
} from '@temporalio/client'
import {
  CancelledFailure,
  NamespaceNotFoundError,
  TerminatedFailure,
  TimeoutFailure,
  WorkflowNotFoundError,
} from '@temporalio/common'
import { noSuchPool } from '../contract/errors.js'
import { type Checked, FirepoolError, type Problem, problem } from '../contract/index.js'
import { problemOf } from '../workflows/failure.js'

// gRPC status codes
const NOT_FOUND = 5
const PERMISSION_DENIED = 7
const FAILED_PRECONDITION = 9
const UNIMPLEMENTED = 12
const UNAVAILABLE = 14
const UNAUTHENTICATED = 16
/** The only word of gRPC for a connection that did not come about; an error without a code. */
const NEVER_CONNECTED = 'Failed to connect before the deadline'

/** @throws FirepoolError with the problem, if there is one */
export function acceptedValue<T>(checked: Checked<T>): T {
  if (checked.problem) throw new FirepoolError(checked.problem)
  return checked.value
}

export function poolNotFound(pool: string, why?: string): FirepoolError {
  return new FirepoolError(noSuchPool(pool, why))
}

/** What an error of the Temporal client means for a question to a pool. */
export type Meaning =
  | { kind: 'problem'; problem: Problem }
  | { kind: 'poolNotFound' }
  | { kind: 'noNamespace' }
  /** the server took the question, nobody answered it */
  | { kind: 'unanswered' }
  /** the pool's workflow fails its tasks, so it answers nobody until that is mended */
  | { kind: 'stuck' }
  | { kind: 'noServer'; detail: string }
  /** the server does not take our API key or certificate, or they are not for this namespace */
  | { kind: 'notAuthorized' }
  | { kind: 'unknown' }

/** Reads an error of the Temporal client, however deep its cause lies. */
export function meaningOf(error: unknown): Meaning {
  const known = error instanceof FirepoolError ? error.problem : problemOf(error)
  if (known) return { kind: 'problem', problem: known }
  for (
    let cause: unknown = error, depth = 0;
    cause instanceof Error && depth < 20;
    cause = cause.cause, depth++
  ) {
    if (cause instanceof NamespaceNotFoundError) return { kind: 'noNamespace' }
    if (cause instanceof WorkflowNotFoundError) return { kind: 'poolNotFound' }
    if (isTimeout(cause)) return { kind: 'unanswered' }
    if (cause.message === NEVER_CONNECTED) return { kind: 'noServer', detail: shortCause(cause.message) }
    if (!isGrpcServiceError(cause)) continue
    // The server's own word when no worker has polled lately.
    if (cause.code === FAILED_PRECONDITION && /poller/i.test(cause.details)) return { kind: 'unanswered' }
    if (cause.code === FAILED_PRECONDITION && /workflow task in failed state/i.test(cause.details))
      return { kind: 'stuck' }
    if (cause.code === NOT_FOUND)
      return { kind: /namespace/i.test(cause.details) ? 'noNamespace' : 'poolNotFound' }
    if (cause.code === UNAUTHENTICATED || cause.code === PERMISSION_DENIED) return { kind: 'notAuthorized' }
    if (cause.code === UNAVAILABLE)
      return { kind: 'noServer', detail: shortCause(cause.details || cause.message) }
    if (cause.code === UNIMPLEMENTED && /HTTP status/.test(cause.details))
      return { kind: 'noServer', detail: 'what answers there is no Temporal server' }
  }
  return { kind: 'unknown' }
}

const CAUSES: readonly (readonly [pattern: RegExp, cause: string])[] = [
  [/ECONNREFUSED/, 'connection refused'],
  [/ECONNRESET|EPIPE|connection dropped|ended without/i, 'the connection broke'],
  [/ENOTFOUND|EAI_AGAIN|name resolution failed/i, 'there is no such host'],
  [/EHOSTUNREACH|ENETUNREACH/, 'the host cannot be reached'],
  [/ETIMEDOUT|deadline/i, 'no answer in time'],
  [/certificate|\bTLS\b|\bSSL\b/i, 'the TLS handshake failed'],
]
const CAUSE_CHARS = 100

/** A gRPC text about a connection, which may be long and say the address three times, in a few words. */
export function shortCause(text: string): string {
  const known = CAUSES.find(([pattern]) => pattern.test(text))?.[1]
  if (known) return known
  const line = text.split('\n')[0]!.trim()
  return line.length > CAUSE_CHARS ? `${line.slice(0, CAUSE_CHARS)}...` : line || 'no reason given'
}

function isTimeout(error: Error): boolean {
  return error instanceof WorkflowUpdateRPCTimeoutOrCancelledError || isGrpcDeadlineError(error)
}

/** The Problem of a `firepool.runJob` that failed for a reason that Temporal gives, not Firepool; null when unknown. */
export function endedByTemporal(error: unknown, workflowId: string): Problem | null {
  for (
    let cause: unknown = error, depth = 0;
    cause instanceof Error && depth < 20;
    cause = cause.cause, depth++
  ) {
    if (cause instanceof CancelledFailure)
      return problem('Cancelled', 'the job was cancelled, as asked; run it again if it is still wanted')
    if (cause instanceof TerminatedFailure) {
      return problem(
        'Cancelled',
        `workflow ${workflowId} was terminated by an operator; run the job again if it is still wanted`,
      )
    }
    if (cause instanceof TimeoutFailure) {
      return problem(
        'PodLost',
        `Temporal gave the job up (${cause.message}), and it may have started; look at workflow ${workflowId} in the Temporal UI, and run it again if that is safe`,
      )
    }
  }
  return null
}
