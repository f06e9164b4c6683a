import { setImmediate as turn } from 'node:timers/promises'
import { describe, expect, test } from 'vitest'
import type { Effect, EffectResult } from '../broker/index.js'
import { LIMIT } from '../contract/limits.js'
import { type EffectResults, type LaneName, Lanes } from './lanes.js'

/** One call of an activity, answered when the test says so. */
interface Call {
  lane: LaneName
  ids: string[]
  answer: (results: EffectResults['results']) => void
  fail: (error: Error) => void
}

function aPool() {
  const calls: Call[] = []
  const results: [id: string, result: EffectResult][] = []
  const lanes = new Lanes(
    (lane, effects) =>
      new Promise((resolve, reject) => {
        calls.push({
          lane,
          ids: effects.map(({ id }) => id),
          answer: (given) => resolve({ v: 1, results: given }),
          fail: reject,
        })
      }),
    (id, result) => results.push([id, result]),
  )
  return { lanes, calls, results }
}

const DONE: EffectResult = { kind: 'deleted' }
const remove = (id: string): Effect => ({ kind: 'delete', pod: `pod of ${id}`, id, attempt: 1 })
const revoke = (id: string): Effect => ({ kind: 'revoke', pod: 'p', address: '', epoch: 1, id, attempt: 1 })
const ids = (from: number, count: number) => Array.from({ length: count }, (_, i) => `e${from + i}`)
const doneAll = (call: Call) => call.answer(call.ids.map((id) => ({ id, result: DONE })))

describe('effects go out', () => {
  test('at most two calls at a time in each lane; what comes meanwhile goes with the next one, in order', async () => {
    const { lanes, calls, results } = aPool()
    for (const id of ids(1, 6)) lanes.push([remove(id)])
    expect(calls.map(({ ids }) => ids)).toEqual([['e1'], ['e2']])
    lanes.push([revoke('e7')])
    expect(calls[2]).toMatchObject({ lane: 'revoke', ids: ['e7'] })
    doneAll(calls[1]!)
    await turn()
    expect(calls[3]).toMatchObject({ lane: 'delete', ids: ids(3, 4) })
    for (const call of [calls[0]!, calls[2]!, calls[3]!]) doneAll(call)
    await turn()
    expect(results.map(([id]) => id).sort()).toEqual(ids(1, 7))
    expect(lanes.idle).toBe(true)
  })

  test('in batches that an activity finishes within its time', async () => {
    const { lanes, calls } = aPool()
    lanes.push(ids(1, 3 * LIMIT.effectBatch).map(remove))
    expect(calls.map((call) => call.ids.length)).toEqual([LIMIT.effectBatch, LIMIT.effectBatch])
    doneAll(calls[0]!)
    await turn()
    expect(calls[2]!.ids).toEqual(ids(1 + 2 * LIMIT.effectBatch, LIMIT.effectBatch))
  })
})

describe('each effect has one result', () => {
  test('undone when its activity failed, with the reason, or gave none for it', async () => {
    const { lanes, calls, results } = aPool()
    lanes.push(['e1', 'e2'].map(remove))
    lanes.push([remove('e3')])
    calls[0]!.answer([{ id: 'e2', result: DONE }])
    calls[1]!.fail(new Error('the worker is gone'))
    await turn()
    expect(results).toEqual([
      ['e2', DONE],
      ['e1', { kind: 'undone', reason: 'the worker gave no result for it that can be read' }],
      ['e3', { kind: 'undone', reason: 'the worker is gone' }],
    ])
  })
})

describe('a pool that must continue as new', () => {
  test('issues nothing any more, is idle when what is on its way was answered, and hears of all of that', async () => {
    const { lanes, calls, results } = aPool()
    for (const id of ids(1, 3)) lanes.push([remove(id)])
    expect(lanes.idle).toBe(false)
    lanes.stop()
    lanes.push([revoke('e4')])
    expect(lanes.idle).toBe(false)
    for (const call of calls) doneAll(call)
    await turn()
    expect(calls).toHaveLength(2)
    expect(results.map(([id]) => id)).toEqual(['e1', 'e2'])
    expect(lanes.idle).toBe(true)
  })

  test('goes on with what waits when it may not end yet after all', async () => {
    const { lanes, calls } = aPool()
    lanes.stop()
    for (const id of ids(1, 3)) lanes.push([remove(id)])
    expect(calls).toEqual([])
    lanes.goOn()
    expect(calls.map((call) => call.ids)).toEqual([['e1', 'e2', 'e3']])
    expect(lanes.idle).toBe(false)
  })
})
