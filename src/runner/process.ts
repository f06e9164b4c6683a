import { type ChildProcess, spawn } from 'node:child_process'
import { performance } from 'node:perf_hooks'
import {
  durationMs,
  FirepoolError,
  formatMs,
  type JobOutcome,
  type JobRequest,
  type JobResult,
  type Output,
  type Problem,
  problem,
  TIMEOUT,
} from '../contract/index.js'
import { collectFiles, outputFileName, type PodFolders, workFolder, writeJobFiles } from './folder.js'
import type { StartedProcess } from './forked-process.js'
import { notStartedProblem } from './not-started.js'
import { OUTPUT_LIMITS, OutputCapture, type OutputLimits } from './output.js'
import { type Forkable, forkable } from './preload.js'
import { descendants, killMarked, killProcesses, sendSignal } from './process-tree.js'
import { commandExists, type LimitWrapper } from './rlimit.js'
import { type Seat, type SeatArbiter, seatLostProblem } from './seat.js'
import type { Secrets } from './secrets.js'
import { OutputSubscriber } from './subscriber.js'
import type { Zygote } from './zygote.js'

/** What all jobs of a pod have in common. */
export interface JobPlace {
  pod: string
  incarnation: string
  folders: PodFolders
  /** the whole environment of a job but for its own variables: nothing is inherited */
  env: Record<string, string>
  /** what jobs may take into their environment by name */
  secrets: Pick<Secrets, 'environment'>
  limits: LimitWrapper | null
  /** who grants GPUs to jobs; without it, a job sees what the pod sees */
  seats?: SeatArbiter | undefined
  /** the interpreter that jobs are forked from, if there is one */
  zygote?: Zygote | undefined
  outputLimits?: OutputLimits
  killGraceMs?: number
  log: (line: string) => void
}

/** Why a job is ended from outside. The first reason counts. */
export type KillReason =
  | 'cancelled'
  | 'revoked'
  | 'ended'
  | 'timeout'
  | 'outputTooLarge'
  | 'diskError'
  | 'orphaned'

/** these end at once; the others get SIGTERM first */
const AT_ONCE: readonly KillReason[] = ['revoked', 'ended', 'outputTooLarge', 'diskError', 'orphaned']

/** how often a job whose main process is gone is looked at while somebody holds its pipes open, ms */
const PIPE_LOOK_MS = 50
/** more than any pipe holds: what comes after it was written by processes that outlived the job */
const PIPE_BYTES_MAX = 4 * 1024 * 1024
/** of each stream in the message of a job that was killed */
const MESSAGE_TAIL_BYTES = 1_024
/** A message is read by people, in a terminal or a list of the UI. */
const MESSAGE_TAIL_LINES = 10
/** of a whole result as JSON: Temporal refuses payloads over 2 MB after the job ran */
const RESULT_JSON_BYTES_MAX = 1_700_000

/** One job's process, from its files to its outcome. It starts when it is made. */
export class JobProcess {
  /** resolves with the outcome, never rejects */
  readonly done: Promise<JobOutcome>
  readonly #request: JobRequest
  readonly #place: JobPlace
  readonly #name: string
  readonly #timeoutMs: number
  readonly #subscriber: OutputSubscriber | null
  readonly #forkable: Forkable
  #resolve!: (outcome: JobOutcome) => void
  #child: StartedProcess | null = null
  #stdout: OutputCapture | null = null
  #stderr: OutputCapture | null = null
  #startedAtMs = 0
  #startMs = { seat: 0, spawn: 0 }
  #preload: JobResult['preload']
  #exit: { code: number | null; signal: string | null; durationMs: number } | null = null
  #killed: KillReason | null = null
  #seat: Seat | null = null
  /** ends the wait for a seat, or for a fork */
  readonly #noStart = new AbortController()
  #diskError = ''
  /** what descended from the main process when it was told to end */
  #family: ReturnType<typeof descendants> = []
  #timers: NodeJS.Timeout[] = []
  #over = false

