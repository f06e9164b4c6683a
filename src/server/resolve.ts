import { execFile } from 'node:child_process'
import { constants } from 'node:fs'
import { access, stat } from 'node:fs/promises'
import { homedir } from 'node:os'
import { delimiter, join } from 'node:path'
import { promisify } from 'node:util'
import { cacheFolder } from './cache-folder.js'
import { type ConnectionSettings, serverOnPurpose } from './connection.js'
import { buildCli, CLI_VERSION, downloadCli, GO_PACKAGE } from './obtain-cli.js'
import { withProcessLock } from './process-lock.js'

const run = promisify(execFile)

/** A working CLI answers at once; the limit only catches one that hangs. */
const VERSION_LIMIT_MS = 20_000
const PROGRESS_EVERY_MS = 5_000

/** Where a server or its binary came from, in the order in which they are tried. */
export const BINARY_SOURCES = ['path', 'cache', 'go-bin', 'download', 'go-install'] as const
export type BinarySource = (typeof BINARY_SOURCES)[number]
export type ServerSource = 'address' | BinarySource

export interface ResolvedAddress {
  kind: 'address'
  source: 'address'
  /** host:port */
  address: string
  /** undefined when none is named */
  namespace: string | undefined
  connection: ConnectionSettings
  description: string
}

export interface ResolvedBinary {
  kind: 'binary'
  source: BinarySource
  /** absolute path of an executable that answered `--version` */
  path: string
  /** the first line of `temporal --version` */
  version: string
  /** one sentence for the user: which source was taken */
  description: string
}

export interface Progress {
  /** what is being done, for a human */
  message: string
  /** whole seconds since this step began */
  elapsedSeconds: number
}
export type OnProgress = (progress: Progress) => void

export interface ResolveOptions {
  env?: NodeJS.ProcessEnv
  onProgress?: OnProgress
  signal?: AbortSignal
  /** limits the sources that are tried; the order stays */
  sources?: readonly BinarySource[]
  /** for tests: where the SDKs' download service is */
  downloadUrl?: string
  /** the whole download, default 90 s */
  downloadLimitMs?: number
}

export interface Attempt {
  source: ServerSource
  tried: string
  failure: string
}

/** No way to a Temporal server worked. The message names each one, why it failed and what to do. */
export class ServerNotFoundError extends Error {
  override readonly name = 'ServerNotFoundError'
  constructor(readonly attempts: readonly Attempt[]) {
    const lines = attempts.map((a, i) => `  ${i + 1}. ${a.tried}: ${a.failure}`)
    super(
      [
        'No Temporal server and no way to get one. Tried, in this order:',
        ...lines,
        'Do one of these:',
        '  - start a server and set TEMPORAL_ADDRESS=host:port (and TEMPORAL_NAMESPACE, if not "default")',
        '  - install the Temporal CLI and put it on PATH: https://docs.temporal.io/cli/setup-cli',
        `  - install Go and run: go install ${GO_PACKAGE}@${CLI_VERSION}`,
      ].join('\n'),
    )
  }
}

/**
 * Finds the Temporal server to use: that of `TEMPORAL_ADDRESS`, or of a profile that was named on purpose (nothing is started
 * then), else a `temporal` binary as `resolveBinary` finds it.
 * @throws ServerNotFoundError, ConnectionSettingsError
 */
export async function resolveServer(options: ResolveOptions = {}): Promise<ResolvedAddress | ResolvedBinary> {
  const named = serverOnPurpose(options.env)
  if (named === undefined) return resolveBinary(options)
  const { address, namespace, connection, because } = named
  return {
    kind: 'address',
    source: 'address',
    address,
    namespace,
    connection,
    description: `the server at ${address} (${because})`,
  }
}

/**
 * Finds or obtains the `temporal` CLI: PATH, Firepool's cache folder, the folder `go install` writes to,
 * the download service of Temporal's SDKs, and last a build with `go install` (minutes). The last two
 * write to the cache folder, under a lock, so that processes started together build once.
 * @throws ServerNotFoundError
 */
export async function resolveBinary(options: ResolveOptions = {}): Promise<ResolvedBinary> {
  const env = options.env ?? process.env
  const sources = options.sources ?? BINARY_SOURCES
  const failure = env.TEMPORAL_ADDRESS ? 'set, but here a server of our own is wanted' : 'not set'
  const attempts: Attempt[] = [{ source: 'address', tried: 'TEMPORAL_ADDRESS', failure }]
  for (const source of ['path', 'cache', 'go-bin'] as const) {
    if (!sources.includes(source)) continue
    const found = await tryExisting(source, env, attempts)
    if (found !== undefined) return found
  }
  if (!sources.includes('download') && !sources.includes('go-install')) {
    throw new ServerNotFoundError(attempts)
  }

  const waiting = every(PROGRESS_EVERY_MS, (elapsedSeconds) =>
    options.onProgress?.({
      message: 'waiting for another process that obtains the Temporal CLI',
      elapsedSeconds,
    }),
  )
  return withProcessLock(
    cachedCliPath(env),
    async () => {
      // Whoever waited finds what the other process put there.
      const cached = sources.includes('cache') ? await tryExisting('cache', env, []) : undefined
      return cached ?? (await obtain(options, env, attempts))
    },
    { onWait: waiting, ...(options.signal === undefined ? {} : { signal: options.signal }) },
  )
}

/** The file that the download and the build put in place. */
export function cachedCliPath(env: NodeJS.ProcessEnv = process.env): string {
  return join(cacheFolder(env), `temporal-cli-${CLI_VERSION}`)
}

