import { type ChildProcess, spawn } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { EventEmitter } from 'node:events'
import { closeSync, openSync, rmSync } from 'node:fs'
import { createServer, type Server, type Socket } from 'node:net'
import { constants } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import type { Readable, Writable } from 'node:stream'
import { fileURLToPath } from 'node:url'
import type { Preload, PreloadStatus, Profile } from '../contract/index.js'
import type { PodFolders } from './folder.js'
import { descendants, killProcesses, sendSignal } from './process-tree.js'

/** The runner's side of a preloaded interpreter; zygote.py has the other one, and how they speak. */

const SCRIPT = fileURLToPath(new URL('./zygote.py', import.meta.url))

/** A fork takes milliseconds, with much memory on a busy machine a second; one that takes longer hangs. */
const FORK_MS = 5_000
/** after so many in a row without a job that was forked, jobs are started as without it */
const FAILURES_MAX = 3
/** for the marks of a job: its id has at most 256 characters, its epoch 16 */
const ROOM_BYTES = 512
/** a nonce and the name of a stream */
const HELLO_BYTES_MAX = 64
/** of what a module says while it is imported, in the log */
const LINE_CHARS_MAX = 500
const STREAMS = ['control', 'stdout', 'stderr'] as const
type StreamName = (typeof STREAMS)[number]

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

/** A job as a forked process takes it. */
export interface ForkedJob {
  argv: string[]
  /** absolute */
  cwd: string
  /** all of it */
  env: Record<string, string>
  hasStdin: boolean
}

/** A started process, as far as a job needs it: node's own, or a forked one. */
export interface StartedProcess {
  readonly pid?: number | undefined
  readonly stdin: Writable | null
  readonly stdout: Readable | null
  readonly stderr: Readable | null
  on(event: 'exit', heard: (code: number | null, signal: string | null) => void): unknown
  on(event: 'close', heard: () => void): unknown
}

/** The modules could not be imported. */
export class PreloadFailure extends Error {}

/** Why a job cannot be forked now: it has not begun, and is started as without a preload. */
class NotForked extends Error {}

type Message =
  | { importing: string }
  | { ready: { tasks: number } }
  | { failed: { module: string; message: string } }
  | { useless: string }
  | { fork: number; pid: number }
  | { fork: number; no: string }
  | { exit: number; code: number | null; signal: number | null }

interface Fork {
  id: number
  nonce: string
  pid: number | null
  streams: Partial<Record<StreamName, Socket>>
  advance: () => void
  fail: (why: Error) => void
}

