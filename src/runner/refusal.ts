import { type Problem, problem } from '../contract/index.js'

/** What the fence refuses a call with, as far as it does not depend on the fence's state. */

export function digestProblem(job: { jobId: string; digest: string }, digest: string): Problem | undefined {
  if (job.digest === digest) return undefined
  return problem(
    'InvalidRequest',
    `Job id ${job.jobId} is already taken by another job (their specs differ). Give each job its own id; a workflow must number its jobs the same way when it is replayed.`,
    { reason: 'DigestMismatch' },
  )
}

export function goneProblem(jobId: string): Problem {
  return problem(
    'PodLost',
    `Job ${jobId} ran on this pod, but its result is gone: it was acknowledged, or not fetched in time. It is not run twice; send it under a new id if it may run again.`,
    { reason: 'ResultGone' },
  )
}

export function earlierProblem(jobId: string | null): Problem {
  return problem(
    'PodLost',
    `The runner of this pod has restarted${jobId === null ? '' : `: job ${jobId} may have run before, and its result is lost`}. Acquire again; run the job again only if it may run twice.`,
    { reason: 'Restarted' },
  )
}

export function cancelledProblem(jobId: string): Problem {
  return problem('Cancelled', `Job ${jobId} was cancelled before it started.`)
}

export function busyProblem(waiting: number): Problem {
  return problem(
    'PodBusy',
    `The pod runs one job at a time and ${waiting} wait already. Wait for some of them, or use more slots.`,
    { waiting },
  )
}
