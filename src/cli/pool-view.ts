import type { PoolEntry } from '../client/index.js'
import {
  counted,
  formatMs,
  type PodRow,
  type PoolSpec,
  type PoolStatus,
  type QueueRow,
  type RolloutStatus,
} from '../contract/index.js'
import { type Column, renderFacts, renderTable } from './table.js'
import { paint } from './terminal.js'

/** How pools are shown to people. */

const LIST: readonly Column<PoolEntry>[] = [
  { title: 'pool', cell: (entry) => entry.pool, maxWidth: 63 },
  { title: 'state', cell: ({ status }) => (status ? stateOf(status) : 'no answer') },
  { title: 'held', cell: number((s) => s.budget.held), align: 'right' },
  { title: 'budget', cell: number((s) => s.budget.inForce), align: 'right' },
  { title: 'leases', cell: number((s) => s.leases), align: 'right' },
  { title: 'idle', cell: number((s) => s.pods.idle), align: 'right' },
  {
    title: 'standby',
    cell: ({ status: s }) => (s ? `${s.standby.ready}/${s.standby.target}` : '-'),
    align: 'right',
  },
  { title: 'starting', cell: number((s) => s.pods.starting), align: 'right' },
  { title: 'queue', cell: number((s) => s.queue.capacity + s.queue.slotBusy), align: 'right' },
]

function number(read: (status: PoolStatus) => number): (entry: PoolEntry) => string {
  return ({ status }) => (status ? String(read(status)) : '-')
}

function stateOf(status: PoolStatus): string {
  if (status.rollout?.stopped) return `${status.mode}, rollout stopped`
  return status.breaker.open ? `${status.mode}, starts fail` : status.mode
}

export function renderPoolList(entries: readonly PoolEntry[]): string {
  return renderTable(LIST, entries)
}

export interface PoolView {
  spec: PoolSpec
  status: PoolStatus
  pods: { rows: readonly PodRow[]; total: number }
  queue: { rows: readonly QueueRow[]; total: number }
}

export function renderPool({ spec, status, pods, queue }: PoolView, now: number): string {
  return [
    renderFacts(factsOf(spec, status, now)),
    section('pods', pods, PODS(now)),
    section('queue', queue, QUEUE),
  ].join('\n')
}

function factsOf(spec: PoolSpec, status: PoolStatus, now: number): [string, string][] {
  const { grants, breaker, poison } = status
  const facts: [string, string][] = [
    ['pool', status.pool],
    ['state', `${status.mode}, generation ${status.generation}`],
    ['budget', budgetLine(status)],
    ['standby', `${status.standby.ready} ready of ${status.standby.target}`],
    [
      'leases',
      `${status.leases} (grants so far: ${grants.warm} warm, ${grants.standby} standby, ${grants.cold} cold)`,
    ],
    ['queue', queueLine(status)],
    ['pods', podsLine(status, spec)],
    ...shardFacts(status),
    ...seatSetFacts(status),
    ['times', timesLine(spec)],
    ['profile', profileLine(spec)],
  ]
  if (breaker.failures > 0 || breaker.open) {
    const again =
      breaker.retryAtMs !== null && breaker.open
        ? `, next try in ${formatMs(Math.max(0, breaker.retryAtMs - now))}`
        : ''
    facts.push([
      'starts fail',
      `${breaker.failures} in a row${again}: ${breaker.last?.message ?? 'no reason known'}`,
    ])
  }
  if (status.rollout) facts.push(['rollout', rolloutLine(status.rollout)])
  for (const { reason, message, pods } of status.starting ?? [])
    facts.push(['starts wait', `${counted(pods, 'pod')}, ${reason}: ${message}`])
  if (poison.count > 0)
    facts.push(['unreadable', `${counted(poison.count, 'input')} dropped, the last: ${poison.last}`])
  if (status.leaked > 0)
    facts.push(['leaked', `${counted(status.leaked, 'lease')} ended because the holder had gone`])
  if (status.searchAttributes !== undefined) facts.push(['not searchable', status.searchAttributes])
  return facts
}

function rolloutLine({ from, to, oldPods, newReady, proven, stopped }: RolloutStatus): string {
  const there = `generation ${from} to ${to}: ${newReady} ready of ${to}, ${counted(oldPods, 'earlier pod')} left`
  if (stopped)
    return `${there}; stopped, ${from} serves on: mend the profile and apply it, or apply the one before`
  return proven ? there : `${there}; none goes before a pod of ${to} is ready`
}

/** A line for each shard; none for a pool that is whole. */
function shardFacts({ shards }: PoolStatus): [string, string][] {
  if (!shards) return []
  const rows = (shards.rows ?? []).map(({ shard, budget, leases, queue, mode, pods }) => {
    const waiting = queue.capacity + queue.slotBusy
    const there = Object.values(pods).reduce((sum, count) => sum + count, 0)
    const leaves = shard >= shards.routes ? ', takes no requests' : ''
    return `${shard}: ${budget.held} of ${budget.inForce} held, ${counted(leases, 'lease')}, ${waiting} waiting, ${counted(there, 'pod')}${mode === 'running' ? '' : `, ${mode}`}${leaves}`
  })
  return [
    ['shards', `${shards.wanted}, requests go to ${shards.routes}`],
    ...rows.map((row): [string, string] => ['', row]),
  ]
}

