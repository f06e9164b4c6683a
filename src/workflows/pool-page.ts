import { type PoolState, podsPage, queuePage, statusOf } from '../broker/index.js'
import { formatMs } from '../contract/duration.js'
import type { PoolStatus } from '../contract/pool.js'

/** Rows of each table on a pool's page in the Temporal UI; the rest is in the paged queries and the CLI. */
const PAGE_ROWS = 20

/** The pool's current details in Markdown: what it is doing and why, for an operator who has only the Temporal UI. */
export function poolPage(state: PoolState, now: number): string {
  const status = statusOf(state, now)
  return [
    headline(status),
    budgetTable(status),
    podTable(state, status, now),
    queueTable(state, status, now),
    tail(status),
    // The UI cuts off the last line of current details (seen in 2.42).
    '&nbsp;',
  ]
    .filter((part) => part !== '')
    .join('\n\n')
}

/** One line for the memo: what the UI shows even when no worker is there to answer. */
export function poolLine(status: PoolStatus): string {
  const { budget, pods, queue } = status
  return `${status.mode}: ${budget.held} of ${budget.inForce} seats, ${status.leases} leases, ${pods.idle} warm, ${pods.standby} standby, ${queue.capacity + queue.slotBusy} waiting`
}

function headline(status: PoolStatus): string {
  const warning = status.breaker.last ? ` Last start failure: ${status.breaker.last.message}` : ''
  const breaker = status.breaker.open ? ' **Creation stopped: pods do not start.**' : ''
  return `### Pool ${status.pool}: ${status.mode}\n${poolLine(status)}.${breaker}${warning}`
}

function budgetTable({ budget, standby, grants, pods, podsCreated }: PoolStatus): string {
  return [
    '| budget | held | guarantee | standby | starting | grants warm / standby / cold | pods created |',
    '|---|---|---|---|---|---|---|',
    `| ${budget.inForce} | ${budget.held} | ${budget.guarantee} | ${standby.ready} of ${standby.target} | ${pods.starting} | ${grants.warm} / ${grants.standby} / ${grants.cold} | ${podsCreated} |`,
  ].join('\n')
}

function podTable(state: PoolState, status: PoolStatus, now: number): string {
  const { rows, total } = podsPage(state, { limit: PAGE_ROWS })
  if (total === 0) return ''
  const lines = rows.map((row) => {
    const lease = status.leased.find((l) => l.pod === row.pod)
    const drain =
      row.keepAliveAtMs === null ? '' : `asked to drain at ${new Date(row.keepAliveAtMs).toISOString()}`
    return `| ${row.pod} | ${row.state} | ${cell(row.caller)} | ${cell(row.slot)} | ${row.epoch} | ${lease ? lease.leaseId.slice(0, 8) : ''} | ${formatMs(now - row.sinceMs)} | ${drain} |`
  })
  return [
    '#### Pods and leases',
    '| pod | state | caller | slot | epoch | lease | for | next |',
    '|---|---|---|---|---|---|---|---|',
    ...lines,
    ...more(total),
  ].join('\n')
}

function queueTable(state: PoolState, status: PoolStatus, now: number): string {
  const { rows, total } = queuePage(state, { limit: PAGE_ROWS }, now)
  if (total === 0) return '#### Queue\nempty'
  const lines = rows.map(
    (row) =>
      `| ${row.position} | ${cell(row.caller)} | ${cell(row.slot)} | ${row.priority} | ${row.reason} | ${formatMs(row.waitedMs)} |`,
  )
  return [
    `#### Queue (${total} of at most ${status.queue.limit})`,
    '| # | caller | slot | priority | waits for | since |',
    '|---|---|---|---|---|---|',
    ...lines,
    ...more(total),
  ].join('\n')
}

function tail({ poison, leaked }: PoolStatus): string {
  const lines = []
  if (poison.count > 0) lines.push(`Dropped as unreadable: ${poison.count}, the last: ${cell(poison.last)}`)
  if (leaked > 0) lines.push(`Leases whose holder had vanished: ${leaked}`)
  return lines.join('\n')
}

function more(total: number): string[] {
  return total > PAGE_ROWS ? [`\n${total - PAGE_ROWS} more: firepool pool describe --all`] : []
}

/** Text of a user in a Markdown table: short, in one line, without the table's own signs. */
function cell(text: string | null): string {
  if (text === null) return ''
  const line = text.replace(/[|\n\r`<>]/g, ' ')
  return line.length > 60 ? `${line.slice(0, 57)}...` : line
}
