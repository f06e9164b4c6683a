import { Context } from '@temporalio/activity'
import type { Backend } from '../contract/backend.js'
import { TIMEOUT } from '../contract/limits.js'
import { createRunnerClient } from '../runner/client.js'
import type { Signer } from '../token/token.js'
import type { Observation, ObserveInput } from '../workflows/pool-observation.js'
import { beating } from './heartbeat.js'
import { PodFeed } from './pod-feed.js'
import { CONTROL_MS } from './pods.js'

/**
 * The activity that watches a backend for a pool: returns at once with everything for a cursor it does not know, else
 * when something changed since, or after a long while with nothing.
 */
export function createObserve({ backend, signer }: { backend: Backend; signer: Signer }) {
  const feeds = new Map<string, PodFeed>()
  const touch = (pod: string, address: string) => {
    // Only the contact counts: whether the pod lives, the backend knows.
    createRunnerClient(address, () => signer(pod, 'broker', 0, ''))
      .status({ timeoutMs: CONTROL_MS })
      .catch(() => undefined)
  }
  return async ({ pool, cursor }: ObserveInput): Promise<Observation> => {
    let feed = feeds.get(pool)
    if (!feed) {
      feed = new PodFeed(backend, pool, touch, () => feeds.delete(pool))
      feeds.set(pool, feed)
    }
    const context = Context.current()
    if (feed.since(cursor) === null) return everything(context, backend, pool, feed)
    const change = feed.changedSince(cursor, TIMEOUT.observeMs, context.cancellationSignal)
    await beating(context, { v: 1 }, change)
    const pods = feed.since(cursor)
    if (pods !== null) return { v: 1, cursor: feed.cursor, full: false, pods }
    return everything(context, backend, pool, feed)
  }
}

/**
 * All pods of the pool. It says that it lives meanwhile: on a busy machine the list of a thousand pods takes longer than the server waits
 * for that, and each attempt that is given up begins with another list.
 */
async function everything(
  context: Context,
  backend: Pick<Backend, 'list'>,
  pool: string,
  feed: PodFeed,
): Promise<Observation> {
  // The cursor is read before the list: what changes while the list is made comes again with the next one.
  const { cursor } = feed
  return { v: 1, cursor, full: true, pods: await beating(context, { v: 1 }, backend.list(pool)) }
}
