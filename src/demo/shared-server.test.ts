import { existsSync } from 'node:fs'
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises'
import { hostname, tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Connection } from '@temporalio/client'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { enterSharedFolder, otherWorker } from './shared-server.js'

let parent: string
beforeEach(async () => {
  parent = await mkdtemp(join(tmpdir(), 'firepool-shared-'))
})
afterEach(() => rm(parent, { recursive: true, force: true }))

/** Past the largest pid that Linux gives out. */
const NO_PID = 2 ** 22 + 1

test('the last demo that leaves removes the folder; one that was killed does not count', async () => {
  const folder = await enterSharedFolder(parent)
  expect(folder.pids()).toEqual([process.pid])
  await writeFile(join(folder.dir, 'users', String(NO_PID)), JSON.stringify({ pid: NO_PID, start: 'x-1' }))
  await writeFile(join(folder.dir, 'users', 'cut-short'), '{"pid":')
  expect(folder.pids()).toEqual([process.pid])
  await folder.leave()
  expect(existsSync(folder.dir)).toBe(false)
})

test('the folder stays while another demo uses it', async () => {
  const folder = await enterSharedFolder(parent)
  // pid 1 lives for ever; its start time is what identify() says.
  const { identify } = await import('../local/process.js')
  await mkdir(join(folder.dir, 'users'), { recursive: true })
  await writeFile(join(folder.dir, 'users', '1'), JSON.stringify(identify(1)))
  await folder.leave()
  expect(existsSync(folder.dir)).toBe(true)
})

function polledBy(...pollers: { identity: string; ageMs: number }[]): Connection {
  const described = pollers.map(({ identity, ageMs }) => ({
    identity,
    lastAccessTime: { seconds: Math.floor((Date.now() - ageMs) / 1_000) },
  }))
  return {
    workflowService: { describeTaskQueue: async () => ({ pollers: described }) },
  } as unknown as Connection
}

test('another worker is one that polls now and is no demo of ours', async () => {
  const at = (pid: number) => `${pid}@${hostname()}`
  const ask = (connection: Connection) => otherWorker(connection, 'default', [process.pid])
  expect(await ask(polledBy())).toBeNull()
  expect(await ask(polledBy({ identity: at(process.pid), ageMs: 0 }))).toBeNull()
  expect(await ask(polledBy({ identity: at(NO_PID), ageMs: 0 }))).toBeNull()
  expect(await ask(polledBy({ identity: '12@elsewhere', ageMs: 300_000 }))).toBeNull()
  expect(await ask(polledBy({ identity: '12@elsewhere', ageMs: 30_000 }))).toBe('12@elsewhere')
  expect(await ask(polledBy({ identity: at(1), ageMs: 0 }))).toBe(at(1))
})
