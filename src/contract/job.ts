import type { Duration } from './duration.js'
import type { Problem } from './errors.js'

/** A file that stands in the pod's work folder before the job starts. */
export interface JobFile {
  /** relative to the work folder; may not leave it */
  path: string
  content: string
  /** how `content` is written; default utf8 */
  encoding?: 'utf8' | 'base64'
  /** permission bits, e.g. 0o755; default 0o644 */
  mode?: number
}

/** What a caller asks a pod to run. The same shape in every SDK. */
export interface JobSpec {
  /** an argv, or a text for `/bin/sh -c` */
  command: string[] | string
  /** added to the pod's own environment; it is history: no secrets here */
  env?: Record<string, string>
  /**
   * variables whose values are secrets, by the names that the pool's operator has given these: the pod reads them when the job
   * starts, and they stand in no history. The profile's `secrets` says which names the jobs of a pool may use
   */
  secretEnv?: Record<string, string>
  /** relative to the work folder; default the work folder */
  cwd?: string
  /** fed to standard input, then closed */
  stdin?: string
  files?: JobFile[]
  /** files (relative paths) returned with the result, all together at most LIMIT.collectBytes */
  collect?: string[]
  /** time limit; default TIMEOUT.jobMs */
  timeout?: Duration
  /**
   * expected to end within 2 s: on a held lease it is run by a local activity of the caller's own worker, when that has
   * Firepool's plugin; else, and when it takes longer, as every job
   */
  short?: boolean
  /** `none`: the job needs no GPU (an edit, a search, a build), so it takes no seat and sees none; default the pod's */
  device?: 'none'
  /** a URL to which the runner POSTs output as it comes (see runner-api.ts, OutputChunk) */
  outputTo?: string
}

/** One stream of a job's output. Bytes that are not UTF-8 are replaced in the text and stand exactly in `file`. */
export interface Output {
  /** the whole output, or head + a marker line + tail when `truncated` */
  text: string
  bytes: number
  truncated: boolean
  /** where the exact bytes stand in the pod while the lease lasts (GET /files?path=...), set when text is not exact */
  file?: string
}

/** How a job ended. A non-zero exit is a result, not a failure. */
export interface JobResult {
  v: 1
  jobId: string
  exitCode: number | null
  /** name of the signal that ended it, e.g. 'SIGKILL' */
  signal: string | null
  stdout: string
  stderr: string
  output: { stdout: Omit<Output, 'text'>; stderr: Omit<Output, 'text'> }
  /** collected files, base64 where not UTF-8 */
  files: JobFile[]
  /** collected paths that do not exist, or that were too large, with the reason */
  missing: { path: string; reason: string }[]
  /** the pod's own measure from process start to exit, ms */
  durationMs: number
  /** before that, ms: the wait for its seat, and its fork or spawn; absent from pods of an earlier image */
  startMs?: { seat: number; spawn: number }
  /** of a call of the pool's preloaded interpreter: whether it was forked from it, and why not; absent from all others */
  preload?: { forked: true } | { forked: false; why: string }
  pod: string
  epoch: number
}

/** How the runner says that a job did not end by itself. */
export type JobOutcome = { kind: 'result'; result: JobResult } | { kind: 'problem'; problem: Problem }
