import { type ChildProcess, spawn } from 'node:child_process'
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { type AddressInfo, createServer, type Server } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterEach, beforeEach, expect, test } from 'vitest'
import type { DemoResult, SideResult } from '../../dist/demo/result.js'
import { startDevServer } from '../../dist/server/dev-server.js'
import { waitUntil } from '../support/world.js'

/** The real command, as a newcomer runs it. */

const MAIN = fileURLToPath(new URL('../../dist/cli/main.js', import.meta.url))

let tmp: string
beforeEach(() => {
  tmp = mkdtempSync(join(tmpdir(), 'firepool-demo-test-'))
})
afterEach(() => rmSync(tmp, { recursive: true, force: true }))

interface Demo {
  child: ChildProcess
  stdout: string
  stderr: string
  /** resolves to the exit code */
  ended: Promise<number | null>
}

/** Starts the demo with a folder for temporary files of its own, by which its processes are found. */
function demo(args: string[], env: NodeJS.ProcessEnv = {}): Demo {
  const { TEMPORAL_ADDRESS: _, ...inherited } = process.env
  const child = spawn(process.execPath, [MAIN, 'demo', ...args], {
    env: { ...inherited, TMPDIR: tmp, ...env },
    stdio: ['ignore', 'pipe', 'pipe'],
  })
  const run: Demo = {
    child,
    stdout: '',
    stderr: '',
    ended: new Promise((resolve) => child.once('close', (code) => resolve(code))),
  }
  child.stdout!.setEncoding('utf8').on('data', (text: string) => {
    run.stdout += text
  })
  child.stderr!.setEncoding('utf8').on('data', (text: string) => {
    run.stderr += text
  })
  return run
}

/** Processes of this machine that have our folder in their environment or command: server, pods, jobs, the demo. */
function processes(): string[] {
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name) && Number(name) !== process.pid)
    .flatMap((pid) => {
      try {
        const command = readFileSync(`/proc/${pid}/cmdline`, 'utf8').replaceAll('\0', ' ')
        const environment = readFileSync(`/proc/${pid}/environ`, 'utf8')
        return `${command}\0${environment}`.includes(tmp) ? [`${pid} ${command}`] : []
      } catch {
        return []
      }
    })
}

function countOf(server: Server): Promise<number> {
  return new Promise((resolve, reject) =>
    server.getConnections((error, count) => (error ? reject(error) : resolve(count))),
  )
}

const isPod = (process: string) => process.includes('runner/main.js')

async function expectNothingLeft(): Promise<void> {
  // The watchdog of the server ends a moment after it.
  await waitUntil('no process is left', () => processes().length === 0, 10_000).catch(() => undefined)
  expect(processes()).toEqual([])
  expect(readdirSync(tmp)).toEqual([])
}

function expectWhole(side: SideResult): void {
  const { warm, standby, cold } = side.shares
  expect(warm + standby + cold).toBeCloseTo(1, 9)
  expect(side.totalMs).toBeGreaterThan(0)
  expect(side.startMs.p50).toBeLessThanOrEqual(side.startMs.p99)
  expect(side.podSecondsHeld).toBeGreaterThan(0)
  expect(side.podSecondsExisting).toBeGreaterThan(side.podSecondsHeld)
}

test('the quick demo: all results right, faster with Firepool, one JSON object, a UI until Ctrl-C with --keep, nothing left behind', async () => {
  // With --keep its server stays until Ctrl-C.
  const run = demo(['--quick', '--json', '--seed', '3', '--keep'])
  await waitUntil('all is left running', () => /left running until Ctrl-C/.test(run.stderr), 200_000)
  const ui = /Temporal UI: (http:\S+\/workflows)/.exec(run.stderr)![1]!
  expect((await fetch(ui)).status).toBe(200)
  run.child.kill('SIGINT')
  expect(await run.ended, run.stderr).toBe(0)
  const result = JSON.parse(run.stdout) as DemoResult
  expect(result).toMatchObject({ v: 1, seed: 3, compression: 20, notRun: [] })
  expect(result.loops.map((loop) => loop.name)).toEqual(['RL loop', 'Agent loop'])
  for (const loop of result.loops) {
    expect(loop.failures, loop.complaints.join('\n')).toBe(0)
    expect(loop.rewards).toEqual({ expected: 2 * loop.jobs, right: 2 * loop.jobs })
    expectWhole(loop.withFirepool)
    expectWhole(loop.freshPod)
    expect(loop.speedup).toBeGreaterThan(1)
    expect(loop.withFirepool.totalMs).toBeLessThan(loop.freshPod.totalMs)
    expect(loop.withFirepool.startMs.p50).toBeLessThan(loop.freshPod.startMs.p50)
    expect(loop.withFirepool.shares.warm).toBeGreaterThan(0.5)
    // Each job of the other side had a pod of its own.
    expect(loop.freshPod.shares.warm).toBe(0)
    expect(loop.freshPod.podsCreated).toBeGreaterThanOrEqual(loop.jobs)
  }
  expect(run.stderr).toMatch(/Temporal server: .+/)
  expect(run.stderr).toMatch(/IMITATED/)
  await expectNothingLeft()
})

