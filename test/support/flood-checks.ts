import type { WorkflowHandle } from '@temporalio/client'
import { expect } from 'vitest'
import { poolWorkflowId, UPDATE } from '../../dist/contract/index.js'
import { badTasks, effectIds, FLOODED, type Flood, handledMs, inputOf, runsOf, spread } from './flood.js'
import { type PoolHandle, type World, waitUntil } from './world.js'

/** Waits until a pool has acted on a whole flood, and checks each of its effects by its number and its ids. */
export async function checkFlood(
  world: World,
  pool: PoolHandle,
  collector: WorkflowHandle,
  sent: Flood,
): Promise<{ runs: number; forceClosed: number }> {
  const { poison, release, token, request } = sent.ids
  const waiting = Math.min(FLOODED.queueLimit, request.length)
  const status = await pool.until(
    'it has acted on all of it',
    (s) => s.poison.count === poison.length && s.queue.capacity === waiting && s.effectsInFlight === 0,
  )
  const told = await waitUntil('all that were refused have heard so', async () => {
    const all = await collector.query<Record<string, number>>('told')
    return Object.keys(all).length >= request.length - waiting ? all : null
  })
  // From the state that it carries: everything that a flood leaves, by its ids.
  const before = (await pool.handle.describe()).runId
  await pool.handle.executeUpdate(UPDATE.upgrade)
  await waitUntil('it has continued as new', async () => (await pool.handle.describe()).runId !== before)
  const runs = await runsOf(world, poolWorkflowId(pool.name))
  const { carried } = inputOf(runs.at(-1)!)
  const waits = new Set(carried.leases.map(([leaseId]) => leaseId))
  expect(waits.size).toBe(waiting)
  const refused = request.filter((id) => !waits.has(id))
  expect(told).toEqual(Object.fromEntries(refused.map((id) => [id, 1])))
  expect(carried.tombstones.length).toBe(release.length + refused.length)
  expect(carried.earlyTokens.map(([id]) => id).sort()).toEqual([...token].sort())
  expect(carried.poison.count).toBe(poison.length)
  expect(status.ends).toMatchObject({ released: 0, podLost: 0, expired: 0 })
  // By the histories: each signal once, acted on once.
  const handled = handledMs(runs, sent.sentAt)
  expect(handled.size).toBe(sent.sentAt.size)
  expect([...handled.values()].filter((times) => times.length !== 1)).toEqual([])
  const notices = effectIds(runs)
  expect(notices.length).toBe(refused.length)
  expect(new Set(notices).size).toBe(refused.length)
  const { forceClosed, others } = badTasks(runs)
  expect(others).toEqual([])
  const accepted = JSON.stringify(spread(sent.acceptedMs))
  const acted = JSON.stringify(spread([...handled.values()].flat()))
  console.log(
    `${pool.name}: seed ${sent.seed}, ${sent.sentAt.size} signals at ${sent.perSecond}/s, ${runs.length} runs, ${forceClosed} workflow tasks closed by force; accepted after (ms) ${accepted}, acted on after ${acted}`,
  )
  return { runs: runs.length, forceClosed }
}
