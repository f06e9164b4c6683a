import { ActivityCancellationType, proxyActivities } from '@temporalio/workflow'
import type { JobResult, JobSpec } from '../contract/job.js'
import { TIMEOUT } from '../contract/limits.js'
import { ACTIVITY, QUEUE } from '../contract/names.js'
import type { RunInput, RunOnceInput, RunOnceResult } from '../contract/run.js'
import { summaryText } from './summary.js'

interface RunActivities {
  [ACTIVITY.run]: (input: RunInput) => Promise<JobResult>
  [ACTIVITY.runOnce]: (input: RunOnceInput) => Promise<RunOnceResult>
}

/**
 * Runs one job on a held lease, as one activity: nothing else moves on the warm path. Temporal's retries of it only
 * attach to the running or finished job, so there is no bound on attempts but the job's own time.
 */
export function runOnPod(input: RunInput, jobMs: number): Promise<JobResult> {
  return activities(input.job, jobMs)[ACTIVITY.run](input)
}

/** Acquires a lease and runs one job on it, as one activity: for firepool.runJob. */
export function runOnce(input: RunOnceInput, jobMs: number): Promise<RunOnceResult> {
  return activities(input.job, jobMs)[ACTIVITY.runOnce](input)
}

function activities(job: JobSpec, jobMs: number) {
  return proxyActivities<RunActivities>({
    taskQueue: QUEUE.jobs,
    startToCloseTimeout: jobMs + TIMEOUT.runMarginMs,
    heartbeatTimeout: TIMEOUT.runHeartbeatMs,
    retry: { initialInterval: 100, backoffCoefficient: 1.5, maximumInterval: '2s' },
    // A cancelled run returns when its job is really gone: the pod is free for the next one.
    cancellationType: ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
    summary: summaryOf(job),
  })
}

/** The command, in one line. */
function summaryOf({ command }: JobSpec): string {
  return summaryText(Array.isArray(command) ? command.join(' ') : String(command))
}
