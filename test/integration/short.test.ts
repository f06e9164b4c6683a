import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import type { Ran } from '../support/callers.js'
import { marker } from '../support/holder.js'
import { makeWorld, processWith, type World } from '../support/world.js'

/** Jobs declared short: local activities of the caller's own worker, with tokens of the broker's endpoint. */

let world: World
beforeAll(async () => {
  world = await makeWorld({ plugin: true })
})
afterAll(() => world?.close())

async function eventsOf(workflowId: string, { client } = world) {
  const { events } = await client.workflow.getHandle(workflowId).fetchHistory()
  const all = events ?? []
  return {
    scheduled: all.filter((e) => e.activityTaskScheduledEventAttributes).length,
    markers: all.filter((e) => e.markerRecordedEventAttributes?.markerName === 'core_local_activity').length,
    text: JSON.stringify(all),
  }
}

test('a short job is a local activity on the held pod: no activity is scheduled', async () => {
  await world.pool('short')
  const jobs = Array.from({ length: 5 }, (_, n) => ({ command: `echo ${n} >> f; cat f`, short: true }))
  const handle = await world.start<Ran[]>('loop', [{ pool: 'short', jobs }])
  const ran = await handle.result()
  expect(ran.map(({ result }: Ran) => result.stdout.trim().split('\n').length)).toEqual([1, 2, 3, 4, 5])
  expect(new Set(ran.map(({ pod, epoch }: Ran) => `${pod} ${epoch}`)).size).toBe(1)
  const events = await eventsOf(handle.workflowId)
  expect(events).toMatchObject({ scheduled: 0, markers: 5 })
  // A token is base64url(claims) + '.' + base64url(signature): none stands in a history.
  expect(events.text).not.toMatch(/eyJ2IjoxLCJwb2Qi|Bearer/)
})

test('one that takes longer goes on as a normal activity under the same job id: it starts once', async () => {
  await world.pool('longer')
  const file = join(world.dir, marker())
  const job = { command: `echo began >> ${file}; sleep 4; echo done`, short: true }
  const handle = await world.start<Ran[]>('loop', [{ pool: 'longer', jobs: [job] }])
  const [ran] = await handle.result()
  expect(ran!.result.stdout).toBe('done\n')
  expect(readFileSync(file, 'utf8')).toBe('began\n')
  expect(await eventsOf(handle.workflowId)).toMatchObject({ scheduled: 1, markers: 1 })
})

test('a failure of its own is a result or a typed failure, as of every job', async () => {
  await world.pool('fails')
  const jobs = [
    { command: 'exit 3', short: true },
    { command: 'sleep 60', timeout: 300, short: true },
  ]
  const first = await world.start<Ran[]>('loop', [{ pool: 'fails', jobs: jobs.slice(0, 1) }])
  expect((await first.result())[0]!.result.exitCode).toBe(3)
  const second = await world.start('loop', [{ pool: 'fails', jobs: jobs.slice(1) }])
  await expect(second.result()).rejects.toMatchObject({ cause: { type: 'JobTimeout' } })
})

test('a cancel while it goes on kills it, and the sandbox goes on', async () => {
  await world.pool('race', { budget: 2, standby: 2 })
  const mark = marker()
  const handle = await world.start<{ slow: string; after: { stdout: string } }>('race', [
    {
      pool: 'race',
      quick: { command: 'true', short: true },
      slow: { command: 'sleep 3600', env: { MARK: mark }, short: true },
      after: { command: 'echo on', short: true },
    },
  ])
  expect(await handle.result()).toMatchObject({ slow: 'cancelled', after: { stdout: 'on\n' } })
  expect(processWith(mark)).toEqual([])
})

test('a cancel while its pod hangs is heard as the cancel', async () => {
  const pool = await world.pool('hung', { budget: 2, standby: 2 })
  const handle = await world.start<{ slow: string }>('race', [
    {
      pool: 'hung',
      quick: { command: 'true', short: true },
      slow: { command: 'kill -STOP $PPID; sleep 3600', short: true },
    },
  ])
  expect(await handle.result()).toMatchObject({ slow: 'cancelled' })
  await pool.until('zero leases, the pod replaced', (s) => s.leases === 0 && s.pods.leased === 0)
})

test('without the plugin it runs as every job does', async () => {
  const plain = await makeWorld()
  try {
    await plain.pool('plain')
    const file = join(plain.dir, marker())
    const jobs = Array.from({ length: 3 }, () => ({ command: `echo x >> ${file}; cat ${file}`, short: true }))
    const handle = await plain.start<Ran[]>('loop', [{ pool: 'plain', jobs }])
    expect((await handle.result()).map(({ result }: Ran) => result.stdout)).toEqual([
      'x\n',
      'x\nx\n',
      'x\nx\nx\n',
    ])
    expect(await eventsOf(handle.workflowId, plain)).toMatchObject({ scheduled: 3, markers: 0 })
  } finally {
    await plain.close()
  }
})
