/** Caller workflows of the tests: what a user would write, each showing one way to hold, lose or leave a lease. */

import {
  ApplicationFailure,
  CancellationScope,
  condition,
  continueAsNew,
  defineQuery,
  defineSignal,
  getExternalWorkflowHandle,
  isCancellation,
  ParentClosePolicy,
  proxyActivities,
  setHandler,
  sleep,
  startChild,
  uuid4,
  workflowInfo,
} from '@temporalio/workflow'
import type { Grant, LeaseEnd } from '../../dist/contract/lease.js'
import { TIMEOUT } from '../../dist/contract/limits.js'
import { ACTIVITY, QUEUE, SIGNAL, WORKFLOW } from '../../dist/contract/names.js'
import {
  type JobResult,
  type JobSpec,
  openPool,
  type Problem,
  problemOf,
  type SandboxOptions,
} from '../../dist/workflows/caller.js'

export interface Ran {
  pod: string
  epoch: number
  hit: string
  result: JobResult
}

export interface LoopInput extends SandboxOptions {
  pool: string
  jobs: JobSpec[]
  /** pause after each job, ms */
  pauseMs?: number
  release?: boolean
}

/** Runs jobs one after the other on one sandbox. */
export async function loop(input: LoopInput): Promise<Ran[]> {
  const { pool, jobs, pauseMs = 0, release = false, ...options } = input
  const sandbox = openPool(pool, options)
  const ran: Ran[] = []
  for (const job of jobs) {
    const result = await sandbox.run(job)
    const { hit, epoch } = sandbox.lastGrant!
    ran.push({ pod: result.pod, epoch, hit, result })
    if (pauseMs > 0) await sleep(pauseMs)
  }
  if (release) await sandbox.release()
  return ran
}

/** Gives a sandbox all of its jobs at once. */
export async function together(input: {
  pool: string
  caller: string
  jobs: JobSpec[]
}): Promise<JobResult[]> {
  const sandbox = openPool(input.pool, { caller: input.caller })
  return await Promise.all(input.jobs.map((each) => sandbox.run(each)))
}

export const job = defineSignal<[JobSpec]>('job')
export const finish = defineSignal<['complete' | 'fail' | 'continue']>('finish')
export const ranQuery = defineQuery<(Ran | Problem)[]>('ran')

/** Holds a sandbox, runs what it is told by signal, and ends as it is told. */
export async function holder(
  input: SandboxOptions & { pool: string; runs?: number },
): Promise<(Ran | Problem)[]> {
  const { pool, runs = 0, ...options } = input
  const sandbox = openPool(pool, options)
  const todo: JobSpec[] = []
  const ran: (Ran | Problem)[] = []
  let end: string | null = null
  setHandler(job, (spec) => void todo.push(spec))
  setHandler(finish, (how) => {
    end = how
  })
  setHandler(ranQuery, () => ran)
  for (;;) {
    await condition(() => todo.length > 0 || end !== null)
    const next = todo.shift()
    if (next) {
      try {
        const result = await sandbox.run(next)
        const { hit, epoch } = sandbox.lastGrant!
        ran.push({ pod: result.pod, epoch, hit, result })
      } catch (error) {
        const problem = problemOf(error)
        if (!problem) throw error
        ran.push(problem)
      }
      continue
    }
    if (end === 'fail') throw ApplicationFailure.nonRetryable('told to fail')
    if (end === 'continue') await continueAsNew<typeof holder>({ ...input, runs: runs + 1 })
    return ran
  }
}

/** Runs one job after the other until it is told to finish: each writes its name into a file. @returns the jobs' names */
export async function endless(
  input: SandboxOptions & { pool: string; name: string; file: string; pauseMs: number },
): Promise<string[]> {
  const { pool, name, file, pauseMs, ...options } = input
  const sandbox = openPool(pool, options)
  let told = false
  setHandler(finish, () => {
    told = true
  })
  const names: string[] = []
  while (!told) {
    const { stdout } = await sandbox.run({
      command: `echo ${name}-${names.length} | tee -a ${file}; sleep 0.2`,
    })
    names.push(stdout.trim())
    await sleep(pauseMs)
  }
  await sandbox.release()
  return names
}

/** Cancels its own job by a scope and then uses the sandbox again. */
export async function cancelOne(input: {
  pool: string
  long: JobSpec
  after: JobSpec
}): Promise<{ cancelled: boolean; after: JobResult }> {
  const sandbox = openPool(input.pool)
  let cancelled = false
  const scope = new CancellationScope()
  const long = scope.run(() => sandbox.run(input.long))
  await sleep(2_000)
  scope.cancel()
  try {
    await long
  } catch (error) {
    cancelled = isCancellation(error)
  }
  return { cancelled, after: await sandbox.run(input.after) }
}

