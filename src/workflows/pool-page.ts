import { budgetInForce, type PoolState, podsPage, queuePage, routesOf, statusOf } from '../broker/index.js'
import { formatMs } from '../contract/duration.js'
import { poolWorkflowId } from '../contract/names.js'
import type { PodRow, PoolStatus, QueueRow, RolloutStatus } from '../contract/pool.js'
import { poolOfShard, shardName } from '../contract/shards.js'
import { clock, LAST_LINE, plain, table } from './markdown.js'

/** Rows of each table on a pool's page in the Temporal UI; the rest is in the paged queries and the CLI. */
const PAGE_ROWS = 20
const REASON_CHARS = 300

/**
 * The pool's current details in Markdown: what it is doing and why, for an operator who has only the Temporal UI.
 * The page is drawn when something happens and read later, so it names moments and never says "for 3 s".
 */
export function poolPage(state: PoolState, now: number): string {
  const status = statusOf(state, now)
  return [
    headline(status, now),
    shardLine(state),
    ...attention(status, now),
    facts(state, status, now),
    podTable(state, status, now),
    queueSection(state, status, now),
    LAST_LINE,
  ]
    .filter((part) => part !== '')
    .join('\n\n')
}

/** One line for the memo: what the UI shows even when no worker is there to answer. */
export function poolLine(status: PoolStatus): string {
  const { budget, pods, queue } = status
  return `${status.mode}: ${budget.held} of ${budget.inForce} seats, ${status.leases} leases, ${pods.idle} warm, ${pods.standby} standby, ${queue.capacity + queue.slotBusy} waiting`
}

function headline(status: PoolStatus, now: number): string {
  const asOf = `${new Date(now).toISOString().slice(0, 19).replace('T', ' ')} UTC`
  return `### Pool ${status.pool}: ${poolLine(status)}\n\nAs it was at ${asOf}, when something last happened here. All times are UTC.`
}

/** Whose numbers these are, when the pool has shards; nothing for a pool that is whole. */
function shardLine(state: PoolState): string {
  const { name } = state.spec
  if (state.shard) {
    const pool = poolOfShard(name)
    const leaves = state.shard.leaving
      ? ' It leaves: it takes no requests, and ends when it holds nothing.'
      : ''
    return `This is shard ${state.shard.index} of pool ${pool}, whose first is ${poolWorkflowId(pool)}.${leaves}`
  }
  const { routes, all } = routesOf(state)
  if (all === 1) return ''
  const others = [...state.shards.keys()].sort((a, b) => a - b).map((k) => poolWorkflowId(shardName(name, k)))
  const going = all > routes ? ` Requests go to the first ${routes}.` : ''
  return `This is shard 0 of ${all}: the numbers below are its own. The others are ${others.join(', ')}.${going} \`firepool pool describe ${name}\` shows the whole.`
}

/** What an operator should look at first; nothing in a healthy pool. */
function attention(status: PoolStatus, now: number): string[] {
  const { mode, breaker, budget, poison, leaked, rollout } = status
  const pool = poolOfShard(status.pool)
  const lines: string[] = []
  if (mode === 'paused')
    lines.push(`**Paused**: requests wait, nothing is granted. Go on with \`firepool pool resume ${pool}\`.`)
  if (mode === 'draining')
    lines.push(
      `**Draining**: pods go when they are idle, nothing is granted. Go on with \`firepool pool resume ${pool}\`.`,
    )
  if (mode === 'deleting') lines.push('**Deleting**: it ends when its last pod is gone.')
  if (breaker.failures > 0) {
    const last = breaker.last
      ? ` The last: ${plain(breaker.last.message, REASON_CHARS)}. Mend the profile and apply it again.`
      : ''
    lines.push(failing(status, now) + last)
  }
  if (rollout) lines.push(rolling(rollout))
  for (const { reason, message, pods } of status.starting ?? [])
    lines.push(`**Pods wait to start**: ${pods} ${reason}: ${plain(message, REASON_CHARS)}`)
  if (budget.fleetExpiresAtMs !== null && now >= budget.fleetExpiresAtMs)
    lines.push('**The fleet budget expired**: only the guarantee is left, nothing grows above it.')
  if (poison.count > 0)
    lines.push(
      `**Unreadable input**: ${poison.count} dropped. The last: ${plain(poison.last ?? '', REASON_CHARS)}`,
    )
  if (leaked > 0)
    lines.push(`**Leaked leases**: ${leaked} ended by reconcile, because their holder had vanished.`)
  return lines
}

