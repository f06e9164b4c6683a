import { expect, test } from 'vitest'
import { ACQUIRE_OPTIONS } from './check.js'
import { checkSpecNames } from './check-spec.js'
import { refuseUnknownNames } from './option-names.js'

test.each(['acquireTimeOut', 'acquiretimeout', 'acquire_timeout', 'acquireTimeoutMs'])('%s', (name) => {
  const { problem } = refuseUnknownNames('openPool', 'option', { caller: 'me', [name]: 1 }, ACQUIRE_OPTIONS)
  expect(problem).toMatchObject({ code: 'InvalidRequest', origin: 'caller' })
  expect(problem?.message).toMatch(
    `openPool has no option "${name}"; did you mean 'acquireTimeout'? Known are: caller, `,
  )
})

test('a name far from all of them: they are listed', () => {
  expect(refuseUnknownNames('x', 'option', { colour: 1 }, ['a', 'b']).problem?.message).toBe(
    'x has no option "colour"; known are: a, b',
  )
})

test('known names pass, and unknown ones without a value', () => {
  const given = { caller: 'me', colour: undefined, shape: null }
  expect(refuseUnknownNames('x', 'option', given, ['caller'])).toEqual({ value: true })
})

test.each([
  [{ budgett: 1 }, /a pool spec has no field "budgett"; did you mean 'budget'/],
  [{ profile: { limit: {} } }, /profile has no field "limit"; did you mean 'limits'/],
  [{ profile: { limits: { memory: 1 } } }, /profile\.limits has no field "memory"/],
])('a pool spec with %j', (spec, message) => {
  expect(checkSpecNames({ name: 'a', budget: 1, ...spec }).problem?.message).toMatch(message)
})
