/** A change of template on real pods: a broken one disturbs nobody, a good one replaces everything. */
import { afterAll, beforeAll, expect, test } from 'vitest'
import { CORE_VERSION, createState, snapshot } from '../../dist/broker/index.js'
import { checkPoolSpec } from '../../dist/contract/index.js'
import type { Ran } from '../support/callers.js'
import { holderOf } from '../support/holder.js'
import { makeWorld, type World, waitUntil } from '../support/world.js'

let world: World
beforeAll(async () => {
  world = await makeWorld()
})
afterAll(() => world?.close())

/** Pods that know which release they are of. */
const releaseOf = (name: string) => ({ prepare: ['/bin/sh', '-c', `echo ${name} > release`] })
const BROKEN = { prepare: ['/bin/sh', '-c', 'echo no such driver >&2; exit 3'] }

test('a broken template stops by name while callers come and go, and a good one rolls all pods (F6, F7, F11)', async () => {
  const spec = { v: 1, name: 'rolls', budget: 3, standby: 1, keepAliveMs: 1_000 }
  const pool = await world.pool('rolls', { ...spec, profile: releaseOf('one') })
  const apply = (profile: unknown) => pool.handle.signal('firepool.apply', { ...spec, profile })
  const holder = await holderOf(world, 'rolls', { caller: 'holder', pin: '1h' })
  await holder.job('cat release')
  const { pod } = await holder.nth(1)

  let going = true
  const served: string[] = []
  const callers = (async () => {
    for (let n = 0; going; n++) {
      const jobs = [{ command: 'cat release' }, { command: 'cat release' }]
      const handle = await world.start<Ran[]>('loop', [
        { pool: 'rolls', caller: `c${n}`, jobs, release: true },
      ])
      for (const { result } of await handle.result()) served.push(result.stdout.trim())
    }
  })()
  callers.catch(() => undefined)

  await apply(BROKEN)
  const stopped = await pool.until('it has stopped', (s) => s.rollout?.stopped !== undefined)
  expect(stopped.rollout).toMatchObject({ from: 1, to: 2, proven: false, newReady: 0 })
  expect(stopped.rollout?.stopped?.message).toMatch(/PrepareFailed.*no such driver/s)
  const before = served.length
  await pool.until('others are served meanwhile', () => served.length >= before + 6)
  expect(new Set(served)).toEqual(new Set(['one']))

  await apply(releaseOf('three'))
  await pool.until('only what is held is of an earlier one', (s) => {
    return s.rollout?.proven === true && s.rollout.oldPods === 1 && s.standby.ready === 1
  })
  await pool.until('callers have pods of the new one', () => served.at(-1) === 'three')
  going = false
  await callers
  await holder.job('cat release')
  expect(await holder.nth(2)).toMatchObject({ pod, result: { stdout: 'one\n' } })
  await holder.finish()
  const done = await pool.until('all are of the new one', (s) => s.rollout === undefined)
  expect(done).toMatchObject({ generation: 3, breaker: { open: false, failures: 0 } })
  expect(new Set(served)).toEqual(new Set(['one', 'three']))
})

test('a pool that was carried over by the release before goes on under the newest core, and says so once', async () => {
  const given = { budget: 1, standby: 1 }
  const spec = checkPoolSpec({ v: 1, name: 'older', ...given }).value!
  const pool = await world.pool('older', given, {
    carried: snapshot(createState(spec, 'abc123', Date.now(), 1)),
  })
  expect(await pool.status()).toMatchObject({ coreVersion: CORE_VERSION, standby: { ready: 1 } })
  const marks = async () => {
    const { events } = await pool.handle.fetchHistory()
    return events?.filter((event) => event.markerRecordedEventAttributes).length
  }
  expect(await marks()).toBe(1)
  const { runId } = await pool.handle.describe()
  await pool.handle.executeUpdate('firepool.upgrade')
  await waitUntil('it continued as new', async () => (await pool.handle.describe()).runId !== runId)
  expect((await pool.status()).coreVersion).toBe(CORE_VERSION)
  expect(await marks()).toBe(0)
})
