import { describe, expect, test } from 'vitest'
import { LIMIT } from '../contract/limits.js'
import { leaseWorkflowId } from './lease-id.js'

const LEASE = '0b0f9a7e-6f0a-4c2b-9d0e-3c1f5a7b9d11'
const idOf = (pool: string, caller: string, slot = '0') => leaseWorkflowId(pool, caller, slot, LEASE).value!

describe('the id of a lease workflow', () => {
  test('names pool, caller and slot for people, a hash of the caller, and the random lease', () => {
    // The hash: printf 'agent one/α' | sha256sum
    expect(idOf('gpu', 'agent one/α', 'a b')).toBe(`lease/gpu/agent-one--7f605c014975/a-b/${LEASE}`)
  })

  test('tells callers apart whose readable parts are the same', () => {
    expect(idOf('gpu', 'a b')).not.toBe(idOf('gpu', 'a?b'))
    const long = 'x'.repeat(40)
    expect(idOf('gpu', `${long}1`)).not.toBe(idOf('gpu', `${long}2`))
    expect(idOf('gpu', `${long}1`)).toMatch(new RegExp(`^lease/gpu/${long}-[0-9a-f]{12}/0/`))
  })

  test('is another one for each lease: with an id that comes again a reset parent could not start its child', () => {
    expect(leaseWorkflowId('gpu', 'a', '0', 'one').value).not.toBe(
      leaseWorkflowId('gpu', 'a', '0', 'two').value,
    )
  })

  test('has at most 300 bytes, whatever the names are that pass their checks', () => {
    const longest = idOf('p'.repeat(LIMIT.poolNameChars), '\u{1F525}'.repeat(128), '\u{1F525}'.repeat(32))
    expect(Buffer.byteLength(longest)).toBeLessThanOrEqual(300)
    const readable = idOf(
      'p'.repeat(LIMIT.poolNameChars),
      'c'.repeat(LIMIT.callerBytes),
      's'.repeat(LIMIT.keyBytes),
    )
    expect(Buffer.byteLength(readable)).toBeLessThanOrEqual(300)
  })

  test('a longer one is refused typed, before a child is started: past 1,000 the server fails the task for ever', () => {
    const { value, problem } = leaseWorkflowId('p'.repeat(250), 'a', '0', LEASE)
    expect(value).toBeUndefined()
    expect(problem).toMatchObject({
      code: 'InvalidRequest',
      message: expect.stringMatching(/at most 300.*use a shorter/),
    })
  })
})
