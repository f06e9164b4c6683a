/** Secrets that can be recognised are planted wherever Firepool handles one, everything is made to fail, and nothing may show them. */
import { createHash, createPrivateKey, generateKeyPairSync, randomBytes } from 'node:crypto'
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { homedir, tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { Client, Connection } from '@temporalio/client'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { createFirepoolClient, type FirepoolClient, FirepoolError } from '../../dist/client/index.js'
import { poolWorkflowId } from '../../dist/contract/index.js'
import { createRunnerClient } from '../../dist/runner/client.js'
import { type DevServer, startDevServer } from '../../dist/server/dev-server.js'
import { createSigner, loadKeys } from '../../dist/token/token.js'
import { type Authority, createAuthority } from '../support/certificates.js'
import { processesWith, type Running, startCli } from '../support/cli.js'
import { EncryptionCodec } from '../support/encryption-codec.mjs'
import { startTlsProxy, type TlsProxy } from '../support/tls-proxy.js'
import { waitUntil } from '../support/wait.js'

const CODEC = fileURLToPath(new URL('../support/encryption-codec.mjs', import.meta.url))
const canary = (what: string) => `canary-${what}-${randomBytes(9).toString('hex')}`
const API_KEY = canary('api-key')
const WRONG_API_KEY = canary('wrong-api-key')
const HEADER = canary('header')
const FORGED_TOKEN = canary('token')
const JOB_SECRET = canary('job-secret')
const CODEC_KEY = randomBytes(32).toString('base64')
const OTHER_CODEC_KEY = randomBytes(32).toString('base64')
/** What is no secret and is in every history, to see that looking finds something. */
const CONTROL = canary('control')

let folder: string
let state: string
let server: DevServer
let proxy: TlsProxy
let ca: Authority
let clientKey: string
let brokerKey: string
let env: NodeJS.ProcessEnv
let worker: Running
let client: Client
let connection: Connection
let firepool: FirepoolClient
/** all that anybody was shown, by its source */
const shown: [source: string, text: string][] = []
/** tokens that were really used */
const tokens: string[] = []

beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), 'firepool-canary-'))
  state = join(folder, 'state')
  server = await startDevServer({ logFile: join(folder, 'server.log'), dbFile: join(folder, 'temporal.db') })
  ca = createAuthority('test CA')
  const identity = ca.issue('firepool-test')
  clientKey = identity.key
  proxy = await startTlsProxy({
    target: server.address,
    server: ca.issue('server'),
    clientCa: ca.cert,
    apiKey: API_KEY,
  })
  mkdirSync(join(folder, 'home'))
  mkdirSync(join(state, 'keys'), { recursive: true, mode: 0o700 })
  const pem = generateKeyPairSync('ed25519').privateKey.export({ type: 'pkcs8', format: 'pem' }).toString()
  brokerKey = pem
  writeFileSync(join(state, 'keys', 'broker-key.pem'), pem, { mode: 0o600 })
  env = {
    PATH: `${process.env.PATH}:${join(homedir(), 'go', 'bin')}`,
    HOME: join(folder, 'home'),
    FIREPOOL_DIR: state,
    TMPDIR: folder,
    TEMPORAL_ADDRESS: proxy.address,
    TEMPORAL_API_KEY: API_KEY,
    TEMPORAL_GRPC_META_X_SECRET: HEADER,
    TEMPORAL_TLS: 'true',
    TEMPORAL_TLS_SERVER_NAME: 'localhost',
    TEMPORAL_TLS_SERVER_CA_CERT_PATH: put('ca.pem', ca.cert),
    TEMPORAL_TLS_CLIENT_CERT_PATH: put('client.pem', identity.cert),
    TEMPORAL_TLS_CLIENT_KEY_PATH: put('client.key', identity.key),
    FIREPOOL_DATA_CONVERTER: CODEC,
    FIREPOOL_TEST_KEYS: JSON.stringify({ ours: CODEC_KEY }),
  }
  mkdirSync(join(folder, 'secrets'))
  for (const name of ['search-key', 'not-for-jobs']) put(join('secrets', name), `${JOB_SECRET}\n`)
  worker = startCli(['worker', '--json', '--secrets', join(folder, 'secrets')], env)
  await worker.until('stdout', '\n')
  connection = await Connection.connect({ address: server.address })
  client = new Client({
    connection,
    dataConverter: { payloadCodecs: [new EncryptionCodec({ ours: CODEC_KEY })] },
  })
  firepool = createFirepoolClient({ client })
})
afterAll(async () => {
  await cli(['pool', 'delete', 'cpu', '--force'])
  worker?.kill('SIGINT')
  await worker?.ended
  await connection?.close()
  await proxy?.close()
  await server?.stop()
  rmSync(folder, { recursive: true, force: true })
})

