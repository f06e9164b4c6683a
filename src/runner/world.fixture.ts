import { execFileSync, spawn } from 'node:child_process'
import { copyFileSync, existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import type { JobOutcome, JobResult, JobSpec, Problem, Profile, RunnerReady } from '../contract/index.js'
import { FirepoolError } from '../contract/index.js'
import { type BrokerKeys, createSigner, generateKeys, type Signer } from '../token/token.js'
import type { RunnerOptions } from './app.js'
import { createRunnerClient, jobDigest, type RunnerClient } from './client.js'
import { makeFolders, type PodFolders } from './folder.js'
import type { JobPlace } from './process.js'
import { killMarked } from './process-tree.js'
import { type Runner, startRunner } from './server.js'
import { Zygote, type ZygoteOptions } from './zygote.js'

/** What the runner's tests stand on: a pod folder, keys, a runner on real HTTP, clients. For tests only. */

/** a hang, not a speed limit */
const HANG_MS = 30_000

/** Waits until `look` gives a value that is not undefined or false. */
export async function waitUntil<T>(
  what: string,
  look: () => T | undefined | false | Promise<T | undefined | false>,
): Promise<T> {
  const deadline = Date.now() + HANG_MS
  for (;;) {
    const value = await look()
    if (value !== undefined && value !== false) return value
    if (Date.now() > deadline) throw new Error(`waited too long until ${what}`)
    await sleep(5)
  }
}

let worlds = 0

export type WorldOptions = Partial<Omit<JobPlace, 'folders' | 'log' | 'zygote'>> &
  Partial<Omit<RunnerOptions, 'place'>> & { preload?: Partial<ZygoteOptions> }

/** The interpreter itself: what is called python3 may be a script that looks for one. */
export const PYTHON = execFileSync('python3', ['-c', 'import sys; print(sys.executable)'], {
  encoding: 'utf8',
}).trim()

export const NO_LIMITS = {
  memoryBytes: null,
  cpuSeconds: null,
  openFiles: null,
  processes: null,
  fileBytes: null,
}

/** A runner in this process, not bound yet. */
export interface World {
  pod: string
  dir: string
  folders: PodFolders
  incarnation: string
  runner: Runner
  sign: Signer
  logged: string[]
  zygote: Zygote | undefined
  broker: RunnerClient
  lease(epoch: number): RunnerClient
  bind(epoch: number, ownerHash?: string): Promise<void>
  /** a job with a fresh id under the epoch (default: the runner's current one) */
  run(spec: JobSpec, options?: { jobId?: string; epoch?: number }): Promise<JobOutcome>
  read(path: string): string
  end(): Promise<void>
}

export async function makeWorld(options: WorldOptions = {}): Promise<World> {
  const dir = mkdtempSync(join(tmpdir(), 'firepool-runner-'))
  const folders = await makeFolders(join(dir, 'pod'))
  const keys = generateKeys()
  const sign = createSigner(keys)
  const pod = `test-${process.pid}-${++worlds}`
  const incarnation = options.incarnation ?? `inc${process.pid}x${worlds}`
  const logged: string[] = []
  const log = (line: string) => logged.push(line)
  const env = {
    PATH: process.env.PATH ?? '',
    HOME: folders.home,
    TMPDIR: folders.tmp,
    LANG: 'C.UTF-8',
    TERM: 'dumb',
    ...options.env,
  }
  const preload = { python: PYTHON, imports: ['json'], seeds: [] }
  const ours = { preload, env, limits: NO_LIMITS, pod, incarnation, folders, log }
  const zygote = options.preload === undefined ? undefined : new Zygote({ ...ours, ...options.preload })
  await zygote?.start()
  const runner = await startRunner('127.0.0.1:0', {
    brokerKey: keys.publicKeyBase64,
    lifetimeMs: 3_600_000,
    ...options,
    place: {
      secrets: { environment: () => ({}) },
      limits: null,
      ...options,
      env,
      pod,
      incarnation,
      folders,
      zygote,
      log,
    },
  })
  const lease = (epoch: number) =>
    createRunnerClient(runner.address, () => sign(pod, 'lease', epoch, `lease-${epoch}`))
  const broker = createRunnerClient(runner.address, () => sign(pod, 'broker', 0, ''))
  let jobs = 0
  return {
    pod,
    dir,
    folders,
    incarnation,
    runner,
    sign,
    logged,
    zygote,
    broker,
    lease,
    async bind(epoch, ownerHash = 'owner-1') {
      await broker.bind({ v: 1, epoch, leaseId: `lease-${epoch}`, ownerHash, incarnation })
    },
    run(spec, { jobId = `sandbox/${++jobs}`, epoch = runner.app.fence.epoch } = {}) {
      return lease(epoch).jobs({ v: 1, jobId, digest: jobDigest(spec), epoch, spec })
    },
    read: (path) => readFileSync(join(folders.work, path), 'utf8'),
    async end() {
      await runner.close()
      zygote?.close()
      await killMarked({ env: { FIREPOOL_POD: pod } })
      rmSync(dir, { recursive: true, force: true })
    },
  }
}

/** The result of a job that must have one. */
export function resultOf(outcome: JobOutcome): JobResult {
  if (outcome.kind !== 'result') throw new Error(`a problem: ${JSON.stringify(outcome.problem)}`)
  return outcome.result
}

/** The problem of a job that must have one. */
export function problemOf(outcome: JobOutcome): Problem {
  if (outcome.kind !== 'problem') throw new Error(`a result: ${JSON.stringify(outcome.result)}`)
  return outcome.problem
}

/** The typed problem that a call is refused with. */
export async function refusal(call: Promise<unknown>): Promise<Problem> {
  const error = await call.then(
    (value) => new Error(`was not refused: ${JSON.stringify(value)}`),
    (reason) => reason,
  )
  if (error instanceof FirepoolError) return error.problem
  throw error
}

/** Compiles sources of this package into a folder of its own, for tests of real processes. */
export async function compileSources(files: string[]): Promise<{ dir: string; remove: () => void }> {
  const root = fileURLToPath(new URL('../..', import.meta.url))
  const dir = mkdtempSync(join(tmpdir(), 'firepool-compiled-'))
  writeFileSync(join(dir, 'package.json'), '{"type":"module"}')
  const flags = [
    '--ignoreConfig',
    '--rootDir',
    'src',
    '--outDir',
    dir,
    '--module',
    'nodenext',
    '--target',
    'es2023',
  ]
  const checks = ['--types', 'node', '--skipLibCheck', '--noCheck']
  execFileSync(join(root, 'node_modules/.bin/tsc'), [...flags, ...checks, ...files], {
    cwd: root,
    stdio: 'pipe',
  })
  if (existsSync(join(dir, 'runner')))
    copyFileSync(join(root, 'src/runner/zygote.py'), join(dir, 'runner/zygote.py'))
  return { dir, remove: () => rmSync(dir, { recursive: true, force: true }) }
}

export interface RunnerProcess {
  pid: number
  podDir: string
  keys: BrokerKeys
  sign: Signer
  log: () => string
  /** waits for ready.json */
  ready(): Promise<RunnerReady>
  /** waits for its end */
  exit: Promise<{ code: number | null; signal: string | null }>
  kill(signal: NodeJS.Signals): void
}

/** Starts main.js of a compiled runner. The pod's name is unique by its folder. */
export function startProcess(
  compiled: string,
  podDir: string,
  options: { profile?: Partial<Profile>; env?: Record<string, string>; keys?: BrokerKeys } = {},
): RunnerProcess {
  const keys = options.keys ?? generateKeys()
  const child = spawn(process.execPath, [join(compiled, 'runner/main.js')], {
    env: {
      PATH: process.env.PATH ?? '',
      FIREPOOL_POD: 'pod-of-main-test',
      FIREPOOL_POD_DIR: podDir,
      FIREPOOL_LISTEN: '127.0.0.1:0',
      FIREPOOL_BROKER_KEY: keys.publicKeyBase64,
      FIREPOOL_LIFETIME_MS: '600000',
      FIREPOOL_BROKER_GONE_MS: '600000',
      FIREPOOL_START_DELAY_MS: '0',
      FIREPOOL_PROFILE: JSON.stringify(options.profile ?? {}),
      ...options.env,
    },
    stdio: ['ignore', 'pipe', 'pipe'],
  })
  let log = ''
  for (const stream of [child.stdout, child.stderr])
    stream.on('data', (chunk: Buffer) => {
      log += chunk
    })
  const readyPath = join(podDir, 'ready.json')
  const exit = new Promise<{ code: number | null; signal: string | null }>((resolve) =>
    child.on('exit', (code, signal) => resolve({ code, signal })),
  )
  return {
    pid: child.pid!,
    podDir,
    keys,
    sign: createSigner(keys),
    log: () => log,
    ready: () =>
      waitUntil('the runner is ready', () => {
        if (child.exitCode !== null) throw new Error(`the runner ended: ${log}`)
        return existsSync(readyPath) && (JSON.parse(readFileSync(readyPath, 'utf8')) as RunnerReady)
      }),
    exit,
    kill: (signal) => child.kill(signal),
  }
}
