/**
 * Every bound and every default time of Firepool in one table, each with its reason.
 * Sizes are bytes, times are milliseconds; the names say so.
 */

const SECOND = 1_000
const MINUTE = 60 * SECOND
const HOUR = 60 * MINUTE

/** Defaults of every time-out. A profile or a call may set those marked (settable). */
export const TIMEOUT = {
  /** (settable) how long a request may wait for a pod before QueueTimeout */
  acquireMs: 5 * MINUTE,
  /**
   * past its acquireTimeout a caller whose pool has said nothing ends by itself. The pool is to tell first, because it knows
   * why: a signal and its answer take up to 10 s under load, each
   */
  poolSilentMs: 20 * SECOND,
  /** (settable) a job's own time limit, after which its process group is killed */
  jobMs: 10 * MINUTE,
  /** (settable) how long an idle pod stays with its caller */
  keepAliveMs: 60 * SECOND,
  /** the pod of a pinned lease that was released stays this long at least, for the same caller and slot alone */
  pinGraceMs: 30 * SECOND,
  /** (settable) from create to Ready; a GPU pod with its image takes 20-35 s, minutes without */
  podStartMs: 5 * MINUTE,
  /** (settable) a pod older than this is replaced at its next idle moment */
  podLifetimeMs: 12 * HOUR,
  /** past its lifetime a pod may finish its job this long; then it ends itself */
  podLifetimeGraceMs: 1 * HOUR,
  /** a runner that no broker spoke to for this long ends itself, jobs and all */
  brokerGoneMs: 15 * MINUTE,
  /** a job declared short is a local activity for this long; then it goes on as a normal one */
  shortJobMs: 2 * SECOND,
  /** SIGTERM to SIGKILL of a job's process group */
  killGraceMs: 2 * SECOND,
  /** heartbeat of firepool.run: a cancel arrives within 0.8 of it (measured: 2 s -> 0.44 s) */
  runHeartbeatMs: 2.5 * SECOND,
  /** firepool.run may outlive the job by this much: connect, transfer, one lost worker */
  runMarginMs: 2 * MINUTE,
  /** a result not acknowledged is held this long */
  resultHoldMs: 60 * SECOND,
  /** a result whose response was fully sent stops blocking a drain after this */
  resultSentMs: 5 * SECOND,
  /** firepool.awaitLease completes asynchronously; a token dies with its attempt */
  awaitLeaseMs: 60 * SECOND,
  /** (settable) a session that nobody used for this long ends */
  sessionTtlMs: 5 * MINUTE,
  /** one attempt of a lease workflow to tell the pool something: a local activity, so well below a workflow task's 10 s */
  tellPoolMs: 5 * SECOND,
  /** a one-call job that is over tells its pool for so long; after that the pool finds out by itself that its holder has ended */
  releaseMs: 60 * SECOND,
  /** a renewal that found its pool at the server's limit of signals is sent again after this */
  renewRetryMs: 2 * SECOND,
  /** one attempt of a pool effect (HTTP to runners, calls to the backend, signals) */
  effectMs: 30 * SECOND,
  /** one observation waits this long for a change before it reports that nothing changed */
  observeMs: 10 * MINUTE,
  /** heartbeat of the observation: a lost worker is noticed after this */
  observeHeartbeatMs: 5 * SECOND,
  /** holders older than this are described, this often: the backstop against leaked leases */
  reconcileMs: 30 * SECOND,
  /**
   * a lease held this long is told which pod it has, for its page: a signal and a workflow task of the lease, which a
   * lease of a few seconds does without (the pool's page and the holder's history name the pod at once)
   */
  announceMs: 10 * SECOND,
  /** a tombstone outlives its request's deadline by this */
  tombstoneMarginMs: 5 * MINUTE,
  /** after a pause of the pool longer than this, the inbox goes before anything expires */
  clockGapMs: 60 * SECOND,
  /** the breaker's first pause after repeated start failures; doubles up to breakerMaxMs */
  breakerMs: 5 * SECOND,
  breakerMaxMs: 5 * MINUTE,
  /**
   * once a new template has proven itself, a warm pod of an earlier one is its caller's for so long at most: the default
   * keep-alive, since one of hours would keep the earlier template in use for hours
   */
  rollIdleMs: 60 * SECOND,
  /**
   * a seat set on which no job got its GPUs has no new pods for so long, twice as long each time that it is told again, up to
   * breakerMaxMs: by then its pods are gone, so that its claim may get other GPUs, and a GPU that was slow to be given back is well
   */
  sickSetMs: 15 * SECOND,
  /** a failed effect is tried again after this */
  effectRetryMs: 1 * SECOND,
  /** a drain that found the pod unreachable is asked again after this */
  drainRetryMs: 2 * SECOND,
} as const