function put(name: string, text: string): string {
  const path = join(folder, name)
  writeFileSync(path, text, { mode: 0o600 })
  return path
}

/** Runs a command, and keeps what it printed. */
async function cli(args: string[], more: NodeJS.ProcessEnv = {}) {
  const ended = await startCli(args, { ...env, ...more }).ended
  shown.push([`firepool ${args.join(' ')} ${Object.keys(more)}`, `${ended.stdout}${ended.stderr}`])
  return ended
}

/** What an error shows, in all its parts. */
async function refused(what: string, work: Promise<unknown>): Promise<unknown> {
  const error = await work.then(
    () => new Error(`${what} was not refused`),
    (reason: unknown) => reason,
  )
  const parts: string[] = []
  for (let cause = error; cause instanceof Error; cause = cause.cause)
    parts.push(
      `${cause.stack} ${JSON.stringify(cause)} ${JSON.stringify((cause as FirepoolError).problem ?? null)}`,
    )
  shown.push([what, parts.join('\n')])
  return error
}

const podsThatAreThere = async () =>
  (await firepool.pods('cpu')).rows.filter(({ address }) => address !== null)

test('everything is made to fail', async () => {
  const applied = await cli([
    'pool',
    'apply',
    '-f',
    put(
      'pools.yaml',
      'pools: [{ name: cpu, budget: 3, standby: 1, keepAlive: 10m, profile: { secrets: [search-key, gone] } }]',
    ),
  ])
  expect(applied.code, applied.stderr).toBe(0)
  const job = (command: string) => firepool.runJob({ pool: 'cpu', caller: CONTROL, job: { command } })
  expect((await job('echo on')).stdout).toBe('on\n')

  // Tokens: forged, of another key, for another pod, and a good one for a lease that is over.
  const signer = createSigner(loadKeys(join(state, 'keys')))
  const strangers = createSigner(loadKeys(join(folder, 'other-keys')))
  const pod = (await podsThatAreThere()).find(({ caller }) => caller === CONTROL)
  const epoch = pod!.epoch
  const leaseId = '0f6a1b7e-31f5-4c7a-9f0e-1a2b3c4d5e6f'
  const bad = {
    forged: FORGED_TOKEN,
    'of another key': strangers(pod!.pod, 'broker', 0, ''),
    'for another pod': signer('another', 'broker', 0, ''),
    'of a lease': signer(pod!.pod, 'lease', epoch, leaseId),
  }
  for (const [what, token] of Object.entries(bad)) {
    tokens.push(token)
    const runner = createRunnerClient(pod!.address!, () => token)
    const error = await refused(`a token ${what}`, runner.revoke(epoch, { timeoutMs: 5_000 }))
    expect(error, what).toBeInstanceOf(FirepoolError)
  }
  const good = signer(pod!.pod, 'broker', 0, '')
  tokens.push(good)
  const elsewhere = createRunnerClient('http://127.0.0.1:9', () => good)
  await refused('a runner that is not there', elsewhere.status({ timeoutMs: 2_000 }))
  const runner = createRunnerClient(pod!.address!, () => good)
  const binding = { v: 1 as const, epoch: 0, leaseId, ownerHash: 'x'.repeat(64), incarnation: 'another' }
  await refused('a bind of an old epoch', runner.bind(binding, { timeoutMs: 5_000 }))

  // Pods: one dies under its job, one cannot be bound because it stopped.
  const mark = canary('mark')
  const lost = refused('a pod that was killed', job(`: ${mark}; sleep 600`))
  await waitUntil('the job runs', () => processesWith(mark).length > 0)
  for (const pid of processesWith(`FIREPOOL_POD=${pod!.pod}\u0000`)) process.kill(pid, 'SIGKILL')
  expect(await lost).toBeInstanceOf(FirepoolError)
  const standby = await waitUntil('another pod is Ready', async () => {
    const [other] = await podsThatAreThere()
    return other && other.pod !== pod!.pod ? other : null
  })
  for (const pid of processesWith(`FIREPOOL_POD=${standby.pod}\u0000`)) process.kill(pid, 'SIGKILL')
  expect((await job('echo again')).stdout).toBe('again\n')
  await refused(
    'a command that is not there',
    job('/no/such/program && exit 3').then(() => Promise.reject()),
  )

  // The server: away, another key, no key, another codec key, a broken profile file.
  const profile = put('broken.toml', `[profile.default]\napi_key = "${API_KEY}\nnamespace = 7`)
  for (const more of [
    { TEMPORAL_ADDRESS: '127.0.0.1:9' },
    { TEMPORAL_API_KEY: WRONG_API_KEY },
    { TEMPORAL_TLS_CLIENT_KEY_PATH: put('other.key', ca.issue('other').key) },
    { TEMPORAL_TLS_CLIENT_KEY_PATH: put('broken.key', clientKey.replaceAll('A', '!')) },
    { FIREPOOL_TEST_KEYS: JSON.stringify({ theirs: OTHER_CODEC_KEY }) },
    { FIREPOOL_TEST_KEYS: JSON.stringify({ ours: OTHER_CODEC_KEY }) },
    { TEMPORAL_CONFIG_FILE: profile },
    { TEMPORAL_GRPC_META_X_SECRET: `${HEADER}\n` },
  ] as NodeJS.ProcessEnv[])
    for (const command of [
      ['pool', 'describe', 'cpu', '--json'],
      ['run', '--pool', 'cpu', '--', 'true'],
    ])
      expect((await cli(command, more)).code, JSON.stringify(Object.keys(more))).not.toBe(0)
  const damaged = mkdtempSync(join(folder, 'damaged-'))
  mkdirSync(join(damaged, 'keys'), { mode: 0o700 })
  writeFileSync(join(damaged, 'keys', 'broker-key.pem'), brokerKey.replace('PRIVATE', 'BROKEN'))
  expect((await cli(['worker', '--dir', damaged])).code).not.toBe(0)
  await cli(['pool', 'list'])
  expect((await cli(['pool', 'describe', 'cpu', '--all'])).stdout.toString()).toContain('cpu')
})

