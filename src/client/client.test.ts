import type { Client } from '@temporalio/client'
import { expect, test } from 'vitest'
import { createFirepoolClient } from './client.js'
import type { SessionOptions } from './session.js'

/** No server is asked for what is wrong in any case: touching this client fails in another way. */
const firepool = createFirepoolClient({ client: {} as Client })

const job = { command: 'true' }
const cyclic: Record<string, unknown> = { command: 'true' }
cyclic.env = cyclic

/** Callers in plain JavaScript pass anything. */
const call = (
  method: 'runJob' | 'deletePool' | 'applyPool' | 'resizePool' | 'describePool',
  ...args: unknown[]
) => (firepool[method] as (...given: unknown[]) => Promise<unknown>)(...args)

const session = (options: SessionOptions) => firepool.session('cpu', options)

test('a session is of its pool, caller, slot and reuseTag: another tag is another environment', () => {
  const ids = [
    { caller: 'me' },
    { caller: 'me', reuseTag: 'a' },
    { caller: 'me', reuseTag: 'b' },
    { caller: 'me', slot: 'a' },
    { caller: 'you' },
  ].map((options) => session(options).workflowId)
  expect(new Set(ids).size).toBe(ids.length)
  const again = { caller: 'me', slot: '0', reuseTag: '', ttl: '1h', priority: 9 } as const
  expect(session(again).workflowId).toBe(ids[0])
})

test.each<[string, () => Promise<unknown>, RegExp]>([
  ['runJob()', () => call('runJob'), /runJob takes \{ pool, job \}, not undefined/],
  ['runJob(null)', () => call('runJob', null, null), /not null/],
  ['runJob of a text', () => call('runJob', 'cpu'), /not "cpu"/],
  ['runJob({})', () => call('runJob', {}), /pool's name/],
  ['runJob without a job', () => call('runJob', { pool: 'cpu' }), /a job is \{ command/],
  ['another version', () => call('runJob', { v: 2, pool: 'cpu', job }), /version 1 of the contract, not 2/],
  ['a wrong onPodLost', () => call('runJob', { pool: 'cpu', job, onPodLost: 'again' }), /'fail' or 'rerun'/],
  [
    'a job that contains itself',
    () => call('runJob', { pool: 'cpu', job: cyclic }),
    /as JSON: an object that/,
  ],
  [
    'a workflowId that is no text',
    () => call('runJob', { pool: 'cpu', job }, { workflowId: 5 }),
    /text.*not 5/,
  ],
  ['an empty one', () => call('runJob', { pool: 'cpu', job }, { workflowId: '' }), /not one of 0 bytes/],
  ['applyPool()', () => call('applyPool'), /a pool spec is an object, not undefined/],
  ['applyPool(null)', () => call('applyPool', null), /a pool spec is an object, not null/],
  ['applyPool of a list', () => call('applyPool', []), /not \[\]/],
  [
    'maxPods below the budget',
    () => call('applyPool', { name: 'a', budget: 2, maxPods: 1 }),
    /maxPods is 1, less/,
  ],
  ['resizePool without a resize', () => call('resizePool', 'cpu', null), /a resize is .*not null/],
  [
    'an option of runJob',
    () => call('runJob', { pool: 'cpu', job }, { onwaiting: null, workflowID: 'a' }),
    /'workflowId'/,
  ],
  ['an option of deletePool', () => call('deletePool', 'cpu', { forse: true }), /did you mean 'force'/],
  ["an option of a session's run", () => session({ caller: 'me' }).run(job, { Key: 'a' } as never), /'key'/],
  ['describePool()', () => call('describePool'), /pool's name/],
])('%s is InvalidRequest', async (_, calling, message) => {
  await expect(calling()).rejects.toMatchObject({
    name: 'FirepoolError',
    problem: { code: 'InvalidRequest', origin: 'caller', message: expect.stringMatching(message) },
  })
})

test('a signal that is aborted already: Cancelled, and nothing is started', async () => {
  await expect(firepool.runJob({ pool: 'cpu', job }, { signal: AbortSignal.abort() })).rejects.toMatchObject({
    name: 'FirepoolError',
    problem: { code: 'Cancelled', origin: 'caller' },
  })
})

test('a pool whose workflow task fails is NoAnswer, whatever it is asked', async () => {
  const details = (what: string) => `Unable to ${what} due to Workflow Task in failed state.`
  const fail = (what: string) => () => {
    const cause = Object.assign(new Error(details(what)), { code: 9, details: details(what), metadata: {} })
    return Promise.reject(new Error('Failed', { cause }))
  }
  const handle = {
    workflowId: 'pool/cpu',
    describe: async () => ({ status: { name: 'RUNNING' }, runId: 'r' }),
    query: fail('query workflow'),
    executeUpdate: fail('perform workflow execution update'),
  }
  const client = {
    options: { namespace: 'default' },
    workflow: { getHandle: () => handle },
    withDeadline: (_: number, work: () => unknown) => work(),
  }
  const stuck = createFirepoolClient({ client: client as unknown as Client })
  for (const asking of [stuck.describePool('cpu'), stuck.pods('cpu'), stuck.deletePool('cpu')])
    await expect(asking).rejects.toMatchObject({
      reason: 'NoAnswer',
      why: expect.stringMatching(/^workflow pool\/cpu answers nobody/),
    })
})
