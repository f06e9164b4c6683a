import type { ChildProcess } from 'node:child_process'
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { WorkflowHandle } from '@temporalio/client'
import { expect } from 'vitest'
import { holderOf } from './holder.js'
import { waitUntil } from './wait.js'
import { forkWorker, makeWorld, type PoolHandle, type Stop, type WorkerFaults, type World } from './world.js'

/** A Firepool worker that a test may take away. */
export interface WorkerOfTest {
  child: ChildProcess
  /** where it stands still by now */
  stopped: Stop[]
  /** what it did twice */
  twice: string[]
}

export async function killed(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return
  const gone = new Promise((resolve) => child.once('exit', resolve))
  child.kill('SIGKILL')
  await gone
}

/** A world with as many workers as a test wants, and files that tell what really happened: starts of pods and of jobs. */
export class Chaos {
  private readonly workers: WorkerOfTest[] = []

  private constructor(readonly world: World) {}

  static async open(): Promise<Chaos> {
    return new Chaos(await makeWorld({ workerProcess: true }))
  }

  async close(): Promise<void> {
    await this.killAll()
    // Pools are deleted by a worker.
    await this.world.startWorker()
    await this.world.close()
  }

  /** One more worker, on the same pods. */
  async startWorker(faults: WorkerFaults = {}): Promise<WorkerOfTest> {
    const { server, dir } = this.world
    const child = await forkWorker(server.address, server.namespace, join(dir, 'firepool'), faults)
    const worker: WorkerOfTest = { child, stopped: [], twice: [] }
    child.on('message', (message: { stopped?: Stop; twice?: string }) => {
      if (message.stopped) worker.stopped.push(message.stopped)
      if (message.twice) worker.twice.push(message.twice)
    })
    this.workers.push(worker)
    return worker
  }

  /** Kills all workers, also those that a test which failed has left. */
  async killAll(): Promise<void> {
    await this.world.killWorker()
    for (const { child } of this.workers) await killed(child)
  }

  /** A pool whose pods write down that they start. */
  pool(name: string, spec: Record<string, unknown> = {}): Promise<PoolHandle> {
    const prepare = ['/bin/sh', '-c', `echo $FIREPOOL_POD >> ${this.file(name, 'pods')}`]
    return this.world.pool(name, { profile: { prepare }, ...spec })
  }

  /** Names of the pods that were started, in order. */
  pods(pool: string): string[] {
    return lines(this.file(pool, 'pods'))
  }

  /** Names of the jobs that were started, in order. */
  jobs(pool: string): string[] {
    return lines(this.file(pool, 'jobs'))
  }

  /** The command of a job that says when it starts. */
  told(pool: string, name: string): string {
    return `echo ${name} >> ${this.file(pool, 'jobs')}; echo ${name}`
  }

  /** Of one that goes on until it is let go, once it has started. */
  lasting(pool: string, name: string): string {
    return `${this.told(pool, name)}; until [ -e ${this.file(pool, 'go')} ]; do sleep 0.1; done`
  }

  letGo(pool: string): void {
    writeFileSync(this.file(pool, 'go'), '')
  }

  async started(pool: string, name: string): Promise<void> {
    await waitUntil(`${name} of ${pool} starts`, () => this.jobs(pool).includes(name))
  }

  /** A caller's next job, after all. @returns the pod on which it ran */
  async runsNext(pool: string, caller: string): Promise<string> {
    const next = await holderOf(this.world, pool, { caller })
    await next.job(this.told(pool, 'next'))
    const { pod, result } = await next.nth(1)
    expect(result.stdout).toBe('next\n')
    await next.finish()
    await next.handle.result()
    return pod
  }

  /** Each pod's name was started once, the pool knows all pods that there are, and nobody has a lease. */
  async expectNothingLeft(pool: PoolHandle): Promise<void> {
    const { podsCreated } = await pool.until(
      'zero leases, nothing on its way',
      ({ leases, queue, effectsInFlight, pods }) =>
        leases + queue.capacity + queue.slotBusy + effectsInFlight + pods.starting === 0,
    )
    const created = this.pods(pool.name)
    expect(new Set(created).size, `${pool.name}: ${created}`).toBe(created.length)
    // One that was not needed any more may have been deleted before it wrote.
    expect(created.length, `${pool.name}: ${created}`).toBeLessThanOrEqual(podsCreated)
    await waitUntil(`${pool.name}: as many pods as the pool says`, async () => {
      const { pods } = await pool.status()
      const known = Object.values(pods).reduce((sum, count) => sum + count, 0)
      return (await this.world.backend.list(pool.name)).length === known
    })
  }

  private file(pool: string, what: 'pods' | 'jobs' | 'go'): string {
    return join(this.world.dir, `${pool}-${what}`)
  }
}

/** A holder's next job is taken up by a worker, as an attempt after the first. */
export async function takenUpAgain(handle: WorkflowHandle, by: WorkerOfTest): Promise<void> {
  await waitUntil(`an attempt of ${handle.workflowId} on ${by.child.pid}`, async () => {
    const now = await attemptOf(handle)
    return now !== null && now.attempt > 1 && now.pid === String(by.child.pid)
  })
}

async function attemptOf(handle: WorkflowHandle): Promise<{ attempt: number; pid: string } | null> {
  const { raw } = await handle.describe()
  const run = raw.pendingActivities?.find(({ activityType }) => activityType?.name === 'firepool.run')
  // 2: a worker has it
  if (run?.state !== 2) return null
  return { attempt: run.attempt ?? 0, pid: run.lastWorkerIdentity?.split('@')[0] ?? '' }
}

/** @returns none where there is no file yet */
export function lines(file: string): string[] {
  try {
    return readFileSync(file, 'utf8').trim().split('\n').filter(Boolean)
  } catch {
    return []
  }
}