test('a secret that a job names is in its environment, and one that is not there or not allowed is refused by name', async () => {
  const digest = createHash('sha256').update(JOB_SECRET).digest('hex')
  const run = (secret: string) =>
    firepool.runJob({
      pool: 'cpu',
      caller: CONTROL,
      job: { command: 'printf %s "$API_KEY" | sha256sum', secretEnv: { API_KEY: secret } },
    })
  expect((await run('search-key')).stdout).toMatch(new RegExp(`^${digest} `))
  for (const [secret, reason] of [
    ['gone', 'SecretMissing'],
    ['not-for-jobs', 'SecretNotAllowed'],
  ]) {
    const error = await refused(`the secret ${secret}`, run(secret!))
    expect((error as FirepoolError).problem).toMatchObject({
      code: 'InvalidRequest',
      message: expect.stringContaining(`secret '${secret}'`),
      details: { reason, secret },
    })
  }
  // Somebody writes the value where its name belongs.
  const clumsy = await refused('a value instead of a name', run(`${JOB_SECRET} `))
  expect((clumsy as FirepoolError).problem.message).toContain(
    'job.secretEnv.API_KEY must be the name of a secret',
  )
})

/** Texts by which a secret would be known, whatever wraps it. */
function secrets(): [string, string][] {
  const pkcs8 = (pem: string) => createPrivateKey(pem).export({ type: 'pkcs8', format: 'der' })
  const scalar = pkcs8(brokerKey).subarray(-32)
  const body = (pem: string) => pem.split('\n').slice(1, -2)
  return [
    ['API key', API_KEY],
    ['wrong API key', WRONG_API_KEY],
    ['header', HEADER],
    ['forged token', FORGED_TOKEN],
    ['secret of a job', JOB_SECRET],
    ['codec key', CODEC_KEY],
    ['other codec key', OTHER_CODEC_KEY],
    ["broker's key", scalar.toString('base64').replace(/=+$/, '')],
    ["broker's key, url", scalar.toString('base64url')],
    ["broker's key, hex", scalar.toString('hex')],
    ...body(brokerKey).map((line): [string, string] => ["broker's key, PEM", line]),
    ...body(clientKey).map((line): [string, string] => ['TLS key, PEM', line]),
    // The part behind the dot is what makes a token good.
    ...tokens.map((token): [string, string] => ['token', token.split('.')[1] ?? token]),
    // Of one that cannot be read a parser may quote a line.
    ...body(clientKey.replaceAll('A', '!')).map((line): [string, string] => ['broken TLS key, PEM', line]),
    ["end of any PEM (an error may say how a key's file begins)", '-----END'],
    ['any token', 'Bearer '],
  ]
}