test('Ctrl-C in the middle of a loop leaves no process and no file', async () => {
  const run = demo(['--quick'])
  await waitUntil('jobs run on pods', () => /RL loop, with Firepool.* [1-9]\d*\/12/.test(run.stderr))
  expect(processes().some(isPod)).toBe(true)
  run.child.kill('SIGINT')
  expect(await run.ended).toBe(130)
  expect(run.stdout).toBe('')
  await expectNothingLeft()
})

test('SIGTERM while a pool starts its pods leaves no process and no file', async () => {
  const run = demo(['--speed', '1'])
  await waitUntil('a pod starts', () => processes().some(isPod))
  run.child.kill('SIGTERM')
  expect(await run.ended).toBe(143)
  await expectNothingLeft()
})

test('a second Ctrl-C kills at once, and leaves nothing either', async () => {
  const run = demo(['--speed', '1'])
  await waitUntil('a pod starts', () => processes().some(isPod))
  run.child.kill('SIGINT')
  // The echo of the first is no second one.
  run.child.kill('SIGINT')
  const again = setInterval(() => run.child.kill('SIGINT'), 1_100)
  await run.ended
  clearInterval(again)
  await expectNothingLeft()
})

test('a reader that goes away (| head) ends the demo in order', async () => {
  const run = demo(['--quick'])
  await waitUntil('a pod starts', () => processes().some(isPod))
  run.child.stderr!.destroy()
  expect(await run.ended).toBe(141)
  await expectNothingLeft()
})

test('without HumanEval the agent loop still runs; the demo says why the RL loop did not, and fails', async () => {
  const env = { FIREPOOL_CACHE_DIR: join(tmp, 'cache'), PIP_INDEX_URL: 'http://127.0.0.1:9/simple' }
  const run = demo(['--quick', '--json'], { ...env, PIP_RETRIES: '0', PIP_CONFIG_FILE: '/dev/null' })
  expect(await run.ended).toBe(1)
  const result = JSON.parse(run.stdout) as DemoResult
  expect(result.loops.map((loop) => loop.name)).toEqual(['Agent loop'])
  expect(result.notRun).toEqual([{ name: 'RL loop', reason: expect.stringContaining('pip could not fetch') }])
  expect(run.stderr).toContain('the RL loop has not run')
  rmSync(join(tmp, 'cache'), { recursive: true, force: true })
  await expectNothingLeft()
})

test('Ctrl-C while HumanEval is fetched leaves no process and no file', async () => {
  // An index that takes connections and never answers.
  const index = createServer()
  await new Promise<void>((resolve) => index.listen(0, '127.0.0.1', resolve))
  const { port } = index.address() as AddressInfo
  const cache = join(tmp, 'cache')
  try {
    const run = demo(['--quick'], {
      FIREPOOL_CACHE_DIR: cache,
      PIP_INDEX_URL: `http://127.0.0.1:${port}/simple`,
      PIP_CONFIG_FILE: '/dev/null',
    })
    await waitUntil('pip has connected', () => countOf(index).then((count) => count > 0))
    run.child.kill('SIGINT')
    expect(await run.ended).toBe(130)
    expect(readdirSync(cache)).toEqual([])
    rmSync(cache, { recursive: true })
    await expectNothingLeft()
  } finally {
    index.close()
  }
})

test('a server that does not answer is named', async () => {
  const run = demo(['--quick', '--json'], { TEMPORAL_ADDRESS: '127.0.0.1:9' })
  expect(await run.ended).not.toBe(0)
  expect(JSON.parse(run.stdout).error.message).toContain('no Temporal server answers at 127.0.0.1:9')
  await expectNothingLeft()
})

test('without Python the demo says so before it starts anything', async () => {
  const run = demo(['--quick', '--json'], { PATH: join(tmp, 'nothing') })
  expect(await run.ended).toBe(1)
  const { error } = JSON.parse(run.stdout) as { error: { message: string; hint: string } }
  expect(error.message).toContain('python3 is not installed')
  expect(error.hint).toContain('install Python')
  await expectNothingLeft()
})

test('on a server of others: two demos at once do not disturb each other, and their pools are gone afterwards', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'firepool-demo-server-'))
  const server = await startDevServer({ logFile: join(folder, 'server.log') })
  try {
    const env = { TEMPORAL_ADDRESS: server.address }
    const runs = [demo(['--quick', '--json'], env), demo(['--quick', '--json', '--seed', '2'], env)]
    for (const run of runs) {
      expect(await run.ended, run.stderr).toBe(0)
      expect((JSON.parse(run.stdout) as DemoResult).loops.length).toBe(2)
    }
    await expectNothingLeft()
  } finally {
    await server.stop()
    rmSync(folder, { recursive: true, force: true })
  }
})
