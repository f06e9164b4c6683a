import { mkdtempSync, readdirSync, rmSync } from 'node:fs'
import { homedir, tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { processesWith, type Running, startScript } from '../support/cli.js'
import { waitUntil } from '../support/wait.js'

let tmp: string
beforeEach(() => {
  tmp = mkdtempSync(join(tmpdir(), 'firepool-bench-test-'))
})
afterEach(() => rmSync(tmp, { recursive: true, force: true }))

/** `npm run bench` after its build, with a folder for temporary files by which its processes are found. */
function bench(args: readonly string[]): Running {
  const { TEMPORAL_ADDRESS: _, PATH, ...rest } = process.env
  const env = { ...rest, PATH: `${PATH}:${join(homedir(), 'go', 'bin')}`, TMPDIR: tmp }
  return startScript('--import=tsx', ['bench/main.ts', ...args], env)
}

const folders = () => readdirSync(tmp).filter((name) => name.startsWith('firepool-bench-'))

test.each([
  ['SIGINT', 130, 'while it measures', /^serial: /m],
  ['SIGTERM', 143, 'while it starts its pods', /^events of warm jobs/m],
] as const)('%s %s %s: nothing of it stays', async (signal, code, _, at) => {
  const running = bench(['warm-path', '--serial=100000', '--json'])
  await running.until('stderr', at)
  expect(folders()).toHaveLength(1)
  running.kill(signal)
  const ended = await running.ended
  expect(ended.code, ended.stderr).toBe(code)
  expect(ended.stdout.toString()).toBe('')
  expect(ended.stderr).toContain('nothing was measured, everything is stopped')
  expect(ended.stderr).not.toContain('could not')
  await waitUntil('no process of it is left', () => processesWith(tmp).length === 0)
  expect(folders()).toEqual([])
})

test('a long workflow task of local activities is not waited for', async () => {
  const running = bench(['lease', '--short=100000'])
  await running.until('stderr', /^short: /m)
  await new Promise((resolve) => setTimeout(resolve, 2_000))
  running.kill('SIGINT')
  const ended = await running.ended
  expect(ended.code, ended.stderr).toBe(130)
  expect(ended.stderr).toMatch(/everything is stopped\n$/)
  expect(ended.stderr).not.toMatch(/could not|ERROR/)
  await waitUntil('no process of it is left', () => processesWith(tmp).length === 0)
  expect(folders()).toEqual([])
})

test('a second Ctrl-C does not wait', async () => {
  const running = bench(['lease', '--short=100000'])
  await running.until('stderr', /^short: /m)
  running.kill('SIGINT')
  await running.until('stderr', 'Ctrl-C again kills')
  await new Promise((resolve) => setTimeout(resolve, 1_000))
  running.kill('SIGINT')
  const { code } = await running.ended
  // A machine that is fast had stopped it in order by then.
  expect([1, 130]).toContain(code)
  await waitUntil('no process of it is left', () => processesWith(tmp).length === 0)
  expect(folders()).toEqual([])
})
