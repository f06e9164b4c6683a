/**
 * The demo's callers: what a user of Firepool would write, twice. Each loop runs either on held leases (openPool) or
 * with a fresh pod for each job, and measures both alike.
 *
 * History sizes: the RL loop over all 164 problems (492 jobs) had 2,910 events on held leases and 4,242 with a fresh
 * pod for each job, about 5 MB each; a session has a few hundred. Temporal warns at 10,240 events.
 */
import {
  defineQuery,
  executeChild,
  proxyActivities,
  setCurrentDetails,
  setHandler,
  sleep,
  workflowInfo,
} from '@temporalio/workflow'
import type { JobOutcome } from '../contract/job.js'
import { type JobResult, type JobSpec, problemOf } from '../workflows/caller.js'
import { type AgentStep, agentSession, checkStep, repositoryLost } from './agent-session.js'
import { heldPod, type JobRunner, podPerJob } from './job-runner.js'
import { DEMO_ACTIVITY, DEMO_QUERY, DEMO_WORKFLOW, sessionWorkflowId } from './names.js'
import type { RlPlan, Side } from './plan.js'
import { count, type JobRecord, type LoopProgress, type LoopRecord, newProgress } from './records.js'
import { type Rollout, scoreOf, verifierJob } from './rollouts.js'

/** What both loops are told. */
interface LoopInput {
  v: 1
  pool: string
  side: Side
  seed: string | number
  /** the interpreter in the pods */
  python: string
}

export interface RlLoopInput extends LoopInput {
  plan: RlPlan
}

export interface AgentLoopInput extends LoopInput {
  sessions: number
  maxSteps: number
  compression: number
}

interface SessionInput extends AgentLoopInput {
  session: number
}

/** Argument of the activity `demo.rollouts`: one step's part of the problems. */
export interface RolloutsInput {
  v: 1
  seed: string | number
  step: number
  plan: RlPlan
}

type DemoActivities = Record<typeof DEMO_ACTIVITY.rollouts, (input: RolloutsInput) => Promise<Rollout[]>>

/** Tests of a right solution end within 0.4 s; one that never returns costs all of it. */
const VERIFIER_TIMEOUT = '3s'

/** A trainer: each step verifies a batch of rollouts in parallel, then learns. */
async function rlLoop(input: RlLoopInput): Promise<LoopRecord> {
  const { plan, pool, side, seed } = input
  const { [DEMO_ACTIVITY.rollouts]: rollouts } = proxyActivities<DemoActivities>({
    startToCloseTimeout: '30s',
    retry: { maximumAttempts: 5 },
  })
  const progress = progressQuery(plan.problems * (1 + plan.broken))
  const { workflowId } = workflowInfo()
  const slots = Array.from({ length: plan.slots }, (_, slot) =>
    side === 'withFirepool'
      ? heldPod(pool, 'trainer', String(slot))
      : podPerJob(pool, workflowId, `slot-${slot}`),
  )
  const jobs: JobRecord[] = []
  const startedMs = Date.now()
  for (let step = 0; step < plan.steps; step++) {
    setCurrentDetails(
      `${titleOf('RL loop', side)}: step ${step + 1} of ${plan.steps}, ${jobs.length} of ${progress.total} rewards.`,
    )
    const batch = await rollouts!({ v: 1, seed, step, plan })
    const rewarded = await inParallel(slots, batch, (slot, rollout) => verify(slot, rollout, input, progress))
    jobs.push(...rewarded)
    await sleep(plan.learnerMs, { summary: 'the learner, assumed' })
  }
  const right = jobs.filter((job) => job.verdict === 'right').length
  setCurrentDetails(`${titleOf('RL loop', side)}: **${right} of ${jobs.length}** rewards are right.`)
  return { v: 1, totalMs: Date.now() - startedMs, jobs }
}

async function verify(
  slot: JobRunner,
  rollout: Rollout,
  { python }: LoopInput,
  progress: LoopProgress,
): Promise<JobRecord> {
  const ran = await measured(slot, verifierJob(rollout, { python, timeout: VERIFIER_TIMEOUT }))
  const record = rewardRecord(rollout, ran)
  count(progress, record)
  return record
}

function rewardRecord(rollout: Rollout, { outcome, startMs, hit }: Ran): JobRecord {
  const score = scoreOf(rollout, outcome)
  if (score.kind === 'unscored') return { startMs, hit, verdict: 'none', why: `${rollout.id}: ${score.why}` }
  if (score.reward === rollout.expected) return { startMs, hit, verdict: 'right' }
  const why = `${rollout.id}: reward ${score.reward} instead of ${rollout.expected} (${score.why})`
  return { startMs, hit, verdict: 'wrong', why }
}

/** Agents at work: sessions side by side, each a workflow of its own. */
async function agentLoop(input: AgentLoopInput): Promise<LoopRecord> {
  const { sessions, side } = input
  const { workflowId } = workflowInfo()
  setCurrentDetails(`${titleOf('Agent loop', side)}: ${sessions} sessions, each a child workflow.`)
  const startedMs = Date.now()
  const records = await Promise.all(
    Array.from({ length: sessions }, (_, session) =>
      executeChild<(input: SessionInput) => Promise<LoopRecord>>(DEMO_WORKFLOW.agentSession, {
        args: [{ ...input, session }],
        workflowId: sessionWorkflowId(workflowId, session),
        staticSummary: `coding agent ${session + 1} of ${sessions}`,
      }),
    ),
  )
  return { v: 1, totalMs: Date.now() - startedMs, jobs: records.flatMap((record) => record.jobs) }
}

