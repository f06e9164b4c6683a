import { type Client, WorkflowNotFoundError } from '@temporalio/client'
import {
  LIMIT,
  type Page,
  type PageRequest,
  type PoolStatus,
  poolWorkflowId,
  type RolloutStatus,
  type ShardRow,
  shardName,
} from '../contract/index.js'
import { meaningOf } from './errors.js'
import { stuck } from './unavailable.js'

/** Asks shards of a pool. One that has ended is left out. */
export async function askShards<T>(
  client: Client,
  pool: string,
  shards: readonly number[],
  query: string,
  argument?: unknown,
): Promise<{ name: string; shard: number; answer: T }[]> {
  const answers = shards.map(async (shard) => {
    const name = shardName(pool, shard)
    try {
      const handle = client.workflow.getHandle(poolWorkflowId(name))
      // A query would be answered by one that has ended as well.
      const { status, runId } = await handle.describe()
      if (status.name !== 'RUNNING') return []
      const run = client.workflow.getHandle(handle.workflowId, runId)
      return [
        {
          name,
          shard,
          answer: await run.query<T, unknown[]>(query, ...(argument === undefined ? [] : [argument])),
        },
      ]
    } catch (error) {
      const { kind } = meaningOf(error)
      if (kind === 'poolNotFound') return []
      // Not its head: whoever looks at that finds nothing wrong.
      throw kind === 'stuck' ? stuck(poolWorkflowId(name), error) : error
    }
  })
  return (await Promise.all(answers)).flat()
}

/**
 * The index of the last shard that outlived its head, which was terminated; 0 when there is none. Only a head knows how many there
 * should be: a new one is told how far to look. While there is a head nobody else is asked.
 */
export async function lastShardOf(client: Client, pool: string): Promise<number> {
  const isRunning = async (shard: number) => {
    try {
      const handle = client.workflow.getHandle(poolWorkflowId(shardName(pool, shard)))
      return (await handle.describe()).status.name === 'RUNNING'
    } catch (error) {
      if (error instanceof WorkflowNotFoundError) return false
      throw error
    }
  }
  if (await isRunning(0)) return 0
  const shards = Array.from({ length: LIMIT.shards - 1 }, (_, i) => i + 1)
  const running = await Promise.all(shards.map(isRunning))
  return running.lastIndexOf(true) + 1
}

/** The status of a whole pool, from those of its shards; what only the head knows (spec, mode, fleet) is the head's. */
export function wholeStatus(
  head: PoolStatus,
  others: readonly { name: string; shard: number; answer: PoolStatus }[],
): PoolStatus {
  if (!head.shards) return head
  const all = [{ name: head.pool, shard: 0, answer: head }, ...others]
  const statuses = all.map(({ answer }) => answer)
  const sum = (read: (status: PoolStatus) => number) =>
    statuses.reduce((total, status) => total + read(status), 0)
  const summed = <K extends string>(
    first: Record<K, number>,
    read: (status: PoolStatus) => Record<K, number>,
  ) =>
    Object.fromEntries(Object.keys(first).map((key) => [key, sum((s) => read(s)[key as K] ?? 0)])) as Record<
      K,
      number
    >
  // What fails in one shard fails in all of them, for the same reason.
  const worst = statuses.reduce((a, b) => (b.breaker.failures > a.breaker.failures ? b : a))
  const rollout = wholeRollout(statuses.flatMap((s) => s.rollout ?? []))
  const poisoned = statuses.find(({ poison }) => poison.count > 0) ?? head
  const { rollout: _, ...rest } = head
  return {
    ...rest,
    ...(rollout ? { rollout } : {}),
    budget: { ...head.budget, inForce: head.shards.budget, held: sum((s) => s.budget.held) },
    standby: { target: head.shards.standby, ready: sum((s) => s.standby.ready) },
    pods: summed(head.pods, (s) => s.pods),
    leases: sum((s) => s.leases),
    queue: {
      capacity: sum((s) => s.queue.capacity),
      slotBusy: sum((s) => s.queue.slotBusy),
      limit: head.shards.queueLimit,
      oldestWaitMs: Math.max(...statuses.map((s) => s.queue.oldestWaitMs)),
    },
    breaker: { ...worst.breaker, open: statuses.some((s) => s.breaker.open) },
    grants: summed(head.grants, (s) => s.grants),
    ends: summed(head.ends, (s) => s.ends),
    podsCreated: sum((s) => s.podsCreated),
    leaked: sum((s) => s.leaked),
    poison: { count: sum((s) => s.poison.count), last: poisoned.poison.last },
    heldPodMs: sum((s) => s.heldPodMs),
    effectsInFlight: sum((s) => s.effectsInFlight),
    leased: statuses.flatMap((s) => s.leased),
    shards: { ...head.shards, rows: all.map(({ name, shard, answer }) => rowOf(name, shard, answer)) },
  }
}

/** Each shard rolls by itself, and numbers its generations itself. */
function wholeRollout(all: readonly RolloutStatus[]): RolloutStatus | null {
  const [first] = all
  if (!first) return null
  const sum = (read: (rollout: RolloutStatus) => number) => all.reduce((total, each) => total + read(each), 0)
  const stopped = all.find((each) => each.stopped)?.stopped
  return {
    from: first.from,
    to: first.to,
    oldPods: sum(({ oldPods }) => oldPods),
    newReady: sum(({ newReady }) => newReady),
    proven: all.every(({ proven }) => proven),
    ...(stopped ? { stopped } : {}),
  }
}

function rowOf(name: string, shard: number, status: PoolStatus): ShardRow {
  const { mode, budget, standby, pods, leases, queue, grants } = status
  const { inForce, held } = budget
  return { shard, name, mode, budget: { inForce, held }, standby, pods, leases, queue, grants }
}

/**
 * One page of the rows of all shards, those of the head first: rows of a queue keep the place that they have in their shard.
 * @param ask asks one shard, by its place in the list
 */
export async function pageOfAll<Row>(
  shards: number,
  { offset = 0, limit = LIMIT.pageRows }: PageRequest,
  ask: (shard: number, page: PageRequest) => Promise<Page<Row> | null>,
): Promise<Page<Row>> {
  const rows: Row[] = []
  let before = 0
  for (let shard = 0; shard < shards; shard++) {
    const left = limit - rows.length
    // At least one row is asked for, so that each says how many it has.
    const page = await ask(shard, { offset: Math.max(0, offset - before), limit: Math.max(1, left) })
    if (!page) continue
    if (left > 0 && offset < before + page.total) rows.push(...page.rows)
    before += page.total
  }
  const next = offset + rows.length
  return { v: 1, rows, total: before, next: next < before && rows.length > 0 ? next : null }
}
