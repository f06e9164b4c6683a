import { mkdtempSync, readdirSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, onTestFinished, test } from 'vitest'
import { processesWith, startScript } from '../support/cli.js'
import { orSkipped, realNodeObstacle } from '../support/obstacles.js'
import { waitUntil } from '../support/wait.js'

/** The benchmark that needs a real node, with a handful of samples: it runs, its numbers add up, and nothing of it stays. */

const obstacle = await realNodeObstacle()

interface Spread {
  p50: number
  p90: number
  p99: number
  n: number
}

interface Measured {
  ratios: { handoverSpeedupP50: number }
  brokerOverheadMsP50: number
  seatRetakeMsP50: number
  phasesMs: Record<string, Spread>
  handoverMs: Spread
  deleteAndCreateMs: Spread
  cluster: Record<string, string>
}

test.skipIf(obstacle)(orSkipped('handover measures every phase, in order', obstacle), async () => {
  // Short: sockets of the node are below it.
  const tmp = mkdtempSync(join(tmpdir(), 'fpb-'))
  onTestFinished(() => rmSync(tmp, { recursive: true, force: true }))
  const few = ['--handovers=4', '--retakes=3', '--fresh=1', '--coldMs=1000']
  const running = startScript('--import=tsx', ['bench/main.ts', 'handover', ...few, '--json'], {
    ...process.env,
    TMPDIR: tmp,
  })
  const { code, stdout, stderr } = await running.ended
  expect(code, stderr).toBe(0)
  const measured = JSON.parse(stdout.toString()) as Measured
  const { phasesMs, handoverMs, deleteAndCreateMs } = measured
  expect(Object.keys(phasesMs)).toEqual([
    'drain',
    'exit',
    'handBack',
    'verify',
    'grant',
    'fork',
    'firstDeviceCall',
  ])
  // The runner's log has whole milliseconds, and a pipe's end is heard a moment later than it is.
  for (const [phase, { p50, n }] of Object.entries(phasesMs)) {
    expect(n, phase).toBe(4)
    expect(p50, phase).toBeGreaterThan(-2)
  }
  expect(measured.brokerOverheadMsP50).toBeLessThanOrEqual(handoverMs.p99)
  expect(measured.seatRetakeMsP50).toBeGreaterThan(0)
  expect(deleteAndCreateMs.p50).toBeGreaterThan(1_000)
  expect(measured.ratios.handoverSpeedupP50).toBeCloseTo(deleteAndCreateMs.p50 / handoverMs.p50, 0)
  expect(measured.cluster.gpus).toMatch(/^FAKE/)
  expect(stderr).not.toContain('could not')
  await waitUntil('no process of it is left', () => processesWith(tmp).length === 0)
  expect(readdirSync(tmp).filter((name) => name.startsWith('firepool'))).toEqual([])
})