async function obtain(
  options: ResolveOptions,
  env: NodeJS.ProcessEnv,
  attempts: Attempt[],
): Promise<ResolvedBinary> {
  const target = cachedCliPath(env)
  const ways = [
    {
      source: 'download',
      tried: "the SDKs' download service",
      message: `downloading the Temporal CLI ${CLI_VERSION}`,
      get: downloadCli,
    },
    {
      source: 'go-install',
      tried: `go install ${GO_PACKAGE}@${CLI_VERSION}`,
      message: `building the Temporal CLI ${CLI_VERSION} with go install (a few minutes, once)`,
      get: buildCli,
    },
  ] as const
  for (const { source, tried, message, get } of ways) {
    if (!(options.sources ?? BINARY_SOURCES).includes(source)) continue
    const stopReporting = reportRegularly(message, options.onProgress)
    try {
      const version = await get({ env, target, check: cliVersion, ...pickObtainOptions(options) })
      return binary(source, target, version)
    } catch (error) {
      options.signal?.throwIfAborted()
      attempts.push({ source, tried, failure: (error as Error).message })
    } finally {
      stopReporting()
    }
  }
  throw new ServerNotFoundError(attempts)
}

/** Reports at once and then regularly, until the returned function is called. */
function reportRegularly(message: string, onProgress: OnProgress | undefined): () => void {
  const startedMs = performance.now()
  const report = () =>
    onProgress?.({ message, elapsedSeconds: Math.floor((performance.now() - startedMs) / 1000) })
  report()
  const timer = setInterval(report, PROGRESS_EVERY_MS)
  return () => clearInterval(timer)
}

function pickObtainOptions(options: ResolveOptions) {
  return {
    ...(options.signal === undefined ? {} : { signal: options.signal }),
    ...(options.downloadUrl === undefined ? {} : { downloadUrl: options.downloadUrl }),
    ...(options.downloadLimitMs === undefined ? {} : { downloadLimitMs: options.downloadLimitMs }),
  }
}

async function tryExisting(
  source: 'path' | 'cache' | 'go-bin',
  env: NodeJS.ProcessEnv,
  attempts: Attempt[],
): Promise<ResolvedBinary | undefined> {
  const { tried, candidates } = await existingCandidates(source, env)
  const failures: string[] = []
  for (const path of candidates) {
    if (!(await isExecutable(path))) continue
    try {
      return binary(source, path, await cliVersion(path, env))
    } catch (error) {
      failures.push((error as Error).message)
    }
  }
  attempts.push({ source, tried, failure: failures.join('; ') || 'not found' })
  return undefined
}

async function existingCandidates(source: 'path' | 'cache' | 'go-bin', env: NodeJS.ProcessEnv) {
  if (source === 'cache') {
    const path = cachedCliPath(env)
    return { tried: `the cache (${path})`, candidates: [path] }
  }
  if (source === 'path') {
    const folders = (env.PATH ?? '').split(delimiter).filter((folder) => folder.startsWith('/'))
    return { tried: '`temporal` on PATH', candidates: folders.map((folder) => join(folder, 'temporal')) }
  }
  const folder = goBinFolder(env)
  return { tried: `an earlier go install (${folder})`, candidates: [join(folder, 'temporal')] }
}

/** The rule of `go help install`; asking `go` itself would cost a process and needs one. */
function goBinFolder(env: NodeJS.ProcessEnv): string {
  if (env.GOBIN) return env.GOBIN
  const firstGoPath = env.GOPATH?.split(delimiter)[0]
  return firstGoPath ? join(firstGoPath, 'bin') : join(env.HOME || homedir(), 'go', 'bin')
}

async function isExecutable(path: string): Promise<boolean> {
  try {
    await access(path, constants.X_OK)
    return (await stat(path)).isFile()
  } catch {
    return false
  }
}

/**
 * The first line of `temporal --version`.
 * @throws Error when the file does not run, or is another program of that name
 */
async function cliVersion(path: string, env: NodeJS.ProcessEnv): Promise<string> {
  let output: string
  try {
    output = (await run(path, ['--version'], { timeout: VERSION_LIMIT_MS, env })).stdout.trim()
  } catch (error) {
    const { stderr, message } = error as Error & { stderr?: string }
    const cause = stderr?.trim().split('\n').at(-1) || message.split('\n')[0]
    throw new Error(`${path} --version failed (${cause})`)
  }
  const line = output.split('\n')[0] ?? ''
  if (!/^temporal version \S+/.test(line)) {
    throw new Error(`${path} is not the Temporal CLI (--version says ${JSON.stringify(line.slice(0, 80))})`)
  }
  return line
}

function binary(source: BinarySource, path: string, version: string): ResolvedBinary {
  const origin: Record<BinarySource, string> = {
    path: 'found on PATH',
    cache: "from Firepool's cache folder",
    'go-bin': 'from an earlier go install',
    download: "downloaded from the SDKs' download service",
    'go-install': 'built with go install',
  }
  return { kind: 'binary', source, path, version, description: `${version}, ${origin[source]} (${path})` }
}

/** Turns a call made often into one made every `periodMs`, with whole seconds. */
function every(periodMs: number, report: (elapsedSeconds: number) => void): (elapsedMs: number) => void {
  let nextMs = 0
  return (elapsedMs) => {
    if (elapsedMs < nextMs) return
    nextMs = elapsedMs + periodMs
    report(Math.floor(elapsedMs / 1000))
  }
}
