import { mkdtempSync, rmSync } from 'node:fs'
import { readFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, inject, test } from 'vitest'
import type { DemoResult } from '../../dist/demo/result.js'
import { processesWith, startCli } from '../support/cli.js'
import { createNamespace } from '../support/production-server.js'
import { waitUntil } from '../support/wait.js'

/** As an operator runs it: `firepool worker` serves the server, and the loops are somebody else's. */

const NAMESPACE = 'demo'
/** It takes about a minute. One that hangs is interrupted, so that its output says where, and nothing is left to the next try. */
const HANGS_MS = 180_000

let dir: string
let env: NodeJS.ProcessEnv
beforeEach(async () => {
  const { address, parts } = inject('production')
  await createNamespace(parts, address, NAMESPACE)
  dir = mkdtempSync(join(tmpdir(), 'firepool-production-demo-'))
  const { PATH, HOME, FIREPOOL_CACHE_DIR } = process.env
  env = {
    PATH,
    HOME,
    TEMPORAL_ADDRESS: address,
    TEMPORAL_NAMESPACE: NAMESPACE,
    FIREPOOL_DIR: join(dir, 'state'),
    ...(FIREPOOL_CACHE_DIR ? { FIREPOOL_CACHE_DIR } : {}),
  }
})
afterEach(() => rmSync(dir, { recursive: true, force: true }))

async function whatTheWorkerSays(): Promise<string> {
  const { stdout, stderr } = await startCli(['pool', 'list', '--json'], env).ended
  const log = await readFile(join(dir, 'state', 'worker.log'), 'utf8').catch(String)
  return `pools: ${stdout}${stderr}\nworker.log: ${log.slice(-5_000)}`
}

test('the RL loop of the demo earns its rewards on pods of our worker; the worker ends in order and leaves nothing', async () => {
  const worker = startCli(['worker', '--json'], env)
  await worker.until('stdout', '\n')
  try {
    const demo = startCli(['demo', '--quick', '--json'], env)
    const hangs = setTimeout(() => demo.kill('SIGINT'), HANGS_MS)
    const { code, stdout, stderr } = await demo.ended
    clearTimeout(hangs)
    expect(code, code === 0 ? '' : `${stderr}\n${await whatTheWorkerSays()}`).toBe(0)
    expect(stderr).toContain('Pods are started by the Firepool worker that serves this server already')
    const { loops, notRun } = JSON.parse(stdout.toString()) as DemoResult
    expect(notRun).toEqual([])
    for (const loop of loops) {
      expect(loop.failures, loop.complaints.join('\n')).toBe(0)
      expect(loop.rewards).toEqual({ expected: 2 * loop.jobs, right: 2 * loop.jobs })
      expect(loop.withFirepool.shares.warm).toBeGreaterThan(0.5)
      expect(loop.freshPod.shares.warm).toBe(0)
      expect(loop.speedup).toBeGreaterThan(1)
    }
    expect(loops.map(({ name }) => name)).toContain('RL loop')
    const pools = await startCli(['pool', 'list', '--json'], env).ended
    expect(JSON.parse(pools.stdout.toString())).toEqual({ v: 1, pools: [] })
  } finally {
    worker.kill('SIGTERM')
    expect((await worker.ended).code).toBe(0)
  }
  await waitUntil('no process is left', () => processesWith(dir).length === 0)
})
