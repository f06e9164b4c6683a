/** Several workers of Firepool on one machine share a state folder, pods and work; they come and go while callers run. */
import { readFileSync } from 'node:fs'
import { homedir } from 'node:os'
import { join } from 'node:path'
import type { WorkflowHandle } from '@temporalio/client'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { createFirepoolClient } from '../../dist/client/index.js'
import type { Ran } from '../support/callers.js'
import { type Running, startCli } from '../support/cli.js'
import { marker } from '../support/holder.js'
import { makeWorld, type World, waitUntil } from '../support/world.js'

const CALLERS = ['ann', 'bob', 'cid', 'dan']
const JOBS = 16

let world: World
let file: string
const commands: Running[] = []

beforeAll(async () => {
  world = await makeWorld({ workerProcess: true, plugin: true })
  file = join(world.dir, marker())
})
afterAll(async () => {
  // A pool is deleted by a worker.
  await world?.startWorker()
  for (const { kill, ended } of commands) {
    kill('SIGKILL')
    await ended
  }
  await world?.close()
})

/** One more worker on the same folder. */
async function startWorker(): Promise<Running> {
  const { PATH } = process.env
  const env = {
    PATH: `${PATH}:${join(homedir(), 'go', 'bin')}`,
    HOME: world.dir,
    TEMPORAL_ADDRESS: world.address,
    FIREPOOL_DIR: join(world.dir, 'firepool'),
  }
  const worker = startCli(['worker', '--json'], env)
  commands.push(worker)
  await worker.until('stdout', '\n')
  return worker
}

const ran = () => {
  try {
    return readFileSync(file, 'utf8').trim().split('\n')
  } catch {
    return []
  }
}

/** Every third one is short, every fourth one lasts. */
const jobsOf = (caller: string) =>
  Array.from({ length: JOBS }, (_, n) => ({
    command: `echo ${caller}-${n} >> ${file}; ${n % 4 === 0 ? 'sleep 1;' : ''} echo ${caller}-${n}`,
    ...(n % 3 === 0 ? { short: true } : {}),
  }))

/** Pids of the workers that took the jobs of a workflow. */
async function workersOf(handle: WorkflowHandle): Promise<string[]> {
  const { events } = await handle.fetchHistory()
  const pids = (events ?? []).map(
    ({ activityTaskStartedEventAttributes: started }) => started?.identity?.split('@')[0],
  )
  return pids.filter((pid) => pid !== undefined)
}

test('two workers share the jobs; one is stopped, one is killed: each job starts once, every result comes, no pod is lost', async () => {
  const leaving = await startWorker()
  const pool = await world.pool('shared', { budget: 6, standby: 2, keepAliveMs: 2_000 })
  const loops = await Promise.all(
    CALLERS.map((caller) =>
      world.start<Ran[]>('loop', [
        { pool: 'shared', caller, jobs: jobsOf(caller), pauseMs: 200, release: true },
      ]),
    ),
  )
  const firepool = createFirepoolClient({ client: world.client })
  const single = (name: string) =>
    firepool.runJob({
      pool: 'shared',
      caller: name,
      job: { command: `echo ${name} >> ${file}; echo ${name}` },
    })

  await waitUntil('loops run', () => ran().length >= CALLERS.length * 3)
  const spread = await waitUntil('both have taken jobs', async () => {
    const pids = new Set((await Promise.all(loops.map(workersOf))).flat())
    return pids.size === 2 ? pids : null
  })
  expect(spread).toContain(String(leaving.process.pid))
  const singles = [single('one'), single('two')]

  leaving.kill('SIGTERM')
  expect((await leaving.ended).code).toBe(0)
  const staying = await startWorker()
  const before = ran().length
  await waitUntil('the loops go on', () => ran().length >= before + CALLERS.length)
  await world.killWorker()
  singles.push(single('three'))

  for (const [at, loop] of loops.entries()) {
    const results = ((await loop.result()) as Ran[]).map(({ result }) => result.stdout)
    expect(results).toEqual(jobsOf(CALLERS[at]!).map((_, n) => `${CALLERS[at]}-${n}\n`))
  }
  expect((await Promise.all(singles)).map(({ stdout }) => stdout)).toEqual(['one\n', 'two\n', 'three\n'])
  expect(new Set((await Promise.all(loops.map(workersOf))).flat())).toContain(String(staying.process.pid))
  const wanted = [
    ...CALLERS.flatMap((caller) => jobsOf(caller).map((_, n) => `${caller}-${n}`)),
    'one',
    'two',
    'three',
  ]
  expect(ran().sort()).toEqual(wanted.sort())
  const status = await pool.until('all is given back', (s) => s.leases === 0 && s.effectsInFlight === 0)
  expect(status.ends).toMatchObject({ podLost: 0, failed: 0, expired: 0 })
  expect(status.breaker.failures).toBe(0)
})
