import { Client, WorkflowNotFoundError } from '@temporalio/client'
import { PAYLOAD_CONVERTER } from '../bundle.js'
import { effectActivity } from './batch.js'

/**
 * The activity behind reconcile: which holders are closed? A holder is one RUN: what continues as new or is retried
 * gave its leases back, and what was reset asked for new ones.
 */
export function createDescribeHolders({ connection, options: { namespace } }: Client) {
  // A holder's memo is its own affair: one that we cannot read must not hide whether the others of a batch are closed.
  const dataConverter = { payloadConverterPath: PAYLOAD_CONVERTER }
  const client = new Client({ connection, namespace, dataConverter })
  const isOpen = async (workflowId: string, runId: string | undefined): Promise<boolean> => {
    try {
      const { status } = await client.workflow.getHandle(workflowId, runId).describe()
      return status.name === 'RUNNING' || status.name === 'PAUSED'
    } catch (error) {
      if (error instanceof WorkflowNotFoundError) return false
      throw error
    }
  }
  return effectActivity({
    describe: async ({ leases }) => {
      const closed: string[] = []
      const queue = leases.values()
      const lane = async () => {
        for (const { leaseId, holder, leaseWorkflowId } of queue) {
          const watched = leaseWorkflowId === holder.workflowId || (await isOpen(leaseWorkflowId, undefined))
          if (!watched || !(await isOpen(holder.workflowId, holder.runId))) closed.push(leaseId)
        }
      }
      await Promise.all(Array.from({ length: DESCRIBES_AT_ONCE }, lane))
      return { kind: 'described', closed }
    },
  })
}

const DESCRIBES_AT_ONCE = 8
