/** A server behind TLS with client certificates and an API key, reached by a profile file: worker, commands and libraries alike. */
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { homedir, tmpdir } from 'node:os'
import { join } from 'node:path'
import { Client, Connection } from '@temporalio/client'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { createFirepoolClient, serverFromEnvironment } from '../../dist/client/index.js'
import { type DevServer, startDevServer } from '../../dist/server/dev-server.js'
import { startFirepoolWorker } from '../../dist/worker.js'
import { type Authority, createAuthority, type Identity } from '../support/certificates.js'
import { type Running, startCli } from '../support/cli.js'
import { startTlsProxy, type TlsProxy } from '../support/tls-proxy.js'

const API_KEY = 'sk-only-for-this-test'
const SERVER_NAME = 'localhost'

let folder: string
let server: DevServer
let proxy: TlsProxy
let ca: Authority
let client: Identity
let env: NodeJS.ProcessEnv
let worker: Running

beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), 'firepool-tls-'))
  server = await startDevServer({ logFile: join(folder, 'server.log') })
  ca = createAuthority('test CA')
  client = ca.issue('firepool-test')
  proxy = await startTlsProxy({
    target: server.address,
    server: ca.issue('server'),
    clientCa: ca.cert,
    apiKey: API_KEY,
  })
  put('ca.pem', ca.cert)
  put('client.pem', client.cert)
  put('client.key', client.key)
  const file = put('temporal.toml', profiles())
  const { PATH } = process.env
  mkdirSync(join(folder, 'home'))
  env = {
    PATH: `${PATH}:${join(homedir(), 'go', 'bin')}`,
    HOME: join(folder, 'home'),
    FIREPOOL_DIR: join(folder, 'state'),
    TMPDIR: folder,
    TEMPORAL_CONFIG_FILE: file,
    TEMPORAL_PROFILE: 'mtls',
  }
  worker = startCli(['worker', '--json'], env)
  await worker.until('stdout', '\n')
})
afterAll(async () => {
  await cli(['pool', 'delete', 'cpu', '--force'])
  worker?.kill('SIGINT')
  await worker?.ended
  await proxy?.close()
  await server?.stop()
  rmSync(folder, { recursive: true, force: true })
})

function put(name: string, text: string): string {
  const path = join(folder, name)
  writeFileSync(path, text)
  return path
}

function profiles(): string {
  const tls = (more: Record<string, string>) =>
    Object.entries({ server_ca_cert_path: `${folder}/ca.pem`, server_name: SERVER_NAME, ...more })
      .map(([key, value]) => `${key} = "${value}"`)
      .join('\n')
  const pair = { client_cert_path: `${folder}/client.pem`, client_key_path: `${folder}/client.key` }
  return `
[profile.mtls]
address = "${proxy.address}"
namespace = "default"
api_key = "${API_KEY}"
[profile.mtls.grpc_meta]
x-team = "warm"
[profile.mtls.tls]
${tls(pair)}
[profile.anonymous]
address = "${proxy.address}"
api_key = "${API_KEY}"
[profile.anonymous.tls]
${tls({})}
[profile.stranger]
address = "${proxy.address}"
[profile.stranger.tls]
server_name = "${SERVER_NAME}"
client_cert_path = "${pair.client_cert_path}"
client_key_path = "${pair.client_key_path}"
[profile.misnamed]
address = "${proxy.address}"
[profile.misnamed.tls]
${tls({ ...pair, server_name: 'elsewhere.example' })}
[profile.lost]
address = "${proxy.address}"
[profile.lost.tls]
${tls({ ...pair, client_cert_path: `${folder}/gone.pem` })}
`
}

const cli = (args: string[], more: NodeJS.ProcessEnv = {}) => startCli(args, { ...env, ...more }).ended

test('worker and commands show the certificate, the API key and the header in every call', async () => {
  const applied = await cli(['pool', 'apply', '-f', put('pools.yaml', 'pools: [{ name: cpu, budget: 2 }]')])
  expect(applied.code, applied.stderr).toBe(0)
  const ran = await cli(['run', '--pool', 'cpu', '--', 'echo', 'over', 'TLS'])
  expect(ran.stdout.toString(), ran.stderr).toBe('over TLS\n')
  const called = (name: string) => proxy.calls.filter(({ path }) => path.endsWith(`/${name}`))
  // The worker's native connection polls; the clients of the commands and of the worker start, query and signal.
  for (const name of ['PollWorkflowTaskQueue', 'PollActivityTaskQueue', 'StartWorkflowExecution'])
    expect(called(name).length, name).toBeGreaterThan(0)
  for (const { path, headers, client: shown } of proxy.calls) {
    expect(headers.authorization, path).toBe(`Bearer ${API_KEY}`)
    expect(headers['x-team'], path).toBe('warm')
    expect(shown, path).toBe('firepool-test')
  }
  for (const text of [worker.stdout(), worker.stderr(), applied.stderr, ran.stderr])
    expect(text).not.toContain(API_KEY)
})