/** Cancels its own job by a scope when it is told to, and then uses the sandbox again. */
export async function cancelWhenTold(input: {
  pool: string
  long: JobSpec
  after: JobSpec
}): Promise<{ heard: string; after: JobResult }> {
  const sandbox = openPool(input.pool)
  const scope = new CancellationScope()
  setHandler(finish, () => scope.cancel())
  const heard = await scope
    .run(() => sandbox.run(input.long))
    .then(
      () => 'a result',
      (error: unknown) => (isCancellation(error) ? 'the cancel' : String(error)),
    )
  return { heard, after: await sandbox.run(input.after) }
}

/** Holds a pod, and posts so many jobs to it at once, each by an activity of its own. */
export async function crowd(input: {
  pool: string
  caller: string
  jobs: number
  job: JobSpec
}): Promise<void> {
  const sandbox = openPool(input.pool, { caller: input.caller })
  await sandbox.acquire()
  // The runner lets one job run and keeps the others waiting, connected all the time.
  await sandbox.run({ command: 'true' })
  const grant = sandbox.lastGrant
  await Promise.all(
    Array.from({ length: input.jobs }, (_, n) =>
      activity(ACTIVITY.run, { v: 1, grant, jobId: `${input.caller}/${n}`, job: input.job }),
    ),
  )
}

export const heardQuery = defineQuery<{ grants: Grant[]; ends: LeaseEnd[] }>('heard')

/** Takes down what a pool tells it, as holder and lease workflow of requests that a test sends by hand. */
export async function listener(): Promise<void> {
  const heard: { grants: Grant[]; ends: LeaseEnd[] } = { grants: [], ends: [] }
  let over = false
  setHandler(defineSignal<[Grant]>(SIGNAL.grant), (grant) => void heard.grants.push(grant))
  setHandler(defineSignal<[LeaseEnd]>(SIGNAL.ended), (end) => void heard.ends.push(end))
  setHandler(heardQuery, () => heard)
  setHandler(finish, () => {
    over = true
  })
  await condition(() => over)
}

/** Gives a sandbox a job that Temporal would refuse as a payload. */
export async function largeJob(input: { pool: string; bytes: number }): Promise<string> {
  const sandbox = openPool(input.pool)
  try {
    await sandbox.run({ command: 'true', stdin: 'x'.repeat(input.bytes) })
  } catch (error) {
    const problem = problemOf(error)
    return problem ? `${problem.code}: ${problem.message}` : String(error)
  }
  return 'it ran'
}

/** Waits to be cancelled, then cleans up on a pod. */
export async function cleanUp(input: { pool: string }): Promise<string> {
  try {
    await sleep('1 hour')
  } catch {
    return await CancellationScope.nonCancellable(async () => {
      const { stdout } = await openPool(input.pool).run({ command: 'echo cleaned' })
      return stdout
    })
  }
  return 'not cancelled'
}

/** Two short jobs side by side; the one that is over first ends the other. */
export async function race(input: {
  pool: string
  quick: JobSpec
  slow: JobSpec
  after?: JobSpec
}): Promise<{ slow: string; after: JobResult | null }> {
  const first = openPool(input.pool, { slot: 'quick' })
  const second = openPool(input.pool, { slot: 'slow' })
  await first.acquire()
  await second.acquire()
  const scope = new CancellationScope()
  const slow = scope
    .run(() => second.run(input.slow))
    .then(
      () => 'ended',
      (error: unknown) => (isCancellation(error) ? 'cancelled' : String(error)),
    )
  await first.run(input.quick)
  scope.cancel()
  return { slow: await slow, after: input.after ? await second.run(input.after) : null }
}

/** Acquires as a caller in another SDK does: a lease workflow as a child, its grant as the result of an activity. */
export async function byToken(input: {
  pool: string
  job: JobSpec
  acquireTimeout?: string
}): Promise<JobResult> {
  const leaseId = uuid4()
  const lease = await startChild(WORKFLOW.lease, {
    args: [
      {
        v: 1,
        pool: input.pool,
        leaseId,
        caller: 'by-token',
        replyTo: 'token',
        ...(input.acquireTimeout ? { acquireTimeout: input.acquireTimeout } : {}),
      },
    ],
    workflowId: `lease/by-token/${leaseId}`,
    taskQueue: QUEUE.workflows,
    parentClosePolicy: ParentClosePolicy.REQUEST_CANCEL,
  })
  const grant = await activity(ACTIVITY.awaitLease, { v: 1, pool: input.pool, leaseId })
  const result = (await activity(ACTIVITY.run, { v: 1, grant, job: input.job })) as JobResult
  await getExternalWorkflowHandle(lease.workflowId).cancel()
  await lease.result().catch(() => undefined)
  return result
}

