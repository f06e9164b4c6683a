import { Worker } from '@temporalio/worker'

/**
 * Workflow code without a limit of time for each run of it. The SDK's limit of 5 s cuts it off in the middle, by the wall clock, and
 * with that Node ends the whole process ("async hook stack has become corrupted", seen with Node 20); a machine with too much to
 * do gets there. And any limit costs a thread, started and joined, for each of the half a dozen calls into the sandbox that a
 * workflow task makes: 43 % of the CPU of the thread that runs workflows, measured. This is Firepool's own code only, whose loops
 * have limits of their own.
 */
export class UntimedWorker extends Worker {
  protected static override createWorkflowCreator(
    ...[bundle, options, logger]: Parameters<typeof Worker.createWorkflowCreator>
  ): ReturnType<typeof Worker.createWorkflowCreator> {
    return Worker.createWorkflowCreator(bundle, { ...options, isolateExecutionTimeoutMs: NO_LIMIT }, logger)
  }
}

/** As Node's vm takes it; the SDK's type says a number. */
const NO_LIMIT = undefined as unknown as number
