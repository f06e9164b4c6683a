import { expect, test } from 'vitest'
import { checkPoolSpec, readPoolSpec } from './check-spec.js'

const spec = (change: object) => ({ v: 1, name: 'a', budget: 4, ...change })

test.each<[object, RegExp]>([
  [
    { maxPods: 0 },
    /^maxPods is 0, less than the budget of 4 needs; .*raise it to 4 or more, or leave it out$/,
  ],
  [{ maxPods: 3, standby: 2 }, /^maxPods is 3, less than the budget of 4/],
  [{ budget: 0, maxPods: 0 }, /^maxPods is 0, less than one pod; .*raise it to 1 or more/],
  [{ profile: { env: { A: '1', FIREPOOL_POD: 'x' } } }, /^profile\.env may not set FIREPOOL_POD: .*; choose/],
])(
  '%j contradicts itself: refused at an edge, but a pool that has it once goes on with it',
  (change, said) => {
    expect(checkPoolSpec(spec(change)).problem).toMatchObject({ code: 'InvalidRequest', origin: 'caller' })
    expect(checkPoolSpec(spec(change)).problem?.message).toMatch(said)
    expect(readPoolSpec(spec(change)).value).toMatchObject({ name: 'a' })
  },
)

test.each([
  { maxPods: 4 },
  { maxPods: 4, standby: 3 },
  { budget: 0, maxPods: 1 },
  { budget: 2_000 },
  { budget: 0 },
  { profile: { env: { FIREPOOL_OTHER: 'x' } } },
])('%j is accepted', (change) => {
  expect(checkPoolSpec(spec(change)).value).toMatchObject({ name: 'a' })
})
