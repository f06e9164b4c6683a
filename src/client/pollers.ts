import type { Client } from '@temporalio/client'

/** A worker polls at least once a minute; one that has not for this long is gone. */
const POLLER_GONE_MS = 75_000

/** temporal.api.enums.v1.TaskQueueType */
const WORKFLOW_QUEUE = 1

/**
 * Whether a worker has polled a workflow task queue lately. The server remembers a worker for a while after its end,
 * so true is a hint; false is certain.
 */
export async function isPolled(client: Client, queue: string): Promise<boolean> {
  const answer = await client.workflowService.describeTaskQueue({
    namespace: client.options.namespace,
    taskQueue: { name: queue },
    taskQueueType: WORKFLOW_QUEUE,
  })
  const now = Date.now()
  return (answer.pollers ?? []).some(({ lastAccessTime }) => {
    const at = Number(lastAccessTime?.seconds ?? 0) * 1_000
    return now - at < POLLER_GONE_MS
  })
}