/** A preloaded interpreter: started once, started again when it dies, and done without when that does not help. */
export class Zygote {
  readonly #options: ZygoteOptions
  /** in the pod's folder for what is of the runner */
  readonly #socket: string
  readonly #server: Server
  #child: ChildProcess | null = null
  #state: { kind: 'starting' } | { kind: 'ready' } | { kind: 'off'; why: string } = { kind: 'starting' }
  #importing = 'its first module'
  #fork: Fork | null = null
  #forks = 0
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
      // What a module has started would keep its pipes open.
      child.on('exit', () => sendSignal(-child.pid!, 'SIGKILL'))
      // 'close' and not 'exit': what it said last is heard first.
      child.on('close', (code, signal) =>
        ended(signal === null ? `exited with ${code}` : `was ended by ${signal}`),
      )
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
    this.#fork?.fail(new NotForked(`the interpreter ${how}`))
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
      if (this.#fork?.pid === message.exit) this.#fork.fail(new NotForked('a process forked from it ended'))
      return
    }
    const fork = this.#fork
    if (fork === null || !('fork' in message) || message.fork !== fork.id) return
    if ('no' in message) fork.fail(new NotForked(message.no))
    else {
      fork.pid = message.pid
      fork.advance()
    }
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
      const fork = this.#fork
      const stream = STREAMS.find((stream) => stream === name)
      if (fork === null || nonce !== fork.nonce || stream === undefined || fork.streams[stream]) {
        socket.destroy()
        return
      }
      fork.streams[stream] = socket
      fork.advance()
    }
    socket.on('data', listen)
    socket.on('close', () => clearTimeout(timer))
  }

  /**
   * Forks a job. It has begun when this resolves with a process, and not otherwise.
   * @returns the process, or why it is to be started as without a preload
   */
  async fork(job: ForkedJob, signal: AbortSignal): Promise<ForkedProcess | string> {
    if (this.#state.kind === 'off') return this.#state.why
    if (this.#state.kind === 'starting' || this.#child === null) return 'the interpreter is started again'
    try {
      const forked = await this.#forked(job, signal)
      this.#failures = 0
      this.#counts.forked++
      return forked
    } catch (error) {
      if (error instanceof NotForked) return error.message
      // It hangs, or its child does: nothing that was forked from it begins any more.
      const child = this.#child
      if (child?.pid !== undefined && !signal.aborted) this.#kill(child.pid)
      return (error as Error).message
    }
  }

  async #forked(job: ForkedJob, signal: AbortSignal): Promise<ForkedProcess> {
    const fork: Fork = {
      id: ++this.#forks,
      nonce: randomBytes(16).toString('hex'),
      pid: null,
      streams: {},
      advance: () => {},
      fail: () => {},
    }
    this.#fork = fork
    const { forkMs = FORK_MS } = this.#options
    const timeLimit = AbortSignal.timeout(forkMs)
    let failed: (error: Error) => void = () => {}
    const failure = new Promise<never>((_, reject) => {
      failed = reject
    })
    failure.catch(() => {})
    fork.fail = failed
    const late = () => failed(new Error(`a process forked from it did not begin within ${forkMs} ms`))
    const aborted = () => failed(new Error('the job was ended'))
    timeLimit.addEventListener('abort', late)
    signal.addEventListener('abort', aborted)
    try {
      if (signal.aborted) aborted()
      const connected = new Promise<void>((resolve) => {
        fork.advance = () => {
          if (fork.pid !== null && STREAMS.every((name) => fork.streams[name])) resolve()
        }
      })
      this.#tell({ fork: fork.id, nonce: fork.nonce })
      await Promise.race([connected, failure])
      const { control, stdout, stderr } = fork.streams as Record<StreamName, Socket>
      const { argv, cwd, env, hasStdin } = job
      const text = Buffer.from(JSON.stringify({ argv, cwd, env, stdin: hasStdin, limits: this.#limits() }))
      control.write(text.length.toString(16).padStart(8, '0'))
      control.write(text)
      const answer = await Promise.race([lineOf(control), failure])
      if (!answer.ready) throw new NotForked(answer.exec ?? 'a process forked from it ended')
      signal.throwIfAborted()
      // From here on the job has begun.
      const forked = new ForkedProcess(fork.pid!, hasStdin ? control : null, stdout, stderr)
      this.#running = forked
      control.resume()
      control.write('g')
      return forked
    } catch (error) {
      for (const stream of Object.values(fork.streams)) stream.destroy()
      if (fork.pid !== null) sendSignal(fork.pid, 'SIGKILL')
      throw error
    } finally {
      this.#fork = null
      timeLimit.removeEventListener('abort', late)
      signal.removeEventListener('abort', aborted)
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

  #kill(pid: number): void {
    const family = descendants(pid)
    sendSignal(-pid, 'SIGKILL')
    killProcesses(family)
  }

  /** Ends the interpreter. Jobs that were forked are ended by who ends jobs. */
  close(): void {
    this.#state = { kind: 'off', why: 'the pod ends' }
    this.#server.close()
    rmSync(join(this.#options.folders.jobs, this.#socket), { force: true })
    const pid = this.#child?.pid
    this.#fork?.fail(new NotForked('the pod ends'))
    if (pid !== undefined) sendSignal(-pid, 'SIGKILL')
  }
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

/** The first line of what comes, as JSON; an empty object when nothing came. */
function lineOf(stream: Socket): Promise<{ ready?: boolean; exec?: string }> {
  return new Promise((resolve) => {
    let text = ''
    const done = () => {
      stream.off('data', more)
      stream.off('close', done)
      try {
        resolve(JSON.parse(text.split('\n')[0]!))
      } catch {
        resolve({})
      }
    }
    const more = (chunk: Buffer) => {
      text += chunk.toString('utf8')
      if (text.includes('\n')) done()
    }
    stream.on('data', more)
    stream.on('close', done)
    stream.resume()
  })
}

function signalName(number: number | null): string | null {
  if (number === null) return null
  const found = Object.entries(constants.signals).find(([, value]) => value === number)
  return found?.[0] ?? `signal ${number}`
}

/** A process that was forked: its parent is the interpreter, which tells its end. */
export class ForkedProcess extends EventEmitter implements StartedProcess {
  #open = 2
  #isOver = false

  constructor(
    readonly pid: number,
    readonly stdin: Socket | null,
    readonly stdout: Socket,
    readonly stderr: Socket,
  ) {
    super()
    for (const stream of [stdout, stderr])
      stream.on('close', () => {
        this.#open--
        this.#closeWhenOver()
      })
  }

  /** @internal */
  exited(code: number | null, signal: string | null): void {
    if (this.#isOver) return
    this.#isOver = true
    this.emit('exit', code, signal)
    this.#closeWhenOver()
  }

  /** Its parent is gone, and with it whoever could tell how it ends. */
  orphaned(): void {
    if (this.#isOver) return
    this.emit('orphaned')
    this.exited(null, 'SIGKILL')
  }

  #closeWhenOver(): void {
    if (this.#isOver && this.#open === 0) this.emit('close')
  }
}
