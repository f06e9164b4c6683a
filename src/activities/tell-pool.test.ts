import { type Client, WorkflowNotFoundError } from '@temporalio/client'
import { beforeEach, describe, expect, test } from 'vitest'
import type { TellPool } from '../contract/run.js'
import type { ShardRoutes } from './shard-routes.js'
import { createTellPool } from './tell-pool.js'

/** What each pool does with a signal; the others are not there. */
let pools: Record<string, () => void>
let told: string[]
/** where the caller's requests go, as this worker knows it, and as it is */
let known: string
let real: string
/** the namespace has Firepool's search attributes */
let registered: boolean
beforeEach(() => {
  registered = false
  pools = { 'pool/p': () => undefined }
  told = []
  known = 'p'
  real = 'p'
})

function tell(what: Partial<TellPool>) {
  const client = {
    workflow: {
      getHandle: (id: string) => ({
        signal: async (name: string) => {
          const pool = pools[id]
          if (!pool) throw new WorkflowNotFoundError('gone', id, undefined)
          pool()
          told.push(`${id} ${name}`)
        },
      }),
    },
  } as unknown as Client
  const shards = {
    shardOf: async () => known,
    allShards: async () => ['p', 'p.1'],
    forget: () => {
      known = real
    },
  } as unknown as ShardRoutes
  const attributes = { maySet: registered }
  return createTellPool(
    client,
    shards,
    attributes,
  )({ v: 1, pool: 'p', signal: 'firepool.request', payload: {}, ...what })
}

describe('a lease workflow that tells its pool something', () => {
  test('hears whether search attributes may be set', async () => {
    registered = true
    expect(await tell({ caller: 'c' })).toEqual({ v: 1, problem: null, searchAttributes: true })
  })

  test('hears that there is no such pool as a value, and of all else as an error, which is tried again', async () => {
    expect(await tell({ caller: 'c' })).toEqual({ v: 1, problem: null })
    pools = {}
    expect(await tell({ caller: 'c' })).toMatchObject({ problem: { code: 'PoolNotFound' } })
    expect(await tell({})).toMatchObject({ problem: { code: 'PoolNotFound' } })
    // A pool that is about to continue as new: the server's limit of signals.
    pools['pool/p'] = () => {
      throw new Error('exceeded workflow execution limit for signal events')
    }
    await expect(tell({ caller: 'c' })).rejects.toThrow('limit for signal events')
  })

  test('reaches the shard that its caller has now, also when what was known of it is out of date', async () => {
    known = 'p.1'
    expect(await tell({ caller: 'c' })).toEqual({ v: 1, problem: null })
    known = 'p.1'
    real = 'p.2'
    await expect(tell({ caller: 'c' })).rejects.toThrow('pool/p.2 is not there yet')
    pools['pool/p.2'] = () => undefined
    expect(await tell({ caller: 'c' })).toEqual({ v: 1, problem: null, at: 'p.2' })
    expect(told).toEqual(['pool/p firepool.request', 'pool/p.2 firepool.request'])
  })

  test('of a release: the shard that was asked; all of them when it is not known', async () => {
    const release = { signal: 'firepool.release' }
    pools['pool/p.1'] = () => undefined
    expect(await tell({ ...release, at: 'p.1' })).toEqual({ v: 1, problem: null, at: 'p.1' })
    expect(await tell(release)).toEqual({ v: 1, problem: null })
    expect(told).toEqual([
      'pool/p.1 firepool.release',
      'pool/p firepool.release',
      'pool/p.1 firepool.release',
    ])
    // A shard that is gone holds nothing.
    expect(await tell({ ...release, at: 'p.3' })).toEqual({ v: 1, problem: null, at: 'p.3' })
  })
})
