import { type ChildProcess, spawn } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Profile, RunnerEnv, RunnerFailed, RunnerReady } from '../contract/index.js'
import { CONTRACT_VERSION, TIMEOUT } from '../contract/index.js'
import { deviceEnvironment, visibleGpus } from './devices.js'
import type { EarlierBinding } from './fence.js'
import { makeFolders, type PodFolders } from './folder.js'
import { lifetimeVerdict } from './lifetime.js'
import { NodeAgentSeats } from './node-agent.js'
import type { JobPlace } from './process.js'
import { killMarked, sendSignal } from './process-tree.js'
import { limitWrapper } from './rlimit.js'
import { seatSettings } from './seat.js'
import { Secrets } from './secrets.js'
import { type Runner, startRunner } from './server.js'
import { warmUp } from './warm-up.js'
import { PreloadFailure, Zygote } from './zygote.js'

/** The runner's process: reads its environment, prepares the pod, listens, and ends itself when its time is over. */

const PREPARE_TAIL_BYTES = 4_096
/** hundreds of idle pods stand on one machine: looking costs each of them a wake-up */
const LOOK_MS_MAX = 5_000
const LOOK_MS_MIN = 20

type RunnerProfile = Pick<Profile, 'env' | 'limits' | 'prepare' | 'preload' | 'secrets'>

let prepareChild: ChildProcess | null = null
let zygote: Zygote | undefined
let runner: Runner | null = null
const incarnation = randomBytes(8).toString('hex')
let isEnding = false

/** Why the pod cannot start, for failed.json. */
class StartFailure extends Error {
  constructor(
    readonly reason: string,
    message: string,
  ) {
    super(message)
  }
}

function log(line: string): void {
  process.stderr.write(`${new Date().toISOString()} runner ${process.env.FIREPOOL_POD ?? '?'}: ${line}\n`)
}

function env(name: keyof RunnerEnv): string {
  const value = process.env[name]
  if (value === undefined || value === '')
    throw new StartFailure(
      'BadEnvironment',
      `${name} is not set. The backend that starts a runner sets all of RunnerEnv.`,
    )
  return value
}

function envMs(name: keyof RunnerEnv): number {
  const ms = Number(env(name))
  if (!Number.isFinite(ms) || ms < 0)
    throw new StartFailure(
      'BadEnvironment',
      `${name} must be milliseconds, it is ${JSON.stringify(env(name))}.`,
    )
  return ms
}

function profileOf(text: string): RunnerProfile {
  const none = { memoryBytes: null, cpuSeconds: null, openFiles: null, processes: null, fileBytes: null }
  try {
    const profile = JSON.parse(text) as Partial<RunnerProfile>
    return {
      env: profile.env ?? {},
      limits: { ...none, ...profile.limits },
      prepare: profile.prepare ?? null,
      secrets: profile.secrets ?? [],
      ...(profile.preload === undefined ? {} : { preload: profile.preload }),
    }
  } catch {
    throw new StartFailure('BadEnvironment', 'FIREPOOL_PROFILE is not JSON.')
  }
}

function podEnvironment(folders: PodFolders, profile: RunnerProfile): Record<string, string> {
  return {
    PATH: process.env.PATH ?? '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin',
    HOME: folders.home,
    TMPDIR: folders.tmp,
    LANG: process.env.LANG ?? 'C.UTF-8',
    TERM: process.env.TERM ?? 'dumb',
    ...deviceEnvironment(process.env),
    ...profile.env,
  }
}

function writeAtomically(path: string, value: unknown): void {
  const draft = `${path}.${process.pid}.draft`
  writeFileSync(draft, `${JSON.stringify(value)}\n`)
  renameSync(draft, path)
}

