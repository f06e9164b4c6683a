import { type ChildProcess, spawn } from 'node:child_process'
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  realpathSync,
  renameSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { JobSpec, Preload } from '../../src/contract/index.js'
import { createRunnerClient, jobDigest } from '../../src/runner/client.js'
import {
  compileSources,
  PYTHON,
  problemOf,
  type RunnerProcess,
  resultOf,
  startProcess,
  waitUntil,
} from '../../src/runner/world.fixture.js'
import { freePort } from '../../src/server/free-port.js'
import { generateKeys } from '../../src/token/token.js'
import {
  askAsOperator,
  buildNodeAgent,
  canBuildNodeAgent,
  fakeNodeArguments,
} from '../support/node-agent-program.js'

/**
 * Two runners and the real node agent, as processes. Only the GPU is not there: a file stands for it, and the agent's
 * double of the driver lists who has it open.
 */

/**
 * A test double of cuda-checkpoint: it asks the process to close the device, or to open it again, and waits until it has. No memory moves.
 * While the file `refuse` is there, it fails.
 */
const FAKE_CHECKPOINT = `#!/bin/sh
[ -e DIR/refuse ] && { echo 'the FAKE refuses' >&2; exit 1; }
has() { ls -l /proc/$3/fd 2>/dev/null | grep -c DIR/dev/nvidia; }
before=$(has "$@")
kill -USR1 $3 || exit 1
until [ $(has "$@") != $before ]; do sleep 0.01; done
`

/** Has the device open, closes and opens it when it is told to, and answers \`ask\` with how often it was asked. */
const SERVER = `
import os, signal, time
fd = os.open('DEVICE', os.O_RDONLY)
def toggle(*_):
    global fd
    if fd is None: fd = os.open('DEVICE', os.O_RDONLY)
    else: fd = os.close(fd)
signal.signal(signal.SIGUSR1, toggle)
asked = 0
open('up', 'w').close()
while True:
    time.sleep(0.01)
    if os.path.exists('ask'):
        os.remove('ask')
        asked += 1
        with open('answer.part', 'w') as file: file.write(f'{os.getpid()} {asked}\\n')
        os.rename('answer.part', 'answer')
`

