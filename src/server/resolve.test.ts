import { execFileSync } from 'node:child_process'
import {
  chmodSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import { createServer, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { cacheFolder } from './cache-folder.js'
import { CLI_VERSION } from './obtain-cli.js'
import {
  cachedCliPath,
  type ResolveOptions,
  resolveBinary,
  resolveServer,
  ServerNotFoundError,
} from './resolve.js'

/** Nothing listens on port 2, so this download fails at once. */
const UNREACHABLE = 'http://127.0.0.1:2/cli'

interface World {
  root: string
  env: NodeJS.ProcessEnv
  cached: string
  goBin: string
  options: ResolveOptions
  /** an executable named `temporal` that answers `--version` */
  putTemporal(path: string, mark?: string): void
  /** a `go` on PATH that "builds"; each build adds a line to the file `builds` */
  putGo(body?: string): void
  builds(): number
}

let world: World
let server: Server | undefined

beforeEach(() => {
  world = makeWorld()
})
afterEach(async () => {
  rmSync(world.root, { recursive: true, force: true })
  await new Promise((done) => (server ? server.close(done) : done(undefined)))
  server = undefined
})

function makeWorld(): World {
  const root = mkdtempSync(join(tmpdir(), 'firepool-resolve-'))
  const env = { PATH: `${root}/bin:${root}/bin2`, HOME: `${root}/home`, FIREPOOL_CACHE_DIR: `${root}/cache` }
  const put = (path: string, body: string) => {
    mkdirSync(dirname(path), { recursive: true })
    writeFileSync(path, `#!/bin/sh\nPATH=/usr/bin:/bin\n${body}\n`)
    chmodSync(path, 0o755)
  }
  return {
    root,
    env,
    cached: cachedCliPath(env),
    goBin: `${root}/home/go/bin/temporal`,
    options: { env, downloadUrl: UNREACHABLE },
    putTemporal: (path, mark = 'fake') => put(path, `echo "temporal version ${mark}"`),
    putGo: (body = BUILD) => put(`${root}/bin/go`, `echo build >> ${root}/builds\n${body}`),
    builds: () =>
      existsSync(`${root}/builds`) ? readFileSync(`${root}/builds`, 'utf8').trim().split('\n').length : 0,
  }
}

/** Long enough that a second caller without the lock would start a build of its own meanwhile. */
const BUILD = `sleep 0.3
printf '#!/bin/sh\\necho "temporal version built"\\n' > "$GOBIN/temporal"
chmod +x "$GOBIN/temporal"`

describe('the order', () => {
  test('TEMPORAL_ADDRESS comes before every binary', async () => {
    world.putTemporal(`${world.root}/bin/temporal`)
    const env = { ...world.env, TEMPORAL_ADDRESS: 'temporal.example:7233' }
    expect(await resolveServer({ env })).toMatchObject({ kind: 'address', address: 'temporal.example:7233' })
  })

  test('each source is taken only when those before it have nothing', async () => {
    const onPath = `${world.root}/bin/temporal`
    world.putTemporal(onPath)
    world.putTemporal(world.cached)
    world.putTemporal(world.goBin)
    world.putGo()
    const take = () => resolveServer(world.options)

    expect(await take()).toMatchObject({ source: 'path', path: onPath, version: 'temporal version fake' })
    rmSync(onPath)
    expect(await take()).toMatchObject({ source: 'cache', path: world.cached })
    rmSync(world.cached)
    expect(await take()).toMatchObject({ source: 'go-bin', path: world.goBin })
    rmSync(world.goBin)
    const downloadUrl = await serveDownload()
    expect(await resolveBinary({ ...world.options, downloadUrl })).toMatchObject({
      source: 'download',
      path: world.cached,
    })
    rmSync(world.cached)
    expect(await take()).toMatchObject({
      source: 'go-install',
      path: world.cached,
      version: 'temporal version built',
    })
    expect(await take()).toMatchObject({ source: 'cache' })
    expect(world.builds()).toBe(1)
  })

  test('a broken binary or another program of that name is passed over', async () => {
    const broken = `${world.root}/bin/temporal`
    world.putTemporal(broken)
    writeFileSync(broken, '#!/bin/sh\necho "cannot run here" >&2\nexit 3\n')
    const working = `${world.root}/bin2/temporal`
    world.putTemporal(working)
    expect(await resolveBinary(world.options)).toMatchObject({ source: 'path', path: working })
    writeFileSync(working, '#!/bin/sh\necho Temporal Tables 9\n')
    const error = await resolveBinary({ ...world.options, sources: ['path'] }).catch((e: unknown) => e)
    expect(error).toBeInstanceOf(ServerNotFoundError)
    expect((error as Error).message).toContain('cannot run here')
    expect((error as Error).message).toContain('Temporal Tables 9')
  })

  test('GOBIN and GOPATH say where an earlier go install is', async () => {
    const bin = `${world.root}/gobin/temporal`
    world.putTemporal(bin)
    expect(await resolveBinary({ env: { ...world.env, GOBIN: dirname(bin) } })).toMatchObject({ path: bin })
    const inPath = `${world.root}/gopath/bin/temporal`
    world.putTemporal(inPath)
    const GOPATH = `${world.root}/gopath:/nowhere`
    expect(await resolveBinary({ env: { ...world.env, GOPATH } })).toMatchObject({ path: inPath })
  })
})

describe('when nothing works', () => {
  test('one error names every way, why each failed, and what to do', async () => {
    const error = (await resolveServer(world.options).catch((e: unknown) => e)) as ServerNotFoundError
    expect(error).toBeInstanceOf(ServerNotFoundError)
    expect(error.attempts.map((attempt) => attempt.source)).toEqual([
      'address',
      'path',
      'cache',
      'go-bin',
      'download',
      'go-install',
    ])
    for (const part of [
      'TEMPORAL_ADDRESS: not set',
      '`temporal` on PATH: not found',
      world.cached,
      'ECONNREFUSED',
    ]) {
      expect(error.message).toContain(part)
    }
    expect(error.message).toContain('`go` is not on PATH')
    expect(error.message).toContain(`go install github.com/temporalio/cli/cmd/temporal@${CLI_VERSION}`)
  })

  test('a failed build says what go said and leaves nothing behind', async () => {
    world.putGo('echo half > "$GOBIN/temporal"\necho "no required module" >&2\nexit 1')
    const error = (await resolveBinary(world.options).catch((e: unknown) => e)) as Error
    expect(error.message).toContain('no required module')
    expect(readdirSync(dirname(world.cached))).toEqual([])
  })

  test('a build that does not run is not put in place', async () => {
    world.putGo('echo "not a program" > "$GOBIN/temporal"')
    await expect(resolveBinary(world.options)).rejects.toBeInstanceOf(ServerNotFoundError)
    expect(existsSync(world.cached)).toBe(false)
  })

  test('a download that does not answer is given up', async () => {
    server = createServer(() => {})
    const downloadUrl = await listen(server)
    const options = { ...world.options, downloadUrl, downloadLimitMs: 200 }
    const error = (await resolveBinary(options).catch((e: unknown) => e)) as ServerNotFoundError
    expect(error.attempts.find((attempt) => attempt.source === 'download')?.failure).toContain(
      'no answer within',
    )
    server.closeAllConnections()
  })
})

test('callers at the same time build once, and progress says what is being done', async () => {
  world.putGo()
  const messages: string[] = []
  const options = {
    ...world.options,
    onProgress: ({ message }: { message: string }) => messages.push(message),
  }
  const found = await Promise.all([1, 2, 3, 4].map(() => resolveBinary(options)))
  expect(world.builds()).toBe(1)
  expect(found.map((binary) => binary.source).sort()).toEqual(['cache', 'cache', 'cache', 'go-install'])
  expect(messages.some((message) => message.startsWith('building the Temporal CLI'))).toBe(true)
  expect(messages.some((message) => message.startsWith('waiting for another process'))).toBe(true)
})

test('an abort ends the build', async () => {
  world.putGo('exec sleep 600')
  const abort = new AbortController()
  const onProgress = ({ message }: { message: string }) => {
    if (message.startsWith('building')) abort.abort(new Error('enough'))
  }
  await expect(resolveBinary({ ...world.options, onProgress, signal: abort.signal })).rejects.toThrow(
    'enough',
  )
})

test('the cache folder follows FIREPOOL_CACHE_DIR, XDG_CACHE_HOME, HOME', () => {
  const env = { HOME: '/h', XDG_CACHE_HOME: '/x', FIREPOOL_CACHE_DIR: '/f' }
  expect(cacheFolder(env)).toBe('/f')
  expect(cacheFolder({ ...env, FIREPOOL_CACHE_DIR: '' })).toBe('/x/firepool')
  expect(cacheFolder({ HOME: '/h', XDG_CACHE_HOME: 'relative' })).toBe('/h/.cache/firepool')
})

/** The SDKs' download service with one archive. */
async function serveDownload(): Promise<string> {
  const binary = `${world.root}/archive/temporal`
  world.putTemporal(binary, 'downloaded')
  const archive = execFileSync('tar', ['-czf', '-', '-C', dirname(binary), 'temporal'])
  server = createServer((request, response) => {
    if (request.url === '/archive') return response.end(archive)
    if (!request.url?.startsWith(`/${CLI_VERSION}?arch=`)) return response.writeHead(404).end()
    const archiveUrl = `http://${request.headers.host}/archive`
    return response.end(JSON.stringify({ archiveUrl, fileToExtract: 'temporal' }))
  })
  return listen(server)
}

async function listen(target: Server): Promise<string> {
  await new Promise<void>((done) => target.listen(0, '127.0.0.1', done))
  return `http://127.0.0.1:${(target.address() as AddressInfo).port}`
}
