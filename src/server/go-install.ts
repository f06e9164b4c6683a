import { spawn } from 'node:child_process'

/** Measured: 3 to 4 minutes for a Temporal server on two idle cores. The limit is for a build that hangs. */
const BUILD_LIMIT_MS = 45 * 60_000
/** Enough of an error output for its last lines. */
const STDERR_CHARS = 16_384

export interface GoInstallOptions {
  env: NodeJS.ProcessEnv
  /** receives the commands, and all that the build makes on its way */
  folder: string
  signal?: AbortSignal
}

export interface GoBuildOptions extends GoInstallOptions {
  /** the folder of the module that is built */
  module: string
  /** of the linker */
  ldflags?: string
}

/**
 * `go install` of commands (`path@version`, all of one module), without cgo so that no C compiler is needed.
 * @throws Error with the last lines of what went wrong
 */
export function goInstall(commands: readonly string[], options: GoInstallOptions): Promise<void> {
  // Outside of any module, so that a go.mod or go.work above the caller's folder has no say.
  return runGo(['install', ...commands], options, options.folder)
}

/**
 * `go build` of packages (`./cmd/x`) of a module on disk, whose files stay as they are; without cgo, so the programs are static.
 * @throws Error with the last lines of what went wrong
 */
export function goBuild(packages: readonly string[], options: GoBuildOptions): Promise<void> {
  // The version control around the module is none of its business, and may be none that go can read.
  const flags = ['-mod=readonly', '-trimpath', '-buildvcs=false', `-ldflags=${options.ldflags ?? ''}`]
  return runGo(['build', ...flags, '-o', `${options.folder}/`, ...packages], options, options.module)
}

/** Runs to the end, also under an abort: `go` and its compilers are interrupted as by a Ctrl-C and are gone afterwards. */
async function runGo(args: readonly string[], options: GoInstallOptions, cwd: string): Promise<void> {
  const { folder, signal } = options
  signal?.throwIfAborted()
  const go = spawn('go', args, {
    // What a build leaves behind when it is ended goes with the folder.
    env: { ...options.env, GOBIN: folder, GOTMPDIR: folder, CGO_ENABLED: '0', GOWORK: 'off' },
    cwd,
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
      go.once('error', (error: NodeJS.ErrnoException) =>
        fail(error.code === 'ENOENT' ? new Error('`go` is not on PATH') : error),
      )
      go.once('close', done)
    })
    if (code !== 0) throw new Error(stderr.trim().split('\n').slice(-3).join(' | ') || `exit code ${code}`)
  } finally {
    clearTimeout(limit)
    signal?.removeEventListener('abort', interrupt)
  }
}
