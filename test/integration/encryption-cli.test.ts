/** Encryption as the command line has it: a module with codecs, the same for worker and commands; and a worker with the wrong keys. */
import { randomBytes } from 'node:crypto'
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { homedir, tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { Client, Connection } from '@temporalio/client'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { poolWorkflowId, WORKFLOW } from '../../dist/contract/index.js'
import { type DevServer, startDevServer } from '../../dist/server/dev-server.js'
import { type Running, startCli } from '../support/cli.js'
import { EncryptionCodec } from '../support/encryption-codec.mjs'
import { waitUntil } from '../support/world.js'

const CODEC = fileURLToPath(new URL('../support/encryption-codec.mjs', import.meta.url))
const newKey = () => randomBytes(32).toString('base64')
const KEYS = { ours: newKey() }
const OTHER_KEYS = { theirs: newKey() }
const CANARY = `canary-${randomBytes(6).toString('hex')}`

let folder: string
let server: DevServer
let env: NodeJS.ProcessEnv
let connection: Connection
let client: Client
let worker: Running

beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), 'firepool-codec-'))
  server = await startDevServer({ logFile: join(folder, 'server.log'), dbFile: join(folder, 'temporal.db') })
  mkdirSync(join(folder, 'home'))
  env = {
    PATH: `${process.env.PATH}:${join(homedir(), 'go', 'bin')}`,
    HOME: join(folder, 'home'),
    FIREPOOL_DIR: join(folder, 'state'),
    TMPDIR: folder,
    TEMPORAL_ADDRESS: server.address,
    FIREPOOL_DATA_CONVERTER: CODEC,
    FIREPOOL_TEST_KEYS: JSON.stringify(KEYS),
  }
  connection = await Connection.connect({ address: server.address })
  client = new Client({ connection, dataConverter: { payloadCodecs: [new EncryptionCodec(KEYS)] } })
  worker = await startWorker(KEYS)
})
afterAll(async () => {
  await cli(['pool', 'delete', 'cpu', '--force'])
  await stopWorker()
  await connection?.close()
  await server?.stop()
  rmSync(folder, { recursive: true, force: true })
})

async function startWorker(keys: object): Promise<Running> {
  const { FIREPOOL_DATA_CONVERTER: _, ...rest } = env
  const args = ['worker', '--json', '--data-converter', CODEC]
  const started = startCli(args, { ...rest, FIREPOOL_TEST_KEYS: JSON.stringify(keys) })
  await started.until('stdout', '\n')
  return started
}

async function stopWorker(): Promise<void> {
  worker?.kill('SIGTERM')
  await worker?.ended
}

const cli = (args: string[], more: NodeJS.ProcessEnv = {}) => startCli(args, { ...env, ...more }).ended

function put(name: string, text: string): string {
  const path = join(folder, name)
  writeFileSync(path, text)
  return path
}

const POOL = 'pools: [{ name: cpu, budget: 2, keepAlive: 10m }]'

test('apply, run, list and describe work, and the server stores no plaintext', async () => {
  const applied = await cli(['pool', 'apply', '-f', put('pools.yaml', POOL)])
  expect(applied.code, applied.stderr).toBe(0)
  const ran = await cli(['run', '--pool', 'cpu', '--caller', 'me', '-s', '--', `echo ${CANARY} > f; cat f`])
  expect(ran.stdout.toString(), ran.stderr).toBe(`${CANARY}\n`)
  expect((await cli(['pool', 'list'])).stdout.toString()).toContain('cpu')
  const described = await cli(['pool', 'describe', 'cpu', '--json'])
  expect(JSON.parse(described.stdout.toString())).toMatchObject({ status: { pool: 'cpu' } })
  const again = await cli(['pool', 'apply', '-f', put('pools.yaml', POOL), '--json'])
  expect(JSON.parse(again.stdout.toString())).toMatchObject({ pools: [{ outcome: 'unchanged' }] })
  const files = readdirSync(folder).filter((name) => name.startsWith('temporal.db'))
  for (const file of [...files, 'state/worker.log'])
    expect(readFileSync(join(folder, file)).includes(CANARY), file).toBe(false)
})

