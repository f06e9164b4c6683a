import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeAll, beforeEach, expect, test } from 'vitest'
import type { JobResult, JobSpec } from '../contract/job.js'
import { type AgentStep, agentSession, checkStep, repositoryLost, setupJob } from './agent-session.js'
import { runBare } from './bare-job.js'
import { resolvePython } from './humaneval.js'
import { SLIPS } from './repository.js'

let python: string
let root: string
let folders = 0

beforeAll(async () => {
  python = await resolvePython()
})
beforeEach(async () => {
  root = await mkdtemp(join(tmpdir(), 'firepool-session-'))
})
afterEach(() => rm(root, { recursive: true, force: true }))

async function folder(): Promise<string> {
  return mkdtemp(join(root, `pod-${folders++}-`))
}

async function run(job: JobSpec, into: string): Promise<JobResult> {
  const outcome = await runBare(job, into)
  if (outcome.kind === 'problem') throw new Error(outcome.problem.message)
  return outcome.result
}

/** The session of a seed from 1 on that satisfies the condition. */
function sessionWith(condition: (steps: AgentStep[]) => boolean, maxSteps: number) {
  for (let seed = 1; seed < 1_000; seed++) {
    const session = agentSession({ seed, maxSteps, python })
    if (condition(session.steps)) return session
  }
  throw new Error('no such session in 1,000 seeds')
}

const KINDS = ['setup', 'edit', 'test', 'search', 'build', 'view'] as const
const hasAll = (steps: AgentStep[]) => KINDS.every((kind) => steps.some((step) => step.kind === kind))

test('the same seed gives the same session, another seed another one', () => {
  expect(agentSession({ seed: 7 })).toEqual(agentSession({ seed: 7 }))
  expect(agentSession({ seed: 7 })).not.toEqual(agentSession({ seed: 8 }))
  expect(JSON.parse(JSON.stringify(agentSession({ seed: 7 })))).toEqual(agentSession({ seed: 7 }))
})

test('a longer cap continues the same session', () => {
  const long = sessionWith((steps) => steps.length > 30, 60)
  const seed = long.id.replace('agent-', '')
  expect(agentSession({ seed, maxSteps: 10, python }).steps).toEqual(long.steps.slice(0, 10))
})

test('every step runs on one pod, one after the other, and its check holds', async () => {
  const session = sessionWith((steps) => hasAll(steps) && steps.some((s) => s.expect.exitCode === 1), 24)
  const pod = await folder()
  for (const step of session.steps) {
    const result = await run(step.job, pod)
    expect(checkStep(step, result), `${session.id} step ${step.index}: ${step.what}`).toBeNull()
    expect(result.durationMs).toBeLessThan(10_000)
  }
}, 60_000)

test('every step gives the same on a pod of its own', async () => {
  const session = sessionWith((steps) => hasAll(steps) && steps.length <= 16, 16)
  for (const step of session.steps) {
    const result = await run(step.freshJob, await folder())
    expect(checkStep(step, result), `${session.id} step ${step.index}: ${step.what}`).toBeNull()
  }
}, 60_000)

test('a slip makes its tests fail and changes the report, as the checks say', async () => {
  for (const { change } of SLIPS) {
    const slipped = (step: AgentStep) => step.kind === 'edit' && step.job.stdin === JSON.stringify([change])
    const inSlip = (steps: AgentStep[], kind: string) =>
      steps.some((step, i) => step.kind === kind && slipped(steps[i - 1] ?? step))
    for (const kind of ['test', 'build']) {
      const session = sessionWith((steps) => inSlip(steps, kind), 60)
      const step = session.steps.find((s, i) => s.kind === kind && slipped(session.steps[i - 1] ?? s))!
      expect(checkStep(step, await run(step.freshJob, await folder())), `${session.id} ${kind}`).toBeNull()
    }
  }
}, 60_000)

test('a pod without the repository, or with another revision, is noticed and never a right result', async () => {
  const session = sessionWith(hasAll, 24)
  const edit = session.steps.find((step) => step.kind === 'edit')!
  const later = session.steps.find((step) => step.index > edit.index)!
  const empty = await folder()
  const onEmpty = await run(later.job, empty)
  expect(repositoryLost(onEmpty)).toBe(true)
  expect(checkStep(later, onEmpty)).not.toBeNull()

  await run(setupJob(session), empty)
  expect(repositoryLost(await run(later.job, empty))).toBe(true)
  const restored = await run(later.freshJob, await folder())
  expect(repositoryLost(restored)).toBe(false)
  expect(checkStep(later, restored)).toBeNull()
})

test('a check notices a wrong exit code, output and file', async () => {
  const session = sessionWith(hasAll, 24)
  const edit = session.steps.find((step) => step.kind === 'edit')!
  const right = await run(edit.freshJob, await folder())
  expect(checkStep(edit, right)).toBeNull()
  expect(checkStep(edit, { ...right, exitCode: 1 })).toMatch(/exit 1 instead of 0/)
  expect(checkStep(edit, { ...right, stdout: '' })).toMatch(/standard output/)
  expect(checkStep(edit, { ...right, files: [] })).toMatch(/not collected/)
  const other = right.files.map((file) => ({ ...file, content: `${file.content}#` }))
  expect(checkStep(edit, { ...right, files: other })).toMatch(/another content/)
})

test('pauses and lengths keep to their bounds', () => {
  for (let seed = 0; seed < 50; seed++) {
    const { steps } = agentSession({ seed, maxSteps: 12 })
    expect(steps.length).toBeGreaterThanOrEqual(1)
    expect(steps.length).toBeLessThanOrEqual(12)
    expect(steps[0]!.pauseMs).toBe(0)
    for (const step of steps) expect(step.pauseMs).toBeLessThanOrEqual(137_043)
  }
})
