import { CommanderError } from 'commander'
import { expect, test } from 'vitest'
import { FirepoolUnavailableError } from '../client/unavailable.js'
import { type ErrorCode, FirepoolError, ORIGIN_OF, problem } from '../contract/index.js'
import { CLI_CODES, type CliCode, CliError, errorJson, reportOf, splitMessage } from './failure.js'
import { MissingPoolError } from './missing-pool.js'
import { PoolFileError } from './pool-file.js'

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
  [
    'pods do not start (the last: prepare (sh -c "a; b") exited with 3. Last of its output:\nno); mend the profile',
    'pods do not start (the last: prepare (sh -c "a; b") exited with 3. Last of its output:\nno)',
    'mend the profile',
  ],
  ['a bracket that stays open (; close it', 'a bracket that stays open (', 'close it'],
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
    origin: 'caller',
    why: "unknown command 'pol'",
    remedy: 'did you mean pool?',
    exitCode: 64,
  })
})

test('anything else is unexpected', () => {
  expect(reportOf(new Error('boom'))).toMatchObject({ code: 'Unexpected', why: 'boom', exitCode: 1 })
  expect(reportOf('boom')).toMatchObject({ why: 'boom' })
})

const server = { address: 'a:1', namespace: 'n', because: 'named by --address' }

test.each<[string, unknown]>([
  ...Object.keys(CLI_CODES).map((code): [string, unknown] => [code, new CliError(code as CliCode, 'w', 'r')]),
  ...Object.keys(ORIGIN_OF).map((code): [string, unknown] => {
    return [code, new FirepoolError(problem(code as ErrorCode, 'without a remedy'))]
  }),
  ...(['NoServer', 'NoNamespace', 'NoWorker', 'NoAnswer'] as const).map((reason): [string, unknown] => {
    return [reason, new FirepoolUnavailableError(reason, 'w', 'r')]
  }),
  ['InvalidPoolFile', new PoolFileError([{ file: 'f', line: 1, path: '', why: 'w', remedy: 'r' }])],
  ['PoolNotFound', new MissingPoolError(problem('PoolNotFound', 'w; r', { pool: 'p' }), ['q'], server)],
  ['Usage', new CommanderError(1, 'commander.unknownOption', "error: unknown option '--x'")],
  ['Unexpected', new Error('boom')],
  ['Unexpected', null],
])('as JSON %s has the fields that every failure has', (code, error) => {
  const json = JSON.parse(JSON.stringify(errorJson(reportOf(error)))) as Record<string, unknown>
  expect(Object.keys(json)).toEqual(['code', 'origin', 'message', 'hint', 'details', 'exitCode'])
  expect(json).toMatchObject({ code, origin: expect.stringMatching(/^(caller|infrastructure|job)$/) })
  for (const text of ['message', 'hint']) expect(json[text], text).toMatch(/./)
  expect(json.details).toBeTypeOf('object')
  expect(json.exitCode).toBeGreaterThan(0)
})

test('a server that went while a worker started is NoServer, not a bug of ours', () => {
  const error = new Error('Failed to connect before the deadline')
  expect(reportOf(error)).toMatchObject({
    code: 'NoServer',
    exitCode: 69,
    why: expect.stringContaining('no answer in time'),
  })
})
