/** Minutes of load: `npm run soak`, not a part of `npm test`. */
import { expect, test } from 'vitest'
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
