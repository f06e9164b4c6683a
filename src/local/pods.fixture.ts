import { type ChildProcess, execFileSync, spawn } from 'node:child_process'
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import type { LocalProfile, ObservedPod, PodOrder } from '../contract/index.js'
import { deleteFolder } from './ending.js'
import { createLocalBackend, type LocalBackend } from './index.js'

/** For tests only: folders, orders, a runner that stands in for the real one, and a look at the process table. */

const ROOT = fileURLToPath(new URL('../..', import.meta.url))

/** Long enough for a machine that is busy with other tests; a test that needs it has failed. */
export const HANG_MS = 40_000

export const BROKER_KEY = Buffer.alloc(32, 7).toString('base64')

/**
 * Speaks the start-up half of the runner's contract, and runs shell commands that are POSTed to /sh with the
 * environment that a job would have. On SIGTERM it ends its direct jobs, as the real one does.
 */
const STAND_IN = `
import { spawn, spawnSync } from 'node:child_process'
import { createServer } from 'node:http'
import { existsSync, mkdirSync, renameSync, writeFileSync } from 'node:fs'
const env = process.env
const dir = env.FIREPOOL_POD_DIR
const profile = JSON.parse(env.FIREPOOL_PROFILE)
const put = (file, value) => {
  writeFileSync(dir + '/' + file + '.tmp', JSON.stringify({ v: Number(profile.env.SPEAKS ?? 1), ...value }))
  renameSync(dir + '/' + file + '.tmp', dir + '/' + file)
}
for (const folder of ['home', 'work', 'jobs']) mkdirSync(dir + '/' + folder, { recursive: true })
const jobs = new Set()
const jobEnv = { ...env, ...profile.env, HOME: dir + '/home', PWD: dir + '/work' }
process.on('SIGTERM', () => {
  if (profile.env.IGNORE_TERM) return
  for (const pid of jobs) try { process.kill(-pid, 'SIGKILL') } catch {}
  process.exit(0)
})
await new Promise((resolve) => setTimeout(resolve, Number(env.FIREPOOL_START_DELAY_MS)))
if (profile.prepare) {
  const done = spawnSync(profile.prepare[0], profile.prepare.slice(1), { cwd: dir + '/work', env: jobEnv, encoding: 'utf8' })
  if (done.status !== 0) {
    put('failed.json', { reason: 'PrepareFailed', message: 'prepare ended with ' + done.status + ': ' + done.stderr })
    process.exit(1)
  }
}
const server = createServer((request, response) => {
  let text = ''
  request.on('data', (data) => { text += data })
  request.on('end', () => {
    const job = spawn('/bin/sh', ['-c', text], { cwd: dir + '/work', env: jobEnv, detached: true, stdio: ['ignore', 'pipe', 'ignore'] })
    jobs.add(job.pid)
    let out = ''
    job.stdout.on('data', (data) => { out += data })
    job.on('close', () => response.end(out))
  })
})
const at = env.FIREPOOL_LISTEN.lastIndexOf(':')
server.listen(Number(env.FIREPOOL_LISTEN.slice(at + 1)), env.FIREPOOL_LISTEN.slice(0, at), () => {
  const { address, port } = server.address()
  put('ready.json', { pid: process.pid, address: 'http://' + address + ':' + port, incarnation: 'i-' + process.pid })
})
console.log('stand-in of', env.FIREPOOL_POD)
`

/** Another worker process: creates the pods named on its command line, says so, and stays. */
const WORKER = `
import { createLocalBackend } from './build/local/index.js'
const [dir, runnerMain, ...orders] = process.argv.slice(2)
const backend = createLocalBackend({ dir, runnerMain, brokerPublicKey: '${BROKER_KEY}' })
process.stdin.once('data', async () => {
  console.log(JSON.stringify(await backend.create(orders.map((order) => JSON.parse(order)))))
})
console.log('waiting')
setInterval(() => {}, 1000)
`

