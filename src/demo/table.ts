import { formatMs } from '../contract/duration.js'
import type { DemoResult, LoopResult, SideResult } from './result.js'

const LABEL_WIDTH = 26
const COLUMN_WIDTH = 26

/** The result for people: a block for each loop, with Firepool beside a fresh pod for every job. */
export function renderTable(result: DemoResult): string {
  const notes = [`Seed ${result.seed}`]
  if (result.compression !== 1)
    notes.push(`pauses and cold starts divided by ${result.compression}, the jobs are real and are not`)
  notes.push(startNote(result.startDelay, result.compression))
  const notRun = result.notRun.map(({ name, reason }) => `${name}: NOT RUN. ${reason}`)
  const blocks = [...result.loops.map(renderLoop), ...notRun, `${notes.join(';\n')}.\n${MEASURES}`]
  return `${blocks.join('\n\n')}\n`
}

const MEASURES = [
  'Both sides have the same jobs, seeds, concurrency and budget of pods; the pools stood before the loops began.',
  'A standby here has no GPU memory to load when a caller gets it; with a GPU that takes about half a second.',
  'start:       from the moment the loop wants a job to the start of its process, in workflow time: how long the',
  "             call took less the job's own duration in the pod. Both sides are measured alike.",
  'held:        pods with a caller (working, idle or draining), the keep-alive after the last job too.',
  'existing:    all pods, starting and standing by too (sampled). Standbys hold no GPU memory.',
  'always-on:   as many pods as the loop uses at once, kept on for its total time.',
].join('\n')

function startNote(delay: DemoResult['startDelay'], compression: number): string {
  if (!delay) return 'cold starts are those of local processes, no start of a GPU pod is imitated'
  const [min, max] = [delay.minMs, delay.maxMs].map((ms) => formatMs(ms))
  const real = [delay.minMs, delay.maxMs].map((ms) => Math.round((ms * compression) / 1_000))
  return `cold starts are IMITATED: ${min} to ${max} were added to each pod (a GPU pod takes ${real[0]}-${real[1]} s)`
}

function renderLoop(loop: LoopResult): string {
  const { withFirepool: ours, freshPod: fresh, rewards } = loop
  const each = (label: string, cell: (side: SideResult) => string) => row(label, cell(ours), cell(fresh))
  return [
    `${loop.name}: ${loop.jobs} jobs, ${ratio(loop.speedup)} times as fast with Firepool`,
    row('', 'with Firepool', 'a fresh pod per job'),
    row('', '-'.repeat(COLUMN_WIDTH - 2), '-'.repeat(COLUMN_WIDTH - 2)),
    each('total time', (s) => time(s.totalMs)),
    each('start p50 / p90 / p99', (s) => [s.startMs.p50, s.startMs.p90, s.startMs.p99].map(time).join(' / ')),
    each('warm / standby / cold', (s) =>
      [s.shares.warm, s.shares.standby, s.shares.cold].map(share).join(' / '),
    ),
    each('pods created', (s) => String(s.podsCreated)),
    each('pod-seconds held', (s) => s.podSecondsHeld.toFixed(1)),
    each('pod-seconds existing', (s) => s.podSecondsExisting.toFixed(1)),
    each('held of always-on', (s) => held(s)),
    row('right results', `${rewards.right} of ${rewards.expected}`, '(both sides)'),
    row('failures', String(loop.failures), '(both sides)'),
    ...notMeasured(loop),
    ...loop.complaints.map((complaint) => `! ${complaint}`),
  ].join('\n')
}

function notMeasured({ withFirepool: ours, freshPod: fresh }: LoopResult): string[] {
  if (ours.startsNotMeasured + fresh.startsNotMeasured === 0) return []
  return [
    row('ended at the time limit', ...[ours, fresh].map((s) => `${s.startsNotMeasured}, start not measured`)),
  ]
}

function row(label: string, ...cells: string[]): string {
  return `${label.padEnd(LABEL_WIDTH)}${cells.map((c) => c.padEnd(COLUMN_WIDTH)).join('')}`.trimEnd()
}

function held(side: SideResult): string {
  if (!(side.alwaysOnPodSeconds > 0)) return '-'
  return `${share(side.podSecondsHeld / side.alwaysOnPodSeconds)} of ${side.alwaysOnPodSeconds.toFixed(1)}`
}

