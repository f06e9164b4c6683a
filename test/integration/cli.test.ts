/** `firepool dev`, the commands of pools, and what all commands have in common; and the client library on the same server. */
import { execFileSync } from 'node:child_process'
import { mkdtempSync, readdirSync, statSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:net'
import { join } from 'node:path'
import { Client, Connection } from '@temporalio/client'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { createFirepoolClient, type FirepoolClient } from '../../dist/client/index.js'
import type { PoolStatus } from '../../dist/contract/index.js'
import { processesWith, startCli } from '../support/cli.js'
import { CLI, CLI_POOLS, CliWorld, type DevReady, environmentIn } from '../support/cli-world.js'
import { waitUntil } from '../support/wait.js'

let world: CliWorld
let connection: Connection
let firepool: FirepoolClient
beforeAll(async () => {
  world = await CliWorld.open()
  connection = await Connection.connect({ address: world.ready.address })
  firepool = createFirepoolClient({ client: new Client({ connection }) })
})
afterAll(async () => {
  await connection?.close()
  await world?.close()
})

const cli = (args: readonly string[], input?: string | Buffer) => world.cli(args, input)

async function json<T>(args: readonly string[]): Promise<T> {
  const { stdout, stderr } = await cli([...args, '--json'])
  expect(stdout.toString(), stderr).toMatch(/^\{.*\}\n$/)
  return JSON.parse(stdout.toString()) as T
}

const statusOf = async (name: string) =>
  (await json<{ status: PoolStatus }>(['pool', 'describe', name])).status

test('dev says what it started, and other commands find it', async () => {
  expect(world.ready).toMatchObject({ namespace: 'default', dir: join(world.home, 'state', 'firepool') })
  expect(world.ready.pools).toMatchObject([
    { name: 'cpu', outcome: 'created' },
    { name: 'warm', outcome: 'created' },
  ])
  expect((await fetch(world.ready.uiUrl)).status).toBe(200)
  for (const name of readdirSync(world.ready.dir, { recursive: true, encoding: 'utf8' })) {
    const entry = statSync(join(world.ready.dir, name), { throwIfNoEntry: false })
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
    (
      await json<{ pools: { name: string; outcome: string }[] }>([
        'pool',
        'apply',
        '-f',
        world.poolFile(text),
      ])
    ).pools
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
  const file = world.poolFile(
    'pools:\n  - name: x1\n    budgett: 1\n    budget: 1\n  - name: x1\n    budget: 2\n',
  )
  const ended = await cli(['pool', 'apply', '-f', file])
  expect(ended.code).toBe(2)
  expect(ended.stdout.toString()).toBe('')
  expect(ended.stderr).toContain(`${file}:3: pools[0].budgett: unknown key "budgett"`)
  expect(ended.stderr).toContain("hint: did you mean 'budget'?")
  expect(ended.stderr).toContain(`${file}:5: pools[1].name: two pools have the name "x1"`)
  expect((await cli(['pool', 'describe', 'x1'])).code).toBe(68)
})

test('pools come from a pipe as well', async () => {
  const pipe = join(world.home, 'pools-pipe')
  execFileSync('mkfifo', [pipe])
  const apply = cli(['pool', 'apply', '-f', pipe])
  writeFileSync(pipe, 'pools: [{ name: piped, budget: 1 }]')
  expect(await apply).toMatchObject({ code: 0 })
  const endless = await world.shell(`yes | ${CLI} pool apply -f -`, 'cat')
  expect(endless.stderr).toMatch(/it has more than 1 MiB \[InvalidPoolFile\]/)
  expect(endless.code).toBe(2)
})

test('a resize beyond maxPods says so', async () => {
  const resized = await cli(['pool', 'resize', 'warm', '--budget', '50'])
  expect(resized.stderr).toMatch(/^note: maxPods of warm is 4: /)
  const applied = await cli(['pool', 'apply', '-f', world.poolFile(CLI_POOLS)])
  expect(applied.stdout.toString()).toMatch(/^warm: unchanged, .*operator's resize to 50 stays in force/m)
  await cli(['pool', 'resize', 'warm', '--reset'])
})

test('a folder whose dev was killed is no other server', async () => {
  const dir = mkdtempSync(join(world.home, 'killed-'))
  writeFileSync(join(dir, 'dev.json'), JSON.stringify({ ...world.ready, v: 1, pid: 1, start: 'long ago' }))
  const ended = await cli(['pool', 'list', '--dir', dir])
  expect(ended.code).toBe(69)
  expect(ended.stderr).toMatch(/runs no more.* \[NoServer\]\nhint: start it again with firepool dev --dir/)
})

test('a server that goes while a job is waited for: NoServer, and no stack', async () => {
  const own = environmentIn(mkdtempSync(join(world.home, 'gone-')))
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
  const ended = await cli([
    'dev',
    '--dir',
    join(world.home, 'db'),
    '--db-file',
    join(world.home, 'not', 'there', 'x.db'),
  ])
  expect(ended.code).toBe(64)
  expect(ended.stderr).toMatch(/there is no folder .*not\/there \[Usage\]/)
  expect(readdirSync(world.home)).not.toContain('not')
})

test('a pool with a live lease is deleted only with --force', async () => {
  await cli(['pool', 'apply', '-f', world.poolFile('pools: [{ name: held, budget: 1 }]')])
  const running = world.start(['run', '--pool', 'held', '--shell', '--', 'echo started; sleep 600'])
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
  await cli(['pool', 'apply', '-f', world.poolFile('pools: [{ name: fields, budget: 1 }]')])
  const running = world.start(['run', '--pool', 'fields', '--shell', '--', 'echo started; sleep 600'])
  await running.until('stdout', 'started')
  const cases: [string, string[]][] = [
    ['Usage', ['pool', 'describe', '--json']],
    ['InvalidRequest', ['pool', 'describe', 'A_', '--json']],
    ['PoolNotFound', ['pool', 'describe', 'nope', '--json']],
    ['InvalidPoolFile', ['pool', 'apply', '--json', '-f', world.poolFile('pools: [{ nam: 1 }]')]],
    ['InvalidPoolFile', ['pool', 'apply', '--json', '-f', '/nonexistent.yaml']],
    ['LiveLeases', ['pool', 'delete', 'fields', '--json']],
    ['DevRunning', ['dev', '--json']],
    ['StateFolder', ['dev', '--json', '--dir', join(world.poolFile(''), 'below-a-file')]],
    [
      'PortTaken',
      ['dev', '--json', '--dir', join(world.home, 'other'), '--port', world.ready.address.split(':')[1]!],
    ],
    ['NoServer', ['pool', 'list', '--json', '--address', '127.0.0.1:1']],
    ['NoNamespace', ['pool', 'describe', 'cpu', '--json', '--namespace', 'nowhere']],
    ['NoNamespace', ['worker', '--json', '--namespace', 'nowhere', '--dir', join(world.home, 'nowhere')]],
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
  const strange = await cli(['run', '--pool', 'cpu', '--namespace', 'nowhere', '--', 'true'])
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
  const own = join(world.home, 'own')
  const ownEnv = environmentIn(own)
  const running = startCli(['dev', '--json', '-f', world.poolFile(CLI_POOLS)], ownEnv)
  await running.until('stdout', '\n')
  const { dir } = JSON.parse(running.stdout()) as DevReady
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
