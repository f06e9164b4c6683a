/** A worker of another release takes over, and gives back, while loops run: pods and leases of either live on under the other. */
import { execFile } from 'node:child_process'
import { cpSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { processesWith, type Running, startScript } from '../support/cli.js'
import { makeWorld, type World, waitUntil } from '../support/world.js'

const ROOT = fileURLToPath(new URL('../..', import.meta.url))
const CALLERS = ['ann', 'bob', 'cid']
const GATE = 'firepool-test-next'

let world: World
const started: Running[] = []

beforeAll(async () => {
  world = await makeWorld({ workerProcess: true })
})
afterAll(async () => {
  for (const { kill, ended } of started) {
    kill('SIGKILL')
    await ended
  }
  // Its pools are deleted by a worker.
  await world?.killWorker()
  await world?.startWorker()
  await world?.close()
})

/**
 * A release in a folder of its own: this one with one change, which may be seen by running histories.
 * @param gated the lease workflow does one thing more, behind a gate of its own
 */
async function release(name: string, gated: boolean): Promise<string> {
  const folder = join(world.dir, name)
  cpSync(join(ROOT, 'dist'), join(folder, 'dist'), { recursive: true })
  cpSync(join(ROOT, 'package.json'), join(folder, 'package.json'))
  symlinkSync(join(ROOT, 'node_modules'), join(folder, 'node_modules'))
  if (!gated) return folder
  const file = join(folder, 'dist/workflows/lease.js')
  const source = readFileSync(file, 'utf8')
  const begin = 'const { pool, request } = leaseRequest(input);'
  expect(source).toContain(begin)
  const more = `if (patched('${GATE}')) upsertMemo({ release: 'next' });`
  writeFileSync(
    file,
    `import { patched, upsertMemo } from '@temporalio/workflow';\n${source.replace(begin, `${begin}\n${more}`)}`,
  )
  await promisify(execFile)(process.execPath, [join(folder, 'dist/bundle.js')])
  return folder
}

/** Its worker, on the state folder that all workers here share. */
async function startWorkerOf(folder: string): Promise<Running> {
  const env = {
    PATH: process.env.PATH,
    HOME: world.dir,
    TEMPORAL_ADDRESS: world.address,
    FIREPOOL_DIR: join(world.dir, 'firepool'),
  }
  const worker = startScript(join(folder, 'dist/cli/main.js'), ['worker', '--json'], env)
  started.push(worker)
  await worker.until('stdout', '\n')
  return worker
}

/** Loops that go on until they are told: two hold their pods, the third pauses longer than its pool's keep-alive. */
async function startLoops(pool: string) {
  const file = join(world.dir, `ran-${pool}`)
  const loops = await Promise.all(
    CALLERS.map((name) =>
      world.start<string[]>('endless', [
        { pool, caller: name, name, file, pauseMs: name === 'cid' ? 1_500 : 50 },
      ]),
    ),
  )
  const ran = () => {
    try {
      return readFileSync(file, 'utf8').trim().split('\n')
    } catch {
      return []
    }
  }
  return {
    goOn: async (what: string) => {
      const before = ran().length
      await waitUntil(what, () => ran().length >= before + 2 * CALLERS.length)
    },
    end: async () => {
      for (const loop of loops) await loop.signal('finish')
      const names = (await Promise.all(loops.map((loop) => loop.result()))) as string[][]
      names.forEach((each, at) => {
        expect(each).toEqual(each.map((_, n) => `${CALLERS[at]}-${n}`))
      })
      expect(ran().sort()).toEqual(names.flat().sort())
    },
  }
}

const runnersOf = (folder: string) => processesWith(join(folder, 'dist/runner/main.js')).length

test('a worker of the next release joins, and the old one is killed: each job starts once, no pod is lost', async () => {
  const next = await release('next', true)
  const pool = await world.pool('up', { budget: 4, standby: 1, keepAliveMs: 1_000 })
  const loops = await startLoops('up')
  await loops.goOn('the loops run')
  await startWorkerOf(next)
  await loops.goOn('they go on beside it')
  await world.killWorker()
  expect(runnersOf(ROOT)).toBeGreaterThan(0)
  await loops.goOn('they go on under the next release, on pods of the old one')
  // It takes the standby; another one is started.
  const dan = await world.start('loop', [{ pool: 'up', caller: 'dan', jobs: [{ command: 'true' }] }])
  await waitUntil('and on pods of its own', () => runnersOf(next) > 0)
  await dan.result()
  await loops.end()
  const status = await pool.until('zero leases', (s) => s.leases === 0 && s.effectsInFlight === 0)
  expect(status.ends).toMatchObject({ failed: 0, podLost: 0, expired: 0 })
  await waitUntil('a lease took the way of the next release', async () => {
    const query = 'WorkflowType = "firepool.lease"'
    for await (const { memo } of world.client.workflow.list({ query }))
      if (memo?.release === 'next') return true
    return false
  })
})

test('the old release takes over again: pods that the next one started serve under it', async () => {
  // A way back there is only while no running history has passed a gate of the next release.
  const next = await release('next-image', false)
  for (const worker of started.splice(0)) {
    worker.kill('SIGTERM')
    expect((await worker.ended).code).toBe(0)
  }
  const worker = await startWorkerOf(next)
  const pool = await world.pool('back', { budget: 4, standby: 1, keepAliveMs: 1_000 })
  const loops = await startLoops('back')
  await loops.goOn('the loops run')
  expect(runnersOf(next)).toBeGreaterThan(0)
  await world.startWorker()
  await loops.goOn('they go on beside it')
  worker.kill('SIGTERM')
  expect((await worker.ended).code).toBe(0)
  await loops.goOn('they go on under the old release')
  await loops.end()
  const status = await pool.until('zero leases', (s) => s.leases === 0 && s.effectsInFlight === 0)
  expect(status.ends).toMatchObject({ failed: 0, podLost: 0, expired: 0 })
})
