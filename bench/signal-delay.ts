import { poolWorkflowId } from '../dist/contract/index.js'
import { badTasks, FLOODED, flood, handledMs, runsOf, spread } from '../test/support/flood.js'
import { type BenchWorld, createPool } from './world.js'

/** At the pace of a pool that is used by a hundred callers at once. */
const PER_SECOND = 100
const POOL = 'signals'

/**
 * How long a signal to a pool takes at a steady pace: until the server has it, and until the pool has acted on it (the end
 * of the workflow task that saw it), from its sending. One pool, signals that leave no more than a count or a tombstone.
 */
export async function signalDelay({ client }: BenchWorld, seconds: number) {
  await createPool(client, POOL, FLOODED)
  const handle = client.workflow.getHandle(poolWorkflowId(POOL))
  const kinds = ['poison', 'release'] as const
  const sent = await flood({ handle }, null, { perSecond: PER_SECOND, seconds, kinds })
  const total = sent.sentAt.size
  for (;;) {
    const runs = await runsOf({ client }, poolWorkflowId(POOL))
    const handled = handledMs(runs, sent.sentAt)
    if (handled.size < total) continue
    return {
      seed: sent.seed,
      signals: total,
      perSecond: sent.perSecond,
      runs: runs.length,
      tasksClosedByForce: badTasks(runs).forceClosed,
      acceptedMs: spread(sent.acceptedMs),
      actedOnMs: spread([...handled.values()].flat()),
    }
  }
}
