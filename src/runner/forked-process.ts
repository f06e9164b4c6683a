import { randomBytes } from 'node:crypto'
import { EventEmitter } from 'node:events'
import type { Socket } from 'node:net'
import type { Readable, Writable } from 'node:stream'
import { sendSignal } from './process-tree.js'

/** A process that a preloaded interpreter forks: first without a job (`Fork`), then as a job (`ForkedProcess`). zygote.py has its side. */

export const STREAMS = ['control', 'stdout', 'stderr'] as const
export type StreamName = (typeof STREAMS)[number]

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

/** Why a job is not forked now: it has not begun. */
export class NotForked extends Error {}

/** It does not answer, and nobody knows why. */
export class Hang extends NotForked {}

/** A process that was asked for and has no job yet. It takes one at most; when it fails it is killed, and begins none. */
export class Fork {
  /** what its connections say, and nobody else's */
  readonly nonce = randomBytes(16).toString('hex')
  readonly id: number
  /** whether it was asked for before there was a job for it */
  readonly isAhead: boolean
  readonly #limitMs: number
  readonly #onFail: (why: NotForked) => void
  readonly #streams: Partial<Record<StreamName, Socket>> = {}
  /** rejects when it fails, whatever it is doing */
  readonly #failure: Promise<never>
  #reject!: (why: NotForked) => void
  /** resolves when it waits for a job */
  readonly #connected: Promise<void>
  #connect!: () => void
  #timer: NodeJS.Timeout
  #pid: number | null = null
  #isConnected = false
  #isOver = false

  /** @param limitMs it may take to be forked and to connect, and again to take its job */
  constructor(id: number, isAhead: boolean, limitMs: number, onFail: (why: NotForked) => void) {
    this.id = id
    this.isAhead = isAhead
    this.#limitMs = limitMs
    this.#onFail = onFail
    this.#failure = new Promise((_, reject) => {
      this.#reject = reject
    })
    this.#failure.catch(() => {})
    this.#connected = new Promise((resolve) => {
      this.#connect = resolve
    })
    this.#timer = this.#limit()
  }

  get pid(): number | null {
    return this.#pid
  }

  /** Whether it waits for a job, or is taking one. */
  get isConnected(): boolean {
    return this.#isConnected
  }

  /** The interpreter has said which process it is. */
  forked(pid: number): void {
    this.#pid = pid
    this.#advance()
  }

  /** @returns false when the connection is not its own, or one too many */
  connect(nonce: string | undefined, name: string | undefined, socket: Socket): boolean {
    const stream = STREAMS.find((stream) => stream === name)
    if (nonce !== this.nonce || stream === undefined || this.#streams[stream] !== undefined) return false
    this.#streams[stream] = socket
    this.#advance()
    return true
  }

  #advance(): void {
    if (this.#pid === null || !STREAMS.every((name) => this.#streams[name])) return
    clearTimeout(this.#timer)
    this.#isConnected = true
    this.#connect()
  }

  #limit(): NodeJS.Timeout {
    const why = `a process forked from it did not begin within ${this.#limitMs} ms`
    return setTimeout(() => this.fail(new Hang(why)), this.#limitMs)
  }

  fail(why: NotForked): void {
    if (this.#isOver) return
    this.#isOver = true
    clearTimeout(this.#timer)
    for (const stream of Object.values(this.#streams)) stream.destroy()
    if (this.#pid !== null) sendSignal(this.#pid, 'SIGKILL')
    this.#reject(why)
    this.#onFail(why)
  }

  /**
   * Gives it its job, which has begun when this resolves with a process, and not otherwise.
   * @returns the process, or why the job is for an interpreter of its own
   * @throws NotForked
   */
  async begin(
    { argv, cwd, env, hasStdin }: ForkedJob,
    limits: Record<string, number>,
    signal: AbortSignal,
  ): Promise<ForkedProcess | string> {
    const aborted = () => this.fail(new NotForked('the job was ended'))
    signal.addEventListener('abort', aborted)
    try {
      if (signal.aborted) aborted()
      await Promise.race([this.#connected, this.#failure])
      this.#timer = this.#limit()
      const { control, stdout, stderr } = this.#streams as Record<StreamName, Socket>
      const text = Buffer.from(JSON.stringify({ argv, cwd, env, stdin: hasStdin, limits }))
      control.write(Buffer.concat([Buffer.from(text.length.toString(16).padStart(8, '0')), text]))
      const answer = await Promise.race([lineOf(control), this.#failure])
      if (!answer.ready) this.fail(new NotForked(answer.exec ?? 'a process forked from it ended'))
      if (answer.exec !== undefined) return answer.exec
      if (this.#isOver) await this.#failure
      // From here on the job has begun.
      this.#isOver = true
      const forked = new ForkedProcess(this.#pid!, hasStdin ? control : null, stdout, stderr)
      control.resume()
      control.write('g')
      return forked
    } finally {
      clearTimeout(this.#timer)
      signal.removeEventListener('abort', aborted)
    }
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
