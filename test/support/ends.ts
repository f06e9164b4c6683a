import type { Ran } from './callers.js'
import { holderOf, marker } from './holder.js'
import { type PoolHandle, processWith, type World, waitUntil } from './world.js'

/** The ways in which a caller that holds a pod can end, and what README.md promises of each. */

type Holder = Awaited<ReturnType<typeof holderOf>>

export interface End {
  name: string
  /** while a job runs, which then is killed; else after one */
  midJob?: true
  start?: Record<string, unknown>
  end(holder: Holder): Promise<unknown>
  /** the caller comes again in the next run of its workflow, not in another one */
  inNextRun?: true
}

// Long enough for the jobs before it, on a machine that does something else as well.
const LIMIT = '12s'

export const ENDS: End[] = [
  { name: 'complete', end: (holder) => holder.finish('complete') },
  { name: 'fail', end: (holder) => holder.finish('fail') },
  { name: 'continue-as-new', end: (holder) => holder.finish('continue'), inNextRun: true },
  { name: 'cancel', midJob: true, end: (holder) => holder.handle.cancel() },
  { name: 'terminate', midJob: true, end: (holder) => holder.handle.terminate('test') },
  { name: 'run-time-out', midJob: true, start: { workflowRunTimeout: LIMIT }, end: async () => undefined },
  {
    name: 'execution-time-out',
    midJob: true,
    start: { workflowExecutionTimeout: LIMIT },
    end: async () => undefined,
  },
]

/** Leaves a file, and a process in a session of its own; it has left the job's group when the job ends. */
const DAEMON =
  "setsid sh -c 'echo kept > kept; exec sleep 3600' > /dev/null 2>&1 & until [ -s kept ]; do sleep 0.01; done"

/** What a caller that ended has left for others and for itself. */
export interface AfterTheEnd {
  /** the pod that it held */
  pod: string
  /** what its jobs had written to the file `kept` */
  kept: string
  /** another caller that looks for this file */
  stranger: Ran
  /** the caller itself, which comes again and does so */
  again: Ran
}

/** Ends a caller and waits for zero leases, nothing that runs and an idle pod, each time; then two callers look for its files. */
export async function afterTheEnd(
  world: World,
  pool: PoolHandle,
  how: End,
  options: Record<string, unknown> = {},
): Promise<AfterTheEnd> {
  const mark = marker()
  const env = { MARK: mark }
  const ann = await holderOf(world, pool.name, { caller: 'ann', ...options }, how.start)
  await ann.job(DAEMON, { env })
  const { pod } = await ann.nth(1)
  const daemons = processWith(mark).length
  if (daemons !== 1) throw new Error(`of a job that leaves one process there are ${daemons}`)
  let kept = 'kept\n'
  if (how.midJob) {
    await ann.job('echo begun >> kept; sleep 3600; echo done >> kept', { env })
    kept += 'begun\n'
    await waitUntil('the second job has begun', () => processWith(mark).length > 2)
  }
  await how.end(ann)
  await released(pool)
  await waitUntil('what ran under the lease is gone', () => processWith(mark).length === 0)
  await pool.until('the pod stays with its caller', (s) => s.pods.idle === 1)

  const stranger = await once(world, pool.name, { ...options, caller: 'bob' }, 'cat kept')
  const again = how.inNextRun
    ? await nextRun(world, ann, 'cat kept')
    : await once(world, pool.name, { ...options, caller: 'ann' }, 'cat kept')
  await released(pool)
  return { pod, kept, stranger, again }
}

function released(pool: PoolHandle) {
  return pool.until('zero leases, nobody waits', (s) => s.leases === 0 && s.queue.capacity === 0)
}

/** Runs one command as this caller, in a workflow of its own. */
async function once(
  world: World,
  pool: string,
  options: Record<string, unknown>,
  command: string,
): Promise<Ran> {
  const jobs = [{ command }]
  const handle = await world.start<Ran[]>('loop', [{ pool, ...options, jobs, release: true }])
  const [ran] = await handle.result()
  return ran!
}

/** The same, in the next run of a workflow that has continued as new; it ends then. */
async function nextRun(world: World, { handle }: Holder, command: string): Promise<Ran> {
  const next = world.client.workflow.getHandle(handle.workflowId)
  await next.signal('job', { command })
  const ran = await waitUntil('the next run has run its job', async () => {
    const [first] = await next.query<Ran[]>('ran')
    return first ?? null
  })
  await next.signal('finish', 'complete')
  return ran
}
