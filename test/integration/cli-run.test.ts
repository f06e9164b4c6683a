/** `firepool run`: its job's input, output and end. */
import { execFileSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { readFileSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import type { JobResult } from '../../dist/contract/index.js'
import { processesWith } from '../support/cli.js'
import { CLI, CliWorld } from '../support/cli-world.js'
import { waitUntil } from '../support/wait.js'

let world: CliWorld
beforeAll(async () => {
  world = await CliWorld.open()
})
afterAll(() => world?.close())

const cli = (args: readonly string[], input?: string | Buffer) => world.cli(args, input)
const run = (args: readonly string[], input?: string | Buffer) =>
  cli(['run', '--pool', 'cpu', ...args], input)

test('run streams both outputs in order while the job runs, and returns its exit code', async () => {
  const gate = join(world.home, 'gate')
  const script = `echo one; echo two >&2; while ! [ -e ${gate} ]; do sleep 0.05; done; printf three; exit 7`
  const running = world.start(['run', '--quiet', '--pool', 'cpu', '--', 'sh', '-c', script])
  await running.until('stdout', 'one\n')
  await running.until('stderr', 'two\n')
  writeFileSync(gate, '')
  const ended = await running.ended
  expect(ended.code).toBe(7)
  expect(ended.stdout.toString()).toBe('one\nthree')
  expect(ended.stderr).toBe('two\n')
})

test('run copies bytes exactly, also those that are no text and more than a result holds', async () => {
  const ended = await run([
    '--quiet',
    '--shell',
    '--',
    'head -c 700000 /dev/urandom > f; sha256sum < f >&2; cat f',
  ])
  expect(ended.code).toBe(0)
  expect(ended.stdout).toHaveLength(700_000)
  expect(ended.stderr.slice(0, 64)).toBe(createHash('sha256').update(ended.stdout).digest('hex'))
})

test('run gives standard input, files and environment to the job', async () => {
  const file = join(world.home, 'script.sh')
  writeFileSync(file, '#!/bin/sh\ncat; echo "$GREETING"\n', { mode: 0o755 })
  const ended = await run(
    ['--file', `${file}:bin/go`, '--env', 'GREETING=hello', '--', './bin/go'],
    'from stdin\n',
  )
  expect(ended.stdout.toString()).toBe('from stdin\nhello\n')
  expect(ended.code).toBe(0)
})

test('run: the same caller finds its pod warm, whatever characters its name has', async () => {
  const caller = 'team/agent ü 日本 🔥 "quoted"'
  const job = async (command: string) => {
    const ended = await cli(['run', '--pool', 'warm', '--caller', caller, '--json', '--shell', '--', command])
    return JSON.parse(ended.stdout.toString()) as { result: JobResult }
  }
  const first = await job('echo mine > f')
  const second = await job('cat f')
  expect(second.result).toMatchObject({ exitCode: 0, stdout: 'mine\n', pod: first.result.pod })
})

test.each([
  ['a command that does not exist', ['--', 'no-such-command'], 127, 'InvalidRequest'],
  ['a time limit of 0', ['--timeout', '0', '--', 'true'], 64, 'InvalidRequest'],
  ['a time limit that passes', ['--timeout', '200ms', '--', 'sleep', '60'], 124, 'JobTimeout'],
  ['a caller of 10 kB', ['--caller', 'x'.repeat(10_000), '--', 'true'], 64, 'InvalidRequest'],
  [
    'a file that leaves the work folder',
    ['--file', '/etc/hostname:../x', '--', 'true'],
    64,
    'InvalidRequest',
  ],
  ['a folder outside of the work folder', ['--cwd', '../x', '--', 'true'], 64, 'InvalidRequest'],
  ['a variable that no shell accepts', ['--env', 'A B=1', '--', 'true'], 64, 'Usage'],
])('run with %s is a typed failure', async (_, args, code, type) => {
  const ended = await run(args)
  expect(ended.code, ended.stderr).toBe(code)
  expect(ended.stdout.toString()).toBe('')
  expect(ended.stderr).toMatch(new RegExp(`error: .+\\[${type}\\]\\nhint: .+`))
})

test('run on an unknown pool: what was meant, and which pools there are on which server', async () => {
  const ended = await cli(['run', '--pool', 'cpv', '--json', '--', 'true'])
  expect(ended.code).toBe(68)
  expect(JSON.parse(ended.stdout.toString())).toMatchObject({
    v: 1,
    error: { code: 'PoolNotFound', origin: 'caller', details: { pool: 'cpv' }, exitCode: 68 },
  })
  expect(ended.stderr).toContain(
    `there is no pool 'cpv' in this namespace (namespace default at ${world.ready.address}, `,
  )
  expect(ended.stderr).toMatch(/hint: did you mean 'cpu'\? .*pool apply -f FILE \(pools here: cpu, .*warm/)
})

test('a job that waits says why, where it stands and what helps, and says so again when that changes', async () => {
  await cli(['pool', 'apply', '-f', world.poolFile('pools: [{ name: busy, budget: 1, keepAlive: 1s }]')])
  const gate = join(world.home, 'busy-gate')
  const hold = `echo held; while ! [ -e ${gate} ]; do sleep 0.05; done`
  const holder = world.start(['run', '--pool', 'busy', '--caller', 'me', '--shell', '--', hold])
  await holder.until('stdout', 'held')
  const first = world.start(['run', '--pool', 'busy', '--', 'echo', 'first'])
  await first.until(
    'stderr',
    /^firepool: waiting for a pod of busy \(BudgetExhausted, place 1 of 1 in the queue, /,
  )
  expect(first.stderr()).toMatch(/: all 1 of the budget are held; .*firepool pool resize busy --budget N\n$/)
  const slot = world.start(['run', '--pool', 'busy', '--caller', 'me', '--json', '--', 'true'])
  await slot.until('stderr', /\(SlotBusy, place 2 of 2 in the queue, .*--slot/)
  const quiet = world.start(['run', '--pool', 'busy', '--quiet', '--', 'true'])
  await cli(['pool', 'pause', 'busy'])
  await first.until(
    'stderr',
    /\(PoolPaused, place 1 of \d .*: an operator paused .*firepool pool resume busy\n$/,
  )
  writeFileSync(gate, '')
  await cli(['pool', 'resume', 'busy'])
  expect((await first.ended).stdout.toString()).toBe('first\n')
  expect(JSON.parse((await slot.ended).stdout.toString())).toMatchObject({ result: { exitCode: 0 } })
  expect(await quiet.ended).toMatchObject({ code: 0, stderr: '' })
  expect(await holder.ended).toMatchObject({ code: 0, stderr: '' })
})

test('a job of 3 MiB is refused, by a file and by standard input', async () => {
  const file = join(world.home, 'large')
  writeFileSync(file, Buffer.alloc(3 * 1024 * 1024, 'x'))
  for (const ended of [
    await run(['--file', file, 'true']),
    await run(['cat'], Buffer.alloc(3 * 1024 * 1024, 'x')),
  ]) {
    expect(ended.code).toBe(64)
    expect(ended.stderr).toMatch(/at most 1000000 are allowed.*\nhint: /)
  }
})

test('the whole result reaches a pipe whose reader is slow', async () => {
  const slow = await world.shell(
    `${CLI} run --pool cpu --no-stdin --json -- seq 1 100000`,
    '{ sleep 2; cat; }',
  )
  expect(slow.code).toBe(0)
  // Head and tail have 32 KiB each, their line ends are two characters in JSON: more than a pipe holds.
  expect(slow.stdout.length).toBeGreaterThan(65_536)
  expect(JSON.parse(slow.stdout)).toMatchObject({ result: { exitCode: 0 } })
})

test('a result that nobody reads keeps its exit code', async () => {
  expect(
    await world.shell(`${CLI} run --pool cpu --no-stdin --json -- sh -c 'exit 5'`, 'true'),
  ).toMatchObject({
    code: 5,
  })
})

test('output that cannot be written is lost: 74, and the job has run to its end', async () => {
  const ran = join(world.home, 'ran')
  const job = `echo out; sleep 0.2; echo more; echo done > ${ran}`
  const full = await world.shell(`${CLI} run --pool cpu --no-stdin --shell -- '${job}' > /dev/full`, 'cat')
  expect(full.stderr).toMatch(/standard output takes no more \(ENOSPC: .*the job goes on/)
  expect(full.code).toBe(74)
  expect(readFileSync(ran, 'utf8')).toBe('done\n')
  expect(
    (await world.shell(`${CLI} run --pool cpu --no-stdin -- sh -c 'echo x; exit 5' > /dev/full`, 'cat')).code,
  ).toBe(5)
  for (const command of [
    `${CLI} run --pool cpu --no-stdin --json -- true`,
    `${CLI} pool list`,
    `${CLI} run --help`,
  ]) {
    const lost = await world.shell(`${command} > /dev/full`, 'cat')
    expect(lost.stderr, command).toMatch(
      /^error: standard output could not be written .*\[OutputLost\]\nhint: /,
    )
    expect(lost.code, command).toBe(74)
  }
  // A disk that has room for a part of it.
  const part = join(world.home, 'part')
  expect((await world.shell(`ulimit -f 1; ${CLI} run --help > ${part}`, 'cat')).code).toBe(74)
  expect(statSync(part).size).toBeLessThan(2_000)
})

test.each(['/dev/zero', 'pipe'])('run --file of what is no file is refused at once: %s', async (path) => {
  const file = path === 'pipe' ? join(world.home, 'pipe') : path
  if (path === 'pipe') execFileSync('mkfifo', [file])
  const ended = await run(['--file', file, 'true'])
  expect(ended.code).toBe(64)
  expect(ended.stderr).toMatch(/cannot be read: it is a (device|pipe) \[Usage\]\nhint: /)
})

test('a reader that goes away ends the job', async () => {
  const job = 'while sleep 0.02; do echo y; done'
  const running = world.start(['run', '--pool', 'cpu', '--caller', 'head', '--shell', job])
  await running.until('stdout', 'y\n')
  running.process.stdout!.destroy()
  expect((await running.ended).code).toBe(141)
  await waitUntil('the job is gone', () => processesWith('while sleep 0.02').length === 0)
})

test.each(['SIGINT', 'SIGQUIT'] as const)('%s kills the job, then run ends', async (signal) => {
  const running = world.start(['run', '--pool', 'cpu', '--shell', '--', 'echo started; exec sleep 98765'])
  await running.until('stdout', 'started')
  expect(processesWith('sleep\u000098765').length).toBe(1)
  running.kill(signal)
  const ended = await running.ended
  expect(ended.code).toBe(130)
  expect(ended.stderr).toContain('[Cancelled]')
  expect(processesWith('sleep\u000098765')).toEqual([])
})
