import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { Chaos } from '../support/chaos.js'
import { holderOf } from '../support/holder.js'
import { waitUntil } from '../support/world.js'

let chaos: Chaos
beforeAll(async () => {
  chaos = await Chaos.open()
})
afterAll(() => chaos?.close())

describe('more jobs at once than a Temporal worker takes by default (100)', () => {
  const PODS = 6
  /** One runs and the others wait in the runner: each of them occupies a slot of the worker. */
  const JOBS_OF_POD = 17

  test('hold up neither pods nor drains nor the jobs of others', async () => {
    const crowded = await chaos.pool('crowded', { budget: PODS + 1, standby: 1, maxPods: PODS + 3 })
    const crowds = await Promise.all(
      Array.from({ length: PODS }, (_, n) =>
        chaos.world.start('crowd', [
          { pool: 'crowded', caller: `crowd-${n}`, jobs: JOBS_OF_POD, job: { command: 'sleep 3600' } },
        ]),
      ),
    )
    const taken = async () => {
      const described = await Promise.all(crowds.map((handle) => handle.describe()))
      return described.flatMap(({ raw }) => raw.pendingActivities ?? []).filter(({ state }) => state === 2)
        .length
    }
    await waitUntil('a worker has all of them', async () => (await taken()) === PODS * JOBS_OF_POD)
    expect(PODS * JOBS_OF_POD).toBeGreaterThan(100)

    await chaos.runsNext('crowded', 'other')
    const beside = await chaos.pool('beside', { keepAliveMs: 300 })
    const holder = await holderOf(chaos.world, 'beside')
    await holder.job(chaos.told('beside', 'job'))
    await holder.nth(1)
    await beside.until('its lease was drained', (s) => s.ends.recalled === 1)
    await holder.finish()
    await chaos.expectNothingLeft(beside)
    expect(await taken()).toBe(PODS * JOBS_OF_POD)

    for (const handle of crowds) await handle.terminate('over')
    await chaos.expectNothingLeft(crowded)
  })
})
