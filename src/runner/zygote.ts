import { type ChildProcess, spawn } from 'node:child_process'
import { closeSync, openSync, rmSync } from 'node:fs'
import { createServer, type Server, type Socket } from 'node:net'
import { constants } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import type { Readable } from 'node:stream'
import { fileURLToPath } from 'node:url'
import type { Preload, PreloadStatus, Profile } from '../contract/index.js'
import type { PodFolders } from './folder.js'
import { Fork, type ForkedJob, type ForkedProcess, Hang, NotForked } from './forked-process.js'
import { descendants, killProcesses, sendSignal } from './process-tree.js'

/** The runner's side of a preloaded interpreter; zygote.py has the other one, and how they speak. */

const SCRIPT = fileURLToPath(new URL('./zygote.py', import.meta.url))

/** A fork takes milliseconds, with much memory on a busy machine a second; one that takes longer hangs. */
const FORK_MS = 5_000
/**
 * A process for the next job is forked this long after the last one: the kernel tells when a process began in ticks of 10 ms, and the node agent
 * takes what began in the tick of a seat's release for the job's.
 */
const AHEAD_MS = 20
/** after so many in a row without a job that was forked, jobs are started as without it */
const FAILURES_MAX = 3
/** for the marks of a job: its id has at most 256 characters, its epoch 16 */
const ROOM_BYTES = 512
/** a nonce and the name of a stream */
const HELLO_BYTES_MAX = 64
/** of what a module says while it is imported, in the log */
const LINE_CHARS_MAX = 500

export interface ZygoteOptions {
  preload: Preload
  /** of every job */
  env: Record<string, string>
  limits: Profile['limits']
  pod: string
  incarnation: string
  folders: PodFolders
  log: (line: string) => void
  forkMs?: number
}

/** The modules could not be imported. */
export class PreloadFailure extends Error {}

type Message =
  | { importing: string }
  | { ready: { tasks: number } }
  | { failed: { module: string; message: string } }
  | { useless: string }
  | { fork: number; pid: number }
  | { fork: number; no: string }
  | { exit: number; code: number | null; signal: number | null }

/** A preloaded interpreter: started once, started again when it dies, and done without when that does not help. */
export class Zygote {
  readonly #options: ZygoteOptions
  /** in the pod's folder for what is of the runner */
  readonly #socket: string
  readonly #server: Server
  #child: ChildProcess | null = null
  #state: { kind: 'starting' } | { kind: 'ready' } | { kind: 'off'; why: string } = { kind: 'starting' }
  #importing = 'its first module'
  /** what has no job yet: asked for ahead of it, or by it */
  #next: Fork | null = null
  #forks = 0
  /** whether a process may wait for the next job */
  #isAhead = false
  #aheadTimer: NodeJS.Timeout | undefined
  #failures = 0
  #counts = { forked: 0, notForked: 0 }
  #running: ForkedProcess | null = null

  constructor(options: ZygoteOptions) {
    this.#options = options
    this.#socket = `preload-${options.incarnation}.sock`
    this.#server = createServer((socket) => this.#greet(socket))
  }

  get preload(): Preload {
    return this.#options.preload
  }

