import { expect, test } from 'vitest'
import { type ErrorCode, ORIGIN_OF, problem } from '../contract/index.js'
import { EXIT, EXIT_HELP, EXIT_HELP_RUN, exitCodeOfJob, exitCodeOfProblem } from './exit-code.js'

test('a job gives its own exit code, or 128 + its signal', () => {
  expect(exitCodeOfJob({ exitCode: 0, signal: null })).toBe(0)
  expect(exitCodeOfJob({ exitCode: 255, signal: null })).toBe(255)
  expect(exitCodeOfJob({ exitCode: null, signal: 'SIGKILL' })).toBe(137)
  expect(exitCodeOfJob({ exitCode: null, signal: 'SIGTERM' })).toBe(143)
})

test('every code of the contract has one, and infrastructure is always 75', () => {
  for (const [code, origin] of Object.entries(ORIGIN_OF)) {
    const exitCode = exitCodeOfProblem(problem(code as ErrorCode, 'x'))
    expect(exitCode, code).toBeGreaterThan(0)
    if (origin === 'infrastructure') expect(exitCode, code).toBe(EXIT.temporary)
  }
})

test('commands that cannot be started are what shells say', () => {
  const refused = (reason: string) =>
    exitCodeOfProblem(problem('InvalidRequest', 'x', { reason, command: 'c' }))
  expect(refused('ENOENT')).toBe(127)
  expect(refused('EACCES')).toBe(126)
  expect(exitCodeOfProblem(problem('InvalidRequest', 'x', { leases: 1, waiting: 0 }))).toBe(3)
  expect(exitCodeOfProblem(problem('InvalidRequest', 'x'))).toBe(64)
  expect(exitCodeOfProblem(problem('PoolNotFound', 'x'))).toBe(68)
})

test('the help names every code', () => {
  for (const code of Object.values(EXIT)) {
    if (code === EXIT.pipeClosed) continue
    expect(`${EXIT_HELP}${EXIT_HELP_RUN}`, String(code)).toMatch(new RegExp(`\\b${code}\\b`))
  }
})