describe.skipIf(!canBuildNodeAgent())('runners on a node with one GPU', () => {
  let dir: string
  let agent: ChildProcess
  let compiled: { dir: string; remove: () => void }
  const runners: RunnerProcess[] = []
  let pods = 0
  const keys = generateKeys()
  let url: string

  beforeAll(async () => {
    dir = mkdtempSync(join(tmpdir(), 'fps-')) // short: a socket's path has at most 107 bytes
    const port = await freePort()
    url = `http://127.0.0.1:${port}`
    const flags = [
      `-seats-listen=127.0.0.1:${port}`,
      `-broker-keys=jobs=${keys.publicKeyBase64}`,
      `-pod-logs-dir=${join(dir, 'logs')}`,
      `-cuda-checkpoint=${join(dir, 'FAKE-cuda-checkpoint')}`,
    ]
    const program = FAKE_CHECKPOINT.replaceAll('DIR', realpathSync(dir))
    writeFileSync(join(dir, 'FAKE-cuda-checkpoint'), program, { mode: 0o755 })
    agent = spawn(buildNodeAgent(dir), [...fakeNodeArguments(dir), ...flags], { stdio: 'ignore' })
    compiled = await compileSources(['src/runner/main.ts'])
    await waitUntil('the agent answers', () => existsSync(join(dir, 'state/operator.sock')))
  })

  afterAll(async () => {
    for (const runner of runners) {
      runner.kill('SIGTERM')
      await runner.exit
    }
    agent.kill('SIGKILL')
    compiled.remove()
    rmSync(dir, { recursive: true, force: true })
  })

  /**
   * Starts the runner of a pod whose jobs need a seat each. Its volume is published first, or the kubelet only starts it.
   */
  async function pod(
    has: 'volume' | 'token' = 'volume',
    settings: Record<string, string> = {},
    preload?: Preload,
  ) {
    const number = ++pods
    const uid = `${process.pid.toString(16).padStart(8, '0')}-0000-4000-8000-${String(number).padStart(12, '0')}`
    const name = `pod-${uid}`
    if (has === 'volume')
      await askAsOperator(dir, 'PUT', `/v1/pods/${uid}`, { v: 1, tenant: `tenant-${number}` })
    else mkdirSync(join(dir, 'logs', `jobs_${name}-g1_${uid}`), { recursive: true })
    const runner = startProcess(compiled.dir, join(dir, name), {
      profile: { env: { FIREPOOL_FAKE_POD_UID: uid }, ...(preload === undefined ? {} : { preload }) },
      env: {
        FIREPOOL_POD: name,
        FIREPOOL_FAKE_POD_UID: uid,
        ...(has === 'volume'
          ? { FIREPOOL_SEAT_SOCKET: join(dir, 'pods', uid, 'agent.sock') }
          : { FIREPOOL_SEAT_URL: url }),
        ...settings,
      },
      keys,
    })
    runners.push(runner)
    const { address, incarnation } = await runner.ready()
    const broker = createRunnerClient(address, () => runner.sign(name, 'broker', 0, ''))
    await broker.bind({ v: 1, epoch: 1, leaseId: 'l', ownerHash: 'o', incarnation })
    const lease = createRunnerClient(address, () => runner.sign(name, 'lease', 1, 'l'))
    let jobs = 0
    const post = (spec: JobSpec) =>
      lease.jobs({ v: 1, jobId: `s/${++jobs}`, digest: jobDigest(spec), epoch: 1, spec })
    const run = async (command: JobSpec['command']) => resultOf(await post({ command }))
    return Object.assign(run, { broker, lease, post, runner })
  }

  async function gpu() {
    const { gpus, counts } = (await askAsOperator(dir, 'GET', '/status')) as {
      gpus: { phase: string; pod?: string }[]
      counts: Record<string, number>
    }
    return { ...gpus[0]!, counts }
  }

  test('a job finds the GPU empty, also when the one before it has left a process there', async () => {
    const [first, second] = [await pod('volume'), await pod('token')]
    const device = join(dir, 'dev/nvidia0')
    const left = await first(
      `setsid sh -c 'exec 3<${device}; echo $$ > left; exec sleep 600' >/dev/null 2>&1 & until [ -s left ]; do sleep 0.01; done; echo $CUDA_VISIBLE_DEVICES`,
    )
    expect(left.stdout).toBe('GPU-fake-0\n')
    const found = await second(
      `echo $CUDA_VISIBLE_DEVICES; find /proc/[0-9]*/fd -lname ${device} 2>/dev/null | wc -l`,
    )
    expect(found.stdout).toBe('GPU-fake-0\n0\n')
    // The runner itself is no process of its job.
    expect((await first('echo $CUDA_VISIBLE_DEVICES')).stdout).toBe('GPU-fake-0\n')
    await waitUntil('all seats are given back', async () => {
      const { phase, counts } = await gpu()
      expect(counts).not.toHaveProperty('ungranted')
      return phase === 'free' && (counts.killed ?? 0) > 0
    })
  })

  test('what a pod has forked ahead for its next job is no part of the job before', async () => {
    const preload = { python: PYTHON, imports: ['json'], seeds: [] }
    const [first, second] = [await pod('volume', {}, preload), await pod()]
    const isFree = () =>
      waitUntil('the GPU is given back, and was measured empty', async () => (await gpu()).phase === 'free')
    const { killed = 0 } = (await gpu()).counts
    const code = 'import os; print(os.environ["CUDA_VISIBLE_DEVICES"])'
    for (let round = 0; round < 3; round++) {
      const result = await first([PYTHON, '-c', code])
      expect(result).toMatchObject({ stdout: 'GPU-fake-0\n', preload: { forked: true } })
      await isFree()
      expect((await second('echo $CUDA_VISIBLE_DEVICES')).stdout).toBe('GPU-fake-0\n')
      await isFree()
    }
    // What is taken for a part of a job is killed two seconds after the release.
    expect((await gpu()).counts.killed ?? 0).toBe(killed)
  })

  test('a pod that holds keeps its GPU between jobs, from its first job to the end of its lease', async () => {
    const [holder, other] = [await pod('volume', { FIREPOOL_SEAT_IDLE: 'hold' }), await pod()]
    await waitUntil('the GPU is free', async () => (await gpu()).phase === 'free')
    const device = join(dir, 'dev/nvidia0')
    // What a job leaves on the device is the pod's own while it holds.
    const leave = `setsid sh -c 'exec 3<${device}; : > left; exec sleep 600' >/dev/null 2>&1 & until [ -e left ]; do sleep 0.01; done`
    await holder(`${leave}; echo $CUDA_VISIBLE_DEVICES > kept`)
    expect((await gpu()).phase).toBe('held')
    expect((await holder('cat kept; echo $CUDA_VISIBLE_DEVICES')).stdout).toBe('GPU-fake-0\nGPU-fake-0\n')
    const waiting = other('echo $CUDA_VISIBLE_DEVICES')
    await waitUntil('another pod waits', async () => (await other.broker.status()).running !== null)
    expect((await holder('echo still')).stdout).toBe('still\n')
    expect((await gpu()).phase).toBe('held')
    await holder.broker.revoke(1)
    expect((await waiting).stdout).toBe('GPU-fake-0\n')
    expect((await gpu()).counts).not.toHaveProperty('ungranted')
  })

  /** A job that leaves a process on the device. */
  const SERVE = (device: string) =>
    `cat > server.py <<'END'\n${SERVER.replaceAll('DEVICE', device)}END\nsetsid python3 server.py >/dev/null 2>&1 & until [ -e up ]; do sleep 0.01; done`
  const ASK = 'rm -f answer; : > ask; until [ -e answer ]; do sleep 0.01; done; cat answer'
  // A zombie, which nobody waits for here, has no program.
  const runs = (pid: string | undefined) => existsSync(`/proc/${pid}/exe`)
  const openersOf = (device: string) => `find /proc/[0-9]*/fd -lname ${device} 2>/dev/null | wc -l`

  test('what a job leaves on the GPU is suspended between jobs: the GPU is for others, and the next job finds it as it was', async () => {
    const [keeper, other] = [await pod('volume', { FIREPOOL_SEAT_IDLE: 'checkpoint' }), await pod()]
    await waitUntil('the GPU is free', async () => (await gpu()).phase === 'free')
    const device = realpathSync(join(dir, 'dev/nvidia0'))
    const first = await keeper(`${SERVE(device)}; ${ASK}; ${openersOf(device)}`)
    const [pid] = first.stdout.split(' ')
    expect(first.stdout).toBe(`${pid} 1\n1\n`)
    // It lives, and answers, but it is not on the GPU, which another pod has.
    const busy = other(
      `echo $CUDA_VISIBLE_DEVICES; ${openersOf(device)}; touch began; until [ -e end ]; do sleep 0.01; done`,
    )
    await waitUntil('the other pod has the GPU', async () => (await gpu()).phase === 'held')
    const meanwhile = resultOf(await keeper.post({ command: ASK, device: 'none' }))
    expect(meanwhile.stdout).toBe(`${pid} 2\n`)
    const waiting = keeper(`${ASK}; ${openersOf(device)}; echo $CUDA_VISIBLE_DEVICES`)
    await waitUntil('the next job waits', async () => (await keeper.broker.status()).running !== null)
    await other.lease.putFile('end', Buffer.alloc(0))
    expect((await busy).stdout).toBe('GPU-fake-0\n0\n')
    expect((await waiting).stdout).toBe(`${pid} 3\n1\nGPU-fake-0\n`)
    await keeper.broker.revoke(1)
    expect(runs(pid)).toBe(false)
    await waitUntil('the GPU is free', async () => (await gpu()).phase === 'free')
    expect((await gpu()).counts).not.toHaveProperty('ungranted')
  })

  test('what cannot be suspended is lost by name: the job has its result, the next one never starts there, and the pod ends', async () => {
    const keeper = await pod('volume', { FIREPOOL_SEAT_IDLE: 'checkpoint' })
    const device = realpathSync(join(dir, 'dev/nvidia0'))
    writeFileSync(join(dir, 'refuse'), '')
    const first = await keeper(`${SERVE(device)}; ${ASK}`)
    rmSync(join(dir, 'refuse'))
    const [pid] = first.stdout.split(' ')
    expect(first.stdout).toBe(`${pid} 1\n`)
    await waitUntil('it is killed', () => !runs(pid))
    const problem = problemOf(await keeper.post({ command: 'true' }))
    expect(problem).toMatchObject({ code: 'LeaseRevoked', details: { reason: 'CheckpointFailed' } })
    expect(problem.message).toContain('the FAKE refuses')
    await keeper.runner.exit
  })

  // The last one: the GPU stays in quarantine.
  test('a pod that holds hears between its jobs that its GPU has failed, and ends by that name', async () => {
    await waitUntil('the GPU is free', async () => (await gpu()).phase === 'free')
    const termination = join(dir, 'termination')
    const settings = { FIREPOOL_SEAT_IDLE: 'hold', FIREPOOL_TERMINATION_LOG: termination }
    const holder = await pod('volume', settings)
    await holder('echo $CUDA_VISIBLE_DEVICES')
    const description = join(dir, 'dev/nvml.json')
    const node = JSON.parse(readFileSync(description, 'utf8'))
    node.gpus[0].xids = [{ id: 1, code: 79 }]
    writeFileSync(`${description}.new`, JSON.stringify(node))
    renameSync(`${description}.new`, description)
    expect((await holder.runner.exit).code).toBe(1)
    expect(JSON.parse(readFileSync(termination, 'utf8'))).toMatchObject({
      reason: 'SeatLost',
      message: expect.stringContaining('XID 79'),
    })
  })
})
