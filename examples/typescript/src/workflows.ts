/** Two callers: an agent that holds a pod, and a verifier that needs one for a single job. */
import { executeChild, ParentClosePolicy } from '@temporalio/workflow'
import { type HitClass, type JobResult, QUEUE, type RunJobInput, WORKFLOW } from 'firepool/contract'
import { openPool, problemOf } from 'firepool/workflow'

export interface Step {
  pod: string
  /** how the pod came: warm (this caller's last one), standby or cold */
  hit: HitClass | undefined
  exitCode: number | null
  stdout: string
}

/** Runs commands one after the other on one pod and returns what each one printed. */
export async function agent(pool: string, caller: string, commands: string[]): Promise<Step[]> {
  const sandbox = openPool(pool, { caller })
  const steps: Step[] = []
  for (const command of commands) {
    const { pod, exitCode, stdout } = await sandbox.run({ command, timeout: '2m' })
    steps.push({ pod, hit: sandbox.lastGrant?.hit, exitCode, stdout })
  }
  // The pod is released when the workflow ends, however it ends.
  return steps
}

export interface Verdict {
  reward: 0 | 1 | null
  why: string
}

/** The reward of a solution: 1 or 0 when its tests ran, and never a reward when they could not run. */
export async function verify(pool: string, solution: string, tests: string): Promise<Verdict> {
  try {
    const { exitCode } = await runJob({
      pool,
      caller: 'verifier',
      job: {
        command: ['python3', 'check.py'],
        files: [{ path: 'check.py', content: `${solution}\n\n${tests}\n` }],
        timeout: '10s',
      },
    })
    return { reward: exitCode === 0 ? 1 : 0, why: `exit code ${exitCode}` }
  } catch (error) {
    const problem = problemOf(error)
    if (problem === null) throw error
    // Whose fault it was decides: a job that ran out of time failed, a lost pod says nothing about it.
    return { reward: problem.origin === 'job' ? 0 : null, why: problem.code }
  }
}

/** One job in one call, on a pod of its own lease. */
function runJob(input: RunJobInput): Promise<JobResult> {
  return executeChild<(input: RunJobInput) => Promise<JobResult>>(WORKFLOW.runJob, {
    taskQueue: QUEUE.workflows,
    parentClosePolicy: ParentClosePolicy.REQUEST_CANCEL,
    args: [input],
  })
}
