import { type ChildProcess, spawn } from 'node:child_process'
import { existsSync } from 'node:fs'
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
import { OUTPUT_LIMITS, OutputCapture, type OutputLimits } from './output.js'
import { descendants, killMarked, killProcesses, sendSignal } from './process-tree.js'
import { commandExists, type LimitWrapper } from './rlimit.js'
import type { Seat, SeatArbiter } from './seat.js'
import { OutputSubscriber } from './subscriber.js'

/** What all jobs of a pod have in common. */
export interface JobPlace {
  pod: string
  incarnation: string
  folders: PodFolders
  /** the whole environment of a job but for its own variables: nothing is inherited */
  env: Record<string, string>
  limits: LimitWrapper | null
  /** who grants GPUs to jobs; without it, a job sees what the pod sees */
  seats?: SeatArbiter | undefined
  outputLimits?: OutputLimits
  killGraceMs?: number
  log: (line: string) => void
}

/** Why a job is ended from outside. The first reason counts. */
export type KillReason = 'cancelled' | 'revoked' | 'ended' | 'timeout' | 'outputTooLarge' | 'diskError'

/** these end at once; the others get SIGTERM first */
const AT_ONCE: readonly KillReason[] = ['revoked', 'ended', 'outputTooLarge', 'diskError']

/** how often a job whose main process is gone is looked at while somebody holds its pipes open, ms */
const PIPE_LOOK_MS = 50
/** more than any pipe holds: what comes after it was written by processes that outlived the job */
const PIPE_BYTES_MAX = 4 * 1024 * 1024
/** of each stream in the message of a job that was killed */
const MESSAGE_TAIL_BYTES = 1_024
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
  #resolve!: (outcome: JobOutcome) => void
  #child: ChildProcess | null = null
  #stdout: OutputCapture | null = null
  #stderr: OutputCapture | null = null
  #startedAtMs = 0
  #exit: { code: number | null; signal: string | null; durationMs: number } | null = null
  #killed: KillReason | null = null
  #seat: Seat | null = null
  /** ends the wait for a seat */
  readonly #noSeat = new AbortController()
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
    if (spec.cwd === undefined && !hasFiles && this.#arbiter === undefined) {
      this.#spawn(place.folders.work)
    } else void this.#prepare()
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
      this.#noSeat.abort()
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
        this.#seat = await seats.take(jobId, epoch, this.#noSeat.signal)
      }
      if (this.#killed === null) this.#spawn(folder)
      else this.#end({ kind: 'problem', problem: this.#killProblem(this.#killed) })
    } catch (error) {
      const why = this.#killed === null ? problemOf(error) : this.#killProblem(this.#killed)
      this.#end({ kind: 'problem', problem: why })
    }
  }

  #spawn(cwd: string): void {
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
    let child: ChildProcess
    try {
      child = spawn(argv[0]!, argv.slice(1), {
        cwd,
        env: this.#environment(),
        detached: true,
        stdio: [spec.stdin === undefined ? 'ignore' : 'pipe', 'pipe', 'pipe'],
      })
    } catch (error) {
      this.#notStarted(cwd, command, String((error as NodeJS.ErrnoException).code))
      return
    }
    this.#child = child
    this.#startedAtMs = performance.now()
    child.on('error', (error: NodeJS.ErrnoException) => {
      if (child.pid === undefined) this.#notStarted(cwd, command, String(error.code))
    })
    if (child.pid === undefined) return
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
      // Where seats are granted, a job without one sees no GPU.
      ...(this.#place.seats === undefined ? {} : { CUDA_VISIBLE_DEVICES: this.#seat?.uuids.join(',') ?? '' }),
      FIREPOOL_POD: this.#place.pod,
      FIREPOOL_INCARNATION: this.#place.incarnation,
      FIREPOOL_EPOCH: String(this.#request.epoch),
      FIREPOOL_JOB_ID: this.#request.jobId,
    }
  }

  #capture(child: ChildProcess, name: 'stdout' | 'stderr'): OutputCapture {
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

  #exited(child: ChildProcess, code: number | null, signal: string | null): void {
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
  #watchPipes(child: ChildProcess, bytesAtExit: number, bytesBefore: number): void {
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
        durationMs: Math.round(this.#exit!.durationMs * 1_000) / 1_000,
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
      const text = capture?.lastText(MESSAGE_TAIL_BYTES).trimEnd() ?? ''
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
    else void this.#seat.release().then(() => this.#resolve(outcome))
  }
}

function notStartedProblem(cwd: string, command: string, code: string, pod: string): Problem {
  const name = JSON.stringify(command.slice(0, 200))
  const details = { reason: code, command: command.slice(0, 200) }
  if (code === 'ENOENT' && !existsSync(cwd))
    return problem(
      'InvalidRequest',
      'The work folder of the job is gone: an earlier job removed it. Take a fresh pod.',
      details,
    )
  switch (code) {
    case 'ENOENT':
      return problem(
        'InvalidRequest',
        `There is no command ${name} in the pod. Check its spelling and PATH, install it in the image or by profile.prepare, or give a text instead of a list to run it by /bin/sh.`,
        details,
      )
    case 'EACCES':
    case 'ENOEXEC':
    case 'ENOTDIR':
    case 'EISDIR':
    case 'ELOOP':
      return problem(
        'InvalidRequest',
        `The command ${name} cannot be executed (${code}). Set its mode to 0o755 (job.files has \`mode\`), or call its interpreter: ["sh", ${name}].`,
        details,
      )
    case 'E2BIG':
      return problem(
        'InvalidRequest',
        `The command line and environment of ${name} are larger than the system allows. Pass the data by stdin or job.files.`,
        details,
      )
    default:
      return problem('PodLost', `The pod could not start ${name} (${code}). Replace the pod.`, {
        ...details,
        pod,
      })
  }
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
      reason: `the result is full: the last ${dropped} collected files are left out. Fetch them by GET /files.`,
    })
  return outcome
}
