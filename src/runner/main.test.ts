import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import type { JobSpec, RunnerReady } from '../contract/index.js'
import { type CallOptions, createRunnerClient, jobDigest, RunnerUnreachable } from './client.js'
import { lifetimeVerdict } from './lifetime.js'
import { descendants, markedPids } from './process-tree.js'
import {
  compileSources,
  problemOf,
  type RunnerProcess,
  refusal,
  startProcess,
  waitUntil,
} from './world.fixture.js'

/** The runner as a process of its own. */

const POD = 'pod-of-main-test'
let compiled: { dir: string; remove: () => void }
let podDir: string
let started: RunnerProcess[]

beforeAll(async () => {
  compiled = await compileSources(['src/runner/main.ts'])
})
afterAll(() => compiled.remove())
beforeEach(() => {
  podDir = mkdtempSync(join(tmpdir(), 'firepool-pod-'))
  started = []
})
afterEach(async () => {
  for (const runner of started) {
    runner.kill('SIGKILL')
    await runner.exit
  }
  rmSync(podDir, { recursive: true, force: true })
})

function start(options: Parameters<typeof startProcess>[2] = {}): RunnerProcess {
  const runner = startProcess(compiled.dir, podDir, options)
  started.push(runner)
  return runner
}

function clients(runner: RunnerProcess, ready: RunnerReady, epoch = 1) {
  const broker = createRunnerClient(ready.address, () => runner.sign(POD, 'broker', 0, ''))
  const lease = createRunnerClient(ready.address, () => runner.sign(POD, 'lease', epoch, 'l'))
  return {
    broker,
    bind: (ownerHash = 'o') =>
      broker.bind({ v: 1, epoch, leaseId: 'l', ownerHash, incarnation: ready.incarnation }),
    run: (jobId: string, spec: JobSpec, options?: CallOptions) =>
      lease.jobs({ v: 1, jobId, digest: jobDigest(spec), epoch, spec }, options),
  }
}

const marked = (ready: RunnerReady) => markedPids({ env: { FIREPOOL_INCARNATION: ready.incarnation } })
const inPod = (name: string) => existsSync(join(podDir, name))

