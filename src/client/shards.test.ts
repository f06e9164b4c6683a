import { type Client, ServiceError } from '@temporalio/client'
import fc from 'fast-check'
import { expect, it } from 'vitest'
import { makeWorld } from '../../test/support/broker-world.js'
import { statusOf } from '../broker/index.js'
import type { Page } from '../contract/index.js'
import { askShards, lastShardOf, pageOfAll, wholeStatus } from './shards.js'

it('pages over all shards as over one list: every row once, in the order of the shards', async () => {
  const lists = fc.array(fc.array(fc.nat(), { maxLength: 7 }), { minLength: 1, maxLength: 5 })
  await fc.assert(
    fc.asyncProperty(lists, fc.integer({ min: 1, max: 9 }), async (shards, limit) => {
      const ask = async (shard: number, page: { offset?: number; limit?: number }): Promise<Page<number>> => {
        const all = shards[shard]!
        const { offset = 0, limit: most = 500 } = page
        const rows = all.slice(offset, offset + most)
        const next = offset + rows.length
        return { v: 1, rows, total: all.length, next: next < all.length ? next : null }
      }
      const seen: number[] = []
      for (let offset: number | null = 0; offset !== null; ) {
        const page: Page<number> = await pageOfAll(shards.length, { offset, limit }, ask)
        expect(page.rows.length).toBeLessThanOrEqual(limit)
        expect(page.total).toBe(shards.flat().length)
        seen.push(...page.rows)
        offset = page.next
      }
      expect(seen).toEqual(shards.flat())
    }),
  )
})

it('leaves out a shard that has just ended', async () => {
  const page = await pageOfAll<string>(2, {}, async (shard) =>
    shard === 0 ? { v: 1, rows: ['a'], total: 1, next: null } : null,
  )
  expect(page).toEqual({ v: 1, rows: ['a'], total: 1, next: null })
})

it('a shard whose workflow task fails is named, not its head', async () => {
  // As grpc-js has it: @temporalio/client tells it by its code, details and metadata.
  const failed = Object.assign(new Error('FAILED_PRECONDITION'), {
    code: 9,
    details: 'Cannot query workflow due to Workflow Task in failed state.',
    metadata: {},
  })
  const handle = (workflowId: string) => ({
    workflowId,
    describe: async () => ({ status: { name: 'RUNNING' }, runId: 'r' }),
    query: async () => {
      throw new ServiceError('query failed', { cause: failed })
    },
  })
  const client = { workflow: { getHandle: handle } } as unknown as Client
  await expect(askShards(client, 'cpu', [2], 'firepool.status')).rejects.toMatchObject({
    reason: 'NoAnswer',
    why: 'workflow pool/cpu.2 answers nobody, because its workflow task fails',
    remedy: expect.stringMatching(/terminate, then apply the pool again/),
  })
})

it('adds up the rollouts of all shards, and says why one of them has stopped', () => {
  const shard = (env: Record<string, string>) => {
    const world = makeWorld({ spec: { standby: 1 } })
    world.advance(3_000)
    const { spec } = world.state
    world.send({ kind: 'apply', spec: { ...spec, profile: { ...spec.profile, env } } })
    world.advance(6_000)
    return statusOf(world.state, world.now)
  }
  const done = shard({ NEW: '1' })
  const stopped = shard({ BROKEN: 'PrepareFailed' })
  const head = (status: typeof done) => ({
    ...status,
    shards: { routes: 2, all: 2, wanted: 2, budget: 4, standby: 2, queueLimit: 9 },
  })
  expect(done.rollout).toBeUndefined()
  const one = wholeStatus(head(done), [{ name: 'p.1', shard: 1, answer: stopped }])
  expect(one.rollout).toEqual(stopped.rollout)
  const both = wholeStatus(head(stopped), [{ name: 'p.1', shard: 1, answer: stopped }])
  expect(both.rollout).toMatchObject({
    from: 1,
    to: 2,
    oldPods: 2,
    newReady: 0,
    proven: false,
    stopped: { code: 'PodStartFailed' },
  })
  expect(wholeStatus(head(done), [{ name: 'p.1', shard: 1, answer: done }])).not.toHaveProperty('rollout')
})

it('shards that outlived their head are looked for only when there is no head', async () => {
  const asked: string[] = []
  const clientWith = (...running: string[]) =>
    ({
      workflow: {
        getHandle: (id: string) => ({
          describe: async () => {
            asked.push(id)
            return { status: { name: running.includes(id) ? 'RUNNING' : 'TERMINATED' } }
          },
        }),
      },
    }) as unknown as Client
  expect(await lastShardOf(clientWith('pool/p', 'pool/p.2'), 'p')).toBe(0)
  expect(asked).toEqual(['pool/p'])
  expect(await lastShardOf(clientWith('pool/p.1', 'pool/p.5'), 'p')).toBe(5)
  expect(await lastShardOf(clientWith(), 'p')).toBe(0)
})
