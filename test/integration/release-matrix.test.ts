import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { testStartsAgain } from '../support/starts-again.js'
import { makeWorld, type World, waitUntil } from '../support/world.js'

/** Ends and restarts of callers beyond those of lease.test.ts: one lease at most, none at the end. */

let world: World
beforeAll(async () => {
  world = await makeWorld()
})
afterAll(() => world?.close())

describe.concurrent('a caller that starts again', () => {
  testStartsAgain(() => world, { budget: 2, standby: 1 })
})

test('a hundred rounds of request, cancel and release, in one task and across tasks, leave nothing', async () => {
  const pool = await world.pool('rounds', { budget: 2, standby: 1 })
  await (await world.start('rounds', [{ pool: 'rounds', rounds: 50 }])).result()
  const status = await pool.until(
    'zero leases and nobody waits',
    (s) => s.leases === 0 && s.queue.capacity === 0 && s.queue.slotBusy === 0 && s.effectsInFlight === 0,
  )
  // Each told its pool of its end before it ended itself: the backstop found none.
  expect(status).toMatchObject({ leaked: 0, ends: { failed: 0, podLost: 0 } })
  await waitUntil('no lease workflow is left', async () => {
    const query = 'WorkflowType = "firepool.lease" AND ExecutionStatus = "Running"'
    for await (const _ of world.client.workflow.list({ query })) return false
    return true
  })
})