/** All texts and bytes of a raw answer, each payload decoded. */
function texts(raw: unknown): string {
  if (typeof raw === 'string') return raw
  if (raw instanceof Uint8Array) return Buffer.from(raw).toString('latin1')
  if (typeof raw !== 'object' || raw === null) return ''
  return Object.entries(raw)
    .map(([key, value]) => `${key} ${texts(value)}`)
    .join(' ')
}

/** Replaces each payload in a raw answer by what our codec makes of it. */
async function decoded(raw: unknown): Promise<unknown> {
  if (typeof raw !== 'object' || raw === null || raw instanceof Uint8Array) return raw
  const { metadata } = raw as { metadata?: { encoding?: unknown } }
  if (metadata?.encoding instanceof Uint8Array) {
    // Some were encoded with the other key, by name or under the name of ours.
    for (const keys of [{ ours: CODEC_KEY }, { ours: OTHER_CODEC_KEY, theirs: OTHER_CODEC_KEY }]) {
      const plain = await new EncryptionCodec(keys).decode([raw as never]).catch(() => null)
      if (plain) return plain[0]
    }
    throw new Error('a payload that none of our keys decodes')
  }
  const all = await Promise.all(Object.entries(raw).map(async ([key, value]) => [key, await decoded(value)]))
  return Object.fromEntries(all)
}

test('no history, memo, description, log, output or error shows a secret', async () => {
  let histories = 0
  for await (const { workflowId, runId, type } of client.workflow.list()) {
    const handle = client.workflow.getHandle(workflowId, runId)
    const history = texts(await decoded(await handle.fetchHistory()))
    const { raw } = await handle.describe()
    shown.push([`history of ${workflowId}`, history])
    shown.push([`description of ${workflowId}`, texts(await decoded(raw))])
    histories++
    if (type === 'firepool.runJob') expect(history, workflowId).toContain('cpu')
    if (workflowId === poolWorkflowId('cpu')) expect(history).toContain(CONTROL)
  }
  expect(histories).toBeGreaterThan(4)
  shown.push(['worker', `${worker.stdout()}${worker.stderr()}`])
  for (const file of filesIn(state)) {
    if (file.endsWith('broker-key.pem')) continue
    shown.push([file, readFileSync(file, 'latin1')])
  }
  for (const name of readdirSync(folder).filter((name) => /^(server\.log|temporal\.db)/.test(name)))
    shown.push([name, readFileSync(join(folder, name), 'latin1')])
  // What a pod can see of its own: its environment and its command line.
  for (const pid of processesWith('FIREPOOL_POD='))
    for (const part of ['environ', 'cmdline'])
      if (processesWith(state).includes(pid))
        shown.push([`${part} of a pod`, readIfThere(`/proc/${pid}/${part}`)])
  expect(shown.some(([source]) => source.endsWith('worker.log'))).toBe(true)
  const found = secrets().flatMap(([what, text]) => {
    expect(text.length, what).toBeGreaterThan(5)
    return shown.filter(([, all]) => all.includes(text)).map(([source]) => `${what} in ${source}`)
  })
  expect(found).toEqual([])
})

function filesIn(dir: string): string[] {
  return readdirSync(dir).flatMap((name) => {
    const path = join(dir, name)
    const { isDirectory, isFile } = kindOf(path)
    if (isDirectory) return filesIn(path)
    return isFile ? [path] : []
  })
}

function kindOf(path: string): { isDirectory: boolean; isFile: boolean } {
  try {
    const stats = statSync(path)
    return { isDirectory: stats.isDirectory(), isFile: stats.isFile() }
  } catch {
    return { isDirectory: false, isFile: false }
  }
}

function readIfThere(path: string): string {
  try {
    return readFileSync(path, 'latin1')
  } catch {
    return ''
  }
}