function time(ms: number): string {
  if (!Number.isFinite(ms)) return '-'
  return ms < 10 ? `${ms.toFixed(1)}ms` : formatMs(ms)
}

/** Never '100 %' for less than all and never '0 %' for more than none. */
function share(part: number): string {
  if (!Number.isFinite(part)) return '-'
  const percent = part * 100
  if (part > 0 && percent < 0.1) return '<0.1%'
  if (part < 1 && percent > 99.9) return '>99.9%'
  return Number.isInteger(percent) ? `${percent}%` : `${percent.toFixed(1)}%`
}

function ratio(value: number): string {
  if (!Number.isFinite(value)) return '-'
  return value < 100 ? value.toFixed(1) : value.toFixed(0)
}

/** What the demo has done so far of one side of one loop. */
export interface ProgressState {
  loop: string
  side: 'with Firepool' | 'a fresh pod per job'
  done: number
  total: number
  failures: number
  /** starts so far by source */
  warm: number
  standby: number
  cold: number
}

/** Where progress is shown; process.stderr is one. */
export interface ProgressStream {
  isTTY?: boolean
  columns?: number
  write(text: string): unknown
}

const REDRAW_MS = 100
const PLAIN_EVERY_MS = 5_000
/** With it the longest line fits 80 columns. */
const BAR_WIDTH = 10
const DEFAULT_COLUMNS = 80
/** Back to the line's start, and clear it. */
const CLEAR_LINE = '\r\u001b[2K'

/**
 * Shows progress: on a terminal one line that is drawn anew, elsewhere a plain line now and then. Every loop and
 * side ends with a line that stays. The clock (ms) is given by the caller.
 */
export class Progress {
  private shownAtMs = Number.NEGATIVE_INFINITY
  private shown = ''
  private last: ProgressState | undefined

  constructor(
    private readonly stream: ProgressStream,
    private readonly nowMs: () => number,
  ) {}

  update(state: ProgressState): void {
    const changed = this.last && (this.last.loop !== state.loop || this.last.side !== state.side)
    if (changed) this.finish()
    if (!this.last) this.shownAtMs = this.stream.isTTY ? Number.NEGATIVE_INFINITY : this.nowMs()
    this.last = { ...state }
    const everyMs = this.stream.isTTY ? REDRAW_MS : PLAIN_EVERY_MS
    if (this.nowMs() - this.shownAtMs >= everyMs) this.show()
    if (state.done >= state.total) this.finish()
  }

  /** Ends the line that is being drawn; also to be called before anything else is written to the stream. */
  finish(): void {
    if (this.last && this.shown !== renderProgress(this.last)) this.show()
    if (this.last && this.stream.isTTY) this.stream.write('\n')
    this.last = undefined
    this.shown = ''
  }

  private show(): void {
    if (!this.last) return
    this.shownAtMs = this.nowMs()
    this.shown = renderProgress(this.last)
    if (!this.stream.isTTY) {
      this.stream.write(`${this.shown}\n`)
      return
    }
    // A line that wraps could not be cleared. Some terminals say that they have 0 columns.
    const width = (this.stream.columns || DEFAULT_COLUMNS) - 1
    this.stream.write(CLEAR_LINE + this.shown.slice(0, width))
  }
}

/** One line, e.g. 'RL loop, with Firepool  [##........]  41/164  warm 38, standby 3'. */
export function renderProgress(state: ProgressState): string {
  const full = state.total > 0 ? Math.floor((state.done / state.total) * BAR_WIDTH) : BAR_WIDTH
  const bar = '#'.repeat(Math.min(BAR_WIDTH, full)).padEnd(BAR_WIDTH, '.')
  const starts = (['warm', 'standby', 'cold'] as const).filter((hit) => state[hit] > 0)
  const parts = [
    `${state.loop}, ${state.side}`,
    `[${bar}]`,
    `${state.done}/${state.total}`,
    ...(state.failures > 0 ? [`FAILED ${state.failures}`] : []),
    ...(starts.length > 0 ? [starts.map((hit) => `${hit} ${state[hit]}`).join(', ')] : []),
  ]
  return parts.join('  ')
}