/** Calls one activity of Firepool with whatever is given. */
export function activity(name: string, input: unknown, taskQueue: string = QUEUE.jobs): Promise<unknown> {
  const activities = proxyActivities<Record<string, (input: unknown) => Promise<unknown>>>({
    taskQueue,
    startToCloseTimeout: '2m',
    retry: { backoffCoefficient: 1 },
    ...(name === ACTIVITY.run ? { heartbeatTimeout: TIMEOUT.runHeartbeatMs } : {}),
  })
  return activities[name]!(input)
}

/** A job in each of several runs that continue as new; the pod's file counts them. */
export async function chain(
  input: SandboxOptions & { pool: string; left: number; pods?: string[] },
): Promise<{
  pods: string[]
  count: number
}> {
  const { pool, left, pods: before = [], ...options } = input
  const { stdout, pod } = await openPool(pool, options).run({ command: 'echo x >> f; wc -l < f' })
  const pods = [...before, pod]
  if (left > 0) await continueAsNew<typeof chain>({ ...input, left: left - 1, pods })
  return { pods, count: Number(stdout) }
}

/** Fails in its first attempt, after a job. */
export async function flaky({
  pool,
  ...options
}: SandboxOptions & { pool: string }): Promise<{ attempt: number; pod: string; stdout: string }> {
  const { attempt } = workflowInfo()
  const { stdout, pod } = await openPool(pool, options).run({ command: 'echo x >> f; cat f' })
  if (attempt === 1) throw ApplicationFailure.retryable('the first attempt fails')
  return { attempt, pod, stdout }
}

/** Pauses with a pinned sandbox for much longer than its pin, which it renews in time, or not. */
export async function pinned(input: {
  pool: string
  pin: string
  pauseMs: number
  pauses: number
  renews: boolean
}): Promise<Ran[]> {
  const sandbox = openPool(input.pool, { pin: input.pin })
  const ran: Ran[] = []
  const once = async () => {
    const result = await sandbox.run({ command: 'echo x >> f; cat f' })
    const { hit, epoch } = sandbox.lastGrant!
    ran.push({ pod: result.pod, epoch, hit, result })
  }
  await once()
  for (let i = 0; i < input.pauses; i++) {
    await sleep(input.pauseMs)
    if (input.renews) await sandbox.renew()
  }
  await once()
  return ran
}

export const renew = defineSignal('renew')
export const saidQuery = defineQuery<string[]>('said')

/** Holds a pinned sandbox, and renews it whenever it is told to. @returns what became of each renewal */
export async function renewer(input: { pool: string }): Promise<string[]> {
  const sandbox = openPool(input.pool, { pin: '10m' })
  const said: string[] = []
  let wanted = 0
  let over = false
  setHandler(renew, () => void wanted++)
  setHandler(finish, () => {
    over = true
  })
  setHandler(saidQuery, () => said)
  await sandbox.run({ command: 'true' })
  said.push('held')
  for (;;) {
    await condition(() => wanted > 0 || over)
    if (wanted-- <= 0) return said
    const outcome = await sandbox.renew().then(
      () => 'renewed',
      (error: unknown) => `${problemOf(error)?.code}: ${problemOf(error)?.message}`,
    )
    said.push(outcome)
  }
}

/** Asks, is cancelled and releases, many times over: in one workflow task, and with the request on its way. */
export async function rounds(input: { pool: string; rounds: number }): Promise<void> {
  for (const pauseMs of [0, 1]) {
    await Promise.all(
      Array.from({ length: input.rounds }, async (_, i) => {
        const sandbox = openPool(input.pool, { slot: `r${i}` })
        const scope = new CancellationScope()
        const asked = scope.run(() => sandbox.acquire()).catch(() => undefined)
        if (pauseMs > 0) await sleep(pauseMs)
        scope.cancel()
        await Promise.all([asked, sandbox.release()])
      }),
    )
  }
}

const ended = defineSignal<[{ leaseId: string }]>('firepool.ended')
export const toldQuery = defineQuery<Record<string, number>>('told')

/** Stands for many lease workflows at once: counts how often the pool told it of the end of each lease. */
export async function collector(): Promise<void> {
  const told: Record<string, number> = {}
  let over = false
  setHandler(ended, ({ leaseId }) => {
    told[leaseId] = (told[leaseId] ?? 0) + 1
  })
  setHandler(toldQuery, () => told)
  setHandler(finish, () => {
    over = true
  })
  await condition(() => over)
}

/** Opens sandboxes with options that are refused, one after the other, and then works. */
export async function refusedThenWorks(input: {
  pool: string
  wrong: SandboxOptions[]
}): Promise<{ codes: string[]; stdout: string }> {
  const codes: string[] = []
  for (const options of input.wrong) {
    try {
      await openPool(input.pool, options).run({ command: 'true' })
      codes.push('it ran')
    } catch (error) {
      codes.push(problemOf(error)?.code ?? String(error))
    }
  }
  const { stdout } = await openPool(input.pool, { caller: 'short' }).run({ command: 'echo on' })
  return { codes, stdout }
}
