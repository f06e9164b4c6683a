import { describe, expect, test } from 'vitest'
import { FirepoolError, type Problem, problem } from '../contract/errors.js'
import { RunnerUnreachable } from '../runner/client.js'
import { activityFailure, podLost, reasonOf } from './failure.js'

const SECRET = 'canary-7f3a'

describe('a failure that goes into a history', () => {
  test('is made of code, origin, message and facts alone: whatever else an error carries stays here', () => {
    const carried = {
      ...problem('PodLost', 'pod p was lost', { pod: 'p', epoch: 2, reason: 'Deleted' }),
      authorization: `Bearer ${SECRET}`,
      cause: new Error(SECRET),
      request: { headers: { authorization: SECRET } },
    } as Problem
    const failure = activityFailure(carried)
    expect(failure).toMatchObject({ type: 'PodLost', message: 'pod p was lost', nonRetryable: true })
    expect(failure.details).toEqual([
      {
        code: 'PodLost',
        origin: 'infrastructure',
        message: 'pod p was lost',
        details: { pod: 'p', epoch: 2, reason: 'Deleted' },
      },
    ])
    expect(failure.cause).toBeUndefined()
    expect(JSON.stringify(failure)).not.toContain(SECRET)
  })

  test('of a lost pod names pod, epoch and reason, and says what to do', () => {
    expect(podLost('p', 3, 'it hangs')).toMatchObject({
      code: 'PodLost',
      message: expect.stringMatching(/may have started there.*onPodLost: 'rerun'/),
      details: { pod: 'p', epoch: 3, reason: 'it hangs' },
    })
  })

  test('has of a call to a runner the words that we chose, and of another error its message, cut', () => {
    const refused = Object.assign(new FirepoolError(problem('LeaseRevoked', 'over')), { token: SECRET })
    expect(reasonOf(refused)).toBe('LeaseRevoked: over')
    const error = Object.assign(new Error('x'.repeat(1_000)), { config: { token: SECRET } })
    expect(reasonOf(error)).toBe(`Error: ${'x'.repeat(293)}`)
    expect(reasonOf({ token: SECRET })).toBe('unknown')
    const gone = Object.assign(new RunnerUnreachable('http://127.0.0.1:1', 'ECONNREFUSED', true), {
      token: SECRET,
    })
    expect(reasonOf(gone)).toBe('the runner at http://127.0.0.1:1 does not listen (ECONNREFUSED)')
  })
})