  status(): PreloadStatus {
    const { python, imports } = this.preload
    const why = this.#state.kind === 'off' ? { why: this.#state.why } : {}
    return { python, imports, state: this.#state.kind, ...why, ...this.#counts }
  }

  /** Counts a job that could have been forked, and says why it was not. */
  missed(jobId: string, why: string): void {
    this.#counts.notForked++
    this.#options.log(`job ${jobId} is not forked from the preloaded interpreter: ${why}`)
  }

  /** Resolves when jobs can be forked, or when it is known that they cannot. @throws PreloadFailure naming the module */
  async start(): Promise<void> {
    if (process.platform !== 'linux') {
      this.#turnOff('it needs Linux')
      return
    }
    await this.#listen()
    await this.#launch()
  }

  /** By its folder's descriptor: a socket's path has at most 107 bytes, the folder's has any number. */
  async #listen(): Promise<void> {
    const folder = openSync(this.#options.folders.jobs, 'r')
    try {
      await new Promise<void>((resolve, reject) => {
        this.#server.once('error', reject)
        this.#server.listen(`/proc/self/fd/${folder}/${this.#socket}`, resolve)
      })
    } finally {
      closeSync(folder)
    }
    this.#server.unref()
  }

  #launch(): Promise<void> {
    const { preload, env, pod, incarnation, folders } = this.#options
    this.#state = { kind: 'starting' }
    const child = spawn(preload.python, [SCRIPT], {
      cwd: folders.work,
      env: {
        ...env,
        FIREPOOL_POD: pod,
        FIREPOOL_INCARNATION: incarnation,
        FIREPOOL_ROOM: '.'.repeat(ROOM_BYTES),
      },
      detached: true,
      stdio: ['ignore', 'pipe', 'pipe', 'pipe'],
    })
    this.#child = child
    const control = child.stdio[3] as Socket
    for (const stream of [child.stdout!, child.stderr!])
      eachLine(stream, (line) => this.#options.log(`preload: ${line.slice(0, LINE_CHARS_MAX)}`))
    return new Promise((resolve, reject) => {
      const heard = (message: Message) => {
        if ('importing' in message) this.#importing = message.importing
        else if ('ready' in message) {
          this.#state = { kind: 'ready' }
          this.#options.log(readyLine(preload, message.ready.tasks))
          this.#askAhead()
          resolve()
        } else if ('useless' in message) {
          this.#turnOff(message.useless)
          resolve()
        } else if ('failed' in message) {
          const { module, message: text } = message.failed
          reject(new PreloadFailure(`profile.preload: ${module} could not be imported: ${text}`))
        } else this.#heard(message)
      }
      eachLine(control, (line) => {
        const message = messageIn(line)
        if (message === null)
          this.#options.log(`preload: what it said is not understood: ${line.slice(0, LINE_CHARS_MAX)}`)
        else heard(message)
      })
      const ended = (how: string) => {
        reject(
          new PreloadFailure(
            `profile.preload: ${preload.python} ${how} while it imported ${this.#importing}`,
          ),
        )
        this.#ended(child, how)
      }
      child.on('error', (error: NodeJS.ErrnoException) => {
        if (child.pid === undefined) ended(`could not be started (${error.code})`)
      })
      // What a module has started would keep its pipes open, and so would what waits for a job.
      child.on('exit', (code, signal) => {
        sendSignal(-child.pid!, 'SIGKILL')
        this.#next?.fail(new NotForked(`the interpreter ${endOf(code, signal)}`))
      })
      // 'close' and not 'exit': what it said last is heard first.
      child.on('close', (code, signal) => ended(endOf(code, signal)))
      const { imports, seeds } = preload
      this.#tell({ start: { folder: folders.jobs, socket: this.#socket, imports, seeds } })
    })
  }

  #turnOff(why: string): void {
    this.#state = { kind: 'off', why }
    this.#options.log(`jobs are not forked from a preloaded interpreter: ${why}`)
  }

