import { expect, test } from 'vitest'
import { meaningOf, shortCause } from './errors.js'

test.each([
  [
    'No connection established. Last error: Error: connect ECONNREFUSED 127.0.0.1:1. Resolution note: ',
    'connection refused',
  ],
  [
    'No connection established. Last error: Error: read ECONNRESET. Resolution note: ',
    'the connection broke',
  ],
  ['Name resolution failed for target dns:nohost.invalid:7233', 'there is no such host'],
  ['Failed to connect before the deadline', 'no answer in time'],
  ['Error: unable to verify the first certificate', 'the TLS handshake failed'],
  ['', 'no reason given'],
  ['Something new\nand its stack', 'Something new'],
])('%j in a few words', (text, cause) => {
  expect(shortCause(text)).toBe(cause)
})

test('a text of any length is cut', () => {
  expect(shortCause('x'.repeat(9_999)).length).toBeLessThan(110)
})

test('a connection that did not come about has no code', () => {
  const error = new Error('Failed to connect before the deadline')
  expect(meaningOf(error)).toEqual({ kind: 'noServer', detail: 'no answer in time' })
})

function grpc(code: number, details: string): Error {
  return Object.assign(new Error(`${code} ${details}`), { code, details, metadata: {} })
}

test.each([
  [14, 'connect ECONNREFUSED 127.0.0.1:1', { kind: 'noServer', detail: 'connection refused' }],
  [
    12,
    'Received HTTP status code 404',
    { kind: 'noServer', detail: 'what answers there is no Temporal server' },
  ],
  [12, 'unknown method', { kind: 'unknown' }],
  [9, 'Unable to query workflow due to Workflow Task in failed state.', { kind: 'stuck' }],
  [9, 'Unable to perform workflow execution update due to Workflow Task in failed state.', { kind: 'stuck' }],
  [9, 'no poller seen for task queue recently, worker may be down', { kind: 'unanswered' }],
  [5, 'Namespace x is not found.', { kind: 'noNamespace' }],
  [5, 'workflow not found for ID: pool/x', { kind: 'poolNotFound' }],
])('gRPC %d %s', (code, details, meaning) => {
  expect(meaningOf(new Error('Failed', { cause: grpc(code, details) }))).toEqual(meaning)
})
