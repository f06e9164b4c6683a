import { ActivityFailure, ApplicationFailure, CancelledFailure } from '@temporalio/common'
import { CancellationScope, patched, proxyLocalActivities, workflowInfo } from '@temporalio/workflow'
import type { JobOutcome, JobResult } from '../contract/job.js'
import { TIMEOUT } from '../contract/limits.js'
import { ACTIVITY } from '../contract/names.js'
import type { CancelShort, ShortInput, ShortOutcome } from '../contract/run.js'
import { failureOf } from './failure.js'
import { runOnPod } from './run-activity.js'

const local = proxyLocalActivities<{
  [ACTIVITY.runShort]: (input: ShortInput) => Promise<ShortOutcome>
  [ACTIVITY.cancelShort]: (input: CancelShort) => Promise<void>
}>({
  // Longer than a short job may be; well below a workflow task's 10 s.
  startToCloseTimeout: 2 * TIMEOUT.shortJobMs,
  retry: { maximumAttempts: 1 },
})

/** Whether this workflow's worker has the plugin. A worker without activities would never answer a local one. */
const worker = { hasPlugin: false }

/** Called in each workflow of a worker that has the plugin, before the workflow begins. */
export function pluginIsHere(): void {
  worker.hasPlugin = true
}

/**
 * Whether to try locally: as the history says when it is replayed (by whatever worker), else as this worker can. The
 * marker of patched() is what remembers it, once for each run of a workflow.
 */
function mayTryLocally(): boolean {
  return (worker.hasPlugin || workflowInfo().unsafe.isReplaying) && patched('firepool-short-jobs')
}

/**
 * Runs a job declared short on a held lease: by a local activity of this workflow's own worker, and when it is not over in
 * time, by a normal activity under the same job id.
 */
export async function runShort(input: ShortInput, jobMs: number): Promise<JobResult> {
  const scope = CancellationScope.current()
  if (scope.consideredCancelled || !mayTryLocally()) return runOnPod(input, jobMs)
  const said = await CancellationScope.nonCancellable(() => tryLocally(input))
  if (said.kind === 'refused') throw failureOf(said.problem)
  if (said.kind === 'ended') return resultOf(said.outcome)
  if (scope.consideredCancelled && said.posted) {
    const { grant, jobId } = input
    // Best effort: a pod that does not answer is replaced, and what its caller hears is the cancel, below.
    await CancellationScope.nonCancellable(() => local[ACTIVITY.cancelShort]({ v: 1, grant, jobId })).catch(
      () => undefined,
    )
  }
  return runOnPod({ ...input, posted: said.posted }, jobMs)
}

async function tryLocally(input: ShortInput): Promise<ShortOutcome> {
  try {
    return await local[ACTIVITY.runShort](input)
  } catch (error) {
    if (!(error instanceof ActivityFailure)) throw error
    const { cause } = error
    // The plugin was bundled with the workflows, but this worker has not registered it.
    if (cause instanceof ApplicationFailure && cause.type === 'NotFoundError')
      return { v: 1, kind: 'goesOn', posted: false, why: 'this worker has no plugin of Firepool' }
    return { v: 1, kind: 'goesOn', posted: true, why: 'the local activity failed' }
  }
}

function resultOf(outcome: JobOutcome): JobResult {
  if (outcome.kind === 'result') return outcome.result
  const { problem: p } = outcome
  if (p.code === 'Cancelled') throw new CancelledFailure(p.message)
  throw failureOf(p)
}
