import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { createFirepoolClient } from '../../dist/client/index.js'
import { startDevServer } from '../../dist/server/dev-server.js'
import { holderOf } from '../support/holder.js'
import { makeWorld, type World, waitUntil } from '../support/world.js'

const HOT = '\u{1F525}'
/** Of 512 bytes, the most that a caller may have. */
const LONG = HOT.repeat(128)

async function found(world: World, query: string): Promise<string[]> {
  const types: string[] = []
  for await (const { type } of world.client.workflow.list({ query })) types.push(type)
  return types
}

test("finds leases and one-call jobs by caller and tenant, however long the caller's name is", async () => {
  const world = await makeWorld()
  try {
    const pool = await world.pool('found', { budget: 3, keepAliveMs: 0 })
    const firepool = createFirepoolClient({ client: world.client })
    // A worker that has just started waits until the whole server knows of the attributes.
    await waitUntil('one-call jobs have them', async () => {
      await firepool.runJob({ pool: 'found', job: { command: 'true' }, caller: 'first' })
      return (await found(world, 'FirepoolCaller = "first"')).includes('firepool.runJob')
    })
    const holders = await Promise.all(
      ['ann', LONG].map((caller) => holderOf(world, 'found', { caller, tenant: 'red' })),
    )
    for (const holder of holders) await holder.job('true')
    for (const holder of holders) await holder.nth(1)
    const held = 'FirepoolTenant = "red" AND FirepoolPool = "found" AND ExecutionStatus = "Running"'
    await waitUntil('both are found', async () => (await found(world, held)).length === 2)
    expect(await found(world, `${held} AND FirepoolCaller = "ann"`)).toEqual(['firepool.lease'])
    expect(await found(world, `${held} AND FirepoolCaller STARTS_WITH "${HOT}"`)).toEqual(['firepool.lease'])
    for (const holder of holders) await holder.finish()
    await pool.until('all is given back', (s) => s.leases === 0)
  } finally {
    await world.close()
  }
})

test('sets none where one of them is missing, and serves all the same', async () => {
  const dir = await mkdtemp(join(tmpdir(), 'firepool-test-'))
  // One is there under another type: nobody can mend that without the operator.
  const server = await startDevServer({
    logFile: join(dir, 'server.log'),
    searchAttributes: { FirepoolCaller: 'Int' },
  })
  try {
    const world = await makeWorld({ server })
    try {
      const pool = await world.pool('bare', { budget: 2 })
      const holder = await holderOf(world, 'bare', { caller: 'ann' })
      await holder.job('echo on')
      expect((await holder.nth(1)).result.stdout).toBe('on\n')
      await pool.until('it knows why', (s) => /FirepoolCaller is registered/.test(s.searchAttributes ?? ''))
      await holder.finish()
      await pool.until('it is given back', (s) => s.leases === 0)
      expect(await found(world, 'FirepoolPool = "bare"')).toEqual([])
    } finally {
      await world.close()
    }
  } finally {
    await server.stop()
    await rm(dir, { recursive: true, force: true })
  }
})
