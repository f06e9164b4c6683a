import { afterAll, beforeAll, expect, test } from 'vitest'
import type { Ran } from '../support/callers.js'
import { makeWorld, type World } from '../support/world.js'

let world: World
beforeAll(async () => {
  world = await makeWorld()
})
afterAll(() => world?.close())

test('a loop holds its lease: the first job acquires, all jobs run on the same pod and epoch', async () => {
  const pool = await world.pool('hold')
  const handle = await world.start<Ran[]>('loop', [{ pool: 'hold', jobs: [{ command: 'echo one > f; echo 1' }, { command: 'cat f' }, { command: ['false'] }] }])
  const ran = await handle.result()
  expect(ran.map((r) => r.result.stdout)).toEqual(['1\n', 'one\n', ''])
  expect(ran[2]!.result.exitCode).toBe(1)
  expect(new Set(ran.map((r) => `${r.pod}/${r.epoch}`)).size).toBe(1)
  expect(ran[0]!.hit).toBe('standby')
  await pool.until('the end of the caller is the release', (s) => s.leases === 0)
})
