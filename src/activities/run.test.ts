import { asyncLocalStorage, type Context } from '@temporalio/activity'
import type { Client } from '@temporalio/client'
import { afterEach, expect, test } from 'vitest'
import { FirepoolError } from '../contract/errors.js'
import type { Grant } from '../contract/lease.js'
import { sickProblem } from '../runner/seat.js'
import { makeWorld, type World } from '../runner/world.fixture.js'
import { createRun } from './run.js'

/** The activity firepool.run against a real runner: what it tells the pool. */

const LEASE = '0b0f9a7e-6f0a-4c2b-9d0e-3c1f5a7b9d11'

let world: World
afterEach(() => world.end())

test("a job that got no GPU in a sick seat set: its pool is told before its caller, with the agent's words", async () => {
  const take = async () => {
    throw new FirepoolError(sickProblem('GPU-a quarantined (dirty). Ask elsewhere.'))
  }
  world = await makeWorld({
    seats: { take, holds: () => false, hasNone: () => true, endEpochs: async () => {} },
  })
  const { incarnation, pod } = world
  await world.broker.bind({ v: 1, epoch: 1, leaseId: LEASE, ownerHash: 'owner', incarnation })
  const told: unknown[] = []
  const client = {
    withDeadline: (_: number, call: () => unknown) => call(),
    workflow: {
      getHandle: (id: string) => ({
        signal: async (name: string, payload: unknown) => void told.push([id, name, payload]),
      }),
    },
  } as unknown as Client
  const grant: Grant = {
    ...{ v: 1, leaseId: LEASE, pool: 'p.2', pod, address: world.runner.address, incarnation, epoch: 1 },
    ...{ hit: 'warm', waitedMs: 0 },
  }
  const context = {
    info: { attempt: 1, activityId: '1', workflowExecution: { workflowId: 'w', runId: 'r' } },
    heartbeat: () => undefined,
    cancelled: new Promise<never>(() => undefined),
  }
  const run = createRun({ client, signer: world.sign })
  const outcome = await asyncLocalStorage
    .run(context as unknown as Context, () => run({ v: 1, grant, jobId: 's/1', job: { command: 'true' } }))
    .catch((error: unknown) => {
      told.push('the caller')
      return error
    })
  expect(outcome).toMatchObject({ type: 'LeaseRevoked', nonRetryable: true })
  const sick = 'GPU-a quarantined (dirty). Ask elsewhere.'
  expect(told).toEqual([
    [
      'pool/p.2',
      'firepool.release',
      { v: 1, leaseId: LEASE, pod, epoch: 1, clean: true, retire: true, sick },
    ],
    'the caller',
  ])
})
