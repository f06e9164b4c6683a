import { spawn } from 'node:child_process'
import { chmod, mkdtemp, readdir, rename, rm, stat } from 'node:fs/promises'
import { dirname, join, resolve } from 'node:path'
import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { makeFolder } from '../make-folder.js'

/**
 * The newest version that `go install` can build: v1.6 and later have a local `replace` in their go.mod.
 * It carries server 1.29.1 and UI 2.42.1.
 */
export const CLI_VERSION = 'v1.5.1'
export const GO_PACKAGE = 'github.com/temporalio/cli/cmd/temporal'

/** The service from which every Temporal SDK downloads its dev server; it answers { archiveUrl, fileToExtract }. */
const DOWNLOAD_URL = 'https://temporal.download/cli'
/** The archive has about 60 MB. */
const DOWNLOAD_LIMIT_MS = 90_000
/** Measured: 4 minutes on two idle cores. The limit is for a build that hangs. */
const BUILD_LIMIT_MS = 45 * 60_000
const FOLDER_PREFIX = '.obtain-'
/** Enough of an error output for its last lines. */
const STDERR_CHARS = 16_384

export interface ObtainOptions {
  env: NodeJS.ProcessEnv
  /** where the binary is put, by an atomic rename after `check` passed */
  target: string
  /** resolves to the version line, throws when the binary does not work */
  check: (path: string, env: NodeJS.ProcessEnv) => Promise<string>
  signal?: AbortSignal
  downloadUrl?: string
  downloadLimitMs?: number
}

/**
 * Downloads the CLI as Temporal's SDKs do, but of the version that Firepool is tested with.
 * @returns the version line
 * @throws Error with the cause in one line
 */
export async function downloadCli(options: ObtainOptions): Promise<string> {
  const limitMs = options.downloadLimitMs ?? DOWNLOAD_LIMIT_MS
  const limit = AbortSignal.timeout(limitMs)
  const signal = options.signal === undefined ? limit : AbortSignal.any([limit, options.signal])
  try {
    return await install(options, async (folder) => {
      const info = await downloadInfo(options.downloadUrl ?? DOWNLOAD_URL, signal)
      await fetchArchive(info, folder, signal)
      return resolve(folder, info.fileToExtract)
    })
  } catch (error) {
    if (limit.aborted) throw new Error(`no answer within ${Math.round(limitMs / 1000)} s`)
    throw new Error(causeOf(error))
  }
}

interface DownloadInfo {
  archiveUrl: string
  fileToExtract: string
}

async function downloadInfo(baseUrl: string, signal: AbortSignal): Promise<DownloadInfo> {
  const arch = { x64: 'amd64', arm64: 'arm64' }[process.arch as string]
  if (arch === undefined) throw new Error(`no build for the architecture ${process.arch}`)
  const platform = process.platform === 'darwin' ? 'darwin' : 'linux'
  const url = `${baseUrl}/${CLI_VERSION}?arch=${arch}&platform=${platform}&format=tar.gz`
  const response = await fetch(url, { signal })
  if (!response.ok) throw new Error(`${url} answered ${response.status}`)
  const info = (await response.json()) as Partial<DownloadInfo>
  if (typeof info.archiveUrl !== 'string' || !/^[\w.-]+$/.test(info.fileToExtract ?? '')) {
    throw new Error(`${url} gave an answer of an unknown form`)
  }
  return info as DownloadInfo
}

async function fetchArchive(info: DownloadInfo, folder: string, signal: AbortSignal): Promise<void> {
  const response = await fetch(info.archiveUrl, { signal })
  if (!response.ok || response.body === null)
    throw new Error(`${info.archiveUrl} answered ${response.status}`)
  const tar = spawn('tar', ['-xzf', '-', '-C', folder, info.fileToExtract], {
    stdio: ['pipe', 'ignore', 'pipe'],
    signal,
  })
  let stderr = ''
  tar.stderr.setEncoding('utf8').on('data', (text: string) => {
    stderr += text
  })
  const exited = new Promise<void>((done, fail) => {
    tar.once('error', fail)
    tar.once('close', (code) => (code === 0 ? done() : fail(new Error(`tar failed: ${stderr.trim()}`))))
  })
  // Both are awaited: a broken pipe is only the echo of what tar says itself.
  const piped = pipeline(Readable.fromWeb(response.body as never), tar.stdin, { signal })
  const [unpacked, sent] = await Promise.allSettled([exited, piped])
  if (unpacked.status === 'rejected') throw unpacked.reason
  if (sent.status === 'rejected') throw sent.reason
}

