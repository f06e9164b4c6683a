import { createHash, randomUUID } from 'node:crypto'
import { setTimeout as pause } from 'node:timers/promises'
import {
  type Client,
  WithStartWorkflowOperation,
  WorkflowIdConflictPolicy,
  WorkflowUpdateFailedError,
} from '@temporalio/client'
import { ApplicationFailure } from '@temporalio/common'
import {
  checkSession,
  checkSessionRun,
  FirepoolError,
  type JobResult,
  type JobSpec,
  problem,
  QUEUE,
  SESSION_UPDATE,
  type SessionInput,
  type SessionRun,
  SIGNAL,
  WORKFLOW,
} from '../contract/index.js'
import { refuseUnknownNames } from '../contract/option-names.js'
import { slug } from '../workflows/lease-id.js'
import { acceptedValue, type Meaning, meaningOf } from './errors.js'

/** A run of a session ends within a second or two of its last job. */
const MOVES_MS = 250
const ATTEMPTS = 60
const RUN_OPTIONS: readonly (keyof SessionRunOptions)[] = ['key']

export type SessionOptions = Omit<SessionInput, 'v' | 'pool' | 'carried'> & {
  /**
   * of the session's workflow; default: one for each pool, caller, slot and reuseTag, so that two processes share it. Who starts
   * it decides its other options
   */
  workflowId?: string
}

export interface SessionRunOptions {
  /** what is asked under one key is run once, and answered again to who asks again; default: a new one */
  key?: string
}

/** A pod held for a service: see FirepoolClient.session. */
export interface Session {
  readonly workflowId: string
  /**
   * Runs one job; starts the session when it is not there. A non-zero exit is a result.
   * @throws FirepoolError
   */
  run(job: JobSpec, options?: SessionRunOptions): Promise<JobResult>
  /** Gives the pod back now; it stays warm for the caller during its keep-alive. */
  end(): Promise<void>
}

export interface SessionSurroundings {
  /** before each run. @throws why nothing is asked */
  before: () => Promise<void>
  explain: (error: unknown) => Promise<unknown>
}

/** @throws FirepoolError of code InvalidRequest */
export function openSession(
  client: Client,
  pool: string,
  { workflowId: given, ...options }: SessionOptions,
  { before, explain }: SessionSurroundings,
): Session {
  const workflowId = given ?? sessionId(pool, options)
  const input: SessionInput = { v: 1, pool, ...options }
  acceptedValue(checkSession(input, workflowId))
  const run = async (job: JobSpec, runOptions: SessionRunOptions = {}): Promise<JobResult> => {
    acceptedValue(refuseUnknownNames('run of a session', 'option', { ...runOptions }, RUN_OPTIONS))
    const key = runOptions?.key ?? randomUUID()
    const asked: SessionRun = { v: 1, job, key }
    acceptedValue(checkSessionRun(asked))
    await before()
    for (let attempt = 1; ; attempt++) {
      try {
        return (await client.workflow.executeUpdateWithStart(SESSION_UPDATE.run, {
          args: [asked],
          // The key is not the id: the server answers a known id itself, whatever job is asked for.
          updateId: randomUUID(),
          startWorkflowOperation: new WithStartWorkflowOperation(WORKFLOW.session, {
            workflowId,
            taskQueue: QUEUE.workflows,
            args: [input],
            workflowIdConflictPolicy: WorkflowIdConflictPolicy.USE_EXISTING,
          }),
        })) as JobResult
      } catch (error) {
        const meaning = meaningOf(error)
        const moves = meaning.kind === 'problem' && meaning.problem.details?.reason === 'SessionMoves'
        if (moves && attempt < ATTEMPTS) {
          await pause(MOVES_MS)
          continue
        }
        if (meaning.kind === 'problem') throw new FirepoolError(meaning.problem)
        throw endedUnder(error, meaning.kind) ? new FirepoolError(lost(workflowId)) : await explain(error)
      }
    }
  }
  const end = async (): Promise<void> => {
    try {
      await client.workflow.getHandle(workflowId).signal(SIGNAL.endSession)
    } catch (error) {
      // Nothing is held by a session that is not there.
      if (meaningOf(error).kind !== 'poolNotFound') throw await explain(error)
    }
  }
  return { workflowId, run, end }
}

function sessionId(pool: string, { caller, slot = '0', reuseTag }: SessionOptions): string {
  if (typeof caller !== 'string') return `session/${pool}/${randomUUID()}`
  // Without a tag as ever: sessions outlive a release.
  const hash = createHash('sha256')
    .update(JSON.stringify(reuseTag ? [caller, slot, reuseTag] : [caller, slot]))
    .digest('hex')
    .slice(0, 16)
  return `session/${pool}/${slug(caller)}-${hash}`
}

/** Whether the session's run was closed after it had taken the job. A pool that is not there is a problem, said by the session. */
function endedUnder(error: unknown, kind: Meaning['kind']): boolean {
  if (kind === 'poolNotFound') return true
  const { cause } = error instanceof WorkflowUpdateFailedError ? error : { cause: undefined }
  return cause instanceof ApplicationFailure && cause.type === 'AcceptedUpdateCompletedWorkflow'
}

const lost = (workflowId: string) =>
  problem(
    'PodLost',
    `session ${workflowId} was ended under the job, which may have run; run it again if that is safe`,
  )
