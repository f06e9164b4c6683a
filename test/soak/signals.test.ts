/** Minutes of load: `npm run soak`, not a part of `npm test`. */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { expect, test } from 'vitest'
import { startDevServer } from '../../dist/server/dev-server.js'
import { FLOODED, flood } from '../support/flood.js'
import { checkFlood } from '../support/flood-checks.js'
import { makeWorld } from '../support/world.js'

test('100 signals a second for 60 s, across continue-as-news as they come: none is lost or doubled', async () => {
  const world = await makeWorld({ workerProcess: true })
  try {
    const pool = await world.pool('soak', FLOODED)
    const collector = await world.start('collector', [])
    // Without tokens: those that nobody asks for are forgotten after a minute.
    const kinds = ['poison', 'release', 'request'] as const
    const sent = await flood(pool, collector, { perSecond: 100, seconds: 60, kinds })
    const { runs } = await checkFlood(world, pool, collector, sent)
    // The last one is by our own order.
    expect(runs).toBeGreaterThan(2)
    await collector.signal('finish')
  } finally {
    await world.close()
  }
})

test('600 signals a second at the default settings of a server, which closes tasks by force: each is acted on once', async () => {
  const logFile = join(mkdtempSync(join(tmpdir(), 'firepool-soak-')), 'server.log')
  const server = await startDevServer({
    logFile,
    dynamicConfig: { 'history.maximumBufferedEventsBatch': 100 },
  })
  const world = await makeWorld({ workerProcess: true, server })
  try {
    const pool = await world.pool('impatient', FLOODED)
    const collector = await world.start('collector', [])
    const sent = await flood(pool, collector, { perSecond: 600, seconds: 10 })
    const { forceClosed } = await checkFlood(world, pool, collector, sent)
    // On two cores one to three were seen in each of four runs: a task of over 160 ms is enough. When each signal cost a pool 0.8 ms,
    // tasks were closed by force until the flood was over, and then it took 6,000 signals in one, which ended the worker.
    expect(forceClosed).toBeLessThan(10)
    await collector.signal('finish')
  } finally {
    await world.close()
    await server.stop()
    rmSync(dirname(logFile), { recursive: true, force: true })
  }
})