describe('the runner process', () => {
  test('says where it listens, once it does; each process is another incarnation', async () => {
    const first = start()
    const ready = await first.ready()
    expect(ready).toMatchObject({ v: 1, pid: first.pid })
    expect((await clients(first, ready).broker.status()).incarnation).toBe(ready.incarnation)
    first.kill('SIGTERM')
    expect(await first.exit).toEqual({ code: 0, signal: null })
    rmSync(join(podDir, 'ready.json'))
    expect((await start().ready()).incarnation).not.toBe(ready.incarnation)
  })

  test('prepares the pod before it is ready', async () => {
    const runner = start({
      profile: { prepare: ['/bin/sh', '-c', 'echo $MINE > prepared'], env: { MINE: 'yes' } },
    })
    await runner.ready()
    expect(readFileSync(join(podDir, 'work/prepared'), 'utf8')).toBe('yes\n')
  })

  test('says which GPUs its container has, and jobs find their limits', async () => {
    const uuid = 'GPU-0fc3eda5-e98b-a25b-5b0d-cf5c855d1448'
    const runner = start({
      env: {
        NVIDIA_VISIBLE_DEVICES: uuid,
        CUDA_DEVICE_MEMORY_LIMIT_0: '8192m',
        NVIDIA_API_KEY: 'not for jobs',
      },
      profile: { prepare: ['/bin/sh', '-c', 'env > prepared'] },
    })
    const { address, incarnation } = await runner.ready()
    const identity = await (await fetch(`${address}/ready`)).json()
    expect(identity).toEqual({ v: 1, pod: POD, incarnation, gpus: [uuid] })
    const env = readFileSync(join(podDir, 'work/prepared'), 'utf8')
    expect(env).toContain('CUDA_DEVICE_MEMORY_LIMIT_0=8192m')
    expect(env).not.toContain('NVIDIA_API_KEY')
  })

  test('whose preparation fails says so with its output, and is never ready', async () => {
    for (const [argv, text] of [
      [['/bin/sh', '-c', 'echo no network >&2; exit 7'], 'exited with 7'],
      [['no-such-tool'], 'could not be started (ENOENT)'],
    ] as const) {
      const runner = start({ profile: { prepare: [...argv] } })
      expect(await runner.exit).toEqual({ code: 1, signal: null })
      const failed = JSON.parse(readFileSync(join(podDir, 'failed.json'), 'utf8'))
      expect(failed).toMatchObject({ v: 1, reason: 'PrepareFailed' })
      expect(failed.message).toContain(text)
      expect(inPod('ready.json')).toBe(false)
    }
  })

  test('imports what jobs are forked with before it is ready, after it was prepared, and ends it with itself', async () => {
    const preload = { python: 'python3', imports: ['json', 'mine'], seeds: [] }
    const runner = start({
      profile: { prepare: ['/bin/sh', '-c', 'echo "value = 5" > mine.py'], preload, env: { TZ: 'UTC' } },
    })
    const ready = await runner.ready()
    expect(runner.log()).toContain('python3 has preloaded json, mine')
    const { bind, run, broker } = clients(runner, ready)
    await bind()
    expect((await broker.status()).preload).toMatchObject({ state: 'ready', imports: ['json', 'mine'] })
    const spec = { command: ['python3', '-c', 'import mine; print(mine.value)'] }
    expect(await run('s/1', spec)).toMatchObject({ result: { stdout: '5\n', preload: { forked: true } } })
    const interpreters = descendants(runner.pid).map(({ pid }) => `/proc/${pid}/cmdline`)
    expect(interpreters).toHaveLength(1)
    runner.kill('SIGKILL')
    // Of a process that has ended nothing is there, or a zombie without a command.
    const isGone = (path: string) => !existsSync(path) || readFileSync(path, 'latin1') === ''
    await waitUntil('the interpreter ends with its runner', () => interpreters.every(isGone))
  })

  test('whose preload fails says which module, and is never ready', async () => {
    const broken = { PYTHONPATH: podDir }
    writeFileSync(join(podDir, 'ends.py'), 'import sys; sys.exit("no licence")')
    writeFileSync(join(podDir, 'dies.py'), 'import os; os.abort()')
    for (const [preload, text] of [
      [
        { python: 'python3', imports: ['json', 'no_such'] },
        'no_such could not be imported: ModuleNotFoundError',
      ],
      [{ python: 'python3', imports: ['ends'] }, 'ends could not be imported: SystemExit: no licence'],
      [{ python: 'python3', imports: ['json', 'dies'] }, 'was ended by SIGABRT while it imported dies'],
      [{ python: 'no-such-python', imports: ['json'] }, 'no-such-python could not be started (ENOENT)'],
    ] as const) {
      const runner = start({
        profile: { env: broken, preload: { ...preload, imports: [...preload.imports], seeds: [] } },
      })
      expect(await runner.exit).toEqual({ code: 1, signal: null })
      const failed = JSON.parse(readFileSync(join(podDir, 'failed.json'), 'utf8'))
      expect(failed).toMatchObject({ v: 1, reason: 'PreloadFailed' })
      expect(failed.message).toContain(text)
      expect(inPod('ready.json')).toBe(false)
    }
  })

  test('with a wrong environment fails typed', async () => {
    for (const env of [
      { FIREPOOL_LIFETIME_MS: 'x' },
      { FIREPOOL_PROFILE: '{' },
      { FIREPOOL_LISTEN: 'nowhere' },
      { FIREPOOL_BROKER_KEY: 'AA' },
    ]) {
      const runner = start({ env })
      expect((await runner.exit).code).toBe(1)
      expect(JSON.parse(readFileSync(join(podDir, 'failed.json'), 'utf8')).message).not.toBe('')
      rmSync(join(podDir, 'failed.json'))
    }
  })

  test('ends at SIGTERM: whole trees are killed, clients that wait are told', async () => {
    const runner = start()
    const ready = await runner.ready()
    const { bind, run } = clients(runner, ready)
    await bind()
    const job = run('s/1', { command: '(setsid sleep 600 &); touch began; sleep 600' })
    const waiting = refusal(run('s/2', { command: 'true' }))
    await waitUntil('the job runs', () => inPod('work/began') && marked(ready).length >= 3)
    runner.kill('SIGTERM')
    expect(problemOf(await job)).toMatchObject({ code: 'PodLost', details: { reason: 'PodEnded' } })
    expect((await waiting).code).toBe('LeaseRevoked')
    expect(await runner.exit).toEqual({ code: 0, signal: null })
    expect(marked(ready)).toEqual([])
  })

  test('ends at SIGTERM while it prepares', async () => {
    const runner = start({ profile: { prepare: ['/bin/sh', '-c', 'touch began; sleep 600'] } })
    await waitUntil('it prepares', () => inPod('work/began'))
    runner.kill('SIGTERM')
    expect(await runner.exit).toEqual({ code: 0, signal: null })
    expect(markedPids({ env: { FIREPOOL_POD: POD, HOME: join(podDir, 'home') } })).toEqual([])
  })

  test('whose pod is refused all GPUs answers its job, says why, and ends itself', async () => {
    const socket = join(podDir, 'agent.sock')
    const error = {
      code: 'UngrantedUse',
      message: 'process 7 used a GPU without a grant',
      remedy: 'delete the pod',
    }
    const agent = createServer((_, res) => res.writeHead(403).end(JSON.stringify({ v: 1, error })))
    await new Promise<void>((resolve) => agent.listen(socket, resolve))
    const termination = join(podDir, 'termination')
    const runner = start({ env: { FIREPOOL_SEAT_SOCKET: socket, FIREPOOL_TERMINATION_LOG: termination } })
    const { bind, run } = clients(runner, await runner.ready())
    await bind()
    expect(problemOf(await run('s/1', { command: 'touch ran' }))).toMatchObject({
      code: 'LeaseRevoked',
      details: { reason: 'UngrantedUse' },
    })
    expect(await runner.exit).toEqual({ code: 1, signal: null })
    expect(JSON.parse(readFileSync(termination, 'utf8'))).toMatchObject({ v: 1, reason: 'UngrantedUse' })
    expect(runner.log()).toContain('process 7 used a GPU without a grant')
    expect(inPod('work/ran')).toBe(false)
    agent.close()
  })

  test('F17: ends itself at its lifetime, whatever the broker does', async () => {
    const runner = start({ env: { FIREPOOL_LIFETIME_MS: '1000' } })
    await runner.ready()
    expect(await runner.exit).toEqual({ code: 0, signal: null })
    expect(runner.log()).toContain('lifetime')
  })

  test('past its lifetime it finishes its job, accepts none, and ends', async () => {
    const runner = start({ env: { FIREPOOL_LIFETIME_MS: '1000' } })
    const ready = await runner.ready()
    const { bind, run, broker } = clients(runner, ready)
    await bind()
    const job = run('s/1', { command: 'while [ ! -e go ]; do sleep 0.02; done; exit 5' })
    await waitUntil('it retires', async () => (await broker.status()).state === 'draining')
    expect((await refusal(run('s/2', { command: 'true' }))).code).toBe('LeaseRevoked')
    await broker.putFile('go', Buffer.alloc(0))
    expect(await job).toMatchObject({ kind: 'result', result: { exitCode: 5 } })
    await broker.ack({
      v: 1,
      jobId: 's/1',
      digest: jobDigest({ command: 'while [ ! -e go ]; do sleep 0.02; done; exit 5' }),
    })
    expect((await runner.exit).code).toBe(0)
  })

  test('ends itself, jobs and all, when nobody speaks to it; a client that waits for its job counts', async () => {
    const runner = start({ env: { FIREPOOL_BROKER_GONE_MS: '800' } })
    const ready = await runner.ready()
    const { bind, run } = clients(runner, ready)
    await bind()
    expect(await run('s/1', { command: 'sleep 2' })).toMatchObject({ kind: 'result' })
    const abort = new AbortController()
    const abandoned = run('s/2', { command: '(setsid sleep 600 &); sleep 600' }, { signal: abort.signal })
    await waitUntil('it runs', () => marked(ready).length > 1)
    abort.abort(new Error('the caller died'))
    await expect(abandoned).rejects.toThrow('the caller died')
    expect((await runner.exit).code).toBe(0)
    expect(runner.log()).toContain('nobody spoke to it')
    expect(marked(ready)).toEqual([])
  })

  test('F10: restarted in the same folder it serves only the same owner, and calls earlier jobs PodLost', async () => {
    const first = start()
    const before = await first.ready()
    await clients(first, before).bind('owner-x')
    first.kill('SIGKILL')
    await first.exit
    rmSync(join(podDir, 'ready.json'))
    const second = start({ keys: first.keys })
    const ready = await second.ready()
    expect((await refusal(clients(second, ready, 1).run('s/1', { command: 'true' }))).code).toBe('PodLost')
    expect((await refusal(clients(second, ready, 2).bind('owner-y'))).code).toBe('InvalidRequest')
    await clients(second, ready, 2).bind('owner-x')
    expect((await refusal(clients(second, ready, 1).run('s/1', { command: 'true' }))).code).toBe('PodLost')
    expect(await clients(second, ready, 2).run('s/2', { command: 'true' })).toMatchObject({ kind: 'result' })
  })

  test('that is killed answers nobody: the client sees a broken connection', async () => {
    const runner = start()
    const ready = await runner.ready()
    const { bind, run } = clients(runner, ready)
    await bind()
    const job = run('s/1', { command: 'touch began; sleep 5' })
    await waitUntil('it runs', () => inPod('work/began'))
    runner.kill('SIGKILL')
    const error = await job.catch((reason: unknown) => reason)
    expect(error).toBeInstanceOf(RunnerUnreachable)
    expect(error).toMatchObject({ refused: false })
    for (const pid of marked(ready)) process.kill(pid, 'SIGKILL')
  })
})

describe('when a pod ends itself', () => {
  const facts = {
    ageMs: 0,
    lifetimeMs: 100,
    graceMs: 50,
    sinceContactMs: 0,
    brokerGoneMs: 1_000,
    isOccupied: false,
    isRetired: false,
  }
  const kind = (changes: Partial<typeof facts>) => lifetimeVerdict({ ...facts, ...changes }).kind

  test('by age, with a grace for its last job', () => {
    expect(kind({ ageMs: 99 })).toBe('live')
    expect(kind({ ageMs: 100 })).toBe('end')
    expect(kind({ ageMs: 100, isOccupied: true })).toBe('retire')
    expect(kind({ ageMs: 149, isOccupied: true, isRetired: true })).toBe('live')
    expect(kind({ ageMs: 150, isOccupied: true, isRetired: true })).toBe('end')
  })

  test('by silence, jobs and all', () => {
    expect(kind({ sinceContactMs: 999, isOccupied: true })).toBe('live')
    expect(kind({ sinceContactMs: 1_000, isOccupied: true })).toBe('end')
  })
})
