import { spawn } from 'node:child_process'
import { chmod } from 'node:fs/promises'
import { join, resolve } from 'node:path'
import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { goInstall } from './go-install.js'
import { putInPlace } from './put-in-place.js'

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
 * Builds the official CLI with `go install`.
 * @returns the version line
 * @throws Error with the cause in a few lines
 */
export async function buildCli(options: ObtainOptions): Promise<string> {
  const { env, signal } = options
  return install(options, async (folder) => {
    await goInstall([`${GO_PACKAGE}@${CLI_VERSION}`], { env, folder, ...(signal ? { signal } : {}) })
    return join(folder, 'temporal')
  })
}

/** Lets `produce` make the binary, checks it, and puts it in place. @returns the version line */
async function install(
  options: ObtainOptions,
  produce: (folder: string) => Promise<string>,
): Promise<string> {
  let version = ''
  await putInPlace(options.target, async (folder) => {
    const path = await produce(folder)
    await chmod(path, 0o755)
    version = await options.check(path, options.env)
    return path
  })
  return version
}

/** `fetch` hides the reason ("fetch failed") in a chain of causes. */
function causeOf(error: unknown): string {
  let last = error as Error & { cause?: unknown }
  while (last.cause instanceof Error) last = last.cause as typeof last
  return last.message || String(last)
}
