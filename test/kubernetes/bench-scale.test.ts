import { mkdtempSync, readdirSync, rmSync } from 'node:fs'
import { homedir, tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { processesWith, type Running, startScript } from '../support/cli.js'
import { clusterObstacle, orSkipped } from '../support/obstacles.js'
import { waitUntil } from '../support/wait.js'

const obstacle = await clusterObstacle()

describe.skipIf(obstacle)(orSkipped('npm run bench -- kubernetes-scale', obstacle), () => {
  let tmp: string
  beforeEach(() => {
    tmp = mkdtempSync(join(tmpdir(), 'firepool-scale-test-'))
  })
  afterEach(() => rmSync(tmp, { recursive: true, force: true }))

  /** The benchmark after its build, with a folder for temporary files by which its processes are found. */
  function bench(args: readonly string[]): Running {
    const { TEMPORAL_ADDRESS: _, PATH, ...rest } = process.env
    const env = { ...rest, PATH: `${PATH}:${join(homedir(), 'go', 'bin')}`, TMPDIR: tmp }
    return startScript('--import=tsx', ['bench/main.ts', 'kubernetes-scale', ...args], env)
  }

  const nothingStays = async () => {
    await waitUntil('no process of it is left', () => processesWith(tmp).length === 0)
    expect(readdirSync(tmp).filter((name) => name.startsWith('firepool-'))).toEqual([])
  }

  test('a small one: every request is served, never more pods than wanted, few API requests', async () => {
    const running = bench([
      ...['--pods', '30', '--burst', '10', '--rate', '5', '--seconds=4', '--watched=45'],
      ...['--shards', '2', '--crowds', '3', '--seed', '7', '--json'],
    ])
    const ended = await running.ended
    expect(ended.code, ended.stderr).toBe(0)
    const result = JSON.parse(ended.stdout.toString())
    expect(result).toMatchObject({ shards: 2, seed: 7, podsOverDesiredMax: 0 })
    const { burst, openLoop, watched } = result.phases
    expect([burst.requests, burst.unserved, openLoop.unserved]).toEqual([10, 0, 0])
    expect(openLoop.requests).toBeGreaterThan(5)
    expect(Object.keys(result.grantMs.burst)).toEqual(['p50', 'p90', 'p99'])
    expect(result.apiRequestsPerLease).toBeLessThanOrEqual(2)
    expect(watched.pods).toBe(45)
    expect(result.rssMb).toBeGreaterThan(50)
    expect(result.rssAfterLeasesMb).toBeGreaterThan(50)
    expect(result.note).toContain('stand-ins')
    await nothingStays()
  })

  test('more is asked than is there: it ends, and who got no pod is counted with the time that he waited', async () => {
    const load = '--burst 0 --rate 20 --seconds 3 --fresh 100 --patience 4 --keepAliveMs 600000'
    const size = '--pods 4 --watched 0 --shards 1 --crowds 2 --seed 7'
    const running = bench([...load.split(' '), ...size.split(' '), '--json'])
    const ended = await running.ended
    expect(ended.code, ended.stderr).toBe(0)
    const { grantMs, phases } = JSON.parse(ended.stdout.toString())
    const { requests, unserved, unservedBy, byHit, leasesPerSecondMost } = phases.openLoop
    expect(byHit).toMatchObject({ standby: { n: 4 } })
    expect(unserved).toBe(requests - 4)
    expect(unservedBy).toEqual({ StillWaits: unserved })
    expect(grantMs.burst).toBeNull()
    expect(grantMs.openLoop.p50).toBeGreaterThanOrEqual(4_000)
    expect(leasesPerSecondMost).toBeGreaterThan(0)
    await nothingStays()
  })

  test('an interrupted one leaves nothing', async () => {
    const running = bench(['--pods', '5000000'])
    expect(await running.ended).toMatchObject({
      code: 2,
      stderr: expect.stringContaining('--pods is 1 to 2000'),
    })
    const other = bench(['--pods', '500', '--json'])
    await other.until('stderr', /^fill: /m)
    other.kill('SIGINT')
    const ended = await other.ended
    expect(ended.code, ended.stderr).toBe(130)
    expect(ended.stdout.toString()).toBe('')
    expect(ended.stderr).not.toContain('could not')
    await nothingStays()
  })
})