test('the libraries take the same settings', async () => {
  const settings = serverFromEnvironment(env)
  const own = await startFirepoolWorker({ ...settings, dir: join(folder, 'state') })
  const { namespace, ...connectTo } = settings
  const connection = await Connection.connect(connectTo)
  const firepool = createFirepoolClient({ client: new Client({ connection, namespace }) })
  expect(await firepool.runJob({ pool: 'cpu', job: { command: ['echo', 'too'] } })).toMatchObject({
    stdout: 'too\n',
  })
  await connection.close()
  await own.shutdown()
})

test.each<[string, NodeJS.ProcessEnv, string, RegExp]>([
  [
    'no client certificate',
    { TEMPORAL_PROFILE: 'anonymous' },
    'NoServer',
    /asks for a client certificate, or refuses ours/,
  ],
  ['a CA that is not ours', { TEMPORAL_PROFILE: 'stranger' }, 'NoServer', /of a CA that we do not know/],
  ['another name', { TEMPORAL_PROFILE: 'misnamed' }, 'NoServer', /for another name/],
  [
    'a certificate that is gone',
    { TEMPORAL_PROFILE: 'lost' },
    'ConnectionSettings',
    /is not there: .*gone\.pem/,
  ],
  ['no such profile', { TEMPORAL_PROFILE: 'nope' }, 'ConnectionSettings', /no such profile/],
  ['another API key', { TEMPORAL_API_KEY: 'wrong-key' }, 'NotAuthorized', /does not let us in/],
])('%s: a clear error', async (_, more, code, pattern) => {
  const both = [['pool', 'list'], ['worker']].map((command) => cli([...command, '--json'], more))
  for (const { stdout, stderr } of await Promise.all(both)) {
    const { error } = JSON.parse(stdout.toString()) as { error: { code: string; message: string } }
    expect(error.code, stderr).toBe(code)
    expect(error.message).toMatch(pattern)
    for (const secret of [API_KEY, 'wrong-key', 'PRIVATE KEY']) expect(stdout + stderr).not.toContain(secret)
  }
})

test('dev uses the server of a profile that is named, and leaves it running', async () => {
  const dev = startCli(['dev', '--json', '-f', put('more.yaml', 'pools: [{ name: more, budget: 1 }]')], env)
  await dev.until('stdout', '\n')
  expect(JSON.parse(dev.stdout())).toMatchObject({ address: proxy.address, uiUrl: null })
  expect((await cli(['pool', 'delete', 'more'])).code).toBe(0)
  dev.kill('SIGINT')
  expect((await dev.ended).code).toBe(0)
  expect((await cli(['pool', 'list'])).code).toBe(0)
})

test('dev does not follow the usual profile: it starts a server of its own, and says who does', async () => {
  const { TEMPORAL_CONFIG_FILE: _, TEMPORAL_PROFILE: __, ...rest } = env
  mkdirSync(join(folder, 'temporalio'))
  put('temporalio/temporal.toml', `[profile.default]\naddress = "${proxy.address}"\n`)
  const own = { ...rest, XDG_CONFIG_HOME: folder, FIREPOOL_DIR: join(folder, 'own') }
  const dev = startCli(['dev', '--json'], own)
  await dev.until('stdout', '\n')
  const { address } = JSON.parse(dev.stdout()) as { address: string }
  expect(address).not.toBe(proxy.address)
  await dev.until('stderr', `set TEMPORAL_ADDRESS=${address}`)
  dev.kill('SIGINT')
  await dev.ended
})

test('TLS spoken to a server that has none', async () => {
  const { stdout } = await cli(['pool', 'list', '--json', '--address', server.address])
  expect(JSON.parse(stdout.toString())).toMatchObject({
    error: { code: 'NoServer', message: expect.stringContaining('it does not speak TLS') },
  })
})
