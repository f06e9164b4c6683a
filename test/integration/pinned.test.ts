import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { Ran } from '../support/callers.js'
import { afterTheEnd, ENDS } from '../support/ends.js'
import { testStartsAgain } from '../support/starts-again.js'
import { makeWorld, type World } from '../support/world.js'

/** Pinned leases: the release matrix once more, on pools that keep nothing alive by themselves; renewal and expiry. */

const PIN = '10s'

let world: World
beforeAll(async () => {
  world = await makeWorld()
})
afterAll(() => world?.close())

const keepsNothing = { budget: 2, keepAliveMs: 0 }

describe.concurrent('a caller that holds a pinned pod ends', () => {
  test.each(ENDS)(
    '$name: zero leases, nothing runs, its pod is kept for it and for nobody else',
    async (how) => {
      const pool = await world.pool(`pin-${how.name}`, keepsNothing)
      const { pod, kept, stranger, again } = await afterTheEnd(world, pool, how, { pin: PIN })
      expect(stranger.pod).not.toBe(pod)
      expect(stranger.result).toMatchObject({ exitCode: 1, stdout: '' })
      expect(again).toMatchObject({ pod, hit: 'warm', result: { exitCode: 0, stdout: kept } })
    },
  )
})

describe.concurrent('a caller with a pinned pod starts again', () => {
  testStartsAgain(() => world, { ...keepsNothing, standby: 1 }, { pin: PIN })
})

describe.concurrent('a caller that thinks', () => {
  const thinks = (pool: string, renews: boolean) =>
    world.start<Ran[]>('pinned', [{ pool, pin: PIN, pauseMs: 4_000, pauses: 4, renews }])

  test('for longer than its pin and renews it finds its pod, although the pool keeps nothing alive', async () => {
    const pool = await world.pool('renews', keepsNothing)
    const [first, last] = await (await thinks('renews', true)).result()
    expect(last).toMatchObject({ pod: first!.pod, epoch: first!.epoch, result: { stdout: 'x\nx\n' } })
    const { ends } = await pool.until('zero leases', (s) => s.leases === 0)
    expect(ends).toMatchObject({ released: 1, expired: 0, recalled: 0 })
  })

  test('and renews nothing loses it when the pin is over; the next job acquires again by itself', async () => {
    const pool = await world.pool('expires', keepsNothing)
    const [first, last] = await (await thinks('expires', false)).result()
    expect(last!.pod).not.toBe(first!.pod)
    expect(last!.result.stdout).toBe('x\n')
    const { ends } = await pool.until('zero leases', (s) => s.leases === 0)
    expect(ends).toMatchObject({ released: 1, expired: 1, recalled: 0 })
  })
})
