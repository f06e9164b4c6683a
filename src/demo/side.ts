import { setTimeout as sleep } from 'node:timers/promises'
import type { WorkflowHandle } from '@temporalio/client'
import type { PoolStatus } from '../contract/index.js'
import { unlessAborted } from './interruption.js'
import { DEMO_QUERY } from './names.js'
import { type DemoPlan, demoPool, type Side } from './plan.js'
import { type LoopProgress, type LoopRecord, type SideRun, sumOf } from './records.js'
import type { DemoPool, Stage } from './stage.js'

/** A loop as both sides run it. */
export interface DemoLoop {
  name: string
  /** part of pool names and workflow ids */
  key: string
  workflow: string
  /** jobs at once, and so the budget of pods */
  concurrency: number
  /** the workflow's argument, the same for both sides but for these two */
  input(pool: string, side: Side): unknown
  /** ids of the workflows that tell the progress */
  progressIds(workflowId: string): string[]
}

const LOOK_MS = 250
/** After the keep-alive a pod is asked, ends and is deleted; a laptop may be slow at it. */
const GIVE_UP_MARGIN_MS = 30_000

/**
 * Runs one side of a loop on a pool of its own.
 * @throws what went wrong with the loop as a whole; a job that fails is a part of its record
 */
export async function runSide(
  stage: Stage,
  loop: DemoLoop,
  side: Side,
  plan: DemoPlan,
  onProgress: (progress: LoopProgress) => void,
): Promise<SideRun> {
  const name = `demo-${stage.runId}-${loop.key}-${side === 'withFirepool' ? 'warm' : 'fresh'}`
  const pool = await stage.createPool(name, demoPool(name, side, plan, loop.concurrency))
  const before = await unlessAborted(stage.signal, pool.status())
  const census = new Census(performance.now(), podsIn(before))
  const handle = await stage.startLoop(
    loop.workflow,
    name,
    loop.input(name, side),
    `${loop.name} on pool ${name}`,
  )
  const record = await unlessAborted(
    stage.signal,
    whileShown(stage.signal, handle, () =>
      look(stage, pool, loop, handle.workflowId, census, before, onProgress),
    ),
  )
  const after = await givenUp(stage, pool, plan.keepAliveMs, census)
  return { record, before, after, podSecondsExisting: census.podSeconds, concurrency: loop.concurrency }
}

/** The loop's result; until it is there `show` is called again and again. */
async function whileShown(
  signal: AbortSignal,
  handle: WorkflowHandle,
  show: () => Promise<void>,
): Promise<LoopRecord> {
  let over = false
  const result = (handle.result() as Promise<LoopRecord>).finally(() => {
    over = true
  })
  result.catch(() => undefined)
  while (!over) {
    signal.throwIfAborted()
    // A look that fails (a query at a bad moment) is no failure of the loop.
    await show().catch(() => undefined)
    await Promise.race([result, sleep(LOOK_MS)])
  }
  await show().catch(() => undefined)
  return await result
}

async function look(
  stage: Stage,
  pool: DemoPool,
  loop: DemoLoop,
  workflowId: string,
  census: Census,
  before: PoolStatus,
  onProgress: (progress: LoopProgress) => void,
): Promise<void> {
  const status = await pool.status()
  census.count(performance.now(), podsIn(status))
  const parts = await Promise.all(
    loop
      .progressIds(workflowId)
      .map((id) => stage.client.workflow.getHandle(id).query<LoopProgress>(DEMO_QUERY.progress)),
  )
  onProgress(withPoolHits(sumOf(parts), before, status))
}

/** With a fresh pod for each job only the pool knows where the pods came from. */
function withPoolHits(progress: LoopProgress, before: PoolStatus, now: PoolStatus): LoopProgress {
  const { warm, standby, cold } = progress.hits
  if (warm + standby + cold > 0) return progress
  const since = (hit: 'warm' | 'standby' | 'cold') => now.grants[hit] - before.grants[hit]
  return { ...progress, hits: { warm: since('warm'), standby: since('standby'), cold: since('cold') } }
}

/** Waits until the loop's last pod was given up: its keep-alive after the last job is a part of the price. */
async function givenUp(
  stage: Stage,
  pool: DemoPool,
  keepAliveMs: number,
  census: Census,
): Promise<PoolStatus> {
  const endMs = performance.now() + keepAliveMs + GIVE_UP_MARGIN_MS
  for (;;) {
    const status = await unlessAborted(stage.signal, pool.status())
    census.count(performance.now(), podsIn(status))
    if (status.budget.held === 0) return status
    if (performance.now() > endMs) {
      throw new Error(`pool ${pool.name} still holds ${status.budget.held} pods after the loop's end`)
    }
    await sleep(LOOK_MS)
  }
}

function podsIn(status: PoolStatus): number {
  return Object.values(status.pods).reduce((sum, pods) => sum + pods, 0)
}

/** Pod-seconds from looks at how many pods there are: between two looks, the mean of both. */
export class Census {
  podSeconds = 0

  constructor(
    private atMs: number,
    private pods: number,
  ) {}

  count(nowMs: number, pods: number): void {
    this.podSeconds += (((this.pods + pods) / 2) * (nowMs - this.atMs)) / 1_000
    this.atMs = nowMs
    this.pods = pods
  }
}
