import { randomUUID } from 'node:crypto'
import { expect, test } from 'vitest'
import { holderOf, marker } from './holder.js'
import { processWith, type World, waitUntil } from './world.js'

/**
 * The tests of a caller that starts again, for a `describe`: one lease at most, none at the end, the files as promised.
 * @param spec of its pools, with room for two pods @param options of its sandbox
 */
export function testStartsAgain(
  world: () => World,
  spec: Record<string, unknown>,
  options: Record<string, unknown> = {},
): void {
  test('by five continue-as-news finds the same pod and its files each time', async () => {
    const pool = await world().pool('news', spec)
    const handle = await world().start<{ pods: string[]; count: number }>('chain', [
      { pool: 'news', left: 5, ...options },
    ])
    const { pods, count } = await handle.result()
    expect(count).toBe(6)
    expect(new Set(pods).size).toBe(1)
    await pool.until('zero leases, the pod warm', (s) => s.leases === 0 && s.pods.idle === 1)
  })

  test('by its retry policy finds the same pod and its files', async () => {
    const pool = await world().pool('retry', spec)
    const handle = await world().start<{ attempt: number; stdout: string }>(
      'flaky',
      [{ pool: 'retry', ...options }],
      {
        retry: { maximumAttempts: 2, initialInterval: 100 },
      },
    )
    expect(await handle.result()).toMatchObject({ attempt: 2, stdout: 'x\nx\n' })
    await pool.until('zero leases, the pod warm', (s) => s.leases === 0 && s.pods.idle === 1)
  })

  test.each([
    ['before its acquire', 1],
    ['after its acquire', 4],
  ])('by a reset to a moment %s: one lease at most, the job of an hour is gone', async (when, task) => {
    const name = `reset-${task}`
    const pool = await world().pool(name, spec)
    const mark = marker()
    const holder = await holderOf(world(), name, { caller: 'ann', ...options })
    await holder.job('echo kept > f')
    await holder.nth(1)
    await holder.job('sleep 3600', { env: { MARK: mark } })
    await waitUntil('the job runs', () => processWith(mark).length > 0)
    const { workflowId } = holder.handle
    const { runId } = await holder.handle.describe()
    const again = world().client.workflow.getHandle(workflowId, await reset(world(), workflowId, runId, task))
    await waitUntil(`the job of an hour ${when} is gone`, () => processWith(mark).length === 0)
    await again.terminate('over')
    const { leases, ends } = await pool.until('zero leases', (s) => s.leases === 0 && s.queue.slotBusy === 0)
    expect({ leases, failed: ends.failed }).toEqual({ leases: 0, failed: 0 })
    await waitUntil('nothing runs', () => processWith(mark).length === 0)
  })
}

/** Resets a workflow to its nth completed workflow task. @returns the new run's id */
async function reset(world: World, workflowId: string, runId: string, nth: number): Promise<string> {
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
