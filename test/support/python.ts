import { execFile } from 'node:child_process'
import { mkdir, rm, stat, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { cacheFolder } from '../../src/server/cache-folder.js'
import { withProcessLock } from '../../src/server/process-lock.js'

const run = promisify(execFile)

const VERSIONS = { temporalio: '1.35.0', numpy: '2.2.6' }
const MODULES = { temporalio: 'temporalio.client', numpy: 'numpy' }
/** Wheels of about 20 MB: the limit is for an index that hangs. */
const INSTALL_LIMIT_MS = 10 * 60_000

export type FoundPython = { python: string } | { skip: string }

/**
 * A Python interpreter that can import a package: a virtual environment in the cache folder, made at
 * the first call. `skip` says why there is none (no Python, no venv module, no package index).
 */
export async function pythonWith(
  name: keyof typeof VERSIONS,
  onProgress: (message: string) => void = (message) => console.error(message),
): Promise<FoundPython> {
  const version = VERSIONS[name]
  const folder = join(cacheFolder(), `python-${name}-${version}`)
  const python = join(folder, 'bin', 'python')
  // Written last: without it the environment is half made, by a process that was killed.
  const complete = join(folder, 'complete')
  const isComplete = () =>
    stat(complete).then(
      () => works(python, MODULES[name]),
      () => false,
    )
  if (await isComplete()) return { python }

  return withProcessLock(folder, async () => {
    if (await isComplete()) return { python }
    try {
      await run('python3', ['-c', 'import venv, ensurepip'])
    } catch {
      return { skip: 'needs python3 with its venv module. On Debian: apt-get install python3 python3-venv' }
    }
    onProgress(`installing ${name} ${version} for Python in ${folder} (once)`)
    try {
      await rm(folder, { recursive: true, force: true })
      await mkdir(cacheFolder(), { recursive: true })
      await run('python3', ['-m', 'venv', folder])
      const pip = ['-m', 'pip', 'install', '--quiet', '--disable-pip-version-check', `${name}==${version}`]
      await run(python, pip, { timeout: INSTALL_LIMIT_MS })
      await run(python, ['-c', `import ${MODULES[name]}`])
      await writeFile(complete, '')
      return { python }
    } catch (error) {
      const { stderr, message } = error as Error & { stderr?: string }
      return { skip: `${name} could not be installed: ${(stderr || message).trim().split('\n').at(-1)}` }
    }
  })
}

/** The interpreter is a link into the system, which an upgrade may break. */
function works(python: string, module: string): Promise<boolean> {
  return run(python, ['-c', `import ${module}`]).then(
    () => true,
    () => false,
  )
}
