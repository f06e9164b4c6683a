import { formatMs } from '../contract/duration.js'
import type { DemoResult, LoopResult, SideResult } from './result.js'

const LABEL_WIDTH = 26
const COLUMN_WIDTH = 26

/** The result for people: a block for each loop, with Firepool beside a fresh pod for every job. */
export function renderTable(result: DemoResult): string {
  const notes = [`seed ${result.seed}`]
  if (result.compression !== 1) notes.push(`recorded pauses divided by ${result.compression}`)
  notes.push(startNote(result.startDelay))
  return `${[...result.loops.map(renderLoop), `${notes.join('; ')}.`].join('\n\n')}\n`
}

function startNote(delay: DemoResult['startDelay']): string {
  if (!delay) return 'cold starts are those of local processes, no start of a GPU pod is imitated'
  return `cold starts are IMITATED: ${formatMs(delay.minMs)} to ${formatMs(delay.maxMs)} were added to each pod`
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
    each('pod-seconds held', (s) => s.podSecondsHeld.toFixed(1)),
    each('  of an always-on pod', (s) => held(s)),
    row('right results', `${rewards.right} of ${rewards.expected}`, ''),
    row('failures', String(loop.failures), ''),
  ].join('\n')
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
const BAR_WIDTH = 20
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
    // A line that wraps could not be cleared.
    const width = (this.stream.columns ?? DEFAULT_COLUMNS) - 1
    this.stream.write(CLEAR_LINE + this.shown.slice(0, width))
  }
}

/** One line, e.g. 'RL loop, with Firepool  [#####...............]  41/164  warm 38, standby 3, cold 0'. */
export function renderProgress(state: ProgressState): string {
  const full = state.total > 0 ? Math.floor((state.done / state.total) * BAR_WIDTH) : BAR_WIDTH
  const bar = '#'.repeat(Math.min(BAR_WIDTH, full)).padEnd(BAR_WIDTH, '.')
  const failures = state.failures > 0 ? `, FAILED ${state.failures}` : ''
  const starts = `warm ${state.warm}, standby ${state.standby}, cold ${state.cold}${failures}`
  return `${state.loop}, ${state.side}  [${bar}]  ${state.done}/${state.total}  ${starts}`
}
