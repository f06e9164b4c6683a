import { formatMs } from '../contract/index.js'
import type { SimulationResult } from '../simulator/result.js'
import { type Column, renderFacts, renderTable } from './table.js'

interface Row {
  name: string
  cell: (result: SimulationResult) => string
}

const ROWS: readonly Row[] = [
  { name: 'jobs', cell: ({ jobs }) => count(jobs.asked) },
  { name: 'hits (warm or standby, start within 3.5 s)', cell: ({ shares }) => share(shares.hit) },
  { name: 'warm / standby / cold / unserved', cell: ({ shares }) => classes(shares) },
  { name: '  first of a session', cell: ({ first }) => ofJobs(first) },
  { name: '  all others', cell: ({ later }) => ofJobs(later) },
  {
    name: 'start p50 / p90 / p99 / longest',
    cell: ({ startMs: { p50, p90, p99, max } }) => [p50, p90, p99, max].map(time).join(' / '),
  },
  { name: 'unserved, by what callers heard', cell: ({ unservedBy }) => codes(unservedBy) },
  { name: 'seat-seconds held', cell: ({ seatSeconds }) => count(seatSeconds.held) },
  { name: 'seat-seconds used by jobs', cell: ({ seatSeconds }) => count(seatSeconds.used) },
  { name: 'held / a seat for each session (A_session)', cell: ({ heldOver }) => times(heldOver.session) },
  { name: 'held / a seat while each caller lives (A_life)', cell: ({ heldOver }) => times(heldOver.life) },
  { name: 'held / a fixed pool at the peak (A_peak)', cell: ({ heldOver }) => times(heldOver.peak) },
  { name: 'held / jobs and hand-back, the floor (B)', cell: ({ heldOver }) => times(heldOver.floor) },
  { name: 'pod-seconds, standbys and starts included', cell: ({ podSeconds }) => count(podSeconds) },
  { name: 'pods created', cell: ({ podsCreated }) => count(podsCreated) },
  { name: 'pods created per job', cell: ({ podsPerJob }) => number(podsPerJob, 3) },
  {
    name: 'sessions, seats at the peak',
    cell: ({ sessions, peakSeats }) => `${count(sessions)}, ${count(peakSeats)}`,
  },
  { name: 'lines of the trace left out', cell: ({ leftOut }) => (leftOut ? count(leftOut.lines) : '-') },
  { name: 'simulated time', cell: ({ simulatedSeconds }) => formatMs(simulatedSeconds * 1_000) },
  {
    name: 'invariants broken, of steps checked',
    cell: (r) => `${r.invariantViolations} of ${count(r.invariantsChecked)}`,
  },
  { name: 'events, in real time', cell: (r) => `${count(r.events)}, ${count(r.eventsPerSecond)}/s` },
]

/** Runs of the same workload side by side, under what went into them. */
export function renderSimulations(results: readonly SimulationResult[]): string {
  const columns: Column<Row>[] = [
    { title: 'measure', cell: ({ name }) => name, maxWidth: 60 },
    ...results.map((result) => ({
      title: result.pool.name,
      cell: ({ cell }: Row) => cell(result),
      align: 'right' as const,
      maxWidth: 60,
    })),
  ]
  const stopped = results.some(({ complete }) => !complete)
    ? '\nSTOPPED before its end: this is what was measured so far.\n'
    : ''
  return `${renderFacts(inputs(results))}\n${renderTable(columns, ROWS)}${stopped}`
}

/** All that the figures depend on. */
function inputs(results: readonly SimulationResult[]): [string, string][] {
  const { seed, workload, latencies, acquireTimeoutMs } = results[0]!
  const drawn = Object.entries(latencies).map(([name, { minMs, maxMs }]) =>
    minMs === maxMs ? `${name} ${formatMs(minMs)}` : `${name} ${formatMs(minMs)}..${formatMs(maxMs)}`,
  )
  return [
    ['seed', String(seed)],
    [
      'workload',
      Object.entries(workload)
        .map(([name, value]) => (name === 'workload' ? value : `${name} ${value}`))
        .join(', '),
    ],
    ['latencies', drawn.join(', ')],
    ['acquire timeout', formatMs(acquireTimeoutMs)],
    ...results.map(({ pool: p }): [string, string] => [
      `pool ${p.name}`,
      `budget ${p.budget}, standby ${p.standby}, maxPods ${p.maxPods}, keepAlive ${formatMs(p.keepAliveMs)}, queueLimit ${p.queueLimit}`,
    ]),
  ]
}

function classes({
  warm,
  standby,
  cold,
  unserved,
}: Record<'warm' | 'standby' | 'cold' | 'unserved', number | null>): string {
  return [warm, standby, cold, unserved].map(share).join(' / ')
}

function ofJobs(part: SimulationResult['first']): string {
  return part.jobs === 0 ? '-' : `${count(part.jobs)}: ${classes(part)}`
}

function codes(by: Record<string, number>): string {
  const rows = Object.entries(by).map(([code, jobs]) => `${count(jobs)} ${code}`)
  return rows.length === 0 ? '-' : rows.join(', ')
}

/** Never '100.0%' for less than all, nor '0.0%' for more than none. */
function share(part: number | null): string {
  if (part === null) return '-'
  const percent = Math.round(part * 1_000) / 10
  if (percent === 100 && part < 1) return '>99.9%'
  if (percent === 0 && part > 0) return '<0.1%'
  return `${percent.toFixed(1)}%`
}

function time(ms: number | null): string {
  return ms === null ? '-' : formatMs(ms)
}

function times(ratio: number | null): string {
  return ratio === null ? '-' : `${number(ratio, 2)} x`
}

function number(value: number | null, digits: number): string {
  return value === null ? '-' : value.toFixed(digits)
}

function count(value: number): string {
  return Math.round(value).toLocaleString('en')
}
