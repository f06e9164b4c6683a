import { asyncLocalStorage, CompleteAsyncError, type Context } from '@temporalio/activity'
import { type Client, WorkflowNotFoundError } from '@temporalio/client'
import { beforeEach, describe, expect, test } from 'vitest'
import type { AwaitLeaseInput } from '../contract/run.js'
import { createAwaitLease } from './await-lease.js'
import type { ShardRoutes } from './shard-routes.js'

const LEASE = '0b0f9a7e-6f0a-4c2b-9d0e-3c1f5a7b9d1'
const leaseId = (n: number) => `${LEASE}${n}`

interface Sent {
  id: string
  name: string
  payload: { v: 1; batch: { v: 1; leaseId: string; token: string }[] }
}

let sent: Sent[]
let awaitLease: ReturnType<typeof createAwaitLease>
/** shards that there are not */
const gone = new Set<string>()
beforeEach(() => {
  sent = []
  gone.clear()
  const client = {
    workflow: {
      getHandle: (id: string) => ({
        signal: async (name: string, payload: Sent['payload']) => {
          if (gone.has(id)) throw new WorkflowNotFoundError('gone', id, undefined)
          sent.push({ id, name, payload })
        },
      }),
    },
  } as unknown as Client
  const shards = {
    allShards: async (pool: string) => (pool === 'split' ? ['split', 'split.1'] : [pool]),
    forget: () => undefined,
  } as unknown as ShardRoutes
  awaitLease = createAwaitLease(client, shards)
})

/** One attempt, whose task token is this text. @returns what the activity throws */
function attempt(input: AwaitLeaseInput, token: string, waitedMs = 0): Promise<unknown> {
  const info = { taskToken: Buffer.from(token), scheduledTimestampMs: Date.now() - waitedMs }
  const context = { info } as unknown as Context
  return asyncLocalStorage.run(context, () => awaitLease(input).catch((error: unknown) => error))
}

const base64 = (text: string) => Buffer.from(text).toString('base64')

describe('firepool.awaitLease', () => {
  test('offers the token of this attempt and completes asynchronously; the next attempt offers its own', async () => {
    for (const token of ['first', 'second']) {
      expect(await attempt({ v: 1, pool: 'p', leaseId: leaseId(1) }, token)).toBeInstanceOf(
        CompleteAsyncError,
      )
      const batch = [{ v: 1, leaseId: leaseId(1), token: base64(token) }]
      expect(sent.at(-1)).toEqual({ id: 'pool/p', name: 'firepool.token', payload: { v: 1, batch } })
    }
    expect(sent).toHaveLength(2)
  })

  test('of many at once is one signal for each pool', async () => {
    const all = Array.from({ length: 8 }, (_, n) =>
      attempt({ pool: n % 2 === 0 ? 'p' : 'q', leaseId: leaseId(n) }, `t${n}`),
    )
    for (const outcome of await Promise.all(all)) expect(outcome).toBeInstanceOf(CompleteAsyncError)
    expect(sent.map(({ id, payload }) => [id, payload.batch.length])).toEqual([
      ['pool/p', 4],
      ['pool/q', 4],
    ])
  })

  test('reaches whichever shard was asked; one that has just ended holds nothing', async () => {
    gone.add('pool/split.1')
    expect(await attempt({ pool: 'split', leaseId: leaseId(1) }, 't')).toBeInstanceOf(CompleteAsyncError)
    expect(sent.map(({ id }) => id)).toEqual(['pool/split'])
    gone.clear()
    await attempt({ pool: 'split', leaseId: leaseId(1) }, 't')
    expect(sent.map(({ id }) => id).slice(1)).toEqual(['pool/split', 'pool/split.1'])
  })

  test('ends typed when the pool has said nothing long after the deadline, which it is the first to tell of', async () => {
    const input = { pool: 'p', leaseId: leaseId(1), acquireTimeout: '1m' }
    expect(await attempt(input, 't', 61_000)).toBeInstanceOf(CompleteAsyncError)
    expect(await attempt(input, 't', 90_000)).toMatchObject({
      type: 'QueueTimeout',
      nonRetryable: true,
      details: [{ details: { reason: 'PoolSilent' } }],
    })
    // Who does not say how long it may take is not cut short.
    const { acquireTimeout: _, ...open } = input
    expect(await attempt(open, 't', 3_600_000)).toBeInstanceOf(CompleteAsyncError)
    expect(await attempt(open, 't', 25 * 3_600_000)).toMatchObject({ type: 'QueueTimeout' })
    expect(sent).toHaveLength(2)
  })

  test.each<[string, unknown, string]>([
    ['a time that is none', { pool: 'p', leaseId: leaseId(1), acquireTimeout: 'soon' }, 'InvalidRequest'],
    ['a pool that is not there', { pool: 'none', leaseId: leaseId(1) }, 'PoolNotFound'],
    ['another version', { v: 2, pool: 'p', leaseId: leaseId(1) }, 'InvalidRequest'],
    ['an id that is not random', { pool: 'p', leaseId: 'mine' }, 'InvalidRequest'],
    ['nothing', undefined, 'InvalidRequest'],
  ])('refuses %s typed, for good', async (_, input, type) => {
    gone.add('pool/none')
    expect(await attempt(input as AwaitLeaseInput, 't')).toMatchObject({ type, nonRetryable: true })
    expect(sent).toEqual([])
  })
})
