import { type Problem, problem } from './errors.js'
import type { JobOutcome, JobSpec } from './job.js'

/**
 * One side of a runner's API speaks a version that the other does not. A pod outlives the worker that started it, and its image may be
 * of another release: so the runner says its version when it is ready (RunnerReady) and in every answer, and names it when it refuses
 * a request of another one; a worker replaces the pod whose version it does not speak.
 * @param code PodLost, or LeaseRevoked for a job that was refused: it never started
 * @param what who speaks what
 */
export function versionProblem(code: 'PodLost' | 'LeaseRevoked', what: string): Problem {
  return problem(code, `${what}. Use a worker and a pod image of matching versions.`, {
    reason: 'ContractVersion',
  })
}

/**
 * The HTTP API of the runner in each pod. JSON in and out; errors are `{ problem }` with the status of HTTP_STATUS.
 * Every call carries `authorization: Bearer <token>`; see Token.
 *
 *   POST /bind    BindRequest   -> BindReply       broker
 *   POST /jobs    JobRequest    -> JobReply        lease; answers when the job is over (the connection may be cut: post again)
 *   POST /ack     AckRequest    -> {}              lease
 *   POST /cancel  CancelRequest -> {}              lease
 *   POST /revoke  RevokeRequest -> {}              broker
 *   POST /drain   DrainRequest  -> DrainReply      broker
 *   POST /promote {v}           -> RunnerStatus    broker; makes a standby ready for a caller (a no-op without a device)
 *   GET  /status                -> RunnerStatus    broker or lease
 *   GET  /ready                 -> RunnerIdentity  anybody, without a token: what a kubelet probes, and who answers
 *   GET  /files?path=P          -> the bytes       lease; P relative to the work folder, or a `file` of an Output
 *   PUT  /files?path=P          <- the bytes       lease
 */
export interface BindRequest {
  v: 1
  epoch: number
  leaseId: string
  /** sha256 of (caller, reuse tag): a pod that served one never serves another, checked here once more */
  ownerHash: string
  incarnation: string
}

export interface BindReply {
  v: 1
  useSeq: number
}

export interface JobRequest {
  v: 1
  jobId: string
  /** sha256 (hex) of the canonical JSON of spec */
  digest: string
  epoch: number
  spec: JobSpec
}

export interface JobReply {
  v: 1
  outcome: JobOutcome
}

export interface AckRequest {
  v: 1
  jobId: string
  digest: string
}

export interface CancelRequest {
  v: 1
  jobId: string
}

export interface RevokeRequest {
  v: 1
  epoch: number
}

export interface DrainRequest {
  v: 1
  drainId: string
  epoch: number
  /** as last heard from the runner: a job accepted since then makes the drain fail */
  useSeq: number
}

export interface DrainReply {
  v: 1
  drained: boolean
  useSeq: number
  /** how long nothing has run, on the runner's monotonic clock; 0 while something runs, waits or is undelivered */
  idleMs: number
}

export interface RunnerStatus {
  v: 1
  pod: string
  incarnation: string
  epoch: number
  state: 'standby' | 'bound' | 'draining'
  useSeq: number
  running: string | null
  waiting: number
  undelivered: number
  idleMs: number
  /** ms until the runner ends itself by age */
  lifetimeLeftMs: number
  /** the interpreter that jobs are forked from; absent when the profile has none */
  preload?: PreloadStatus
}

export interface PreloadStatus {
  python: string
  imports: string[]
  /** `off`: jobs are started as without it, for the reason in `why` */
  state: 'starting' | 'ready' | 'off'
  why?: string
  /** jobs that were forked, and those that could have been but were started anew */
  forked: number
  notForked: number
}

/** Who answers at an address. Nothing of it is secret; a probe is no use of the pod, and no contact with its broker. */
export interface RunnerIdentity {
  v: 1
  pod: string
  incarnation: string
  /** UUIDs of the GPUs that its container has; absent: none, or it does not know */
  gpus?: string[]
}

/** What the runner POSTs to JobSpec.outputTo, in order; a subscriber that fails is dropped, the job goes on. */
export interface OutputChunk {
  v: 1
  jobId: string
  stream: 'stdout' | 'stderr'
  /** of the first byte in the stream */
  offset: number
  base64: string
}

/**
 * Claims of a token: base64url(JSON) + '.' + base64url(Ed25519 signature over the first part).
 * `broker` may do everything on the pod but run jobs; `lease` acts under one epoch.
 */
export interface TokenClaims {
  v: 1
  pod: string
  scope: 'broker' | 'lease'
  epoch: number
  leaseId: string
  /** of a bind: whom the pod's node charges the seats of the epoch to; absent: nobody by name */
  tenant?: string
  /** ms since the epoch */
  expiresAtMs: number
}

export const HTTP_STATUS = {
  InvalidRequest: 400,
  PoolNotFound: 404,
  QueueFull: 503,
  QueueTimeout: 504,
  SlotBusy: 409,
  PodBusy: 429,
  BudgetExhausted: 503,
  SeatUnavailable: 503,
  PodStartFailed: 502,
  PodLost: 410,
  LeaseRevoked: 409,
  JobTimeout: 408,
  OutputTooLarge: 413,
  Cancelled: 499,
} as const

/** Body of every answer that is not 2xx. */
export interface ErrorReply {
  v: 1
  problem: Problem
}

/**
 * Environment of the runner process: how a backend starts one.
 * Nothing here is secret: the key is the broker's PUBLIC key.
 */
export interface RunnerEnv {
  FIREPOOL_POD: string
  /** a folder of the pod's own; the runner makes home/, work/ and jobs/ in it */
  FIREPOOL_POD_DIR: string
  /** address to listen on; port 0 lets the system choose */
  FIREPOOL_LISTEN: string
  /** base64 of the broker's raw 32-byte Ed25519 public key */
  FIREPOOL_BROKER_KEY: string
  FIREPOOL_LIFETIME_MS: string
  FIREPOOL_BROKER_GONE_MS: string
  /** imitated cold start, ms to wait before it listens; 0 for none */
  FIREPOOL_START_DELAY_MS: string
  /** JSON of Profile, as far as jobs need it: env, limits, prepare, preload, names of secrets */
  FIREPOOL_PROFILE: string
  /** the folder in which the pod finds secrets, a file for each, under its name */
  FIREPOOL_SECRETS?: string
  /** a file that takes RunnerFailed as well, where the system reads why a container ended */
  FIREPOOL_TERMINATION_LOG?: string
}

/** What the runner writes to FIREPOOL_POD_DIR/ready.json, atomically, once it listens. */
export interface RunnerReady {
  v: 1
  pid: number
  address: string
  incarnation: string
}

/** And to failed.json when it cannot start; to FIREPOOL_TERMINATION_LOG also when it ends itself. */
export interface RunnerFailed {
  v: 1
  reason: string
  message: string
}