/** Bounds on what users give us. Each number in a spec has one (failure F8). */
export const LIMIT = {
  /** in the lease workflow's id, search attributes and the UI: a readable key, not a document */
  callerBytes: 512,
  /** reuse tag, slot and tenant are keys as well */
  keyBytes: 128,
  poolNameChars: 63,
  /** the server refuses ids over 1,000 characters and the USER's task then fails for ever */
  workflowIdBytes: 300,
  priorityMin: 0,
  priorityMax: 9,
  /** Temporal refuses payloads over 2 MB and the USER's task then fails for ever */
  jobBytes: 1_000_000,
  commandArgs: 10_000,
  envVars: 1_000,
  /** an environment of a process holds 128 KiB a variable on Linux; a secret is a key or a token */
  secretBytes: 64 * 1024,
  files: 1_000,
  /** modules of a profile's preload, and its seeds: a list for people to write */
  preloads: 100,
  acquireMsMax: 24 * HOUR,
  jobMsMin: 1,
  jobMsMax: 7 * 24 * HOUR,
  /** waiting requests of one pool: the state must fit a continue-as-new of at most stateBytes */
  queue: 2_000,
  /** pods of one pool entity, for the same reason */
  pods: 2_000,
  /** entities of one pool: each costs a workflow and an observation of its own */
  shards: 16,
  keepAliveMsMax: 24 * HOUR,
  /** signals may take 10 s under load, so a shorter pin could not be renewed in time */
  pinMsMin: 10 * SECOND,
  pinMsMax: 24 * HOUR,
  podStartMsMax: 1 * HOUR,
  podLifetimeMsMin: 1 * SECOND,
  podLifetimeMsMax: 30 * 24 * HOUR,
  /** a spec is configuration, it travels with every pod order */
  specBytes: 64_000,
  /** stdout and stderr inline: this much of the head and of the tail, each stream */
  outputHeadBytes: 32 * 1024,
  outputTailBytes: 32 * 1024,
  /** past this the job is killed with OutputTooLarge: a disk is finite */
  outputFileBytes: 4 * 1024 ** 3,
  /** files collected into a result, all together */
  collectBytes: 512 * 1024,
  /** jobs that wait in one runner; one runs at a time */
  runnerQueue: 16,
  /** results held in one runner; older acknowledged ones go first */
  runnerResults: 1_000,
  /** consecutive start failures that open the breaker (failure F7) */
  breakerFailures: 3,
  /** pods starting at once in one pool: a surge bound for the backend */
  starting: 100,
  /**
   * of the standby target, rounded up: pods of a new template that start beside those that serve, in each pool entity. A quarter
   * replaces the stock within four starts one after the other, for a quarter more pods meanwhile
   */
  surgePercent: 25,
  tombstones: 20_000,
  /** continue-as-new input: 2.3 MB TERMINATES a workflow */
  stateBytes: 1_500_000,
  /** admission stops here so that state in flight still fits below stateBytes */
  admissionBytes: 1_200_000,
  /** continue as new: signals are refused at 10,000, a history ends at 51,200 events */
  continueSignals: 8_000,
  continueSignalsForced: 9_000,
  /** then even with effects in flight (they are issued again under their ids): the server refuses signals at 10,000 */
  continueSignalsMust: 9_500,
  /**
   * A worker that starts reads a pool's whole history within one workflow task of 10 s: about 1 ms of CPU an event was
   * measured on two slow cores, where 11,000 events took 85 s to come back
   */
  continueEvents: 4_000,
  /** times continueEvents, under load that never pauses: what waits is carried over instead of issued */
  continueEventsForced: 1.5,
  /** times continueEvents: then even with effects in flight */
  continueEventsMust: 3,
  /** times that a renewal is sent to a pool at the server's limit of signals: it continues as new within seconds, or is stuck */
  renewTries: 4,
  /** the server refuses a run's updates at 2,000 */
  continueUpdates: 1_500,
  sessionTtlMsMax: 24 * HOUR,
  /** a session continues as new after so many jobs, when none runs: the server refuses a run's updates at 2,000 */
  sessionRuns: 500,
  /** then it takes no more before it has */
  sessionRunsMust: 1_500,
  /** answers that a session keeps for who asks again; they travel with its continue-as-new */
  sessionAnswers: 200,
  sessionAnswerBytes: 500_000,
  /** effects in one activity call, and calls in flight for each lane */
  effectBatch: 100,
  laneInFlight: 2,
  /** rows in one page of a query */
  pageRows: 500,
  /** holders described in one activity: about 1 s for 300 (measured) */
  describeBatch: 300,
} as const
