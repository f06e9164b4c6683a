import { ActivityFailure, ApplicationFailure, type RetryState } from '@temporalio/common'
import { describe, expect, test } from 'vitest'
import { noSuchPool, ORIGIN_OF, problem } from '../contract/errors.js'
import { failureOf, problemOf } from './failure.js'

const LOST = problem('PodLost', 'pod p-1 was lost (Deleted)', { pod: 'p-1', epoch: 3, reason: 'Deleted' })

/** As a workflow gets it from an activity of its own. */
const ofActivity = (cause: Error) =>
  new ActivityFailure(
    'the activity failed',
    'firepool.run',
    '1',
    'MAXIMUM_ATTEMPTS_REACHED' as RetryState,
    'w',
    cause,
  )

describe('a failure as Temporal knows it', () => {
  test.each(Object.keys(ORIGIN_OF) as (keyof typeof ORIGIN_OF)[])('of type %s: the code', (code) => {
    expect(failureOf(problem(code, 'a cause; a remedy'))).toMatchObject({
      type: code,
      message: 'a cause; a remedy',
      nonRetryable: true,
    })
  })

  test('has the code, whose fault it is and the facts as its first detail', () => {
    expect(failureOf(LOST).details).toEqual([LOST])
    expect(LOST).toMatchObject({ code: 'PodLost', origin: 'infrastructure' })
    expect(noSuchPool('p').message).toMatch(/no pool 'p'.*create it with/)
  })

  test('is found again however deep it is, and is never taken from somebody else', () => {
    expect(problemOf(ofActivity(failureOf(LOST)))).toEqual(LOST)
    expect(problemOf(ofActivity(ofActivity(failureOf(LOST))))).toEqual(LOST)
    expect(problemOf(new Error('PodLost'))).toBeNull()
    // A type of ours without our detail, or with another one.
    expect(problemOf(ApplicationFailure.create({ type: 'PodLost', message: 'x' }))).toBeNull()
    const other = problem('Cancelled', 'x')
    expect(
      problemOf(ApplicationFailure.create({ type: 'PodLost', message: 'x', details: [other] })),
    ).toBeNull()
  })
})
