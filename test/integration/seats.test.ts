import { type ChildProcess, spawn } from 'node:child_process'
import { existsSync, mkdirSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { JobSpec, Preload } from '../../src/contract/index.js'
import { createRunnerClient, jobDigest } from '../../src/runner/client.js'
import {
  compileSources,
  PYTHON,
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
    ]
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
    const run = async (command: JobSpec['command']) => {
      const spec: JobSpec = { command }
      return resultOf(
        await lease.jobs({ v: 1, jobId: `s/${++jobs}`, digest: jobDigest(spec), epoch: 1, spec }),
      )
    }
    return Object.assign(run, { broker })
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
})
