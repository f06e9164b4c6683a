import { randomUUID } from 'node:crypto'
import type { World } from './world.js'

/** Resets a workflow to its nth completed workflow task. @returns the new run's id */
export async function reset(world: World, workflowId: string, runId: string, nth: number): Promise<string> {
  const { namespace } = world.client.options
  const { events } = await world.client.workflow.getHandle(workflowId, runId).fetchHistory()
  const finished = (events ?? []).filter((e) => e.workflowTaskCompletedEventAttributes)
  const { runId: newRun } = await world.client.workflowService.resetWorkflowExecution({
    namespace,
    workflowExecution: { workflowId, runId },
    workflowTaskFinishEventId: finished[nth - 1]!.eventId!,
    requestId: randomUUID(),
    reason: 'test',
  })
  return newRun!
}
