import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { createFirepoolClient } from '../../dist/client/index.js'
import type { Problem } from '../../dist/contract/index.js'
import { startDevServer } from '../../dist/server/dev-server.js'
import { holderOf } from '../support/holder.js'
import { makeWorld, type World, waitUntil } from '../support/world.js'

let world: World
beforeAll(async () => {
  world = await makeWorld({ workerProcess: true })
})
afterAll(() => world?.close())

const SILENT = { code: 'QueueTimeout', details: { reason: 'PoolSilent' } }

/** A workflow in the place of a pool that takes whatever it is told, and answers nobody. */
async function deafPool(name: string) {
  const handle = await world.start('listener', [], { workflowId: `pool/${name}` })
  const told = async (signal: string) => {
    const { events } = await handle.fetchHistory()
    return (events ?? []).filter(
      (event) => event.workflowExecutionSignaledEventAttributes?.signalName === signal,
    ).length
  }
  return { handle, told }
}

describe('a pool that says nothing', () => {
  test('a caller ends typed after its acquireTimeout and a margin; what it asked for is released, and it can go on', async () => {
    const deaf = await deafPool('deaf')
    const holder = await holderOf(world, 'deaf', { acquireTimeout: '1s' })
    await holder.job('true')
    const failed = (await holder.outcome(1)) as Problem
    expect(failed).toMatchObject(SILENT)
    expect(failed.message).toMatch(/pool deaf has not answered within 21000 ms.*Look whether firepool worker/)
    await waitUntil('it was released', async () => (await deaf.told('firepool.release')) === 1)
    expect(await deaf.told('firepool.request')).toBe(1)
    await deaf.handle.signal('finish', 'complete')
    await deaf.handle.result()
    // A pool that comes after all serves it.
    const pool = await world.pool('deaf', { budget: 1, standby: 1 })
    await holder.job('echo on')
    expect((await holder.nth(2)).result.stdout).toBe('on\n')
    await holder.finish()
    await pool.until('nothing is left', (s) => s.leases === 0 && s.queue.capacity === 0)
  })

  test('a one-call job and a session end typed as well', async () => {
    const deaf = await deafPool('mute')
    const firepool = createFirepoolClient({ client: world.client })
    const job = { command: 'true' }
    const problemOf = (run: Promise<unknown>) =>
      run.then(
        () => 'it ran',
        (error: { problem?: Problem }) => error.problem ?? error,
      )
    const session = firepool.session('mute', { caller: 'ann', acquireTimeout: '1s' })
    const said = await Promise.all([
      problemOf(firepool.runJob({ pool: 'mute', job, caller: 'bob', acquireTimeout: '1s' })),
      problemOf(session.run(job)),
    ])
    for (const problem of said) expect(problem).toMatchObject(SILENT)
    await session.end()
    await waitUntil('both were released', async () => (await deaf.told('firepool.release')) === 2)
    await deaf.handle.signal('finish', 'complete')
  })

  test('without any worker too; the request that the next worker finds leaves no lease, however late its grant', async () => {
    const pool = await world.pool('orphan', { budget: 1, standby: 1 })
    await world.killWorker()
    const holder = await holderOf(world, 'orphan', { acquireTimeout: '5s' })
    await holder.job('true')
    expect(await holder.outcome(1)).toMatchObject(SILENT)
    await world.startWorker()
    await pool.until('it serves again', (s) => s.standby.ready === 1)
    await holder.job('echo on')
    expect((await holder.nth(2)).result.stdout).toBe('on\n')
    await pool.until('one lease', (s) => s.leases === 1 && s.queue.capacity === 0)
    await holder.finish()
    await pool.until('none', (s) => s.leases === 0 && s.leaked === 0)
  })
})

/** The server takes no more signals in one run of a workflow. */
const SIGNALS = 20

describe('a renewal', () => {
  test('tells a pool that is gone from one that takes no more signals', async () => {
    const dir = await mkdtemp(join(tmpdir(), 'firepool-test-'))
    const dynamicConfig = { 'history.maximumSignalsPerExecution': SIGNALS }
    const server = await startDevServer({ logFile: join(dir, 'server.log'), dynamicConfig })
    const busy = await makeWorld({ server })
    try {
      const pool = await busy.pool('busy', { budget: 1, standby: 1 })
      const handle = await busy.start<string[]>('renewer', [{ pool: 'busy' }])
      const said = (n: number) =>
        waitUntil(`it said ${n} things`, async () => (await handle.query<string[]>('said'))[n - 1] ?? null)
      const fill = async () => {
        for (let i = 0; i < SIGNALS; i++) await pool.handle.signal('firepool.resume').catch(() => undefined)
      }
      expect(await said(1)).toBe('held')
      await fill()
      await handle.signal('renew')
      expect(await said(2)).toMatch(/^QueueFull: pool busy took no signal.*Try again in some seconds/)
      // It goes on meanwhile, as a pool does by itself long before that.
      await handle.signal('renew')
      await pool.handle.executeUpdate('firepool.upgrade')
      expect(await said(3)).toBe('renewed')
      await pool.handle.terminate()
      await handle.signal('renew')
      expect(await said(4)).toMatch(/^PoolNotFound: there is no pool 'busy'/)
      await handle.terminate()
    } finally {
      await busy.close()
      await server.stop()
      await rm(dir, { recursive: true, force: true })
    }
  })
})