/**
 * Builds the official CLI with `go install`, without cgo so that no C compiler is needed.
 * @returns the version line
 * @throws Error with the cause in a few lines
 */
export async function buildCli(options: ObtainOptions): Promise<string> {
  return install(options, async (folder) => {
    // What a build leaves behind when it is ended goes with the folder.
    const env = { ...options.env, GOBIN: folder, GOTMPDIR: folder, CGO_ENABLED: '0' }
    try {
      await goInstall(env, folder, options.signal)
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'ENOENT') throw new Error('`go` is not on PATH')
      throw error
    }
    return join(folder, 'temporal')
  })
}

/**
 * Runs to the end, also under an abort: `go` and its compilers are interrupted as by a Ctrl-C and are gone afterwards.
 * @throws Error with the last lines of what went wrong
 */
async function goInstall(env: NodeJS.ProcessEnv, folder: string, signal?: AbortSignal): Promise<void> {
  signal?.throwIfAborted()
  const go = spawn('go', ['install', `${GO_PACKAGE}@${CLI_VERSION}`], {
    env,
    // Outside of any module, so that a go.mod or go.work above the caller's folder has no say.
    cwd: folder,
    stdio: ['ignore', 'ignore', 'pipe'],
    // A group of its own: a signal to `go` alone would leave its compilers running.
    detached: true,
  })
  let stderr = ''
  go.stderr.setEncoding('utf8').on('data', (text: string) => {
    stderr = (stderr + text).slice(-STDERR_CHARS)
  })
  const interrupt = () => {
    try {
      if (go.pid !== undefined) process.kill(-go.pid, 'SIGINT')
    } catch {
      // It has ended in the meantime.
    }
  }
  const limit = setTimeout(interrupt, BUILD_LIMIT_MS)
  signal?.addEventListener('abort', interrupt)
  try {
    const code = await new Promise<number | null>((done, fail) => {
      go.once('error', fail)
      go.once('close', done)
    })
    if (code !== 0) throw new Error(stderr.trim().split('\n').slice(-3).join(' | ') || `exit code ${code}`)
  } finally {
    clearTimeout(limit)
    signal?.removeEventListener('abort', interrupt)
  }
}

/** Lets `produce` make the binary in a folder of its own beside the target, checks it, moves it into place. */
async function install(
  options: ObtainOptions,
  produce: (folder: string) => Promise<string>,
): Promise<string> {
  const parent = dirname(options.target)
  makeFolder(parent)
  await removeAbandoned(parent)
  // The same file system as the target, or the rename would not be atomic.
  const folder = await mkdtemp(join(parent, FOLDER_PREFIX))
  try {
    const path = await produce(folder)
    await chmod(path, 0o755)
    const version = await options.check(path, options.env)
    await rename(path, options.target)
    return version
  } finally {
    await rm(folder, { recursive: true, force: true })
  }
}

/** A killed build leaves its folder; one older than any build may last has no owner. */
async function removeAbandoned(parent: string): Promise<void> {
  for (const name of await readdir(parent)) {
    if (!name.startsWith(FOLDER_PREFIX)) continue
    const path = join(parent, name)
    const modified = await stat(path).catch(() => undefined)
    if (modified === undefined || Date.now() - modified.mtimeMs < 2 * BUILD_LIMIT_MS) continue
    await rm(path, { recursive: true, force: true })
  }
}

/** `fetch` hides the reason ("fetch failed") in a chain of causes. */
function causeOf(error: unknown): string {
  let last = error as Error & { cause?: unknown }
  while (last.cause instanceof Error) last = last.cause as typeof last
  return last.message || String(last)
}
