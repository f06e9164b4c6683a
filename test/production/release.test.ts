import { afterAll, beforeAll, describe, expect, inject, test } from 'vitest'
import { WORKFLOW } from '../../dist/contract/index.js'
import { afterTheEnd, ENDS } from '../support/ends.js'
import { createNamespace } from '../support/production-server.js'
import { makeWorld, type World, waitUntil } from '../support/world.js'

/** On PostgreSQL and 64 shards, with Firepool's worker in a process of its own: what README.md promises of each end. */

const NAMESPACE = 'release'

let world: World
beforeAll(async () => {
  const { address, parts } = inject('production')
  await createNamespace(parts, address, NAMESPACE)
  world = await makeWorld({ workerProcess: true, server: { address, namespace: NAMESPACE } })
})
afterAll(() => world?.close())

// Side by side, as on a real server: two of them wait for a time limit.
describe.concurrent('a caller that holds a pod ends', () => {
  test.each(ENDS)(
    '$name: zero leases, nothing runs, its files are there for it and for nobody else',
    async (how) => {
      const pool = await world.pool(how.name, { budget: 2 })
      const { pod, kept, stranger, again } = await afterTheEnd(world, pool, how)
      expect(stranger.pod).not.toBe(pod)
      expect(stranger.result).toMatchObject({ exitCode: 1, stdout: '' })
      expect(again).toMatchObject({ pod, hit: 'warm', result: { exitCode: 0, stdout: kept } })
    },
  )
})

test('no lease workflow is left on the server, and pools are found by what our worker registered there', async () => {
  const until = (what: string, query: string, count: number) =>
    waitUntil(what, async () => (await world.client.workflow.count(query)).count === count)
  const running = 'ExecutionStatus = "Running"'
  await until('no lease workflow runs', `WorkflowType = "${WORKFLOW.lease}" AND ${running}`, 0)
  // Pools tell their page late, and this one has had the time.
  const idle = `FirepoolPool = "${ENDS[0]!.name}" AND FirepoolLeased = 0 AND ${running}`
  await until('a pool by its name and state', idle, 1)
})
