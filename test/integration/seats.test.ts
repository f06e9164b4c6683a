import { type ChildProcess, execFileSync, spawn } from 'node:child_process'
import { existsSync, mkdirSync, mkdtempSync, rmSync } from 'node:fs'
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
import { freePort } from '../../src/server/free-port.js'
import { generateKeys } from '../../src/token/token.js'

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
  const keys = generateKeys()
  let url: string

  beforeAll(async () => {
    dir = mkdtempSync(join(tmpdir(), 'fps-')) // short: a socket's path has at most 107 bytes
    const binary = join(dir, 'firepool-node')
    execFileSync('go', ['build', '-o', binary, './cmd/firepool-node'], {
      cwd: NODE_AGENT,
      env: { ...process.env, CGO_ENABLED: '0' }, // NVML is not needed here
      stdio: 'pipe',
    })
    const port = await freePort()
    url = `http://127.0.0.1:${port}`
    agent = spawn(
      binary,
      [
        '-device=fake',
        '-identity=fake',
        `-fake-dir=${join(dir, 'dev')}`,
        `-state-dir=${join(dir, 'state')}`,
        `-pods-dir=${join(dir, 'pods')}`,
        '-listen=',
        `-seats-listen=127.0.0.1:${port}`,
        `-broker-keys=jobs=${keys.publicKeyBase64}`,
        `-pod-logs-dir=${join(dir, 'logs')}`,
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

  /** Starts the runner of a pod whose jobs need a seat each. Its volume is published first, or the kubelet only starts it. */
  async function pod(has: 'volume' | 'token') {
    const number = ++pods
    const uid = `${process.pid.toString(16).padStart(8, '0')}-0000-4000-8000-${String(number).padStart(12, '0')}`
    const name = `pod-${uid}`
    if (has === 'volume') await operator('PUT', `/v1/pods/${uid}`, { v: 1, tenant: `tenant-${number}` })
    else mkdirSync(join(dir, 'logs', `jobs_${name}-g1_${uid}`), { recursive: true })
    const runner = startProcess(compiled.dir, join(dir, name), {
      profile: { env: { FIREPOOL_FAKE_POD_UID: uid } },
      env: {
        FIREPOOL_POD: name,
        FIREPOOL_FAKE_POD_UID: uid,
        ...(has === 'volume'
          ? { FIREPOOL_SEAT_SOCKET: join(dir, 'pods', uid, 'agent.sock') }
          : { FIREPOOL_SEAT_URL: url }),
      },
      keys,
    })
    runners.push(runner)
    const { address, incarnation } = await runner.ready()
    const broker = createRunnerClient(address, () => runner.sign(name, 'broker', 0, ''))
    await broker.bind({ v: 1, epoch: 1, leaseId: 'l', ownerHash: 'o', incarnation })
    const lease = createRunnerClient(address, () => runner.sign(name, 'lease', 1, 'l'))
    let jobs = 0
    return async (command: string) => {
      const spec: JobSpec = { command }
      return resultOf(
        await lease.jobs({ v: 1, jobId: `s/${++jobs}`, digest: jobDigest(spec), epoch: 1, spec }),
      )
    }
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
      const { gpus, counts } = (await operator('GET', '/status')) as {
        gpus: { phase: string }[]
        counts: Record<string, number>
      }
      expect(counts).not.toHaveProperty('ungranted')
      return gpus[0]?.phase === 'free' && (counts.killed ?? 0) > 0
    })
  })
})
