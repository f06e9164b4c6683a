import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { asyncLocalStorage, type Context } from '@temporalio/activity'
import type { Client } from '@temporalio/client'
import { ActivityCancellationDetails, CancelledFailure } from '@temporalio/common'
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest'
import type { Grant } from '../contract/lease.js'
import { makeWorld, type World, waitUntil } from '../runner/world.fixture.js'
import { createRun } from './run.js'

/** The activity firepool.run against a real runner, with the server's word that ends an attempt. */

const LEASE = '0b0f9a7e-6f0a-4c2b-9d0e-3c1f5a7b9d11'

let world: World
beforeEach(async () => {
  world = await makeWorld()
  const { incarnation } = world
  await world.broker.bind({ v: 1, epoch: 1, leaseId: LEASE, ownerHash: 'owner', incarnation })
})
afterEach(() => world.end())

/** An attempt that is told to end, and how, once its job runs. */
function attempt(n: number, command: string) {
  const beats: unknown[] = []
  let tell!: (error: Error) => void
  const cancelled = new Promise<never>((_, reject) => {
    tell = reject
  })
  cancelled.catch(() => undefined)
  const context = {
    info: { attempt: n, activityId: '1', workflowExecution: { workflowId: 'w', runId: 'r' } },
    heartbeat: (details: unknown) => void beats.push(details),
    cancelled,
    cancellationDetails: undefined as ActivityCancellationDetails | undefined,
  }
  const grant: Grant = {
    v: 1,
    leaseId: LEASE,
    pool: 'p',
    pod: world.pod,
    address: world.runner.address,
    incarnation: world.incarnation,
    epoch: 1,
    hit: 'warm',
    waitedMs: 0,
  }
  const run = createRun({ client: {} as Client, signer: world.sign })
  const outcome = asyncLocalStorage
    .run(context as unknown as Context, () => run({ v: 1, grant, jobId: 's/1', job: { command } }))
    .catch((error: unknown) => error)
  return {
    outcome,
    beats,
    end(why: ConstructorParameters<typeof ActivityCancellationDetails>[0], message: string) {
      context.cancellationDetails = new ActivityCancellationDetails(why)
      tell(new CancelledFailure(message))
    },
  }
}

const runs = () => waitUntil('the job runs', () => world.runner.app.fence.running === 's/1')

test('an attempt says in its heartbeats which job it is attached to, and nothing of the output', async () => {
  vi.useFakeTimers({ toFake: ['setInterval'] })
  try {
    const { outcome, end, beats } = attempt(1, 'echo secret; sleep 3600')
    await runs()
    vi.advanceTimersByTime(3_000)
    expect(beats.length).toBeGreaterThan(1)
    for (const beat of beats) expect(beat).toEqual({ v: 1, jobId: 's/1' })
    end({ cancelRequested: true }, 'CANCELLED')
    await outcome
  } finally {
    vi.useRealTimers()
  }
})

describe('an attempt that is ended', () => {
  test('by a cancel of its caller kills its job, and says so once the job is gone', async () => {
    const { outcome, end } = attempt(1, 'sleep 3600')
    await runs()
    end({ cancelRequested: true }, 'CANCELLED')
    expect(await outcome).toBeInstanceOf(CancelledFailure)
    expect(world.runner.app.fence.running).toBeNull()
  })

  test.each(['notFound', 'timedOut', 'workerShutdown', 'paused', 'reset'] as const)(
    'by %s detaches: its job goes on, and the next attempt has its result',
    async (why) => {
      const command = 'echo x >> starts; until [ -e go ]; do sleep 0.01; done; cat starts'
      const { outcome, end } = attempt(1, command)
      await runs()
      end({ [why]: true }, why)
      expect(await outcome).toMatchObject({ type: 'Detached', nonRetryable: false })
      expect(world.runner.app.fence.running).toBe('s/1')
      const next = attempt(2, command)
      writeFileSync(join(world.folders.work, 'go'), '')
      expect(await next.outcome).toMatchObject({ v: 1, jobId: 's/1', exitCode: 0, stdout: 'x\n' })
    },
  )
})
