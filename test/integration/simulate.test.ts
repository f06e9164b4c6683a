import { mkdtempSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import type { SimulationResult } from '../../dist/simulator/result.js'
import { startCli } from '../support/cli.js'

/** The command as a process; what it computes is tested beside its source. It needs no server. */

const folder = mkdtempSync(join(tmpdir(), 'firepool-simulate-'))

function simulate(...args: string[]) {
  return startCli(['simulate', ...args], { ...process.env, NO_COLOR: '1' })
}

async function ended(...args: string[]) {
  const { code, stdout, stderr } = await simulate(...args).ended
  return { code, stdout: stdout.toString(), stderr }
}

test('prints a table, and the same figures as one object', async () => {
  const args = ['--sessions', '20', '--keep-alive', '20s', '--seed', '7']
  const table = await ended(...args)
  expect(table).toMatchObject({ code: 0, stderr: '' })
  const result = JSON.parse((await ended(...args, '--json')).stdout) as SimulationResult
  expect(result).toMatchObject({ v: 1, complete: true, seed: 7, pool: { keepAliveMs: 20_000 } })
  expect(table.stdout).toContain(`${result.heldOver.session!.toFixed(2)} x`)
})

test('pools are compared side by side with the same jobs', async () => {
  const [a, b] = ['a', 'b'].map((name) => {
    const path = join(folder, `${name}.yaml`)
    writeFileSync(path, `pools: [{ name: ${name}, budget: 40, keepAlive: ${name === 'a' ? '60s' : '5s'} }]`)
    return path
  })
  const { stdout, code } = await ended('--compare', a!, b!, '--sessions', '20', '--json')
  expect(code).toBe(0)
  const { runs } = JSON.parse(stdout) as { runs: SimulationResult[] }
  expect(runs.map(({ pool }) => pool.name)).toEqual(['a', 'b'])
  expect(runs[0]!.jobs).toEqual(runs[1]!.jobs)
  expect(runs[0]!.seatSeconds.held).toBeGreaterThan(runs[1]!.seatSeconds.held)
})

test('a trace whose lines are wrong is named by line, and runs on; one without a good line fails', async () => {
  const path = join(folder, 'trace.csv')
  writeFileSync(path, 'atSeconds,caller,runSeconds\n0,a,1\n1,a\n0.5,b,1\n')
  const { code, stderr, stdout } = await ended('--trace', path, '--json')
  expect(code).toBe(0)
  expect(stderr).toContain(
    `${path}:3: left out: the line has 2 values, and the header 3 columns; write one value`,
  )
  expect(JSON.parse(stdout)).toMatchObject({ jobs: { asked: 2, finished: 2 }, leftOut: { lines: 1 } })
  writeFileSync(path, 'atSeconds,caller,runSeconds\n-1,a,1\n')
  const refused = await ended('--trace', path)
  expect(refused.code).toBe(64)
  expect(refused.stderr).toContain(`error: ${path}:2: atSeconds is -1 [InvalidTrace]`)
})

test('Ctrl-C ends a long run with what was measured so far', async () => {
  const running = simulate('--sessions', '1000000', '--over', '100h', '--json')
  await running.until('stderr', /firepool: \d+%, [\d,]+ jobs/)
  running.kill('SIGINT')
  const { code, stdout } = await running.ended
  expect(code).toBe(130)
  const result = JSON.parse(stdout.toString()) as SimulationResult
  expect(result.complete).toBe(false)
  expect(result.jobs.finished).toBeGreaterThan(0)
})
