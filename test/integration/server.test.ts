import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { chmodSync, existsSync, mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { pathToFileURL } from 'node:url'
import { Client, Connection } from '@temporalio/client'
import { afterAll, afterEach, beforeAll, expect, test, vi } from 'vitest'
import { SEARCH_ATTRIBUTE } from '../../src/contract/index.js'
import { type DevServer, openServer, PortConflictError, startDevServer } from '../../src/server/dev-server.js'
import { freePort } from '../../src/server/free-port.js'
import { withProcessLock } from '../../src/server/process-lock.js'
import { type ResolvedBinary, resolveBinary } from '../../src/server/resolve.js'
import { ensureSearchAttributes, readFeatures } from '../../src/server/search-attributes.js'
import { openTemporalUi } from '../support/browser.js'

/** For hangs only. */
const HANG_MS = 90_000
const NAMES = Object.keys(SEARCH_ATTRIBUTE)
/** What a killed child runs must be JavaScript; `npm test` builds before it comes here. */
const DIST = resolve(import.meta.dirname, '../../dist/server')

let folder: string
let binary: ResolvedBinary
const servers: DevServer[] = []
const children: ChildProcess[] = []

beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), 'firepool-server-'))
  binary = await resolveBinary({
    onProgress: ({ message, elapsedSeconds }) => console.error(`${message} (${elapsedSeconds} s)`),
  })
  console.error(`Temporal: ${binary.description}`)
}, 3_600_000)
afterEach(async () => {
  await Promise.all(servers.splice(0).map((server) => server.stop()))
  for (const child of children.splice(0)) child.kill('SIGKILL')
})
afterAll(() => rmSync(folder, { recursive: true, force: true }))

async function start(options: Partial<Parameters<typeof startDevServer>[0]> = {}): Promise<DevServer> {
  const server = await startDevServer({ logFile: join(folder, 'server.log'), binary, ...options })
  servers.push(server)
  return server
}

async function withConnection<T>(
  address: string,
  action: (connection: Connection) => Promise<T>,
): Promise<T> {
  const connection = await Connection.connect({ address })
  try {
    return await action(connection)
  } finally {
    await connection.close()
  }
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0)
    return true
  } catch {
    return false
  }
}

test('starts, serves gRPC and the UI, has our search attributes, and stops', async () => {
  const server = await start({ uiPort: 0, namespace: 'other' })
  expect(server.source).toBe(binary.source)
  expect((await fetch(server.uiUrl!)).status).toBe(200)
  await withConnection(server.address, async (connection) => {
    for (const namespace of ['default', 'other']) {
      expect(await readFeatures(connection, namespace)).toEqual({ searchAttributes: NAMES })
    }
  })
  await Promise.all([server.stop(), server.stop()])
  expect(isAlive(server.pid)).toBe(false)
})

test('a file database survives a restart', async () => {
  const dbFile = join(folder, 'not', 'yet', 'temporal.db')
  const first = await start({ dbFile })
  const runId = await withConnection(first.address, async (connection) => {
    const handle = await new Client({ connection }).workflow.start('nobodyRunsThis', {
      workflowId: 'survivor',
      taskQueue: 'nobody',
    })
    return handle.firstExecutionRunId
  })
  await first.stop()
  const second = await start({ dbFile })
  const description = await withConnection(second.address, (connection) =>
    new Client({ connection }).workflow.getHandle('survivor').describe(),
  )
  expect(description).toMatchObject({ runId, status: { name: 'RUNNING' } })
})

test('search attributes can be added by several at once, and a doubled one is repaired', async () => {
  const server = await start({ searchAttributes: {} })
  await withConnection(server.address, async (connection) => {
    expect((await readFeatures(connection, 'default')).searchAttributes).toEqual([])
    const reports = await Promise.all([1, 2, 3, 4].map(() => ensureSearchAttributes(connection, 'default')))
    expect(reports.at(-1)!.present.length).toBeGreaterThan(0)
    expect(await ensureSearchAttributes(connection, 'default')).toEqual({ present: NAMES, missing: [] })

    // What processes on two machines can do to each other: one name, two columns.
    const aliases = async () => {
      const { config } = await connection.workflowService.describeNamespace({ namespace: 'default' })
      return config?.customSearchAttributeAliases ?? {}
    }
    const before = await aliases()
    const warmColumn = Object.entries(before).find(([, name]) => name === 'FirepoolWarm')![0]
    // The server chose columns at random.
    const free = Array.from({ length: 10 }, (_, n) => `Keyword${String(n + 1).padStart(2, '0')}`).find(
      (c) => !before[c],
    )!
    const customSearchAttributeAliases = { [free]: 'FirepoolPool', [warmColumn]: '' }
    await connection.workflowService.updateNamespace({
      namespace: 'default',
      config: { customSearchAttributeAliases },
    })
    expect(Object.values(await aliases()).filter((name) => name === 'FirepoolPool')).toHaveLength(2)
    expect(await ensureSearchAttributes(connection, 'default')).toEqual({ present: NAMES, missing: [] })
    expect(Object.values(await aliases()).sort()).toEqual([...NAMES].sort())
  })
})

test('a port that is taken: ours are chosen anew, a given one is an error with the log', async () => {
  const holder = createServer()
  const port = await freePort()
  holder.listen(port, '127.0.0.1')
  await once(holder, 'listening')
  const error = (await start({ port }).catch((e: unknown) => e)) as Error
  holder.close()
  expect(error).toBeInstanceOf(PortConflictError)
  expect(error.message).toContain('ended early')
  expect(error.message).toContain(String(port))
})