function failing({ breaker, rollout }: PoolStatus, now: number): string {
  if (!breaker.open)
    return `**Pods failed to start**: ${breaker.failures} in a row so far; the pool goes on trying.`
  const until = `${breaker.failures} failures in a row. Nothing is created until ${clock(breaker.retryAtMs!, now)}`
  return rollout
    ? `**Pods of the new template do not start**: ${until}, but for pods of generation ${rollout.from}, which serves on.`
    : `**Pods do not start**: ${until}; without a standby, requests fail with PodStartFailed.`
}

/** What becomes of the pods of the template before. */
function rolling({ from, to, oldPods, newReady, proven, stopped }: RolloutStatus): string {
  const there = `**New template**: generation ${to} replaces ${from}; ready of ${to}: ${newReady}, earlier pods left: ${oldPods}`
  if (stopped) return `${there}. They stay: the rollout has stopped.`
  return proven
    ? `${there}: a standby goes when another one is ready in its place, a warm pod within a minute, a leased one when its lease ends.`
    : `${there}. They serve until a pod of ${to} is ready.`
}

function facts(state: PoolState, status: PoolStatus, now: number): string {
  const { budget, standby, grants, pods, ends } = status
  const { maxPods, keepAliveMs, profile } = state.spec
  const kinds = [
    `${pods.leased} leased`,
    `${pods.idle} idle (warm for its last caller)`,
    `${pods.standby} standby (${standby.target} wanted)`,
    ...(['starting', 'promoting', 'draining', 'deleting'] as const)
      .filter((kind) => pods[kind] > 0)
      .map((kind) => `${pods[kind]} ${kind}`),
  ]
  const ended = Object.entries(ends).filter(([, count]) => count > 0)
  const delay = profile.startDelay
  return [
    `- **Budget**: ${budget.held} of ${budget.inForce} seats held (${budgetInForce(state, now).reason}; guarantee ${budget.guarantee})`,
    `- **Pods**: ${state.pods.size} of at most ${maxPods}: ${kinds.join(', ')}`,
    ...(status.seatSets
      ? [
          `- **Seat sets**: ${status.seatSets.allowed} in the budget, with ${status.seatSets.seats} seats and at most ${status.seatSets.pods} pods with callers each${sickText(status.seatSets)}`,
        ]
      : []),
    `- **Leases**: ${status.leases} held. Granted so far: ${grants.warm} warm, ${grants.standby} standby, ${grants.cold} cold`,
    `- **Ended so far**: ${ended.length === 0 ? 'none' : ended.map(([end, count]) => `${count} ${end}`).join(', ')}`,
    `- **Keep-alive**: an idle pod stays with its caller for ${formatMs(keepAliveMs)}`,
    ...(delay
      ? [
          `- **Cold starts are IMITATED**: ${formatMs(delay.minMs)} to ${formatMs(delay.maxMs)} are added to each`,
        ]
      : []),
  ].join('\n')
}

function sickText({ sick }: NonNullable<PoolStatus['seatSets']>): string {
  return sick ? `. **Sick**: ${sick.sets.join(', ')}; ${plain(sick.why, REASON_CHARS)}` : ''
}

function podTable(state: PoolState, status: PoolStatus, now: number): string {
  const { rows, total } = podsPage(state, { limit: PAGE_ROWS })
  if (total === 0) return '#### Pods\n\nnone'
  const leaseOf = new Map(status.leased.map((lease) => [lease.pod, lease.leaseId.slice(0, 8)]))
  const lines = rows.map((row) => [
    plain(row.pod, 80),
    row.generation === state.generation ? row.state : `${row.state} (generation ${row.generation})`,
    plain(row.caller ?? ''),
    plain(row.slot ?? ''),
    leaseOf.get(row.pod) ?? '',
    String(row.epoch),
    clock(row.sinceMs, now),
    nextOf(row, now),
  ])
  return [
    '#### Pods and their leases',
    table(['pod', 'state', 'caller', 'slot', 'lease', 'epoch', 'since', 'next'], lines),
    ...more(status.pool, total),
  ].join('\n\n')
}

