import { randomUUID } from 'node:crypto'
import type { WorkflowHandle } from '@temporalio/client'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type Grant, type LeaseEnd, type LeaseRequest, SIGNAL } from '../../dist/contract/index.js'
import { Chaos } from '../support/chaos.js'
import { type PoolHandle, waitUntil } from '../support/world.js'

let chaos: Chaos
beforeAll(async () => {
  chaos = await Chaos.open()
})
afterAll(() => chaos?.close())

describe('a request that comes again', () => {
  let pool: PoolHandle
  let listener: WorkflowHandle
  let holder: LeaseRequest['holder']
  const heard = () => listener.query<{ grants: Grant[]; ends: LeaseEnd[] }>('heard')
  const of = async (leaseId: string) => {
    const { grants, ends } = await heard()
    const mine = (one: { leaseId: string }) => one.leaseId === leaseId
    return { grants: grants.filter(mine), ends: ends.filter(mine) }
  }

  beforeAll(async () => {
    pool = await chaos.pool('again', { budget: 3, standby: 1, keepAliveMs: 600_000 })
    listener = await chaos.world.start('listener', [])
    const { runId } = await listener.describe()
    holder = { workflowId: listener.workflowId, firstExecutionRunId: runId, runId }
  })
  afterAll(() => listener?.signal('finish'))

  const request = (leaseId: string): LeaseRequest => ({
    v: 1,
    leaseId,
    holder,
    leaseWorkflowId: holder.workflowId,
    caller: leaseId,
    reuseTag: '',
    slot: leaseId,
    tenant: '',
    priority: 0,
    requestedAtMs: Date.now(),
    deadlineMs: Date.now() + 600_000,
    replyTo: 'signal',
    pinMs: 0,
  })
  const send = (asked: LeaseRequest) => pool.handle.signal(SIGNAL.request, asked)
  async function granted(asked: LeaseRequest): Promise<Grant> {
    await send(asked)
    return await waitUntil('the grant', async () => (await of(asked.leaseId)).grants[0] ?? null)
  }
  /** Sends it again and waits until that is answered: with `ended`, and no grant beside the one of before. */
  async function expectEnded(asked: LeaseRequest): Promise<void> {
    const before = (await of(asked.leaseId)).ends.length
    await send(asked)
    await waitUntil('the answer', async () => (await of(asked.leaseId)).ends.length > before)
    const { grants, ends } = await of(asked.leaseId)
    expect(ends.at(-1)).toMatchObject({ end: 'failed', problem: { code: 'LeaseRevoked' } })
    expect(grants).toHaveLength(1)
  }
  async function continueAsNew(): Promise<void> {
    const { runId } = await pool.handle.describe()
    await pool.handle.executeUpdate('firepool.upgrade')
    await waitUntil('a new run', async () => (await pool.handle.describe()).runId !== runId)
  }

  test('after a release, a recall and continue-as-new is answered with its end, a live one with the same grant', async () => {
    const released = request(randomUUID())
    await granted(released)
    await pool.handle.signal(SIGNAL.release, { v: 1, leaseId: released.leaseId })
    await pool.until('released', (s) => s.ends.released === 1)
    await expectEnded(released)

    const recalled = request(randomUUID())
    await granted(recalled)
    await pool.handle.signal(SIGNAL.drain, { v: 1 })
    await waitUntil('recalled', async () => (await of(recalled.leaseId)).ends[0]?.end === 'recalled')
    await pool.handle.signal(SIGNAL.resume, { v: 1 })
    await expectEnded(recalled)

    const live = request(randomUUID())
    const grant = await granted(live)
    await send(live)
    await waitUntil('its second answer', async () => (await of(live.leaseId)).grants.length === 2)
    await continueAsNew()
    await expectEnded(released)
    await expectEnded(recalled)
    await send(live)
    await waitUntil('its third answer', async () => (await of(live.leaseId)).grants.length === 3)
    for (const again of (await of(live.leaseId)).grants) expect(again).toMatchObject({ ...grant })
    const { grants, leases } = await pool.status()
    expect(grants.warm + grants.standby + grants.cold).toBe(3)
    expect(leases).toBe(1)
    await pool.handle.signal(SIGNAL.release, { v: 1, leaseId: live.leaseId })
    await chaos.expectNothingLeft(pool)
  })
})