test('a preferred port that somebody takes between the look and the bind: another one is chosen', async () => {
  const port = await freePort()
  const lost = join(folder, 'lost')
  const path = join(folder, 'racing')
  // What the server says when it loses the race, once.
  writeFileSync(
    path,
    `#!/bin/sh
if [ ! -e ${lost} ]; then touch ${lost}; echo "listen tcp 127.0.0.1:${port}: bind: address already in use" >&2; exit 1; fi
exec ${binary.path} "$@"
`,
  )
  chmodSync(path, 0o755)
  const racing: ResolvedBinary = { ...binary, path }
  const server = await start({ binary: racing, preferred: { port }, uiPort: 0 })
  expect(server.address).not.toBe(`127.0.0.1:${port}`)
  const unrivalled = await start({ preferred: { port } })
  expect(unrivalled.address).toBe(`127.0.0.1:${port}`)
})

test('a given port that another Temporal server has: its answer is not taken for ours, however slow ours is', async () => {
  const other = await start()
  const path = join(folder, 'slow')
  writeFileSync(path, `#!/bin/sh\nsleep 1\nexec ${binary.path} "$@"\n`)
  chmodSync(path, 0o755)
  const port = Number(other.address.split(':')[1])
  await expect(start({ port, binary: { ...binary, path } })).rejects.toBeInstanceOf(PortConflictError)
})

test('the log is for its owner alone, also one that was there before', async () => {
  const logFile = join(folder, 'shared.log')
  writeFileSync(logFile, 'older\n', { mode: 0o644 })
  await start({ logFile })
  expect(statSync(logFile).mode & 0o777).toBe(0o600)
})

test('a binary that dies early: the error has the tail of its log', async () => {
  const path = join(folder, 'dying')
  writeFileSync(path, '#!/bin/sh\necho "schema of the database is too new" >&2\nexit 3\n')
  chmodSync(path, 0o755)
  const dying: ResolvedBinary = { ...binary, path }
  await expect(start({ binary: dying })).rejects.toThrow(/exit code 3.*schema of the database is too new/s)
  await expect(start({ binary: { ...binary, path: join(folder, 'absent') } })).rejects.toThrow('ENOENT')
})

test('TEMPORAL_ADDRESS is used, and nothing is started or stopped', async () => {
  const running = await start()
  const env = { ...process.env, TEMPORAL_ADDRESS: running.address, TEMPORAL_NAMESPACE: 'ours' }
  const opened = await openServer({ logFile: join(folder, 'unused.log'), env })
  expect(opened).toMatchObject({
    address: running.address,
    namespace: 'ours',
    source: 'address',
    pid: undefined,
  })
  await opened.stop()
  expect(isAlive(running.pid)).toBe(true)
  expect(existsSync(join(folder, 'unused.log'))).toBe(false)
})

test('a Ctrl-C reaches us and not the server; our SIGKILL ends the server', async () => {
  const child = runChild(`
    const { startDevServer } = await import(${JSON.stringify(pathToFileURL(join(DIST, 'dev-server.js')).href)})
    process.on('SIGINT', () => console.log('interrupted'))
    const server = await startDevServer({ logFile: ${JSON.stringify(join(folder, 'killed.log'))}, binary: ${JSON.stringify(binary)} })
    console.log('pid ' + server.pid)
    setInterval(() => {}, 1000)
  `)
  const pid = Number((await childSays(child, /^pid (\d+)$/m))[1])
  expect(isAlive(pid)).toBe(true)
  process.kill(-child.pid!, 'SIGINT')
  await childSays(child, /^interrupted$/m)
  expect(isAlive(pid)).toBe(true)
  child.kill('SIGKILL')
  await vi.waitFor(() => expect(isAlive(pid)).toBe(false), { timeout: HANG_MS, interval: 50 })
})

test('a process that is killed lets go of the lock', async () => {
  const child = runChild(`
    const { withProcessLock } = await import(${JSON.stringify(pathToFileURL(join(DIST, 'process-lock.js')).href)})
    await withProcessLock(${JSON.stringify(folder)}, async () => { console.log('held'); await new Promise(() => setInterval(() => {}, 1000)) })
  `)
  await childSays(child, /^held$/m)
  const onWait = () => child.kill('SIGKILL')
  expect(await withProcessLock(folder, async () => child.killed, { onWait })).toBe(true)
})

test('the browser shows what a workflow says about itself', async () => {
  const server = await start({ uiPort: 0 })
  await withConnection(server.address, (connection) =>
    new Client({ connection }).workflow.start('nobodyRunsThis', {
      workflowId: 'pool/shown',
      taskQueue: 'nobody',
      staticSummary: 'A pool **nobody** runs',
    }),
  )
  const ui = await openTemporalUi(join(folder, 'screenshots'))
  try {
    const view = await ui.openWorkflow(server.uiUrl!, 'default', 'pool/shown', 'A pool nobody runs')
    expect(view.text).toContain('Current Details')
    expect(readFileSync(view.screenshotPath).subarray(1, 4).toString()).toBe('PNG')
  } finally {
    await ui.close()
  }
})

/** In a process group of its own, as a shell would start it. */
function runChild(code: string): ChildProcess {
  const child = spawn(process.execPath, ['--input-type=module', '-e', code], {
    stdio: ['ignore', 'pipe', 'inherit'],
    detached: true,
  })
  children.push(child)
  return child
}

async function childSays(child: ChildProcess, pattern: RegExp): Promise<RegExpMatchArray> {
  let output = ''
  child.stdout!.setEncoding('utf8')
  for await (const text of child.stdout!.iterator({ destroyOnReturn: false })) {
    output += text
    const match = output.match(pattern)
    if (match !== null) return match
  }
  throw new Error(`the child ended without ${pattern}: ${output}`)
}
