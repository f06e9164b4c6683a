import {
  type Client,
  WithStartWorkflowOperation,
  type Workflow,
  WorkflowNotFoundError,
} from '@temporalio/client'
import { WorkflowIdConflictPolicy } from '@temporalio/common'
import { isRecord } from '../contract/check.js'
import { poolWorkflowId, QUEUE, UPDATE, WORKFLOW } from '../contract/names.js'
import type { PoolInput, ShardOrder, ShardReport } from '../contract/pool.js'
import { effectActivity } from './batch.js'

/** A shard answers in milliseconds, unless its worker is away. */
const ANSWER_MS = 10_000

/**
 * The activity by which the head of a pool tells its shards what they should be. An order is complete and numbered, so that
 * one that is lost, late or repeated does no harm.
 */
export function createTellShards(client: Client) {
  const send = (order: ShardOrder): Promise<ShardReport> => {
    const workflowId = poolWorkflowId(order.spec.name)
    // One that is to leave is not started for it.
    if (order.leaving)
      return client.workflow
        .getHandle(workflowId)
        .executeUpdate<ShardReport, [ShardOrder]>(UPDATE.shard, { args: [order] })
    const input: PoolInput = { v: 1, spec: order.spec, order }
    return client.workflow.executeUpdateWithStart<Workflow, ShardReport, [ShardOrder]>(UPDATE.shard, {
      args: [order],
      startWorkflowOperation: new WithStartWorkflowOperation(WORKFLOW.pool, {
        workflowId,
        taskQueue: QUEUE.workflows,
        workflowIdConflictPolicy: WorkflowIdConflictPolicy.USE_EXISTING,
        args: [input],
      }),
    })
  }
  /** What a shard that has ended said last, for the head to keep. One that was terminated has said nothing. */
  const lastWord = async (order: ShardOrder): Promise<ShardReport | undefined> => {
    try {
      const handle = client.workflow.getHandle(poolWorkflowId(order.spec.name))
      const end = await client.withDeadline(Date.now() + ANSWER_MS, () => handle.result())
      return isRecord(end) && isRecord(end.report) ? (end.report as unknown as ShardReport) : undefined
    } catch {
      return undefined
    }
  }
  return effectActivity({
    shard: async ({ order }) => {
      try {
        const report = await client.withDeadline(Date.now() + ANSWER_MS, () => send(order))
        return { kind: 'shardTold', report }
      } catch (error) {
        if (!order.leaving || !(error instanceof WorkflowNotFoundError)) throw error
        const report = await lastWord(order)
        return { kind: 'shardGone', ...(report ? { report } : {}) }
      }
    },
  })
}
