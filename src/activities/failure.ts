import { ApplicationFailure } from '@temporalio/common'
import { FirepoolError, type Problem, problem } from '../contract/errors.js'
import { RunnerUnreachable } from '../runner/client.js'

/**
 * A failure as it goes into a history: rebuilt from an allow-list, because whatever an error carries (headers, tokens,
 * options of a request) would stay there for good.
 */
export function activityFailure(p: Problem): ApplicationFailure {
  const { code, origin, message, details } = p
  const clean: Problem = details ? { code, origin, message, details } : { code, origin, message }
  return ApplicationFailure.create({ type: code, message, details: [clean], nonRetryable: true })
}

/** What went wrong with a call of a runner, in words that hold no secret. */
export function reasonOf(error: unknown): string {
  if (error instanceof FirepoolError) return `${error.problem.code}: ${error.problem.message}`
  if (error instanceof RunnerUnreachable) return error.message
  if (error instanceof Error) return `${error.name}: ${error.message}`.slice(0, 300)
  return 'unknown'
}

export function podLost(pod: string, epoch: number, reason: string): Problem {
  return problem(
    'PodLost',
    `pod ${pod} was lost (${reason}); the job may have started there. Run it again if that is safe, or set onPodLost: 'rerun'`,
    { pod, epoch, reason },
  )
}
