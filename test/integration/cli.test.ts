import { execFile, execFileSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:net'
import { homedir, tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { Client, Connection } from '@temporalio/client'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { createFirepoolClient, type FirepoolClient } from '../../dist/client/index.js'
import type { JobResult, PoolStatus } from '../../dist/contract/index.js'
import { type Ended, processesWith, type Running, startCli } from '../support/cli.js'
import { waitUntil } from '../support/world.js'

interface Ready {
  address: string
  namespace: string
  uiUrl: string
  dir: string
  pools: { name: string; outcome: string }[]
}

let home: string
let env: NodeJS.ProcessEnv
let dev: Running
let ready: Ready
let connection: Connection
let firepool: FirepoolClient

beforeAll(async () => {
  home = mkdtempSync(join(tmpdir(), 'firepool-cli-'))
  env = environmentIn(home)
  dev = startCli(['dev', '--json', '-f', poolFile(POOLS)], env)
  await dev.until('stdout', '\n')
  ready = JSON.parse(dev.stdout()) as Ready
  connection = await Connection.connect({ address: ready.address })
  firepool = createFirepoolClient({ client: new Client({ connection }) })
})
afterAll(async () => {
  await connection?.close()
  dev?.kill('SIGINT')
  await dev?.ended
  rmSync(home, { recursive: true, force: true })
})

/** A run without --caller leaves its pod to nobody, so it should not stay long; 'warm' is for those that come back. */
const POOLS = `pools:
  - { name: cpu, budget: 8, standby: 1, keepAlive: 1s }
  - { name: warm, budget: 1, standby: 1, keepAlive: 10m }
`

/** Nothing of the user's own state is seen or touched; `temporal` is found as usual. */
function environmentIn(folder: string): NodeJS.ProcessEnv {
  const { PATH, HOME, FIREPOOL_CACHE_DIR } = process.env
  const temporary = join(folder, 'tmp')
  mkdirSync(temporary, { recursive: true })
  return {
    PATH: `${PATH}:${join(homedir(), 'go', 'bin')}`,
    HOME,
    XDG_STATE_HOME: join(folder, 'state'),
    TMPDIR: temporary,
    ...(FIREPOOL_CACHE_DIR ? { FIREPOOL_CACHE_DIR } : {}),
  }
}

let files = 0
function poolFile(text: string): string {
  const file = join(home, `pools-${files++}.yaml`)
  writeFileSync(file, text)
  return file
}

const cli = (args: readonly string[], input?: string | Buffer): Promise<Ended> =>
  startCli(args, env, input).ended
const run = (args: readonly string[], input?: string | Buffer) =>
  cli(['run', '--pool', 'cpu', ...args], input)

async function json<T>(args: readonly string[]): Promise<T> {
  const { stdout, stderr } = await cli([...args, '--json'])
  expect(stdout.toString(), stderr).toMatch(/^\{.*\}\n$/)
  return JSON.parse(stdout.toString()) as T
}

const CLI = `${process.execPath} ${fileURLToPath(new URL('../../dist/cli/main.js', import.meta.url))}`

/** The CLI in a pipeline of a real shell, whose pipes are none of Node's. @returns its exit code, not the reader's */
async function shell(
  command: string,
  reader: string,
): Promise<{ code: number; stdout: string; stderr: string }> {
  const pipeline = `{ ${command}; echo "code $?" >&3; } 3>&2 | ${reader}`
  const { stdout, stderr } = await promisify(execFile)('bash', ['-c', pipeline], { env, maxBuffer: 1e9 })
  const [, said, code] = /^([\s\S]*)code (\d+)\n$/.exec(stderr)!
  return { code: Number(code), stdout, stderr: said! }
}

const statusOf = async (name: string) =>
  (await json<{ status: PoolStatus }>(['pool', 'describe', name])).status

test('dev says what it started, and other commands find it', async () => {
  expect(ready).toMatchObject({ namespace: 'default', dir: join(home, 'state', 'firepool') })
  expect(ready.pools).toMatchObject([
    { name: 'cpu', outcome: 'created' },
    { name: 'warm', outcome: 'created' },
  ])
  expect((await fetch(ready.uiUrl)).status).toBe(200)
  for (const name of readdirSync(ready.dir, { recursive: true, encoding: 'utf8' })) {
    const entry = statSync(join(ready.dir, name), { throwIfNoEntry: false })
    if (entry?.isFile()) expect((entry.mode & 0o077).toString(8), name).toBe('0')
  }
  const list = await waitUntil('the pool is listed', async () => {
    const ended = await cli(['pool', 'list'])
    return ended.stdout.toString().includes('cpu') ? ended : null
  })
  expect(list.code).toBe(0)
  expect(list.stdout.toString()).toMatch(/^POOL +STATE +HELD +BUDGET .*\ncpu +running +0 +8 /)
})

test('a second dev on the same folder is refused', async () => {
  const ended = await cli(['dev'])
  expect(ended.code).toBe(3)
  expect(ended.stderr).toMatch(/error: another firepool dev runs on .*\[DevRunning\]\nhint: /)
})

test('apply creates, changes and leaves alone; describe, resize and delete', async () => {
  const apply = async (text: string) =>
    (await json<{ pools: { name: string; outcome: string }[] }>(['pool', 'apply', '-f', poolFile(text)]))
      .pools
  expect(await apply('pools: [{ name: p1, budget: 2 }, { name: p2, budget: 1 }]')).toMatchObject([
    { name: 'p1', outcome: 'created' },
    { name: 'p2', outcome: 'created' },
  ])
  expect(
    await apply('pools: [{ name: p1, budget: 2, keepAlive: 60s }, { name: p2, budget: 1, maxPods: 7 }]'),
  ).toMatchObject([
    { name: 'p1', outcome: 'unchanged' },
    { name: 'p2', outcome: 'changed' },
  ])
  expect(await apply('pools: [{ name: p2, budget: 1, maxPods: 7 }]')).toMatchObject([
    { outcome: 'unchanged' },
  ])
  expect((await cli(['pool', 'describe', 'p2'])).stdout.toString()).toMatch(/budget +1 \(spec 1\), 0 held\n/)

  expect((await cli(['pool', 'resize', 'p1', '--budget', '5'])).stdout.toString()).toContain(
    'budget 5 (spec 2, resized to 5)',
  )
  expect((await statusOf('p1')).budget).toMatchObject({ inForce: 5, operator: 5 })
  expect((await cli(['pool', 'resize', 'p1', '--reset'])).code).toBe(0)
  expect((await statusOf('p1')).budget).toMatchObject({ inForce: 2, operator: null })

  expect((await cli(['pool', 'pause', 'p1'])).stdout.toString()).toMatch(/^p1: paused/)
  expect((await cli(['pool', 'resume', 'p1'])).stdout.toString()).toMatch(/^p1: running/)

  for (const name of ['p1', 'p2'])
    expect((await cli(['pool', 'delete', name])).stdout.toString()).toBe(`${name}: deleted\n`)
  const gone = await cli(['pool', 'describe', 'p1'])
  expect(gone.code).toBe(68)
  expect(gone.stderr).toMatch(/pool 'p1' was deleted \(.*\) \[PoolNotFound\]\nhint: .*pools here: .*cpu/)
})

test.each([['-1'], ['1000000000'], ['1.5'], ['1e400'], ['many']])(
  'a resize to %s is refused',
  async (budget) => {
    const before = await statusOf('cpu')
    const ended = await cli(['pool', 'resize', 'cpu', '--budget', budget])
    expect(ended.code).toBe(64)
    expect(ended.stderr).toMatch(/^error: .+\nhint: .+\n$/)
    expect((await statusOf('cpu')).budget).toEqual(before.budget)
  },
)

test('a pool file with unknown keys and two pools of one name changes nothing', async () => {
  const file = poolFile('pools:\n  - name: x1\n    budgett: 1\n    budget: 1\n  - name: x1\n    budget: 2\n')
  const ended = await cli(['pool', 'apply', '-f', file])
  expect(ended.code).toBe(2)
  expect(ended.stdout.toString()).toBe('')
  expect(ended.stderr).toContain(`${file}:3: pools[0].budgett: unknown key "budgett"`)
  expect(ended.stderr).toContain("hint: did you mean 'budget'?")
  expect(ended.stderr).toContain(`${file}:5: pools[1].name: two pools have the name "x1"`)
  expect((await cli(['pool', 'describe', 'x1'])).code).toBe(68)
})

test('run streams both outputs in order while the job runs, and returns its exit code', async () => {
  const gate = join(home, 'gate')
  const script = `echo one; echo two >&2; while ! [ -e ${gate} ]; do sleep 0.05; done; printf three; exit 7`
  const running = startCli(['run', '--quiet', '--pool', 'cpu', '--', 'sh', '-c', script], env)
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
  const file = join(home, 'script.sh')
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
    `there is no pool 'cpv' in this namespace (namespace default at ${ready.address}, `,
  )
  expect(ended.stderr).toMatch(/hint: did you mean 'cpu'\? .*pool apply -f FILE \(pools here: cpu, .*warm/)
})

test('a job that waits says why, where it stands and what helps, and says so again when that changes', async () => {
  await cli(['pool', 'apply', '-f', poolFile('pools: [{ name: busy, budget: 1, keepAlive: 1s }]')])
  const gate = join(home, 'busy-gate')
  const hold = `echo held; while ! [ -e ${gate} ]; do sleep 0.05; done`
  const holder = startCli(['run', '--pool', 'busy', '--caller', 'me', '--shell', '--', hold], env)
  await holder.until('stdout', 'held')
  const first = startCli(['run', '--pool', 'busy', '--', 'echo', 'first'], env)
  await first.until(
    'stderr',
    /^firepool: waiting for a pod of busy \(BudgetExhausted, place 1 of 1 in the queue, /,
  )
  expect(first.stderr()).toMatch(/: all 1 of the budget are held; .*firepool pool resize busy --budget N\n$/)
  const slot = startCli(['run', '--pool', 'busy', '--caller', 'me', '--json', '--', 'true'], env)
  await slot.until('stderr', /\(SlotBusy, place 2 of 2 in the queue, .*--slot/)
  const quiet = startCli(['run', '--pool', 'busy', '--quiet', '--', 'true'], env)
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
  const file = join(home, 'large')
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
  const slow = await shell(`${CLI} run --pool cpu --no-stdin --json -- seq 1 100000`, '{ sleep 2; cat; }')
  expect(slow.code).toBe(0)
  // Head and tail have 32 KiB each, their line ends are two characters in JSON: more than a pipe holds.
  expect(slow.stdout.length).toBeGreaterThan(65_536)
  expect(JSON.parse(slow.stdout)).toMatchObject({ result: { exitCode: 0 } })
})

test('a result that nobody reads keeps its exit code', async () => {
  expect(await shell(`${CLI} run --pool cpu --no-stdin --json -- sh -c 'exit 5'`, 'true')).toMatchObject({
    code: 5,
  })
})

test('output that cannot be written is lost: 74, and the job has run to its end', async () => {
  const ran = join(home, 'ran')
  const job = `echo out; sleep 0.2; echo more; echo done > ${ran}`
  const full = await shell(`${CLI} run --pool cpu --no-stdin --shell -- '${job}' > /dev/full`, 'cat')
  expect(full.stderr).toMatch(/standard output takes no more \(ENOSPC: .*the job goes on/)
  expect(full.code).toBe(74)
  expect(readFileSync(ran, 'utf8')).toBe('done\n')
  expect(
    (await shell(`${CLI} run --pool cpu --no-stdin -- sh -c 'echo x; exit 5' > /dev/full`, 'cat')).code,
  ).toBe(5)
  for (const command of [
    `${CLI} run --pool cpu --no-stdin --json -- true`,
    `${CLI} pool list`,
    `${CLI} run --help`,
  ]) {
    const lost = await shell(`${command} > /dev/full`, 'cat')
    expect(lost.stderr, command).toMatch(
      /^error: standard output could not be written .*\[OutputLost\]\nhint: /,
    )
    expect(lost.code, command).toBe(74)
  }
  // A disk that has room for a part of it.
  const part = join(home, 'part')
  expect((await shell(`ulimit -f 1; ${CLI} run --help > ${part}`, 'cat')).code).toBe(74)
  expect(statSync(part).size).toBeLessThan(2_000)
})

test.each(['/dev/zero', 'pipe'])('run --file of what is no file is refused at once: %s', async (path) => {
  const file = path === 'pipe' ? join(home, 'pipe') : path
  if (path === 'pipe') execFileSync('mkfifo', [file])
  const ended = await run(['--file', file, 'true'])
  expect(ended.code).toBe(64)
  expect(ended.stderr).toMatch(/cannot be read: it is a (device|pipe) \[Usage\]\nhint: /)
})

test('pools come from a pipe as well', async () => {
  const pipe = join(home, 'pools-pipe')
  execFileSync('mkfifo', [pipe])
  const apply = cli(['pool', 'apply', '-f', pipe])
  writeFileSync(pipe, 'pools: [{ name: piped, budget: 1 }]')
  expect(await apply).toMatchObject({ code: 0 })
  const endless = await shell(`yes | ${CLI} pool apply -f -`, 'cat')
  expect(endless.stderr).toMatch(/it has more than 1 MiB \[InvalidPoolFile\]/)
  expect(endless.code).toBe(2)
})

test('a resize beyond maxPods says so', async () => {
  const resized = await cli(['pool', 'resize', 'warm', '--budget', '50'])
  expect(resized.stderr).toMatch(/^note: maxPods of warm is 4: /)
  const applied = await cli(['pool', 'apply', '-f', poolFile(POOLS)])
  expect(applied.stdout.toString()).toMatch(/^warm: unchanged, .*operator's resize to 50 stays in force/m)
  await cli(['pool', 'resize', 'warm', '--reset'])
})

test('a folder whose dev was killed is no other server', async () => {
  const dir = mkdtempSync(join(home, 'killed-'))
  writeFileSync(join(dir, 'dev.json'), JSON.stringify({ ...ready, v: 1, pid: 1, start: 'long ago' }))
  const ended = await cli(['pool', 'list', '--dir', dir])
  expect(ended.code).toBe(69)
  expect(ended.stderr).toMatch(/runs no more.* \[NoServer\]\nhint: start it again with firepool dev --dir/)
})

test('a server that goes while a job is waited for: NoServer, and no stack', async () => {
  const own = environmentIn(mkdtempSync(join(home, 'gone-')))
  const first = startCli(['dev', '--json'], own)
  await first.until('stdout', '\n')
  const waiting = startCli(['run', '--pool', 'cpu', '--shell', '--', 'echo started; sleep 600'], own)
  await waiting.until('stdout', 'started')
  first.kill('SIGKILL')
  const ended = await waiting.ended
  expect(ended.stderr).toMatch(/^error: .* \[NoServer\]\nhint: .*\n$/)
  expect(ended.code).toBe(69)
  // It clears what the first one left.
  const second = startCli(['dev', '--json'], own)
  await second.until('stdout', '\n')
  second.kill('SIGINT')
  await second.ended
})

test('dev makes no folder for a database', async () => {
  const ended = await cli(['dev', '--dir', join(home, 'db'), '--db-file', join(home, 'not', 'there', 'x.db')])
  expect(ended.code).toBe(64)
  expect(ended.stderr).toMatch(/there is no folder .*not\/there \[Usage\]/)
  expect(readdirSync(home)).not.toContain('not')
})

test('a reader that goes away ends the job', async () => {
  const running = startCli(
    ['run', '--pool', 'cpu', '--caller', 'head', '--shell', 'while sleep 0.02; do echo y; done'],
    env,
  )
  await running.until('stdout', 'y\n')
  running.process.stdout!.destroy()
  expect((await running.ended).code).toBe(141)
  await waitUntil('the job is gone', () => processesWith('while sleep 0.02').length === 0)
})

test.each(['SIGINT', 'SIGQUIT'] as const)('%s kills the job, then run ends', async (signal) => {
  const running = startCli(['run', '--pool', 'cpu', '--shell', '--', 'echo started; exec sleep 98765'], env)
  await running.until('stdout', 'started')
  expect(processesWith('sleep\u000098765').length).toBe(1)
  running.kill(signal)
  const ended = await running.ended
  expect(ended.code).toBe(130)
  expect(ended.stderr).toContain('[Cancelled]')
  expect(processesWith('sleep\u000098765')).toEqual([])
})

test('a pool with a live lease is deleted only with --force', async () => {
  await cli(['pool', 'apply', '-f', poolFile('pools: [{ name: held, budget: 1 }]')])
  const running = startCli(['run', '--pool', 'held', '--shell', '--', 'echo started; sleep 600'], env)
  await running.until('stdout', 'started')
  const refused = await cli(['pool', 'delete', 'held'])
  expect(refused.code).toBe(3)
  expect(refused.stderr).toMatch(
    /pool held has 1 live lease and 0 waiting requests \[LiveLeases\]\nhint: .*--force/,
  )
  expect((await statusOf('held')).leases).toBe(1)
  expect((await cli(['pool', 'delete', 'held', '--force'])).code).toBe(0)
  expect((await running.ended).code).not.toBe(0)
})

test('every failure has the same fields as JSON', async () => {
  await cli(['pool', 'apply', '-f', poolFile('pools: [{ name: fields, budget: 1 }]')])
  const running = startCli(['run', '--pool', 'fields', '--shell', '--', 'echo started; sleep 600'], env)
  await running.until('stdout', 'started')
  const cases: [string, string[]][] = [
    ['Usage', ['pool', 'describe', '--json']],
    ['InvalidRequest', ['pool', 'describe', 'A_', '--json']],
    ['PoolNotFound', ['pool', 'describe', 'nope', '--json']],
    ['InvalidPoolFile', ['pool', 'apply', '--json', '-f', poolFile('pools: [{ nam: 1 }]')]],
    ['InvalidPoolFile', ['pool', 'apply', '--json', '-f', '/nonexistent.yaml']],
    ['LiveLeases', ['pool', 'delete', 'fields', '--json']],
    ['DevRunning', ['dev', '--json']],
    ['StateFolder', ['dev', '--json', '--dir', join(poolFile(''), 'below-a-file')]],
    ['PortTaken', ['dev', '--json', '--dir', join(home, 'other'), '--port', ready.address.split(':')[1]!]],
    ['NoServer', ['pool', 'list', '--json', '--address', '127.0.0.1:1']],
    ['NoNamespace', ['pool', 'describe', 'cpu', '--json', '--namespace', 'nowhere']],
    ['NoNamespace', ['worker', '--json', '--namespace', 'nowhere', '--dir', join(home, 'nowhere')]],
  ]
  for (const [code, args] of cases) {
    const { stdout, stderr } = await cli(args)
    const { error } = JSON.parse(stdout.toString()) as { error: Record<string, unknown> }
    expect(error.code, stderr).toBe(code)
    expect(Object.keys(error)).toEqual(['code', 'origin', 'message', 'hint', 'details', 'exitCode'])
    expect(error.hint, code).toMatch(/./)
  }
  running.kill('SIGINT')
  await running.ended
})

test('usage errors: 64, with a suggestion', async () => {
  const typo = await cli(['pol'])
  expect(typo.code).toBe(64)
  expect(typo.stderr).toBe("error: unknown command 'pol' [Usage]\nhint: did you mean pool?\n")
  expect((await cli(['pool', 'list', '--jsn'])).stderr).toContain('did you mean --json?')
  expect((await cli(['pool', 'resize', 'cpu'])).code).toBe(64)
  expect((await cli(['run', '--pool', 'cpu'])).code).toBe(64)
  const help = await cli(['run', '--help'])
  expect(help.code).toBe(0)
  expect(help.stdout.toString()).toMatch(/Examples:[\s\S]*Exit codes:/)
  expect((await cli(['--version'])).stdout.toString()).toMatch(/^\d+\.\d+\.\d+\n$/)
})

test('no server, and a server without a worker, are said at once', async () => {
  const port = await new Promise<number>((resolve) => {
    const server = createServer().listen(0, '127.0.0.1', () => {
      const { port: free } = server.address() as { port: number }
      server.close(() => resolve(free))
    })
  })
  const nobody = await cli(['pool', 'list', '--address', `127.0.0.1:${port}`])
  expect(nobody.code).toBe(69)
  expect(nobody.stderr).toMatch(/\[NoServer\]\nhint: start one with firepool dev/)
  const unasked = await cli([
    'run',
    '--pool',
    'cpu',
    '--address',
    `127.0.0.1:${port}`,
    '--cwd',
    '/etc',
    'true',
  ])
  expect(unasked.stderr, 'what is wrong in any case needs no server').toMatch(
    /--cwd "\/etc" leaves the work folder/,
  )
  const strange = await run(['--namespace', 'nowhere', '--', 'true'])
  expect(strange.code).toBe(69)
  expect(strange.stderr).toMatch(/no namespace 'nowhere' \[NoNamespace\]|\[NoWorker\]/)
})

test('the client library: typed results and typed errors', async () => {
  const result = await firepool.runJob({ pool: 'cpu', job: { command: ['sh', '-c', 'echo hi; exit 3'] } })
  expect(result).toMatchObject({ exitCode: 3, stdout: 'hi\n' })
  const refused = (code: string) => ({ problem: { code } })
  await expect(firepool.describePool('nope')).rejects.toMatchObject(refused('PoolNotFound'))
  await expect(firepool.resizePool('nope', { budget: 1 })).rejects.toMatchObject(refused('PoolNotFound'))
  await expect(firepool.resizePool('cpu', { budget: -1 })).rejects.toMatchObject(refused('InvalidRequest'))
  const job = { command: 'x'.repeat(3 * 1024 * 1024) }
  await expect(firepool.runJob({ pool: 'cpu', job })).rejects.toMatchObject(refused('InvalidRequest'))
  const abort = new AbortController()
  const cancelled = firepool.runJob(
    { pool: 'cpu', job: { command: ['sleep', '600'] } },
    { signal: abort.signal, onStarted: () => abort.abort() },
  )
  await expect(cancelled).rejects.toMatchObject(refused('Cancelled'))
  expect((await firepool.pods('cpu', { limit: 1 })).rows.length).toBeLessThanOrEqual(1)
})

test('Ctrl-C on dev ends everything: no process, no pod, no temporary folder stays', async () => {
  const own = join(home, 'own')
  const ownEnv = environmentIn(own)
  const running = startCli(['dev', '--json', '-f', poolFile(POOLS)], ownEnv)
  await running.until('stdout', '\n')
  const { dir } = JSON.parse(running.stdout()) as Ready
  const job = startCli(['run', '--pool', 'cpu', '--shell', '--', 'echo started; sleep 600'], ownEnv)
  await job.until('stdout', 'started')
  running.kill('SIGINT')
  expect((await running.ended).code).toBe(0)
  // The server that it waits for has gone.
  job.kill('SIGKILL')
  await job.ended
  await waitUntil('no process of it is left', () => processesWith(own).length === 0)
  for (const folder of ['pods', 'tokens', 'trash']) expect(readdirSync(join(dir, folder))).toEqual([])
  expect(readdirSync(dir).sort()).toEqual(['keys', 'pods', 'server.log', 'tokens', 'trash', 'worker.log'])
  expect(readdirSync(join(own, 'tmp'))).toEqual([])
})