  /** Whatever ends it ends what it was about to fork; a job that it had forked has nobody left who could tell its end. */
  #ended(child: ChildProcess, how: string): void {
    if (this.#child !== child) return
    this.#child = null
    this.#next?.fail(new NotForked(`the interpreter ${how}`))
    this.#running?.orphaned()
    if (this.#state.kind !== 'ready') return
    this.#options.log(`the preloaded interpreter ${how}`)
    if (++this.#failures >= FAILURES_MAX)
      this.#turnOff(`it ended ${FAILURES_MAX} times in a row; the last time it ${how}`)
    else this.#launch().catch((error: Error) => this.#turnOff(error.message))
  }

  #heard(message: Exclude<Message, { ready: unknown } | { failed: unknown } | { importing: unknown }>): void {
    if ('exit' in message) {
      if (this.#running?.pid === message.exit) this.#running.exited(message.code, signalName(message.signal))
      if (this.#next?.pid === message.exit) this.#next.fail(new NotForked('a process forked from it ended'))
      return
    }
    if (!('fork' in message)) return
    const fork = this.#next?.id === message.fork ? this.#next : null
    if ('no' in message) fork?.fail(new NotForked(message.no))
    else if (fork !== null) fork.forked(message.pid)
    else sendSignal(message.pid, 'SIGKILL')
  }

  /** A connection of a forked process says which fork and which stream it is; anybody else's is closed. */
  #greet(socket: Socket): void {
    socket.on('error', () => {})
    let hello = Buffer.alloc(0)
    const timer = setTimeout(() => socket.destroy(), FORK_MS)
    const listen = (chunk: Buffer) => {
      hello = Buffer.concat([hello, chunk])
      const end = hello.indexOf('\n')
      if (end < 0 && hello.length <= HELLO_BYTES_MAX) return
      clearTimeout(timer)
      socket.off('data', listen)
      socket.pause()
      const [nonce, name] = hello.subarray(0, Math.max(0, end)).toString('latin1').split(' ')
      if (this.#next?.connect(nonce, name, socket) !== true) socket.destroy()
    }
    socket.on('data', listen)
    socket.on('close', () => clearTimeout(timer))
  }

  #ask(isAhead: boolean): Fork {
    const fork = new Fork(++this.#forks, isAhead, this.#options.forkMs ?? FORK_MS, (why) => {
      if (this.#next === fork) this.#next = null
      // The interpreter hangs, or whatever it forks does. One that had waited may have come to harm by itself.
      if (why instanceof Hang && !(fork.isAhead && fork.isConnected)) this.#kill(why.message)
    })
    this.#next = fork
    this.#tell({ fork: fork.id, nonce: fork.nonce, ahead: isAhead })
    return fork
  }

  #askAhead(): void {
    if (this.#isAhead && this.#state.kind === 'ready' && this.#next === null) this.#ask(true)
  }

  /**
   * Has a process wait for the next job, so that its fork is not waited for then. Only while no job runs and the pod holds no seat: what is
   * forked beside them would be taken for a part of the job.
   */
  forkAhead(): void {
    this.#stopAhead()
    this.#isAhead = true
    this.#aheadTimer = setTimeout(() => this.#askAhead(), AHEAD_MS)
  }

  #stopAhead(): void {
    this.#isAhead = false
    clearTimeout(this.#aheadTimer)
  }

  /** Ends the process that waits for the next job: one begins that is not forked, or none any more. */
  drop(): void {
    this.#stopAhead()
    this.#next?.fail(new NotForked('no job is forked now'))
  }

  /**
   * Forks a job. It has begun when this resolves with a process, and not otherwise.
   * @returns the process, or why it is to be started as without a preload
   */
  async fork(job: ForkedJob, signal: AbortSignal): Promise<ForkedProcess | string> {
    this.#stopAhead()
    for (;;) {
      if (this.#state.kind === 'off') return this.#state.why
      if (this.#state.kind === 'starting' || this.#child === null) return 'the interpreter is started again'
      const fork = this.#next ?? this.#ask(false)
      try {
        const begun = await fork.begin(job, this.#limits(), signal)
        if (typeof begun === 'string') return begun
        this.#next = null
        this.#running = begun
        this.#failures = 0
        this.#counts.forked++
        return begun
      } catch (error) {
        if (!(error instanceof NotForked)) throw error
        if (!fork.isAhead || signal.aborted) return error.message
        this.#options.log(`the process that waited for the next job is of no use: ${error.message}`)
      }
    }
  }

  #limits(): Record<string, number> {
    const limits = Object.entries(this.#options.limits).filter(([, value]) => value !== null)
    return Object.fromEntries(limits) as Record<string, number>
  }

  #tell(request: object): void {
    const control = this.#child?.stdio[3] as Socket | undefined
    control?.write(`${JSON.stringify(request)}\n`)
  }

  #kill(why: string): void {
    const pid = this.#child?.pid
    if (pid === undefined) return
    this.#options.log(`the preloaded interpreter is killed: ${why}`)
    const family = descendants(pid)
    sendSignal(-pid, 'SIGKILL')
    killProcesses(family)
  }

  /** Ends the interpreter. Jobs that were forked are ended by who ends jobs. */
  close(): void {
    this.#state = { kind: 'off', why: 'the pod ends' }
    this.drop()
    this.#server.close()
    rmSync(join(this.#options.folders.jobs, this.#socket), { force: true })
    const pid = this.#child?.pid
    if (pid !== undefined) sendSignal(-pid, 'SIGKILL')
  }
}

function endOf(code: number | null, signal: string | null): string {
  return signal === null ? `exited with ${code}` : `was ended by ${signal}`
}

function readyLine({ python, imports }: Preload, tasks: number): string {
  const threads =
    tasks === 1
      ? ''
      : `; they have started ${tasks - 1} threads, and while these run jobs are started as without it`
  return `${python} has preloaded ${imports.join(', ')}${threads}`
}

/** A stream that breaks has ended: the end of its process follows. */
function eachLine(input: Readable, heard: (line: string) => void): void {
  input.on('error', () => {})
  createInterface({ input })
    .on('line', heard)
    .on('error', () => {})
}

/** A module may write where it should not, and must not end the runner by that. */
function messageIn(line: string): Message | null {
  try {
    return JSON.parse(line) as Message
  } catch {
    return null
  }
}

function signalName(number: number | null): string | null {
  if (number === null) return null
  const found = Object.entries(constants.signals).find(([, value]) => value === number)
  return found?.[0] ?? `signal ${number}`
}