  /** @param name of the job's output files, unique in the jobs folder */
  constructor(request: JobRequest, place: JobPlace, name: string) {
    this.#request = request
    this.#place = place
    this.#name = name
    this.done = new Promise((resolve) => {
      this.#resolve = resolve
    })
    const { spec } = request
    this.#timeoutMs = Math.ceil(durationMs(spec.timeout) ?? TIMEOUT.jobMs)
    this.#subscriber =
      spec.outputTo === undefined
        ? null
        : new OutputSubscriber(spec.outputTo, request.jobId, (reason) =>
            place.log(`job ${request.jobId}: the output subscriber ${reason}; it gets nothing more`),
          )
    // No await where none is needed: the warm job is a bare spawn.
    const hasFiles = spec.files !== undefined && spec.files.length > 0
    const isBare = spec.cwd === undefined && !hasFiles && this.#arbiter === undefined
    const { zygote } = place
    this.#forkable = zygote === undefined ? { kind: 'no' } : forkable(zygote.preload, spec, place.env)
    // Nothing waits for another job while this one runs.
    if (this.#forkable.kind !== 'yes') zygote?.drop()
    if (isBare && this.#forkable.kind === 'no') this.#spawn(place.folders.work, performance.now())
    else void this.#prepare()
  }

  /** who grants the job's GPUs; undefined when it needs none, or nobody does */
  get #arbiter(): SeatArbiter | undefined {
    return this.#request.spec.device === 'none' ? undefined : this.#place.seats
  }

  /** Ends the job; no effect when its main process is gone already. */
  kill(reason: KillReason): void {
    if (this.#exit !== null || this.#over) return
    const isFirst = this.#killed === null
    this.#killed ??= reason
    if (isFirst) this.#place.log(`job ${this.#request.jobId} is ended: ${reason}`)
    const pid = this.#child?.pid
    if (pid === undefined) {
      this.#noStart.abort()
      return
    }
    if (AT_ONCE.includes(reason)) this.#killTree(pid)
    else if (isFirst) {
      this.#family = descendants(pid)
      sendSignal(-pid, 'SIGTERM')
      const graceMs = this.#place.killGraceMs ?? TIMEOUT.killGraceMs
      this.#timers.push(setTimeout(() => this.#killTree(pid), graceMs))
    }
  }

  #killTree(pid: number): void {
    this.#family.push(...descendants(pid))
    sendSignal(-pid, 'SIGKILL')
    killProcesses(this.#family)
  }

  async #prepare(): Promise<void> {
    const { cwd, files } = this.#request.spec
    const { folders } = this.#place
    const seats = this.#arbiter
    try {
      if (files !== undefined) await writeJobFiles(folders, files)
      const folder = cwd === undefined ? folders.work : await workFolder(folders, cwd)
      // Last, so that no seat is held while files are written.
      if (seats !== undefined && this.#killed === null) {
        const { jobId, epoch } = this.#request
        const askedAtMs = performance.now()
        this.#seat = await seats.take(jobId, epoch, this.#noStart.signal)
        this.#startMs.seat = performance.now() - askedAtMs
      }
      const beganAtMs = performance.now()
      if (this.#killed === null && (await this.#fork(folder, beganAtMs))) return
      if (this.#killed === null) this.#spawn(folder, beganAtMs)
      else this.#end({ kind: 'problem', problem: this.#killProblem(this.#killed) })
    } catch (error) {
      const why = this.#killed === null ? problemOf(error) : this.#killProblem(this.#killed)
      this.#end({ kind: 'problem', problem: why })
    }
  }

  /** @returns whether the job was forked from the preloaded interpreter; where not, it has not begun */
  async #fork(cwd: string, beganAtMs: number): Promise<boolean> {
    const { zygote } = this.#place
    const decision = this.#forkable
    if (zygote === undefined || decision.kind === 'no') return false
    const { jobId, spec } = this.#request
    const forked =
      decision.kind === 'unless'
        ? decision.why
        : await zygote.fork(
            { argv: decision.argv, cwd, env: this.#environment(), hasStdin: spec.stdin !== undefined },
            this.#noStart.signal,
          )
    if (typeof forked === 'string') {
      if (this.#killed === null) zygote.missed(jobId, forked)
      this.#preload = { forked: false, why: forked }
      return false
    }
    this.#preload = { forked: true }
    forked.on('orphaned', () => this.kill('orphaned'))
    this.#watch(forked, beganAtMs)
    return true
  }

  #spawn(cwd: string, beganAtMs: number): void {
    const { spec } = this.#request
    const { limits, env } = this.#place
    let argv = typeof spec.command === 'string' ? ['/bin/sh', '-c', spec.command] : spec.command
    const command = argv[0]!
    if (limits !== null) {
      const path = spec.env?.PATH ?? env.PATH ?? ''
      if (!commandExists(command, path, cwd)) {
        this.#notStarted(cwd, command, 'ENOENT')
        return
      }
      argv = limits.wrap(argv)
    }
    let environment: Record<string, string>
    try {
      environment = this.#environment()
    } catch (error) {
      this.#end({ kind: 'problem', problem: problemOf(error) })
      return
    }
    let child: ChildProcess
    try {
      child = spawn(argv[0]!, argv.slice(1), {
        cwd,
        env: environment,
        detached: true,
        stdio: [spec.stdin === undefined ? 'ignore' : 'pipe', 'pipe', 'pipe'],
      })
    } catch (error) {
      this.#notStarted(cwd, command, String((error as NodeJS.ErrnoException).code))
      return
    }
    child.on('error', (error: NodeJS.ErrnoException) => {
      if (child.pid === undefined) this.#notStarted(cwd, command, String(error.code))
    })
    if (child.pid !== undefined) this.#watch(child, beganAtMs)
  }

  /** The job's process runs, from whichever of the two ways. */
  #watch(child: StartedProcess, beganAtMs: number): void {
    const { spec } = this.#request
    this.#child = child
    this.#startedAtMs = performance.now()
    this.#startMs.spawn = this.#startedAtMs - beganAtMs
    this.#stdout = this.#capture(child, 'stdout')
    this.#stderr = this.#capture(child, 'stderr')
    child.on('exit', (code, signal) => this.#exited(child, code, signal))
    child.on('close', () => this.#closed())
    if (child.stdin !== null) {
      child.stdin.on('error', () => {}) // a job need not read its input
      child.stdin.end(spec.stdin)
    }
    this.#timers.push(setTimeout(() => this.kill('timeout'), this.#timeoutMs))
  }

  #environment(): Record<string, string> {
    return {
      ...this.#place.env,
      ...this.#request.spec.env,
      ...this.#place.secrets.environment(this.#request.spec.secretEnv),
      // Where seats are granted, a job without one sees no GPU.
      ...(this.#place.seats === undefined ? {} : { CUDA_VISIBLE_DEVICES: this.#seat?.uuids.join(',') ?? '' }),
      FIREPOOL_POD: this.#place.pod,
      FIREPOOL_INCARNATION: this.#place.incarnation,
      FIREPOOL_EPOCH: String(this.#request.epoch),
      FIREPOOL_JOB_ID: this.#request.jobId,
    }
  }

  #capture(child: StartedProcess, name: 'stdout' | 'stderr'): OutputCapture {
    const fileName = `${this.#name}.${name}`
    const subscriber = this.#subscriber
    return new OutputCapture(
      child[name]!,
      { path: `${this.#place.folders.jobs}/${fileName}`, name: outputFileName(fileName) },
      {
        onChunk: subscriber === null ? undefined : (chunk, offset) => subscriber.push(name, chunk, offset),
        onTooLarge: () => this.kill('outputTooLarge'),
        onDiskError: (error) => {
          this.#diskError = String(error.code)
          this.kill('diskError')
        },
      },
      this.#place.outputLimits ?? OUTPUT_LIMITS,
    )
  }

  #exited(child: StartedProcess, code: number | null, signal: string | null): void {
    this.#exit = { code, signal, durationMs: performance.now() - this.#startedAtMs }
    for (const timer of this.#timers) clearTimeout(timer)
    // Children left in the background would hold the pipes open, and run under the next job.
    sendSignal(-child.pid!, 'SIGKILL')
    this.#watchPipes(child, this.#outputBytes(), this.#outputBytes())
  }

  #outputBytes(): number {
    return (this.#stdout?.bytes ?? 0) + (this.#stderr?.bytes ?? 0)
  }

  /**
   * A process in a session of its own may hold the pipes after the job is over. What the job itself wrote is in the
   * pipes by now: once they are quiet, or gave more than a pipe can hold, they are closed.
   */
  #watchPipes(child: StartedProcess, bytesAtExit: number, bytesBefore: number): void {
    const timer = setTimeout(() => {
      // After the poll phase, so that a runner that was held up has read what was there.
      setImmediate(() => {
        if (this.#over) return
        const bytes = this.#outputBytes()
        const isHeld = this.#stdout?.isHeld === true || this.#stderr?.isHeld === true
        if ((bytes === bytesBefore && !isHeld) || bytes - bytesAtExit > PIPE_BYTES_MAX) {
          child.stdout?.destroy()
          child.stderr?.destroy()
          child.stdin?.destroy()
        } else this.#watchPipes(child, bytesAtExit, bytes)
      })
    }, PIPE_LOOK_MS)
    this.#timers.push(timer)
  }

  /** The process is gone and its pipes are closed. */
  #closed(): void {
    if (this.#over || this.#exit === null) return
    const { spec } = this.#request
    const stdout = this.#stdout!.finish()
    const stderr = this.#stderr!.finish()
    if (
      this.#killed !== null ||
      this.#subscriber !== null ||
      stdout instanceof Promise ||
      stderr instanceof Promise ||
      (spec.collect !== undefined && spec.collect.length > 0)
    ) {
      this.#over = true
      this.#finish(stdout, stderr).then(
        (outcome) => this.#end(outcome),
        (error) => this.#end({ kind: 'problem', problem: problemOf(error) }),
      )
    } else this.#end(this.#result(stdout, stderr))
  }

  async #finish(
    stdoutLater: Output | Promise<Output>,
    stderrLater: Output | Promise<Output>,
  ): Promise<JobOutcome> {
    const stdout = await stdoutLater
    const stderr = await stderrLater
    await this.#subscriber?.end()
    if (this.#killed !== null) {
      killProcesses(this.#family)
      // Only here: a job that ended by itself is not made to pay for a look at every process.
      const { pod, incarnation } = this.#place
      await killMarked({
        env: {
          FIREPOOL_POD: pod,
          FIREPOOL_INCARNATION: incarnation,
          FIREPOOL_JOB_ID: this.#request.jobId,
        },
      })
      return { kind: 'problem', problem: this.#killProblem(this.#killed) }
    }
    const outcome = this.#result(stdout, stderr)
    const collect = this.#request.spec.collect ?? []
    Object.assign(outcome.result, await collectFiles(this.#place.folders, collect))
    return fitted(outcome)
  }

  #result(stdout: Output, stderr: Output): { kind: 'result'; result: JobResult } {
    const { text: stdoutText, ...stdoutFacts } = stdout
    const { text: stderrText, ...stderrFacts } = stderr
    return {
      kind: 'result',
      result: {
        v: 1,
        jobId: this.#request.jobId,
        exitCode: this.#exit!.code,
        signal: this.#exit!.signal,
        stdout: stdoutText,
        stderr: stderrText,
        output: { stdout: stdoutFacts, stderr: stderrFacts },
        files: [],
        missing: [],
        durationMs: rounded(this.#exit!.durationMs),
        startMs: { seat: rounded(this.#startMs.seat), spawn: rounded(this.#startMs.spawn) },
        ...(this.#preload === undefined ? {} : { preload: this.#preload }),
        pod: this.#place.pod,
        epoch: this.#request.epoch,
      },
    }
  }

  #killProblem(reason: KillReason): Problem {
    const { jobId } = this.#request
    const { pod } = this.#place
    const limits = this.#place.outputLimits ?? OUTPUT_LIMITS
    switch (reason) {
      case 'timeout':
        return problem(
          'JobTimeout',
          `The job was killed at its time limit of ${formatMs(this.#timeoutMs)}. Raise its timeout, or make it do less.${this.#lastOutput()}`,
          { timeoutMs: this.#timeoutMs, pod },
        )
      case 'cancelled':
        return problem('Cancelled', `Job ${jobId} was cancelled and its processes were killed.`, { pod })
      case 'revoked':
        return problem(
          'PodLost',
          `Job ${jobId} was running when the lease on its pod ended, and was killed. Acquire again; run it again only if it may run twice.`,
          { reason: 'Revoked', pod },
        )
      case 'ended':
        return problem(
          'PodLost',
          `Job ${jobId} was running when its pod ended, and was killed. Acquire again; run it again only if it may run twice.`,
          { reason: 'PodEnded', pod },
        )
      case 'orphaned':
        return problem(
          'PodLost',
          `Job ${jobId} was forked from the preloaded interpreter, which ended while it ran: nobody could tell how it ends, and it was killed. Run it again only if it may run twice.`,
          { reason: 'PreloadLost', pod },
        )
      case 'outputTooLarge':
        return problem(
          'OutputTooLarge',
          `The job wrote more than ${limits.fileBytes} bytes to stdout or stderr and was killed. Write less, or write to files of its own.${this.#lastOutput()}`,
          { outputFileBytes: limits.fileBytes, pod },
        )
      case 'diskError':
        return this.#diskProblem()
    }
  }

  #diskProblem(): Problem {
    const isFull = ['ENOSPC', 'EDQUOT', 'EFBIG'].includes(this.#diskError)
    return problem(
      isFull ? 'OutputTooLarge' : 'PodLost',
      `The job's output could not be written to the pod's disk (${this.#diskError}), and the job was killed. ${isFull ? 'Write less output, or give the pod more disk.' : 'Replace the pod.'}`,
      { reason: this.#diskError, pod: this.#place.pod },
    )
  }

  #lastOutput(): string {
    const parts: string[] = []
    for (const [name, capture] of [['stdout', this.#stdout] as const, ['stderr', this.#stderr] as const]) {
      const lines = capture?.lastText(MESSAGE_TAIL_BYTES).trimEnd().split('\n') ?? []
      const text = lines.slice(-MESSAGE_TAIL_LINES).join('\n')
      if (text !== '') parts.push(`\nLast of ${name}:\n${text}`)
    }
    return parts.length === 0 ? ' It wrote no output.' : parts.join('')
  }

  /** The command never ran. That is the outcome of this job id all the same. */
  #notStarted(cwd: string, command: string, code: string): void {
    if (this.#over) return
    this.#end({ kind: 'problem', problem: notStartedProblem(cwd, command, code, this.#place.pod) })
  }

  #end(outcome: JobOutcome): void {
    this.#over = true
    for (const timer of this.#timers) clearTimeout(timer)
    this.#timers = []
    if (this.#seat === null) this.#resolve(outcome)
    else
      void this.#seat
        .release()
        .then((lost) =>
          this.#resolve(lost === null ? outcome : { kind: 'problem', problem: seatLostProblem(lost) }),
        )
  }
}

/** to microseconds */
function rounded(ms: number): number {
  return Math.round(ms * 1_000) / 1_000
}

function problemOf(error: unknown): Problem {
  if (error instanceof FirepoolError) return error.problem
  const code = String((error as NodeJS.ErrnoException).code ?? error)
  return problem('PodLost', `The runner failed while it handled the job (${code}). Replace the pod.`, {
    reason: code,
  })
}

/** The outcome, cut to what a payload can carry: first the list of what is missing gives way, then what is collected. */
function fitted(outcome: { kind: 'result'; result: JobResult }): JobOutcome {
  const { result } = outcome
  const isTooLarge = () => Buffer.byteLength(JSON.stringify(outcome)) > RESULT_JSON_BYTES_MAX
  const missingCount = result.missing.length
  while (isTooLarge() && result.missing.length > 1) {
    const left = result.missing.slice(0, (result.missing.length >> 1) - 1)
    const reason = `the result is full: ${missingCount - left.length} missing paths are not listed`
    result.missing = [...left, { path: '', reason }]
  }
  let dropped = 0
  while (isTooLarge() && result.files.pop() !== undefined) dropped++
  if (dropped > 0)
    result.missing.push({
      path: '',
      reason: `the result is full: the last ${dropped} collected files are left out. Collect them by a later job of this lease, a part at a time.`,
    })
  return outcome
}
