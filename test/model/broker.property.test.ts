import fc from 'fast-check'
import { expect, it } from 'vitest'
import { type History, history, play, settleDown } from '../support/broker-history.js'

/** Every check plays the same histories, so that it says something about the change; `npm run soak` plays other ones each time. */
const TIMES = Number(process.env.FIREPOOL_PROPERTY_RUNS ?? '1')
const FRESH = TIMES > 1 ? Date.now() % 0x7fffffff : 20_261_130
const SEED = Number(process.env.FIREPOOL_PROPERTY_SEED ?? FRESH)

function check(runs: number, length: 'short' | 'long', property: (h: History) => void): void {
  try {
    fc.assert(fc.property(history(length), property), {
      numRuns: Math.ceil(runs * TIMES),
      seed: SEED,
      includeErrorInReport: true,
    })
  } catch (error) {
    throw new Error(`FIREPOOL_PROPERTY_SEED=${SEED} plays this again\n${(error as Error).message}`)
  }
}

it.each([
  ['short', 2_000],
  ['long', 150],
] as const)(
  'keeps the invariants in every step of every %s history, and nothing is left at the end',
  (length, runs) => {
    check(runs, length, (h) => {
      const world = play(h)
      expect(settleDown(world)).toEqual([])
    })
  },
)
