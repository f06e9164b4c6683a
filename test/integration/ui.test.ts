/** Everything an operator can know from the Temporal UI alone, in a real browser; the pictures are for people. */
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { type PoolStatus, poolWorkflowId, SIGNAL } from '../../dist/contract/index.js'
import { openTemporalUi, type PageView, type TemporalUi } from '../support/browser.js'
import { holderOf } from '../support/holder.js'
import { makeWorld, type PoolHandle, type World, waitUntil } from '../support/world.js'

let world: World
let ui: TemporalUi

beforeAll(async () => {
  world = await makeWorld({ uiPort: 0 })
  ui = await openTemporalUi(process.env.FIREPOOL_SCREENSHOTS ?? join(world.dir, 'screenshots'))
})
afterAll(async () => {
  await ui?.close()
  await world?.close()
})

const open = (workflowId: string, waitForText: string): Promise<PageView> =>
  ui.openWorkflow(world.server.uiUrl!, world.server.namespace, workflowId, waitForText)

/** The rows of the page's tables, as their cells. */
const rowsOf = (view: PageView) =>
  view.text
    .split('\n')
    .filter((line) => line.includes('\t'))
    .map((line) => line.split('\t').map((cell) => cell.trim()))

/** What the status query says, in the words of the page's headline. */
const headlineOf = ({ pool, mode, budget, leases, pods, queue }: PoolStatus) =>
  `Pool ${pool}: ${mode}: ${budget.held} of ${budget.inForce} seats, ${leases} leases, ${pods.idle} warm, ` +
  `${pods.standby} standby, ${queue.capacity + queue.slotBusy} waiting`

/** Two held leases, one warm pod, two standbys, one request that waits for the budget and one for its slot. */
async function busyPool(
  name: string,
): Promise<{ pool: PoolHandle; status: PoolStatus; holderIds: string[] }> {
  const pool = await world.pool(name, { budget: 3, standby: 2, keepAliveMs: '10m' })
  const working = await holderOf(world, name, { caller: 'agent_ann', slot: 'a' })
  await working.job('sleep 3600')
  await pool.until('the first holds its lease', (s) => s.pods.leased === 1 && s.standby.ready === 2)
  const pausing = await holderOf(world, name, { caller: 'agent_ann', slot: 'b' })
  await pausing.job(['python3', '-c', 'print("a | b")'])
  await pausing.nth(1)
  const over = await holderOf(world, name, { caller: 'bob *x* | ![y](http://127.0.0.1/z.png)' })
  await over.job('true')
  await over.nth(1)
  await over.finish()
  await pool.until('the third is over, its pod warm', (s) => s.pods.idle === 1)
  const waiting = await holderOf(world, name, { caller: 'carol', priority: 7 })
  await waiting.job('true')
  const second = await holderOf(world, name, { caller: 'agent_ann', slot: 'a' })
  await second.job('true')
  const status = await pool.until(
    'all is at rest',
    (s) =>
      s.queue.capacity === 1 && s.queue.slotBusy === 1 && s.standby.ready === 2 && s.effectsInFlight === 0,
  )
  expect(status).toMatchObject({ leases: 2, budget: { held: 3, inForce: 3 }, pods: { leased: 2, idle: 1 } })
  return {
    pool,
    status,
    holderIds: [working, pausing, over, waiting, second].map((h) => h.handle.workflowId),
  }
}

