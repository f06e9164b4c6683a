/** docs/contract.md is the published contract: its tables say what the code says. */
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { expect, test } from 'vitest'
import { waitReason } from '../broker/policy/admission.js'
import type { Lease, PoolState } from '../broker/state.js'
import { durationMs } from './duration.js'
import { ORIGIN_OF } from './errors.js'
import type { HitClass, LeaseEndReason } from './lease.js'
import { LIMIT, TIMEOUT } from './limits.js'
import { ACTIVITY, QUERY, QUEUE, SEARCH_ATTRIBUTE, SIGNAL, UPDATE, WORKFLOW } from './names.js'
import type { PoolStatus } from './pool.js'
import { WAIT_REASONS } from './wait-reason.js'

const text = readFileSync(new URL('../../docs/contract.md', import.meta.url), 'utf8')

/** The tables of the document: by their first column's title, as rows of cells without backticks. */
function tableOf(title: string): string[][] {
  const lines = text.split('\n')
  const start = lines.findIndex((line) => line.startsWith(`| ${title} |`))
  expect(start, `a table whose first column is '${title}'`).toBeGreaterThan(-1)
  const rows: string[][] = []
  for (const line of lines.slice(start + 2)) {
    if (!line.startsWith('|')) break
    rows.push(
      line
        .slice(1, -1)
        .split('|')
        .map((cell) => cell.trim().replaceAll('`', '')),
    )
  }
  return rows
}

const firstColumn = (title: string) =>
  tableOf(title)
    .map(([first]) => first)
    .sort()

test.each([
  ['task queue', QUEUE],
  ['workflow', WORKFLOW],
  ['activity', ACTIVITY],
  ['signal', SIGNAL],
  ['update of a pool', UPDATE],
  ['query of a pool', QUERY],
])('the table of each %s has the names of the code', (title, names) => {
  expect(firstColumn(title)).toEqual(Object.values(names).sort())
})

test('search attributes have their types', () => {
  expect(Object.fromEntries(tableOf('search attribute'))).toEqual(SEARCH_ATTRIBUTE)
})

test('error codes have their origins, a meaning and a remedy', () => {
  const rows = tableOf('code')
  expect(Object.fromEntries(rows.map(([code, origin]) => [code, origin]))).toEqual(ORIGIN_OF)
  for (const [code, , meaning, remedy] of rows) expect(meaning && remedy, code).toBeTruthy()
})

const reasons = tableOf('reason').map(([reason, of, meaning]) => ({
  reason: reason!,
  of: of!,
  meaning: meaning!,
}))

test('the reasons of a wait are those of the pool', () => {
  const documented = reasons.filter(({ of }) => of.startsWith('waiting,')).map(({ reason }) => reason)
  expect(documented.sort()).toEqual([...WAIT_REASONS].sort())
  expect(new Set(everyWaitReason())).toEqual(new Set(WAIT_REASONS))
})

/** What the pool says in each state that it tells apart. */
function everyWaitReason(): string[] {
  const modes: Record<PoolStatus['mode'], true> = {
    running: true,
    paused: true,
    draining: true,
    deleting: true,
  }
  const state = (mode: string, openUntil: number | null, held: number) => {
    const spec = { budget: 1, guarantee: 1, shards: 1 }
    return {
      mode,
      breaker: { openUntil },
      index: { held },
      spec: { ...spec, profile: { backend: 'local' } },
      operator: { budget: null },
      fleet: null,
      shards: new Map(),
      shard: null,
    }
  }
  const waiting = (claims: boolean) => ({ kind: 'waiting', claims })
  const states = [...Object.keys(modes).map((mode) => state(mode, null, 0)), state('running', 1, 0)]
  const cases: [unknown, unknown][] = [
    ...[...states, state('running', null, 1)].map((s): [unknown, unknown] => [s, waiting(true)]),
    [state('running', null, 0), waiting(false)],
  ]
  return cases.map(([s, lease]) => waitReason(s as PoolState, lease as Lease, 0))
}

test('every reason has a code that it belongs to, and a meaning', () => {
  for (const { reason, of, meaning } of reasons) {
    for (const code of of.split(', ')) expect([...Object.keys(ORIGIN_OF), 'waiting'], reason).toContain(code)
    expect(meaning, reason).toMatch(/./)
  }
  expect(new Set(reasons.map(({ reason }) => reason)).size).toBe(reasons.length)
})

/** Failures of one attempt, which Temporal retries: no caller sees them. */
const OF_ATTEMPTS = ['Detached', 'PoolUnanswered']

/** Of the node agent, for its runners alone. */
const OF_THE_AGENT = ['NotSuspended']

test('codes and reasons in the source are in the document, and no others', () => {
  const found = new Set(codeWords())
  const callers = [...Object.keys(ORIGIN_OF), ...reasons.map(({ reason }) => reason)]
  const documented = [...callers, ...OF_ATTEMPTS, ...OF_THE_AGENT]
  expect([...found].filter((word) => !documented.includes(word))).toEqual([])
  expect(reasons.map(({ reason }) => reason).filter((word) => !found.has(word))).toEqual([])
  for (const type of OF_ATTEMPTS) expect(text).toContain(`\`${type}\``)
})

/** Texts of the form of a code in what answers callers, and what the pool makes of its mode. */
function codeWords(): string[] {
  const folders = ['broker', 'activities', 'runner', 'local', 'token', 'workflows']
  const src = fileURLToPath(new URL('..', import.meta.url))
  const files = folders.flatMap((folder) =>
    readdirSync(join(src, folder), { recursive: true, encoding: 'utf8' })
      .filter((name) => /(?<!\.test|\.fixture)\.ts$/.test(name))
      .map((name) => join(src, folder, name)),
  )
  files.push(join(src, 'contract/backend.ts'), join(src, 'contract/errors.ts'))
  expect(files.length).toBeGreaterThan(50)
  const words = files.flatMap((file) => [...readFileSync(file, 'utf8').matchAll(/'((?:[A-Z][a-z]+)+)'/g)])
  return [...words.map(([, word]) => word!), ...everyWaitReason()].filter((word) => !isOtherName(word))
}

/** Names of shapes on the wire, of error classes (the SDK's too) and of search attributes have the same form. */
function isOtherName(word: string): boolean {
  return /Request$/.test(word)
    ? !(word in ORIGIN_OF)
    : ['FirepoolError', 'RunnerUnreachable', 'NotFoundError'].includes(word) || word in SEARCH_ATTRIBUTE
}

test('ends of a lease and kinds of a grant are named', () => {
  const ends: Record<LeaseEndReason, true> = {
    released: true,
    recalled: true,
    expired: true,
    podLost: true,
    superseded: true,
    failed: true,
  }
  const hits: Record<HitClass, true> = { warm: true, standby: true, cold: true }
  for (const name of [...Object.keys(ends), ...Object.keys(hits)]) expect(text).toContain(`\`"${name}"\``)
})

/** Rows of a section's table of numbers: durations, or numbers with thousands separators. */
function numbers(heading: string): Record<string, number> {
  const from = text.indexOf(`\n## ${heading}\n`)
  const section = text.slice(from, text.indexOf('\n## ', from + 4) + 1 || undefined)
  const rows = section.matchAll(/^\| `(\w+)` \| ([^|]+) \|/gm)
  return Object.fromEntries(
    [...rows].map(([, name, value]) => [name, durationMs(value) ?? Number(value!.replaceAll(',', ''))]),
  )
}

test('every default of a time', () => {
  expect(numbers('Times')).toEqual(TIMEOUT)
})

test('every limit', () => {
  expect(numbers('Limits')).toEqual(LIMIT)
})