function nextOf(row: PodRow, now: number): string {
  if (row.keepAliveAtMs === null) return ''
  const at = clock(row.keepAliveAtMs, now)
  if (row.state === 'leased') return `${row.pinned ? 'pinned, expires' : 'recall'} ${at} if unused`
  return row.pinned ? `for its slot alone until ${at}` : `drain ${at}`
}

function queueSection(state: PoolState, status: PoolStatus, now: number): string {
  const { rows, total } = queuePage(state, { limit: PAGE_ROWS }, now)
  if (total === 0) return '#### Queue\n\nempty'
  const lines = rows.map((row) => [
    String(row.position),
    plain(row.caller),
    plain(row.slot),
    String(row.priority),
    clock(now - row.waitedMs, now),
    clock(row.deadlineMs, now),
    row.reason,
  ])
  return [
    `#### Queue: ${total} waiting, at most ${status.queue.limit}`,
    table(['#', 'caller', 'slot', 'priority', 'since', 'until', 'waits because'], lines),
    ...more(status.pool, total),
    reasons(status, rows, state.spec.podStartMs),
  ].join('\n\n')
}

/** What the reasons in the queue mean here and now, and what helps: only those that occur. */
function reasons(status: PoolStatus, rows: readonly QueueRow[], podStartMs: number): string {
  const { budget, pods } = status
  const pool = poolOfShard(status.pool)
  const meaning: Record<string, string> = {
    BudgetExhausted: `all ${budget.inForce} seats of the budget are held. A seat comes free when a lease has ended and its pod was drained; or raise the budget: \`firepool pool resize ${pool} --budget N\``,
    SlotBusy:
      'another workflow holds this slot of the same caller; it is served when that lease ends. Parallel leases need different slots',
    PodStarting: `a pod is on its way (${pods.starting} starting; a start may take ${formatMs(podStartMs)})`,
    PodStartFailed: 'pods do not start, see above',
  }
  const seen = new Set(rows.map((row) => row.reason))
  return [...seen].map((reason) => `- ${reason}: ${meaning[reason] ?? 'see above'}.`).join('\n')
}

function more(pool: string, total: number): string[] {
  return total > PAGE_ROWS
    ? [`${total - PAGE_ROWS} more: \`firepool pool describe ${poolOfShard(pool)} --all\``]
    : []
}

/** What the pool's timer waits for, as its summary says it. Call it after nextDeadline. */
export function deadlineSummary(state: PoolState): string {
  const top = state.index.deadlines.peek()
  if (!top) return 'next deadline'
  const { kind, id } = top
  switch (kind) {
    case 'request':
      return `time-out of the request for lease ${id.slice(0, 8)}`
    case 'announce':
      return `tell lease ${id.slice(0, 8)} which pod it has`
    case 'keepAlive':
      return `keep-alive of pod ${id} ends`
    case 'start':
      return `pod ${id} must have started`
    case 'lifetime':
      return `pod ${id} has reached its lifetime`
    case 'tombstone':
      return 'forget an ended lease'
    case 'token':
      return `forget a token that came without a request (lease ${id.slice(0, 8)})`
    case 'effect':
      return `try ${state.effects.get(id)?.kind ?? 'an effect'} again`
    case 'pool':
      return POOL_DEADLINES[id] ?? 'look after the pool'
  }
}

const POOL_DEADLINES: Record<string, string> = {
  breaker: 'try again to start pods',
  describe: 'look whether the holders of leases still run',
  fleet: 'the fleet budget expires',
  shrink: 'ask pods above the budget to drain',
  shards: 'tell the other shards their parts',
  sick: 'try a seat set again on which no job got its GPUs',
}