test('the pages of a pool, its leases and its callers say what they are doing and why', async () => {
  const { pool, status, holderIds } = await busyPool('h200')

  const page = await open(poolWorkflowId('h200'), headlineOf(status))
  expect(page.text).toContain('3 of 3 seats held (the pool file says so; guarantee 3)')
  expect(page.text).toContain(
    '5 of at most 7: 2 leased, 1 idle (warm for its last caller), 2 standby (2 wanted)',
  )
  expect(page.text).toContain(`${status.grants.warm} warm, ${status.grants.standby} standby, 0 cold`)
  const rows = rowsOf(page)
  const { rows: pods } = await pool.handle.query<{ rows: { pod: string; state: string }[] }>('firepool.pods')
  expect(pods).toHaveLength(5)
  for (const { pod, state } of pods) {
    expect(rows.find(([name]) => name === pod)?.[1], `the row of pod ${pod}`).toBe(state)
  }
  for (const { pod, leaseId, slot, epoch } of status.leased) {
    expect(rows.find(([name]) => name === pod)?.slice(1, 6)).toEqual([
      'leased',
      'agent_ann',
      slot,
      leaseId.slice(0, 8),
      String(epoch),
    ])
  }
  expect(page.text).not.toContain('&nbsp;')
  const idle = pods.find(({ state }) => state === 'idle')!.pod
  expect(rows.find(([name]) => name === idle)?.[2]).toBe('bob *x* | ![y](http://127.0.0.1/z.png)')
  expect(rows.find(([n]) => n === '1')?.filter((_, i) => i < 4 || i === 6)).toEqual([
    '1',
    'carol',
    '0',
    '7',
    'BudgetExhausted',
  ])
  expect(rows.find(([n]) => n === '2')?.filter((_, i) => i < 4 || i === 6)).toEqual([
    '2',
    'agent_ann',
    'a',
    '5',
    'SlotBusy',
  ])
  expect(page.text).toContain('BudgetExhausted: all 3 seats of the budget are held')
  expect(page.text).toContain('SlotBusy: another workflow holds this slot')
  // Beside the details: the summaries of what the pool does.
  for (const { pod, leaseId } of status.leased)
    expect(page.text).toContain(`grant pod ${pod} (standby) to lease ${leaseId.slice(0, 8)}`)
  expect(page.text).toContain('watch the pods of pool h200')

  const [held] = status.leased
  const leases = await leaseWorkflows()
  const lease = await open(
    leases.find((id) => id.endsWith(held!.leaseId))!,
    `Lease of pool h200: holds pod ${held!.pod}`,
  )
  expect(lease.text).toContain(`Lease: ${held!.leaseId}`)
  expect(lease.text).toContain(`Caller: agent_ann, slot ${held!.slot}`)
  expect(lease.text).toContain(`Pod: ${held!.pod}, epoch ${held!.epoch}`)
  expect(lease.text).toContain('Hit class: standby, a started pod that had no caller')
  expect(lease.text).toContain(`Holder: workflow ${holderIds[held!.slot === 'a' ? 0 : 1]}`)

  const waits = await open(leases.find((id) => id.includes('/carol-'))!, 'asked for a pod')
  expect(waits.text).toContain(`Holder: workflow ${holderIds[3]}`)
  const ended = await open(leases.find((id) => id.includes('/bob-'))!, 'Lease of pool h200: released')
  expect(ended.text).toContain('Caller: bob')

  const caller = await open(holderIds[1]!, 'pod of pool h200 for agent_ann, slot b')
  expect(caller.text).toContain('python3 -c print("a | b")')
})

test('unreadable input and pods that do not start stand at the top of the page', async () => {
  const pool = await world.pool('broken', {
    standby: 0,
    profile: { prepare: ['/bin/sh', '-c', 'echo no such device >&2; exit 3'] },
  })
  await pool.handle.signal(SIGNAL.release, { v: 1, leaseId: 'nonsense' })
  const holder = await holderOf(world, 'broken', { caller: 'dora' })
  await holder.job('true')
  expect(await holder.outcome(1)).toMatchObject({ code: 'PodStartFailed' })
  // A wanted standby keeps the pool trying, each time after a longer pause.
  await pool.handle.signal(SIGNAL.resize, { v: 1, standby: 1 })
  await pool.until('the breaker is open', (s) => s.breaker.open && s.breaker.failures >= 4)
  const page = await open(poolWorkflowId('broken'), 'Pods do not start')
  const { breaker } = await pool.status()
  const failures = Number(/Pods do not start: (\d+) failures in a row/.exec(page.text)?.[1])
  expect(failures).toBeGreaterThanOrEqual(3)
  expect(failures).toBeLessThanOrEqual(breaker.failures)
  expect(page.text).toMatch(/Nothing is created until \d\d:\d\d:\d\d/)
  expect(page.text).toContain('no such device')
  expect(page.text).toContain(
    'Unreadable input: 1 dropped. The last: firepool.release: a leaseId is a random uuid',
  )
  const failed = (await leaseWorkflows()).find((id) => id.includes('/dora-'))!
  const lease = await open(failed, 'Lease of pool broken: failed')
  expect(lease.text).toContain('PodStartFailed: pods of pool broken do not start')
  expect(lease.text).toContain('no such device')
})

test('a text of control characters in a caller or a command never fails a workflow task', async () => {
  await world.pool('odd')
  const odd = '\u0001'.repeat(128)
  const holder = await holderOf(world, 'odd', { caller: odd, slot: odd })
  await holder.job(`true ${'\ud83d\u0002'.repeat(100)}`)
  expect((await holder.nth(1)).result.exitCode).toBe(0)
  await holder.finish()
})

/** Ids of all lease workflows, once visibility knows those of the callers so far. */
async function leaseWorkflows(): Promise<string[]> {
  return waitUntil('visibility lists the leases', async () => {
    const ids: string[] = []
    for await (const { workflowId } of world.client.workflow.list({
      query: 'WorkflowType = "firepool.lease"',
    }))
      ids.push(workflowId)
    return ids.length >= 5 ? ids : null
  })
}