/** What an earlier runner in this folder was bound to: the folder still holds that caller's files (failure F10). */
function earlierBinding(path: string): EarlierBinding | undefined {
  try {
    const found = JSON.parse(readFileSync(path, 'utf8')) as EarlierBinding
    return { epoch: found.epoch, ownerHash: found.ownerHash }
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined
    throw new StartFailure(
      'BadState',
      `${path} cannot be read. Delete the pod; its folder belongs to an unknown caller.`,
    )
  }
}

async function prepare(argv: string[], place: JobPlace): Promise<void> {
  const child = spawn(argv[0]!, argv.slice(1), {
    cwd: place.folders.work,
    env: {
      ...place.env,
      FIREPOOL_POD: place.pod,
      FIREPOOL_INCARNATION: place.incarnation,
      FIREPOOL_EPOCH: '0',
    },
    detached: true,
    stdio: ['ignore', 'pipe', 'pipe'],
  })
  prepareChild = child
  let tail = Buffer.alloc(0)
  for (const stream of [child.stdout, child.stderr])
    stream.on('data', (chunk: Buffer) => {
      tail = Buffer.concat([tail, chunk]).subarray(-PREPARE_TAIL_BYTES)
    })
  const ended = await new Promise<string | null>((resolve) => {
    child.on('error', (error: NodeJS.ErrnoException) => resolve(`could not be started (${error.code})`))
    child.on('exit', (code, signal) => {
      if (child.pid !== undefined) sendSignal(-child.pid, 'SIGKILL')
      const settled = signal === null ? `exited with ${code}` : `was ended by ${signal}`
      child.once('close', () => resolve(code === 0 ? null : settled))
      // A daemon that it started may keep the pipes: what it says is not waited for.
      setTimeout(() => {
        child.stdout.destroy()
        child.stderr.destroy()
      }, 200)
    })
  })
  prepareChild = null
  if (ended === null) return
  const output = tail.toString('utf8').trim()
  throw new StartFailure(
    'PrepareFailed',
    `profile.prepare (${argv.join(' ').slice(0, 200)}) ${ended}. ${output === '' ? 'It wrote no output.' : `Last of its output:\n${output}`}`,
  )
}

/** The interpreter that jobs are forked from, with its modules imported. */
async function preload(profile: RunnerProfile, place: JobPlace): Promise<void> {
  if (profile.preload === undefined) return
  const { env, pod, folders } = place
  const { preload, limits } = profile
  zygote = new Zygote({ preload, env, limits, pod, incarnation, folders, log })
  try {
    await zygote.start()
  } catch (error) {
    if (error instanceof PreloadFailure) throw new StartFailure('PreloadFailed', error.message)
    throw error
  }
  place.zygote = zygote
}

/** Who grants GPUs to this pod's jobs; undefined where nobody does. */
function seats(): NodeAgentSeats | undefined {
  try {
    const settings = seatSettings(process.env)
    return settings === null ? undefined : new NodeAgentSeats({ ...settings, incarnation, log })
  } catch (error) {
    throw new StartFailure('BadEnvironment', (error as Error).message)
  }
}