/** A registry in a temporary folder, and everything a test starts on it. */
export class World {
  readonly #root = mkdtempSync(join(tmpdir(), 'firepool-local-'))
  readonly dir = join(this.#root, 'registry')
  readonly runnerMain = join(this.#root, 'stand-in.mjs')
  readonly #backends: LocalBackend[] = []
  readonly #children: ChildProcess[] = []

  constructor() {
    writeFileSync(this.runnerMain, STAND_IN)
  }

  /** A worker of its own, in this process. */
  open(runnerMain = this.runnerMain): LocalBackend {
    const backend = createLocalBackend({ dir: this.dir, brokerPublicKey: BROKER_KEY, runnerMain })
    this.#backends.push(backend)
    return backend
  }

  /** Another worker process on the same registry; `go` makes it create its pods. */
  async otherWorker(orders: PodOrder[]) {
    const program = join(this.compiled(), '..', 'worker.mjs')
    if (!existsSync(program)) writeFileSync(program, WORKER)
    const args = [program, this.dir, this.runnerMain, ...orders.map((item) => JSON.stringify(item))]
    const child = spawn(process.execPath, args, { stdio: ['pipe', 'pipe', 'inherit'] })
    this.#children.push(child)
    const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]()
    if ((await lines.next()).value !== 'waiting') throw new Error('the other worker did not start')
    return {
      go: async () => {
        child.stdin.write('go\n')
        return JSON.parse((await lines.next()).value as string) as { pod: string; problem?: unknown }[]
      },
      signal: (signal: NodeJS.Signals) => child.kill(signal),
      die: async () => {
        const died = new Promise((resolve) => child.once('exit', resolve))
        child.kill('SIGKILL')
        await died
      },
    }
  }

  /** A program that the test starts, ended with the world. */
  start(command: string, args: string[], env: Record<string, string> = {}): ChildProcess {
    const child = spawn(command, args, {
      env: { PATH: process.env.PATH, ...env },
      detached: true,
      stdio: 'ignore',
    })
    this.#children.push(child)
    return child
  }

  /** The folder with this package's source as it is now, compiled. */
  compiled(): string {
    const out = join(this.#root, 'build')
    if (!existsSync(out)) compile(this.#root, out)
    return out
  }

  /** The pod's run folder, FIREPOOL_POD_DIR. */
  runFolder(pod: string): string {
    const folder = join(this.dir, 'pods', pod)
    return join(folder, readdirSync(folder).find((name) => name.startsWith('run-')) as string)
  }

  /** What is left of a pod anywhere: processes and folders. */
  leftovers(pod: string): (string | number)[] {
    const folders = existsSync(join(this.dir, 'pods', pod)) ? [`pods/${pod}`] : []
    const trash = readdirSync(join(this.dir, 'trash')).filter((name) => name.startsWith(`${pod}.`))
    return [...marked(pod), ...folders, ...trash]
  }

  async end(): Promise<void> {
    for (const child of this.#children) child.kill('SIGKILL')
    await this.open().stopAll()
    for (const backend of this.#backends) backend.close()
    // Tests that fail may leave folders that only deleteFolder gets rid of.
    await deleteFolder(this.#root)
  }
}

/** Waits until list() shows the pod in this phase. */
export async function listed(backend: LocalBackend, pod: string, phase: ObservedPod['phase']) {
  return waitUntil(`${pod} is ${phase}`, async () => {
    const seen = (await backend.list('cpu')).find((item) => item.pod === pod)
    return seen?.phase === phase ? seen : undefined
  })
}

/** The address of a pod, once it is ready. */
export async function readyAddress(backend: LocalBackend, pod: string): Promise<string> {
  return (await listed(backend, pod, 'ready')).address as string
}

function compile(root: string, out: string): void {
  mkdirSync(out)
  writeFileSync(join(out, 'package.json'), '{"type":"module"}')
  symlinkSync(join(ROOT, 'node_modules'), join(root, 'node_modules'))
  writeFileSync(
    join(root, 'tsconfig.json'),
    JSON.stringify({
      extends: join(ROOT, 'tsconfig.json'),
      compilerOptions: {
        noEmit: false,
        noCheck: true,
        rootDir: join(ROOT, 'src'),
        outDir: out,
        types: [],
      },
      files: [join(ROOT, 'src/local/index.ts')],
      include: [],
    }),
  )
  execFileSync(join(ROOT, 'node_modules/.bin/tsc'), ['-p', join(root, 'tsconfig.json')], { stdio: 'pipe' })
}

let serial = 0

/** A pod name that no other test uses: the test's process table is the machine's. */
export function podName(): string {
  return `t-${process.pid}-${++serial}`
}

export function order(
  pod: string,
  change: Partial<PodOrder> = {},
  profile: Partial<LocalProfile> = {},
): PodOrder {
  return {
    pod,
    pool: 'cpu',
    generation: 1,
    profile: {
      backend: 'local',
      env: {},
      startDelay: null,
      limits: { memoryBytes: null, cpuSeconds: null, openFiles: null, processes: null, fileBytes: null },
      prepare: null,
      ...profile,
    },
    lifetimeMs: 600_000,
    startTimeoutMs: HANG_MS,
    ...change,
  }
}

/** Waits until `look` gives something; fails with `what` when it never does. */
export async function waitUntil<T>(what: string, look: () => T | Promise<T>): Promise<NonNullable<T>> {
  const deadline = performance.now() + HANG_MS
  for (;;) {
    const found = await look()
    if (found) return found
    if (performance.now() > deadline) throw new Error(`never happened: ${what}`)
    await sleep(15)
  }
}

/** Pids of all living processes that carry this pod's mark. */
export function marked(pod: string): number[] {
  return readdirSync('/proc')
    .map(Number)
    .filter((pid) => {
      try {
        const environment = `\0${readFileSync(`/proc/${pid}/environ`, 'utf8')}`
        return environment.includes(`\0FIREPOOL_POD=${pod}\0`)
      } catch {
        return false
      }
    })
}

/** Runs a command in the pod, as a job would run. */
export async function sh(address: string, command: string): Promise<string> {
  const response = await fetch(address, { method: 'POST', body: command })
  return response.text()
}
