/** The two ways in which the demo's loops run a job. Workflow safe. */
import { executeChild } from '@temporalio/workflow'
import type { HitClass } from '../contract/lease.js'
import { QUEUE, WORKFLOW } from '../contract/names.js'
import type { RunJobInput } from '../contract/run.js'
import { type JobResult, type JobSpec, openPool } from '../workflows/caller.js'

/** Runs jobs one after the other for one slot of a loop. */
export interface JobRunner {
  run(job: JobSpec): Promise<JobResult>
  /** where the pod of the last job came from; null when only the pool knows, or there was no pod yet */
  readonly lastHit: HitClass | null
}

/** With Firepool: a lease that is held from job to job. */
export function heldPod(pool: string, caller: string, slot: string): JobRunner {
  const sandbox = openPool(pool, { caller, slot })
  let leaseId = ''
  let hit: HitClass | null = null
  const look = () => {
    const grant = sandbox.lastGrant
    if (!grant) return
    // The same lease as before: the pod was there already, warm.
    hit = grant.leaseId === leaseId ? 'warm' : grant.hit
    leaseId = grant.leaseId
  }
  return {
    async run(job) {
      try {
        return await sandbox.run(job)
      } finally {
        look()
      }
    },
    get lastHit() {
      return hit
    },
  }
}

/**
 * Without it: each job is a caller of its own, on a pool that keeps no pod. So each starts a pod, which is deleted
 * after the job.
 * @param name unique among the runners of the workflow: it names the callers and the children
 */
export function podPerJob(pool: string, loopId: string, name: string): JobRunner {
  let jobs = 0
  return {
    async run(job) {
      const id = `${loopId}/${name}-${++jobs}`
      const input: RunJobInput = { v: 1, pool, caller: id, job }
      return (await executeChild(WORKFLOW.runJob, {
        args: [input],
        workflowId: id,
        taskQueue: QUEUE.workflows,
        staticSummary: `a job on a pod of its own, pool ${pool}`,
      })) as JobResult
    },
    lastHit: null,
  }
}
