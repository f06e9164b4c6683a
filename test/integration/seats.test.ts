import { type ChildProcess, execFileSync, spawn } from 'node:child_process'
import { existsSync, mkdtempSync, rmSync } from 'node:fs'
import { request } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { JobSpec } from '../../src/contract/index.js'
import { createRunnerClient, jobDigest } from '../../src/runner/client.js'
import {
  compileSources,
  type RunnerProcess,
  resultOf,
  startProcess,
  waitUntil,
} from '../../src/runner/world.fixture.js'

/**
 * Two runners and the real node agent, as processes. Only the GPU is not there: a file stands for it, and the agent's
 * double of the driver lists who has it open.
 */

const NODE_AGENT = fileURLToPath(new URL('../../node-agent', import.meta.url))

function hasGo(): boolean {
  try {
    execFileSync('go', ['version'], { stdio: 'ignore' })
    return true
  } catch {
    console.log('the seats of two runners are not tested: there is no go on the PATH to build the node agent')
    return false
  }
}

describe.skipIf(!hasGo())('runners on a node with one GPU', () => {
  let dir: string
  let agent: ChildProcess
  let compiled: { dir: string; remove: () => void }
  const runners: RunnerProcess[] = []
  let pods = 0

  beforeAll(async () => {
    dir = mkdtempSync(join(tmpdir(), 'fps-')) // short: a socket's path has at most 107 bytes
    const binary = join(dir, 'firepool-node')
    execFileSync('go', ['build', '-o', binary, './cmd/firepool-node'], {
      cwd: NODE_AGENT,
      env: { ...process.env, CGO_ENABLED: '0' }, // NVML is not needed here
      stdio: 'pipe',
    })
    agent = spawn(
      binary,
      [
        '-device=fake',
        '-identity=fake',
        `-fake-dir=${join(dir, 'dev')}`,
        `-state-dir=${join(dir, 'state')}`,
        `-pods-dir=${join(dir, 'pods')}`,
        '-listen=',
      ],
      { stdio: 'ignore' },
    )
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

  /** Registers a pod and starts its runner, whose jobs need a seat each. */
  async function pod(settings: Record<string, string> = {}) {
    const number = ++pods
    const uid = `${process.pid.toString(16).padStart(8, '0')}-0000-4000-8000-${String(number).padStart(12, '0')}`
    await operator('PUT', `/v1/pods/${uid}`, { v: 1, tenant: `tenant-${number}` })
    const name = `pod-${uid}`
    const runner = startProcess(compiled.dir, join(dir, name), {
      profile: { env: { FIREPOOL_FAKE_POD_UID: uid } },
      env: {
        FIREPOOL_POD: name,
        FIREPOOL_FAKE_POD_UID: uid,
        FIREPOOL_SEAT_SOCKET: join(dir, 'pods', uid, 'agent.sock'),
        ...settings,
      },
    })
    runners.push(runner)
    const { address, incarnation } = await runner.ready()
    const broker = createRunnerClient(address, () => runner.sign(name, 'broker', 0, ''))
    await broker.bind({ v: 1, epoch: 1, leaseId: 'l', ownerHash: 'o', incarnation })
    const lease = createRunnerClient(address, () => runner.sign(name, 'lease', 1, 'l'))
    let jobs = 0
    const run = async (command: string) => {
      const spec: JobSpec = { command }
      return resultOf(
        await lease.jobs({ v: 1, jobId: `s/${++jobs}`, digest: jobDigest(spec), epoch: 1, spec }),
      )
    }
    return Object.assign(run, { broker })
  }

  async function gpu() {
    const { gpus, counts } = (await operator('GET', '/status')) as {
      gpus: { phase: string; pod?: string }[]
      counts: Record<string, number>
    }
    return { ...gpus[0]!, counts }
  }

  function operator(method: string, path: string, body?: unknown): Promise<unknown> {
    return new Promise((resolve, reject) => {
      const call = request(
        { socketPath: join(dir, 'state/operator.sock'), method, path, agent: false },
        (answer) => {
          let text = ''
          answer.on('data', (chunk) => {
            text += chunk
          })
          answer.on('end', () =>
            answer.statusCode === 200 ? resolve(JSON.parse(text)) : reject(new Error(text)),
          )
        },
      )
      call.on('error', reject)
      call.end(body === undefined ? '' : JSON.stringify(body))
    })
  }

  test('a job finds the GPU empty, also when the one before it has left a process there', async () => {
    const [first, second] = [await pod(), await pod()]
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

  test('a pod that holds keeps its GPU between jobs, from its first job to the end of its lease', async () => {
    const [holder, other] = [await pod({ FIREPOOL_SEAT_IDLE: 'hold' }), await pod()]
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
