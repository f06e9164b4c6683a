import { type Client, WorkflowNotFoundError } from '@temporalio/client'
import { noSuchPool } from '../contract/errors.js'
import { poolWorkflowId } from '../contract/names.js'
import type { TellPool, ToldPool } from '../contract/run.js'

/**
 * The local activity `firepool.tellPool` of lease workflows: one signal to the pool. A signal of the workflow itself would cost
 * a second workflow task, which only learns that the first one's signal arrived.
 */
export function createTellPool(client: Client) {
  return async ({ pool, signal, payload }: TellPool): Promise<ToldPool> => {
    try {
      await client.workflow.getHandle(poolWorkflowId(pool)).signal(signal, payload)
      return { v: 1, problem: null }
    } catch (error) {
      // All else is tried again, a pool at the server's limit of signals included.
      if (error instanceof WorkflowNotFoundError) return { v: 1, problem: noSuchPool(pool) }
      throw error
    }
  }
}