/** A line for each seat set that has pods; none for a pool without. */
function seatSetFacts({ seatSets }: PoolStatus): [string, string][] {
  if (!seatSets) return []
  const { seats, pods, allowed, rows, sick } = seatSets
  const lines = rows.map(({ set, callers, spare, tenants }) => {
    const whose = tenants.filter((tenant) => tenant !== '').join(', ')
    const of = whose === '' ? '' : ` of ${whose}`
    return `${set}: ${counted(callers, 'pod')} with a caller${of}, ${spare} without`
  })
  const rule = `${counted(seats, 'seat')} and at most ${counted(pods, 'pod')} with callers each`
  return [
    ['seat sets', `${allowed} in the budget, ${rule}`],
    ...lines.map((line): [string, string] => ['', line]),
    ...(sick ? [['', `sick: ${sick.sets.join(', ')}; ${sick.why}`] as [string, string]] : []),
  ]
}

export function budgetLine({ budget }: PoolStatus): string {
  const sources = [`spec ${budget.spec}`]
  if (budget.operator !== null) sources.push(`resized to ${budget.operator}`)
  if (budget.fleet !== null) sources.push(`fleet ${budget.fleet}`)
  if (budget.guarantee !== budget.spec) sources.push(`guaranteed ${budget.guarantee}`)
  return `${budget.inForce} (${sources.join(', ')}), ${budget.held} held`
}

function queueLine({ queue }: PoolStatus): string {
  const waiting = queue.capacity + queue.slotBusy
  if (waiting === 0) return `empty (limit ${queue.limit})`
  return `${waiting} waiting (${queue.slotBusy} for a busy slot), the oldest for ${formatMs(queue.oldestWaitMs)}, limit ${queue.limit}`
}

function podsLine({ pods, podsCreated }: PoolStatus, spec: PoolSpec): string {
  const kinds = Object.entries(pods).filter(([, count]) => count > 0)
  const now = kinds.length === 0 ? 'none' : kinds.map(([kind, count]) => `${count} ${kind}`).join(', ')
  return `${now} (at most ${spec.maxPods}; ${podsCreated} created so far)`
}

function timesLine(spec: PoolSpec): string {
  return `keepAlive ${formatMs(spec.keepAliveMs)}, podStart ${formatMs(spec.podStartMs)}, podLifetime ${formatMs(spec.podLifetimeMs)}`
}

function profileLine({ profile }: PoolSpec): string {
  const parts: string[] = [`backend ${profile.backend}`]
  const { startDelay, limits, prepare, preload, env, secrets } = profile
  if (profile.backend === 'kubernetes') {
    parts.push(`image ${profile.image}`)
    if (profile.namespace !== null) parts.push(`namespace ${profile.namespace}`)
    if (profile.prePull) parts.push('image pulled ahead')
  }
  if (startDelay) parts.push(startDelayLine(startDelay))
  for (const [name, value] of Object.entries(limits)) if (value !== null) parts.push(`${name} ${value}`)
  if (prepare) parts.push(`prepare: ${prepare.join(' ')}`)
  if (preload) parts.push(`${preload.python} with ${preload.imports.join(', ')} preloaded`)
  const names = Object.keys(env)
  if (names.length > 0) parts.push(`env ${names.join(', ')}`)
  if (secrets) parts.push(`secrets ${secrets.join(', ')}`)
  return parts.join('; ')
}

/** Whatever is printed of an imitated cold start says so. */
export function startDelayLine({ minMs, maxMs }: { minMs: number; maxMs: number }): string {
  return `cold starts are IMITATED: ${formatMs(minMs)} to ${formatMs(maxMs)} are added to each`
}

function PODS(now: number): readonly Column<PodRow>[] {
  return [
    { title: 'pod', cell: (row) => row.pod, maxWidth: 80 },
    { title: 'state', cell: (row) => row.state },
    { title: 'for', cell: (row) => formatMs(Math.max(0, now - row.sinceMs)), align: 'right' },
    { title: 'caller', cell: (row) => row.caller ?? '-' },
    { title: 'slot', cell: (row) => row.slot ?? '-' },
    { title: 'epoch', cell: (row) => String(row.epoch), align: 'right' },
    { title: 'gen', cell: (row) => String(row.generation), align: 'right' },
    { title: 'address', cell: (row) => row.address ?? '-' },
  ]
}

const QUEUE: readonly Column<QueueRow>[] = [
  { title: '#', cell: (row) => String(row.position), align: 'right' },
  { title: 'caller', cell: (row) => row.caller },
  { title: 'slot', cell: (row) => row.slot },
  { title: 'priority', cell: (row) => String(row.priority), align: 'right' },
  { title: 'waited', cell: (row) => formatMs(row.waitedMs), align: 'right' },
  { title: 'reason', cell: (row) => row.reason, maxWidth: 60 },
]

function section<Row>(
  name: string,
  { rows, total }: { rows: readonly Row[]; total: number },
  columns: readonly Column<Row>[],
): string {
  if (total === 0) return ''
  const more =
    total > rows.length ? paint('dim', `... and ${total - rows.length} more ${name}: use --all\n`) : ''
  return `${renderTable(columns, rows)}${more}`
}