/** One agent: thinks, runs a command in its sandbox, looks at the result, and so on. */
async function oneSession(input: SessionInput): Promise<LoopRecord> {
  const { pool, side, seed, session, maxSteps, python, compression } = input
  // Made anew from the seed: as an argument a long session has 250 kB.
  const { id, steps } = agentSession({ seed: `${seed}-${session + 1}`, maxSteps, python })
  const progress = progressQuery(steps.length)
  const sandbox =
    side === 'withFirepool' ? heldPod(pool, id, '0') : podPerJob(pool, workflowInfo().workflowId, 'step')
  const jobs: JobRecord[] = []
  const startedMs = Date.now()
  for (const step of steps) {
    const pauseMs = Math.round(step.pauseMs / compression)
    if (pauseMs > 0) await sleep(pauseMs, { summary: 'the agent thinks' })
    setCurrentDetails(`${titleOf(id, side)}: step ${step.index + 1} of ${steps.length}, ${step.what}.`)
    const record = stepRecord(id, step, await runStep(sandbox, step, side))
    count(progress, record)
    jobs.push(record)
  }
  const right = jobs.filter((job) => job.verdict === 'right').length
  setCurrentDetails(`${titleOf(id, side)}: **${right} of ${jobs.length}** steps gave what they must.`)
  return { v: 1, totalMs: Date.now() - startedMs, jobs }
}

/** A step; when its pod was given up in a long pause, the new one gets the repository first. That time is waiting, too. */
async function runStep(sandbox: JobRunner, step: AgentStep, side: Side): Promise<Ran> {
  if (side === 'freshPod') return await measured(sandbox, step.freshJob)
  const wantedMs = Date.now()
  const ran = await measured(sandbox, step.job)
  if (ran.outcome.kind !== 'result' || !repositoryLost(ran.outcome.result)) return ran
  const again = await measured(sandbox, step.freshJob)
  if (again.outcome.kind !== 'result') return again
  const startMs = Date.now() - wantedMs - again.outcome.result.durationMs
  // The lease was acquired by the attempt that found no repository.
  return { ...again, startMs: Math.max(0, startMs), hit: ran.hit }
}

function stepRecord(session: string, step: AgentStep, { outcome, startMs, hit }: Ran): JobRecord {
  const name = `${session} step ${step.index + 1} (${step.what})`
  if (outcome.kind === 'problem') {
    const { code, message } = outcome.problem
    return { startMs, hit, verdict: 'none', why: `${name}: ${code}: ${message}` }
  }
  const wrong = checkStep(step, outcome.result)
  return wrong
    ? { startMs, hit, verdict: 'wrong', why: `${name}: ${wrong}` }
    : { startMs, hit, verdict: 'right' }
}

/** A job that is over, and when it started. */
interface Ran {
  outcome: JobOutcome
  startMs: number | null
  hit: JobRecord['hit']
}

/**
 * Runs a job and measures its start, the same way on both sides: the time of the whole call less the job's own
 * duration in the pod. The way of the result back counts as start, so no side can look better than it is.
 */
async function measured(runner: JobRunner, job: JobSpec): Promise<Ran> {
  const wantedMs = Date.now()
  const outcome = await outcomeOf(runner.run(job))
  const startMs =
    outcome.kind === 'result' ? Math.max(0, Date.now() - wantedMs - outcome.result.durationMs) : null
  return { outcome, startMs, hit: runner.lastHit }
}

/** @throws what is not a typed failure of Firepool's, e.g. a cancellation */
async function outcomeOf(run: Promise<JobResult>): Promise<JobOutcome> {
  try {
    return { kind: 'result', result: await run }
  } catch (error) {
    const problem = problemOf(error)
    if (!problem) throw error
    return { kind: 'problem', problem }
  }
}

/** Works a list off: each slot takes the next item when it is free. Results stand in the order of the items. */
async function inParallel<Slot, Item, Result>(
  slots: readonly Slot[],
  items: readonly Item[],
  work: (slot: Slot, item: Item) => Promise<Result>,
): Promise<Result[]> {
  const results = new Array<Result>(items.length)
  let next = 0
  await Promise.all(
    slots.map(async (slot) => {
      while (next < items.length) {
        const at = next++
        results[at] = await work(slot, items[at]!)
      }
    }),
  )
  return results
}

function progressQuery(total: number): LoopProgress {
  const progress = newProgress(total)
  setHandler(defineQuery<LoopProgress>(DEMO_QUERY.progress), () => progress)
  return progress
}

function titleOf(name: string, side: Side): string {
  return `**${name}**, ${side === 'withFirepool' ? 'with Firepool' : 'a fresh pod per job'}`
}

export { agentLoop as 'demo.agentLoop', oneSession as 'demo.agentSession', rlLoop as 'demo.rlLoop' }
