import { createHash, generateKeyPairSync, type KeyObject, sign } from 'node:crypto'
import { existsSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import type { JobOutcome, JobSpec, ObservedPod, TokenClaims } from '../contract/index.js'
import { createLocalBackend, type LocalBackend } from './index.js'
import { listed, marked, order, podName, World, waitUntil } from './pods.fixture.js'

const RUNNER = fileURLToPath(new URL('../../dist/runner/main.js', import.meta.url))

/**
 * Leaves its parents, its session, and every variable that names the pod's folder. Goes on only when it has left: what is
 * still in the job's process group ends with the job.
 */
const LEAVE =
  "(setsid env HOME=/ PWD=/ OLDPWD=/ TMPDIR=/ sh -c ': > left; exec sleep 600' >/dev/null 2>&1 &)" +
  '; until [ -e left ]; do sleep 0.02; done'

let world: World
let backend: LocalBackend
let key: KeyObject

beforeEach(() => {
  world = new World()
  const pair = generateKeyPairSync('ed25519')
  key = pair.privateKey
  // The raw key is the last 32 bytes of its DER form.
  const raw = pair.publicKey.export({ type: 'spki', format: 'der' }).subarray(-32)
  const brokerPublicKey = raw.toString('base64')
  backend = createLocalBackend({ dir: world.dir, brokerPublicKey, runnerMain: RUNNER })
})

afterEach(async () => {
  await backend.stopAll()
  backend.close()
  await world.end()
})

function token(pod: string, scope: TokenClaims['scope']): string {
  const claims: TokenClaims = { v: 1, pod, scope, epoch: 1, leaseId: 'l', expiresAtMs: Date.now() + 600_000 }
  const body = Buffer.from(JSON.stringify(claims)).toString('base64url')
  return `${body}.${sign(null, Buffer.from(body), key).toString('base64url')}`
}

async function post(seen: ObservedPod, scope: TokenClaims['scope'], path: string, body: object) {
  const response = await fetch(`${seen.address}${path}`, {
    method: 'POST',
    headers: { authorization: `Bearer ${token(seen.pod, scope)}`, 'content-type': 'application/json' },
    body: JSON.stringify({ v: 1, ...body }),
  })
  const reply: unknown = await response.json()
  expect(response.status, JSON.stringify(reply)).toBe(200)
  return reply
}

/** Binds the pod to a caller. */
async function bind(seen: ObservedPod): Promise<void> {
  const ownerHash = 'a'.repeat(64)
  await post(seen, 'broker', '/bind', { epoch: 1, leaseId: 'l', ownerHash, incarnation: seen.incarnation })
}

/** Runs a job whose spec has nothing but a command, so that its JSON is canonical as it stands. */
async function job(seen: ObservedPod, jobId: string, command: string): Promise<JobOutcome> {
  const spec: JobSpec = { command }
  const digest = createHash('sha256').update(JSON.stringify(spec)).digest('hex')
  const reply = await post(seen, 'lease', '/jobs', { jobId, digest, epoch: 1, spec })
  return (reply as { outcome: JobOutcome }).outcome
}

// The runner is compiled to dist/ before the unit tests run; without it there is nothing to test here.
describe.skipIf(!existsSync(RUNNER))('with the real runner', () => {
  test('a pod runs jobs, and what they leave behind ends with it', async () => {
    const pod = podName()
    await backend.create([order(pod)])
    const seen = await listed(backend, pod, 'ready')
    await bind(seen)
    const outcome = await job(seen, 'j/1', `${LEAVE}; chmod 000 . ; echo done`)
    expect(outcome).toMatchObject({ kind: 'result', result: { exitCode: 0, stdout: 'done\n' } })
    expect(await waitUntil('the escapee runs', () => marked(pod).length > 1)).toBe(true)
    await backend.remove([pod])
    expect(world.leftovers(pod)).toEqual([])
  })

  test('a killed runner takes with it what it ran, and what had hidden from it', async () => {
    const pod = podName()
    await backend.create([order(pod)])
    const seen = await listed(backend, pod, 'ready')
    await bind(seen)
    const [runnerPid] = marked(pod) as [number]
    const lost = job(seen, 'j/1', `${LEAVE}; sleep 600`).then(
      () => 'answered',
      () => 'lost',
    )
    await waitUntil('the job runs', () => {
      const pids = marked(pod)
      // The runner, the job's shell, its sleep and the escapee.
      return pids.length > 3 ? pids : undefined
    })
    process.kill(runnerPid, 'SIGKILL')
    expect((await listed(backend, pod, 'failed')).message).toContain('SIGKILL')
    expect(marked(pod)).toEqual([])
    expect(await lost).toBe('lost')
  })

  test('a preload that fails is told with its module', async () => {
    const pod = podName()
    const preload = { python: 'python3', imports: ['no_such'], seeds: [] }
    await backend.create([order(pod, {}, { preload })])
    const failed = await listed(backend, pod, 'failed')
    expect(failed.reason).toBe('PreloadFailed')
    expect(failed.message).toContain('no_such')
  })

  test('prepare that fails is told with its output', async () => {
    const pod = podName()
    await backend.create([order(pod, {}, { prepare: ['sh', '-c', 'echo no such wheel >&2; exit 3'] })])
    const failed = await listed(backend, pod, 'failed')
    expect(failed.reason).toBe('PrepareFailed')
    expect(failed.message).toContain('no such wheel')
  })
})
