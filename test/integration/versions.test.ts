/** A worker of one release and pods of another, which do not understand each other: refused by name and replaced, nothing hangs. */
import { readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import type { LeaseEnd } from '../../dist/contract/index.js'
import { holderOf, marker } from '../support/holder.js'
import { makeWorld, processWith, type World, waitUntil } from '../support/world.js'

let world: World
beforeAll(async () => {
  world = await makeWorld({ workerProcess: true })
})
afterAll(() => world?.close())

/** Makes what a pod said about itself what one of another release would have said. */
function ofAnotherVersion(pod: string, v: number): void {
  const folder = join(world.dir, 'firepool', 'pods', pod)
  const run = readdirSync(folder).find((name) => name.startsWith('run-'))!
  const file = join(folder, run, 'ready.json')
  writeFileSync(file, JSON.stringify({ ...JSON.parse(readFileSync(file, 'utf8')), v }))
}

test('a new worker adopts no pod of another version: idle ones are replaced, a running job is PodLost, the next one runs', async () => {
  const pool = await world.pool('versions', { budget: 4, standby: 1 })
  const idle = await holderOf(world, 'versions', { caller: 'idle' })
  const busy = await holderOf(world, 'versions', { caller: 'busy' })
  const quiet = await holderOf(world, 'versions', { caller: 'quiet' })
  await idle.job('echo 1')
  const first = await idle.nth(1)
  await quiet.job('true')
  await quiet.nth(1)
  const mark = marker()
  await busy.job('sleep 3600', { env: { MARK: mark } })
  await waitUntil('the job runs', () => processWith(mark).length > 0)
  await pool.until('a standby is there', (s) => s.standby.ready === 1)
  await world.killWorker()
  const old = readdirSync(join(world.dir, 'firepool', 'pods'))
  for (const pod of old) ofAnotherVersion(pod, 0)
  await world.startWorker()
  expect(await busy.outcome(1)).toMatchObject({ code: 'PodLost', origin: 'infrastructure' })
  await idle.job('echo 2')
  const second = await idle.nth(2)
  expect(second.pod).not.toBe(first.pod)
  await busy.job('echo 3')
  expect((await busy.nth(2)).result.stdout).toBe('3\n')
  const status = await pool.until('all are replaced', (s) => s.standby.ready === 1 && s.pods.deleting === 0)
  expect(status.breaker).toMatchObject({ open: false, failures: 0 })
  await waitUntil('the old pods are gone', () =>
    old.every((pod) => processWith(`FIREPOOL_POD=${pod}\u0000`).length === 0),
  )
  await waitUntil('a lease that only waited is told by name', async () =>
    (await endsOfLeases()).some(({ problem }) => problem?.details?.reason === 'ContractVersion'),
  )
  await idle.finish()
  await busy.finish()
  await quiet.finish()
})

async function endsOfLeases(): Promise<LeaseEnd[]> {
  const ends: LeaseEnd[] = []
  const query = 'WorkflowType="firepool.lease" AND ExecutionStatus="Completed"'
  for await (const { workflowId } of world.client.workflow.list({ query }))
    ends.push((await world.client.workflow.getHandle(workflowId).result()) as LeaseEnd)
  return ends
}
