import { CommanderError } from 'commander'
import { expect, test } from 'vitest'
import { FirepoolUnavailableError } from '../client/unavailable.js'
import { FirepoolError, problem } from '../contract/index.js'
import { reportOf, splitMessage } from './failure.js'

test.each([
  ['budget is -1; it must be between 0 and 2000', 'budget is -1', 'it must be between 0 and 2000'],
  [
    'There is no command "a; b" in the pod. Check its spelling.',
    'There is no command "a',
    'b" in the pod. Check its spelling',
  ],
  [
    'The pod could not start it (EIO). Replace the pod.',
    'The pod could not start it (EIO)',
    'Replace the pod',
  ],
  ['x has 1 byte (y); z. Do this', 'x has 1 byte (y)', 'z. Do this'],
])('%s', (message, why, remedy) => {
  expect(splitMessage(message)).toEqual({ why, remedy })
})

test('a message without a remedy', () => {
  expect(splitMessage('the job was cancelled, as asked')).toEqual({ why: 'the job was cancelled, as asked' })
})

test('typed failures keep code, origin and details', () => {
  const error = new FirepoolError(problem('QueueFull', 'the queue is full; wait', { limit: 3 }))
  expect(reportOf(error)).toEqual({
    code: 'QueueFull',
    origin: 'infrastructure',
    why: 'the queue is full',
    remedy: 'wait',
    details: { limit: 3 },
    exitCode: 75,
  })
  expect(reportOf(new FirepoolUnavailableError('NoWorker', 'w', 'r'))).toMatchObject({
    code: 'NoWorker',
    exitCode: 69,
  })
})

test('what commander found has a hint', () => {
  const error = new CommanderError(
    1,
    'commander.unknownCommand',
    "error: unknown command 'pol'\n(Did you mean pool?)",
  )
  expect(reportOf(error)).toEqual({
    code: 'Usage',
    why: "unknown command 'pol'",
    remedy: 'did you mean pool?',
    exitCode: 64,
  })
})

test('anything else is unexpected', () => {
  expect(reportOf(new Error('boom'))).toMatchObject({ code: 'Unexpected', why: 'boom', exitCode: 1 })
  expect(reportOf('boom')).toMatchObject({ why: 'boom' })
})
