import { type Client, WorkflowNotFoundError } from '@temporalio/client'
import { noSuchPool } from '../contract/errors.js'
import { poolWorkflowId } from '../contract/names.js'
import type { TellPool, ToldPool } from '../contract/run.js'
import type { KnownAttributes } from './known-attributes.js'
import type { ShardRoutes } from './shard-routes.js'

/**
 * The local activity `firepool.tellPool` of lease workflows: one signal to the pool, or to the shard of it that is meant. A
 * signal of the workflow itself would cost a second workflow task, which only learns that the first one's signal arrived.
 */
export function createTellPool(
  client: Client,
  shards: ShardRoutes,
  attributes: Pick<KnownAttributes, 'maySet'>,
) {
  /** @returns whether it was there. All else is tried again, a pool at the server's limit of signals included. */
  const tell = async (name: string, { signal, payload }: TellPool): Promise<boolean> => {
    try {
      await client.workflow.getHandle(poolWorkflowId(name)).signal(signal, payload)
      return true
    } catch (error) {
      if (error instanceof WorkflowNotFoundError) return false
      throw error
    }
  }
  const route = async (what: TellPool): Promise<ToldPool> => {
    const { pool, caller, at, fresh = false } = what
    if (fresh) shards.forget(pool)
    if (at !== undefined && (await tell(at, what))) return told(pool, at)
    // A shard that is gone holds nothing; what it was told last goes to nobody, what it was asked for goes to another one.
    if (caller === undefined) {
      if (at !== undefined) return at === pool ? { v: 1, problem: noSuchPool(pool) } : told(pool, at)
      const all = await shards.allShards(pool)
      const there = await Promise.all(all.map((name) => tell(name, what)))
      return there[0] ? told(pool, pool) : { v: 1, problem: noSuchPool(pool) }
    }
    const name = await shards.shardOf(pool, caller)
    if (await tell(name, what)) return told(pool, name)
    if (name === pool) return { v: 1, problem: noSuchPool(pool) }
    shards.forget(pool)
    const again = await shards.shardOf(pool, caller)
    if (await tell(again, what)) return told(pool, again)
    if (again === pool) return { v: 1, problem: noSuchPool(pool) }
    shards.forget(pool)
    throw new Error(`${poolWorkflowId(again)} is not there yet; it is tried again`)
  }
  return async (what: TellPool): Promise<ToldPool> => ({
    ...(await route(what)),
    ...(attributes.maySet ? { searchAttributes: true } : {}),
  })
}

function told(pool: string, name: string): ToldPool {
  return { v: 1, problem: null, ...(name === pool ? {} : { at: name }) }
}
