/** Workflows of the benchmarks. Each op is what a user would do, and its bare counterpart. */
import {
  condition,
  defineSignal,
  executeChild,
  isCancellation,
  proxyActivities,
  proxyLocalActivities,
  proxySinks,
  type Sinks,
  setHandler,
  sleep,
  workflowInfo,
} from '@temporalio/workflow'
import type { JobSpec } from '../dist/contract/job.js'
import { TIMEOUT } from '../dist/contract/limits.js'
import { openPool, problemOf } from '../dist/workflows/caller.js'

const TRUE: JobSpec = { command: ['/bin/true'] }

interface BareActivities {
  postBare(): Promise<{ exitCode: number }>
}

/**
 * With the heartbeat time-out of firepool.run: the server sets a timer for each activity, which fires so much later. With a
 * longer one the timers of a's activities fire while b's are measured.
 */
const bare = proxyActivities<BareActivities>({
  taskQueue: 'bench-activities',
  startToCloseTimeout: '1m',
  heartbeatTimeout: TIMEOUT.runHeartbeatMs,
})

/** a: bare activities, one after the other. */
export async function activityLoop(jobs: number): Promise<void> {
  for (let i = 0; i < jobs; i++) await bare.postBare()
}

/** b: warm jobs on one held lease. */
export async function warmLoop(pool: string, caller: string, jobs: number): Promise<void> {
  const sandbox = openPool(pool, { caller })
  await sandbox.run(TRUE)
  for (let i = 0; i < jobs; i++) await sandbox.run(TRUE)
}

/** The child of c. */
export async function bareChild(): Promise<void> {
  await bare.postBare()
}

/** c: bare children with one activity each. */
export async function childLoop(jobs: number): Promise<void> {
  for (let i = 0; i < jobs; i++) await executeChild('bareChild', { args: [] })
}

/** d: firepool.runJob on the caller's own warm pod. */
export async function runJobLoop(pool: string, caller: string, jobs: number): Promise<void> {
  for (let i = 0; i < jobs; i++) {
    await executeChild('firepool.runJob', {
      taskQueue: 'firepool-workflows',
      args: [{ v: 1, pool, caller, job: TRUE }],
    })
  }
}

/** A child that does nothing: a bare start. */
export async function emptyChild(): Promise<void> {}

export async function startLoop(starts: number): Promise<void> {
  for (let i = 0; i < starts; i++) await executeChild('emptyChild', { args: [] })
}

/** Acquires leases of new callers and holds them until it ends. */
export async function acquireLoop(pool: string, leases: number): Promise<void> {
  const { workflowId } = workflowInfo()
  for (let i = 0; i < leases; i++) await openPool(pool, { caller: `${workflowId}-${i}` }).acquire()
}

/** Holds a lease until it is terminated. */
export async function holdLease(pool: string, caller: string): Promise<void> {
  await openPool(pool, { caller }).acquire()
  await new Promise(() => undefined)
}

/** Takes a lease on the caller's own warm pod and gives it back, again and again. */
export async function turnLoop(pool: string, caller: string, turns: number): Promise<void> {
  for (let i = 0; i < turns; i++) {
    const sandbox = openPool(pool, { caller })
    await sandbox.acquire()
    await sandbox.release()
  }
}

const bareLocal = proxyLocalActivities<BareActivities>({ startToCloseTimeout: '4s' })

/** Bare local activities, one after the other. */
export async function localLoop(jobs: number): Promise<void> {
  for (let i = 0; i < jobs; i++) await bareLocal.postBare()
}

/** Short jobs on one held lease. */
export async function shortLoop(pool: string, caller: string, jobs: number): Promise<void> {
  const sandbox = openPool(pool, { caller })
  await sandbox.acquire()
  for (let i = 0; i < jobs; i++) await sandbox.run({ ...TRUE, short: true })
}

/** Said to the callers' worker itself: a result that the server keeps would cost what is measured. */
export interface ScaleSinks extends Sinks {
  scale: {
    /** a grant has arrived; times in ms since the epoch */
    granted(request: number, askedAtMs: number, hit: string, inPoolMs: number): void
    /** the lease was given back */
    ended(request: number): void
    /** @param why a code, where there is one */
    failed(request: number, why: string): void
  }
}

export const askSignal = defineSignal<[request: number, caller: string]>('ask')
export const finishSignal = defineSignal('finish')

/** Asks for pods as it is told, many at a time, as a trainer does for its rollouts; each is held for a moment and given back. */
export async function crowd(pool: string, holdMs: number): Promise<void> {
  const { scale } = proxySinks<ScaleSinks>()
  let open = 0
  let isOver = false
  const lease = async (request: number, caller: string) => {
    const askedAtMs = Date.now()
    const sandbox = openPool(pool, { caller })
    await sandbox.acquire()
    const { hit, waitedMs } = sandbox.lastGrant!
    scale.granted(request, askedAtMs, hit, waitedMs)
    await sleep(holdMs)
    await sandbox.release()
    scale.ended(request)
  }
  setHandler(askSignal, async (request, caller) => {
    open++
    await lease(request, caller).catch((error: unknown) => {
      // Its worker ends: there is nobody left to be told.
      if (!isCancellation(error)) scale.failed(request, problemOf(error)?.code ?? String(error))
    })
    open--
  })
  setHandler(finishSignal, () => {
    isOver = true
  })
  await condition(() => isOver && open === 0)
}
