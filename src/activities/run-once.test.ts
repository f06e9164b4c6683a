import { asyncLocalStorage, type Context } from '@temporalio/activity'
import type { Client } from '@temporalio/client'
import { expect, test, vi } from 'vitest'
import { problem } from '../contract/errors.js'
import type { Acquired } from '../contract/lease.js'
import type { RunOnceInput } from '../contract/run.js'
import { createRunOnce } from './run-once.js'

const backend = { annotate: () => {} }
const attributes = { maySet: false }

import type { ShardRoutes } from './shard-routes.js'

/** One attempt of the activity against a pool that answers so. */
function attempt(
  n: number,
  answer: () => Promise<Acquired>,
  heartbeatDetails?: unknown,
  deadlineMs = Date.now() + 60_000,
) {
  const shards = { shardOf: async () => 'p', forget: () => undefined } as unknown as ShardRoutes
  const client = {
    withDeadline: (_: number, call: () => unknown) => call(),
    workflow: { getHandle: () => ({ executeUpdate: answer }) },
  } as unknown as Client
  const context = { info: { attempt: n, heartbeatDetails }, heartbeat: () => undefined } as unknown as Context
  const input = { v: 1, pool: 'p', jobId: 'j/1', request: { leaseId: 'l', deadlineMs } } as RunOnceInput
  return asyncLocalStorage.run(context, () =>
    createRunOnce({ client, signer: () => 'none', backend, shards, attributes })(input).catch(
      (error: unknown) => error,
    ),
  )
}

const silent = () => Promise.reject(new Error('deadline exceeded'))
const ended = () =>
  Promise.resolve<Acquired>({ v: 1, outcome: 'refused', problem: problem('LeaseRevoked', 'it has ended') })

test('a pool that does not answer: the first attempt leaves the request to a signal, a later one comes again', async () => {
  expect(await attempt(1, silent)).toEqual({ v: 1, outcome: 'waiting' })
  expect(await attempt(2, silent)).toMatchObject({ type: 'PoolUnanswered', nonRetryable: false })
})

test('a pool that does not answer long after the deadline: a job that an earlier attempt may have started is PodLost', async () => {
  const past = Date.now() - 60_000
  expect(await attempt(1, silent, undefined, past)).toEqual({ v: 1, outcome: 'waiting' })
  expect(await attempt(2, silent, undefined, past)).toMatchObject({ type: 'PodLost', nonRetryable: true })
})

test('a lease that has ended: nothing was started by the first attempt, perhaps by one before a later one', async () => {
  expect(await attempt(1, ended)).toMatchObject({ type: 'LeaseRevoked', nonRetryable: true })
  expect(await attempt(2, ended)).toMatchObject({ type: 'PodLost', nonRetryable: true })
})

test('each heartbeat after the shard was asked says which one, also the later ones', async () => {
  vi.useFakeTimers()
  try {
    const beats: { at?: string }[] = []
    const shards = { shardOf: async () => 'p.1', forget: () => undefined } as unknown as ShardRoutes
    const client = {
      withDeadline: (_: number, call: () => unknown) => call(),
      workflow: {
        getHandle: () => ({
          executeUpdate: () =>
            new Promise<Acquired>((resolve) =>
              setTimeout(() => resolve({ v: 1, outcome: 'waiting' }), 3_500),
            ),
        }),
      },
    } as unknown as Client
    const context = {
      info: { attempt: 1 },
      heartbeat: (details: { at?: string }) => beats.push({ ...details }),
    } as unknown as Context
    const input = { v: 1, pool: 'p', jobId: 'j/1', request: { leaseId: 'l' } } as RunOnceInput
    const run = asyncLocalStorage.run(context, () =>
      createRunOnce({ client, signer: () => 'none', backend, shards, attributes })(input),
    )
    await vi.advanceTimersByTimeAsync(4_000)
    await run
    expect(beats.length).toBeGreaterThan(2)
    expect(beats.filter(({ at }) => at !== 'p.1')).toEqual([])
  } finally {
    vi.useRealTimers()
  }
})

test('an operator who resets the activity makes no first attempt of it: its earlier word stands', async () => {
  expect(await attempt(1, ended, { v: 1, jobId: 'j/1' })).toMatchObject({ type: 'PodLost' })
})

test('a pool that was split between two attempts: the later one asks where the first had asked', async () => {
  const asked: string[] = []
  let routed = 'p.1'
  const shards = { shardOf: async () => routed, forget: () => undefined } as unknown as ShardRoutes
  const client = {
    withDeadline: (_: number, call: () => unknown) => call(),
    workflow: {
      getHandle: (id: string) => ({
        executeUpdate: async (): Promise<Acquired> => {
          asked.push(id)
          return { v: 1, outcome: 'waiting' }
        },
      }),
    },
  } as unknown as Client
  const input = { v: 1, pool: 'p', jobId: 'j/1', request: { leaseId: 'l' } } as RunOnceInput
  let word: unknown
  const run = (n: number) => {
    const context = {
      info: { attempt: n, heartbeatDetails: word },
      heartbeat: (details: unknown) => {
        word = details
      },
    } as unknown as Context
    return asyncLocalStorage.run(context, () =>
      createRunOnce({ client, signer: () => 'none', backend, shards, attributes })(input),
    )
  }
  expect(await run(1)).toEqual({ v: 1, outcome: 'waiting', at: 'p.1' })
  routed = 'p.2'
  await run(2)
  // Without word of a shard the first attempt asked the head, if anybody.
  word = undefined
  await run(2)
  expect(asked).toEqual(['pool/p.1', 'pool/p.1', 'pool/p'])
})

test('a request of another version is refused by name: nothing is guessed from it', async () => {
  const input = { v: 2, pool: 'p', jobId: 'j/1', request: { leaseId: 'l' } } as unknown as RunOnceInput
  const context = { info: { attempt: 1 }, heartbeat: () => undefined } as unknown as Context
  const shards = {} as ShardRoutes
  const run = () =>
    createRunOnce({ client: {} as Client, signer: () => 'none', backend, shards, attributes })(input)
  await expect(asyncLocalStorage.run(context, run)).rejects.toMatchObject({
    type: 'InvalidRequest',
    message: expect.stringMatching(/version 1 of the contract, not 2; upgrade/),
  })
})