test.each<[string, NodeJS.ProcessEnv, string, RegExp]>([
  [
    'no codec',
    { FIREPOOL_DATA_CONVERTER: '' },
    'CodecFailed',
    /is encoded \(binary\/encrypted\), and no codec/,
  ],
  [
    'other keys',
    { FIREPOOL_TEST_KEYS: JSON.stringify(OTHER_KEYS) },
    'CodecFailed',
    /cannot decode the answer \(there is no key 'ours'\)/,
  ],
  [
    'a module that is not there',
    { FIREPOOL_DATA_CONVERTER: './nope.mjs' },
    'Usage',
    /nope\.mjs is not there/,
  ],
  ['a module without codecs', { FIREPOOL_TEST_KEYS: '' }, 'Usage', /exports no codecs/],
])('%s: a clear error', async (_, more, code, pattern) => {
  const { stdout, stderr } = await cli(['pool', 'describe', 'cpu', '--json'], more)
  const { error } = JSON.parse(stdout.toString()) as { error: { code: string; message: string } }
  expect(error.code, stderr).toBe(code)
  expect(error.message).toMatch(pattern)
})

test.each<[string, NodeJS.ProcessEnv]>([
  ['without the codec', { FIREPOOL_DATA_CONVERTER: '' }],
  ['with other keys', { FIREPOOL_TEST_KEYS: JSON.stringify(OTHER_KEYS) }],
])('what is asked %s is not done, and its words are in no history', async (_, more) => {
  const count = async () => (await client.workflow.count(`WorkflowType = '${WORKFLOW.runJob}'`)).count
  const before = await count()
  for (const args of [
    ['run', '--pool', 'cpu', '-s', '--', `echo ${CANARY}-in-the-clear`],
    ['pool', 'resize', 'cpu', '--budget', '1'],
    ['pool', 'delete', 'cpu', '--force'],
  ]) {
    const { code, stderr } = await cli(args, more)
    expect([code, stderr]).toEqual([64, expect.stringContaining('[CodecFailed]')])
  }
  expect(await count()).toBe(before)
  const described = await cli(['pool', 'describe', 'cpu', '--json'])
  expect(JSON.parse(described.stdout.toString())).toMatchObject({
    status: { mode: 'running', budget: { inForce: 2 } },
  })
})

test('a worker with the wrong keys loses nothing: the pool stands still until the right ones come', async () => {
  const pool = client.workflow.getHandle(poolWorkflowId('cpu'))
  const { runId } = await pool.describe()
  // From now on its state is what an earlier run carried over.
  await pool.executeUpdate('firepool.upgrade')
  await waitUntil('a new run', async () => (await pool.describe()).runId !== runId)
  await stopWorker()
  worker = await startWorker(OTHER_KEYS)
  await pool.signal('firepool.resize', { v: 1, standby: 1 })
  await waitUntil('it fails at the state', async () => {
    const { events } = await pool.fetchHistory()
    return (events ?? []).some((event) => event.workflowTaskFailedEventAttributes)
  })
  expect((await pool.describe()).status.name).toBe('RUNNING')
  await stopWorker()
  worker = await startWorker(KEYS)
  const ran = await cli(['run', '--pool', 'cpu', '--caller', 'me', '--', 'cat', 'f'])
  expect(ran.stdout.toString(), ran.stderr).toBe(`${CANARY}\n`)
  const described = await cli(['pool', 'describe', 'cpu', '--json'])
  expect(JSON.parse(described.stdout.toString())).toMatchObject({
    status: { poison: { count: 0 }, standby: { target: 1 }, grants: { warm: 1 } },
  })
})
