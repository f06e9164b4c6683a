import { type Client, isGrpcServiceError } from '@temporalio/client'
import { firstValue } from '../client/payload.js'
import { poolWorkflowId } from '../contract/names.js'
import type { Routes } from '../contract/pool.js'
import { ROUTES_MEMO, routesIn, shardName, shardOfCaller, WHOLE } from '../contract/shards.js'

/** How long a worker goes by what it has read: a shard that is not there any more makes it read again at once. */
const FRESH_MS = 3_000
/** of gRPC */
const NOT_FOUND = 5
/** Pools remembered; the oldest are read again. */
const POOLS = 1_000

/**
 * Which shard of a pool serves a caller, as the pool's head says in its memo. One call of the server for each pool every
 * few seconds, and nobody has to wait for a workflow to answer.
 */
export class ShardRoutes {
  private readonly known = new Map<string, { at: number; routes: Promise<Routes> }>()

  constructor(private readonly client: Client) {}

  /** The name of the caller's shard. */
  async shardOf(pool: string, caller: string): Promise<string> {
    const { routes } = await this.read(pool)
    return shardName(pool, shardOfCaller(caller, routes))
  }

  /** The names of all shards that may hold leases, the head first. */
  async allShards(pool: string): Promise<string[]> {
    const { all } = await this.read(pool)
    return Array.from({ length: all }, (_, shard) => shardName(pool, shard))
  }

  /** What is known of the pool is out of date. */
  forget(pool: string): void {
    this.known.delete(pool)
  }

  private read(pool: string): Promise<Routes> {
    const found = this.known.get(pool)
    if (found && Date.now() < found.at + FRESH_MS) return found.routes
    const routes = this.ask(pool)
    this.known.delete(pool)
    this.known.set(pool, { at: Date.now(), routes })
    if (this.known.size > POOLS) this.forget(this.known.keys().next().value!)
    routes.catch(() => {
      if (this.known.get(pool)?.routes === routes) this.forget(pool)
    })
    return routes
  }

  private async ask(pool: string): Promise<Routes> {
    const { client } = this
    try {
      const { workflowExecutionInfo } = await client.workflowService.describeWorkflowExecution({
        namespace: client.options.namespace,
        execution: { workflowId: poolWorkflowId(pool) },
      })
      const said = workflowExecutionInfo?.memo?.fields?.[ROUTES_MEMO]
      // The rest of the memo is not decoded: a pool that is whole must not depend on what else stands there.
      return said ? routesIn({ [ROUTES_MEMO]: await firstValue(client, [said]) }) : WHOLE
    } catch (error) {
      // Whoever sends to it hears that it is not there.
      if (isGrpcServiceError(error) && error.code === NOT_FOUND) return WHOLE
      throw error
    }
  }
}
