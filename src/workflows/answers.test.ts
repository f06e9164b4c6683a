import { expect, test } from 'vitest'
import { readObservation, readResult } from './answers.js'

const REPORT = { v: 1, held: 1, pods: 2, leases: 1, waiting: 0 }
const COUNTED = { grants: { warm: 1 }, ends: {}, podsCreated: 1, podsLost: 0, leaked: 0, heldPodMs: 1.5 }

test.each([
  { kind: 'created' },
  { kind: 'created', problem: { reason: 'Failed', message: 'x' } },
  { kind: 'deleted' },
  { kind: 'drained', drained: false, useSeq: 0, idleMs: 0 },
  { kind: 'delivered', useSeq: 3 },
  { kind: 'described', closed: ['a'] },
  { kind: 'shardTold', report: REPORT },
  { kind: 'shardTold', report: { ...REPORT, uid: 'a', counted: COUNTED } },
  { kind: 'shardGone' },
  { kind: 'undone', reason: 'x' },
])('%j is a result', (result) => {
  expect(readResult({ id: 'e1', result })).toEqual({ id: 'e1', result })
})

test.each([
  null,
  'junk',
  [],
  {},
  { id: 7, result: { kind: 'deleted' } },
  { id: 'e1' },
  { id: 'e1', result: null },
  { id: 'e1', result: { kind: 'toString' } },
  { id: 'e1', result: { kind: 'drained', drained: 'yes', useSeq: 0, idleMs: 0 } },
  { id: 'e1', result: { kind: 'delivered' } },
  { id: 'e1', result: { kind: 'described', closed: [null] } },
  { id: 'e1', result: { kind: 'shardTold', report: null } },
  { id: 'e1', result: { kind: 'shardGone', report: { ...REPORT, counted: { ...COUNTED, grants: null } } } },
])('%j is no result that anything is done for', (answer) => {
  expect(readResult(answer)).toBeNull()
})

const POD = { pod: 'p-1', generation: 1, phase: 'ready', address: 'http://127.1.2.3:4', incarnation: 'i' }
test('an observation is read whole, or not at all', () => {
  const seen = { v: 1, cursor: 'c', full: true, pods: [POD] }
  expect(readObservation(seen)).toEqual(seen)
  expect(readObservation({ ...seen, pods: [] })).not.toBeNull()
  for (const pods of [null, [null], [{ ...POD, pod: 7 }], [POD, { ...POD, phase: 'flying' }], 'all'])
    expect(readObservation({ ...seen, pods }), JSON.stringify(pods)).toBeNull()
  for (const wrong of [null, 'junk', [], { ...seen, cursor: 5 }, { ...seen, full: 'yes' }])
    expect(readObservation(wrong), JSON.stringify(wrong)).toBeNull()
})