async function start(): Promise<void> {
  const podDir = env('FIREPOOL_POD_DIR')
  const profile = profileOf(env('FIREPOOL_PROFILE'))
  const lifetimeMs = envMs('FIREPOOL_LIFETIME_MS')
  const brokerGoneMs = envMs('FIREPOOL_BROKER_GONE_MS')
  const folders = await makeFolders(podDir)
  const limits = limitWrapper(profile.limits)
  if (limits !== null) log(`jobs are held to the profile's limits by ${limits.name}`)
  const place: JobPlace = {
    pod: env('FIREPOOL_POD'),
    incarnation,
    folders,
    env: podEnvironment(folders, profile),
    secrets: new Secrets(process.env.FIREPOOL_SECRETS, profile.secrets ?? []),
    limits,
    seats: seats(),
    log,
  }
  for (const name of ['ready.json', 'failed.json']) rmSync(join(podDir, name), { force: true })
  const boundPath = join(podDir, 'bound.json')
  const earlier = earlierBinding(boundPath)
  if (profile.prepare !== null && profile.prepare.length > 0) await prepare(profile.prepare, place)
  await preload(profile, place)
  const delayMs = envMs('FIREPOOL_START_DELAY_MS')
  if (delayMs > 0) await sleep(delayMs)
  runner = await startRunner(env('FIREPOOL_LISTEN'), {
    place,
    brokerKey: env('FIREPOOL_BROKER_KEY'),
    lifetimeMs,
    gpus: await visibleGpus(process.env),
    earlier,
    onBound: (epoch, ownerHash) => writeAtomically(boundPath, { v: 1, epoch, ownerHash }),
    onUseless: (reason, message) => {
      tellTermination({ v: 1, reason, message })
      void end(1, `${reason}: ${message}`)
    },
  })
  const { address } = runner
  await warmUp(address)
  const ready: RunnerReady = { v: CONTRACT_VERSION, pid: process.pid, address, incarnation }
  writeAtomically(join(podDir, 'ready.json'), ready)
  log(`listens on ${address}`)
  watchLifetime(runner, lifetimeMs, brokerGoneMs)
}

function watchLifetime({ app }: Runner, lifetimeMs: number, brokerGoneMs: number): void {
  const lookMs = Math.max(LOOK_MS_MIN, Math.min(LOOK_MS_MAX, lifetimeMs / 10, brokerGoneMs / 10))
  setInterval(() => {
    const verdict = lifetimeVerdict({
      ageMs: app.ageMs(),
      lifetimeMs,
      graceMs: TIMEOUT.podLifetimeGraceMs,
      sinceContactMs: app.sinceContactMs(),
      brokerGoneMs,
      isOccupied: app.isOccupied(),
      isRetired: app.fence.state === 'draining',
    })
    if (verdict.kind === 'retire') app.fence.retire()
    if (verdict.kind !== 'end') return
    tellTermination({ v: 1, reason: 'Ended', message: verdict.why })
    void end(0, verdict.why)
  }, lookMs)
}

/** Ends every process of the pod, then this one. */
async function end(code: number, why: string): Promise<void> {
  if (isEnding) return
  isEnding = true
  log(`ends: ${why}`)
  try {
    if (prepareChild?.pid !== undefined) sendSignal(-prepareChild.pid, 'SIGKILL')
    await runner?.close()
    zygote?.close()
    await killMarked({ env: { FIREPOOL_INCARNATION: incarnation } })
  } finally {
    process.exit(code)
  }
}

/** In place: a kubelet mounts this file, which nothing may be renamed over. */
function tellTermination(why: RunnerFailed): void {
  const path = process.env.FIREPOOL_TERMINATION_LOG
  try {
    if (path) writeFileSync(path, JSON.stringify(why))
  } catch (error) {
    log(`${path} cannot be written: ${String(error)}`)
  }
}

function failed(error: unknown): void {
  if (isEnding) return
  const reason = error instanceof StartFailure ? error.reason : 'StartFailed'
  const message = error instanceof Error ? error.message : String(error)
  log(`cannot start: ${reason}: ${message}`)
  const podDir = process.env.FIREPOOL_POD_DIR
  const content: RunnerFailed = { v: 1, reason, message }
  try {
    if (podDir !== undefined) writeAtomically(join(podDir, 'failed.json'), content)
  } catch (writeError) {
    log(`and failed.json cannot be written: ${String(writeError)}`)
  }
  tellTermination(content)
  process.exitCode = 1
  void end(1, reason)
}

process.on('SIGTERM', () => void end(0, 'SIGTERM'))
process.on('SIGINT', () => void end(0, 'SIGINT'))
process.on('uncaughtException', (error) => {
  log(`bug: ${error.stack ?? error.message}`)
  void end(1, 'an uncaught exception')
})
start().catch(failed)
