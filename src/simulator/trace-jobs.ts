import { Sandbox } from './sandbox.js'
import { TraceError, type TraceProblem, type TraceReader, type TraceRow } from './trace-reader.js'
import type { Workload } from './workload.js'
import type { World } from './world.js'

/** Rows on the clock's agenda ahead of their time: a bound on memory. */
const ROWS_AHEAD = 1_000

export interface TraceFile {
  /** for people */
  name: string
  /** null: not known, a pipe */
  bytes: number | null
  reader: TraceReader
}

/** The jobs of a trace at the moments that it names, whatever the pool does: each is one call of `firepool.runJob`. */
export class TraceJobs implements Workload {
  readonly hasSessions = false
  readonly inputs
  /** rows that were asked for, and those of them that have ended */
  private rows = 0
  private ended = 0
  private isRead = false
  private world: World | null = null
  /** the first row's moment on the trace's clock, ms */
  private beginsAtMs: number | null = null
  horizonAt = 0

  constructor(private readonly file: TraceFile) {
    this.inputs = { workload: 'trace', file: file.name }
  }

  get isOver(): boolean {
    return this.isRead && this.ended === this.rows
  }

  get leftOut(): { lines: number; first: readonly TraceProblem[] } {
    const { problems, first } = this.file.reader
    return { lines: problems, first }
  }

  get progress(): number | null {
    const { bytes, reader } = this.file
    return bytes === null || bytes === 0 ? null : Math.min(1, reader.bytes / bytes)
  }

  start(world: World): void {
    this.world = world
    this.horizonAt = world.clock.now
  }

  /** @throws TraceError when the trace has no good row at all, or no header */
  async readOn(): Promise<void> {
    const { reader } = this.file
    for (let read = 0; read < ROWS_AHEAD; read++) {
      const row = await reader.next()
      if (row) {
        this.plan(row)
        continue
      }
      this.isRead = true
      this.horizonAt = Number.POSITIVE_INFINITY
      if (this.rows === 0) throw noRows(reader)
      return
    }
  }

  private plan(row: TraceRow): void {
    const { clock } = this.world!
    this.beginsAtMs ??= row.atMs
    const n = ++this.rows
    const afterMs = row.atMs - this.beginsAtMs - clock.elapsedMs
    clock.after(afterMs, () => this.run(row, n))
    this.horizonAt = clock.now + afterMs
  }

  private run({ runMs, ...who }: TraceRow, n: number): void {
    const { caller, slot, tenant, priority } = who
    const sandbox = new Sandbox(
      this.world!,
      { workflowId: `call${n}`, caller, slot, tenant, priority },
      'call',
    )
    sandbox.run({ runMs, isFirst: false }, () => this.ended++)
  }
}

function noRows({ first: [problem] }: TraceReader): TraceError {
  return problem
    ? new TraceError(problem.line, problem.why, problem.remedy)
    : new TraceError(1, 'the trace has no rows', 'docs/simulate.md has the format')
}
