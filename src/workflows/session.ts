import { sha256 } from '@noble/hashes/sha2.js'
import { bytesToHex, utf8ToBytes } from '@noble/hashes/utils.js'
import {
  allHandlersFinished,
  CancellationScope,
  condition,
  continueAsNew,
  currentUpdateInfo,
  defineSignal,
  defineUpdate,
  isCancellation,
  setCurrentDetails,
  setHandler,
  sleep,
  workflowInfo,
} from '@temporalio/workflow'
import { canonicalJson } from '../contract/canonical.js'
import { asOptions, utf8Bytes } from '../contract/check.js'
import { type CheckedSession, checkSession, checkSessionRun } from '../contract/check-session.js'
import { problem } from '../contract/errors.js'
import type { JobOutcome, JobResult, JobSpec } from '../contract/job.js'
import { LIMIT } from '../contract/limits.js'
import { SESSION_UPDATE, SIGNAL } from '../contract/names.js'
import type { SessionAnswer, SessionEnd, SessionInput, SessionRun } from '../contract/session.js'
import { openPool, type Sandbox } from './caller.js'
import { checkArgument, checkInput, decodedResult } from './decoded.js'
import { checkedValue, failureOf, problemOf } from './failure.js'
import { LAST_LINE, plain } from './markdown.js'

/**
 * The workflow `firepool.session`: a sandbox for services that have no workflow of their own. Jobs come as updates, by
 * update-with-start; the lease is held between them, and given back when nobody used it for `ttl`.
 * @throws ApplicationFailure of type InvalidRequest for bad input
 */
export async function session(input: SessionInput): Promise<SessionEnd> {
  return await started(input).live()
}

function started(input: SessionInput): Session {
  try {
    return new Session(input)
  } catch (error) {
    // Who started it by its first job waits for the answer to that, and would hear that there is no such update.
    const refuse = (_: SessionRun): never => {
      throw error
    }
    setHandler(defineUpdate<JobResult, [SessionRun]>(SESSION_UPDATE.run), refuse, { validator: refuse })
    throw error
  }
}

class Session {
  private readonly checked: CheckedSession
  private readonly sandbox: Sandbox
  /** what was run, and what is asked under each key now; an answer is kept for who did not hear it */
  private readonly answers = new Map<string, SessionAnswer>()
  private readonly open = new Map<string, { digest: string; outcome: Promise<JobOutcome> }>()
  private answerBytes = 0
  private jobs: number
  private runs = 0
  private ended = false
  private closing = false
  private renew = false
  private lastUse = Date.now()

  constructor(private readonly input: SessionInput) {
    checkInput(input, 'the input of this session')
    this.checked = checkedValue(checkSession(input, workflowInfo().workflowId))
    const { pool, acquire, onPodLost } = this.checked
    this.sandbox = openPool(pool, { ...asOptions(acquire), onPodLost })
    this.jobs = input.carried?.jobs ?? 0
    for (const answer of input.carried?.answers ?? []) this.keep(answer)
    this.listen()
    this.show()
  }

  async live(): Promise<SessionEnd> {
    try {
      for (;;) {
        await condition(() => this.quiet)
        const seen = this.lastUse
        const leftMs = seen + this.checked.ttlMs - Date.now()
        if (leftMs <= 0 || this.ended || this.full) {
          if (await this.close()) break
          continue
        }
        await condition(() => this.ended || this.full || this.lastUse !== seen || !this.quiet, leftMs)
      }
    } catch (error) {
      if (!isCancellation(error)) throw error
      this.closing = true
      // Its jobs are cancelled with it; their callers are told before it ends.
      await CancellationScope.nonCancellable(async () => {
        await condition(() => this.quiet)
        await this.sandbox.release()
      })
      throw error
    }
    return { v: 1, end: this.ended ? 'ended' : 'expired', jobs: this.jobs }
  }

  /**
   * Ends, or continues as new when it is not over: the pod is given back, and stays warm for the next run to take again.
   * @returns false when somebody came meanwhile
   */
  private async close(): Promise<boolean> {
    // Not in the task that answers an update: the server may refuse the whole task, and then the answer is lost.
    await sleep(1)
    if (!this.quiet) return false
    this.closing = true
    await this.sandbox.release()
    const over = this.ended || Date.now() - this.lastUse >= this.checked.ttlMs
    if (over) return true
    const carried = { jobs: this.jobs, answers: [...this.answers.values()] }
    return await continueAsNew<typeof session>({ ...this.input, carried })
  }

  private get quiet(): boolean {
    return allHandlersFinished()
  }

  /** The server takes a bounded number of updates in one run. */
  private get full(): boolean {
    return this.renew || this.runs >= LIMIT.sessionRuns || workflowInfo().continueAsNewSuggested
  }

  private listen(): void {
    setHandler(defineSignal(SIGNAL.endSession), () => {
      this.ended = true
    })
    setHandler(defineSignal(SIGNAL.renewSession), () => {
      this.renew = true
    })
    setHandler(
      defineUpdate<JobResult, [SessionRun]>(SESSION_UPDATE.run),
      async (given) => {
        const { job, key } = checkedValue(checkSessionRun(given))
        const outcome = await this.answer(key ?? currentUpdateInfo()!.id, job)
        if (outcome.kind === 'problem') throw failureOf(outcome.problem)
        return outcome.result
      },
      {
        validator: (given) => {
          checkArgument(given, SESSION_UPDATE.run)
          checkedValue(checkSessionRun(given))
          // Refused, not queued: what a run has accepted it must answer before it can end or continue as new.
          if (this.closing || this.runs >= LIMIT.sessionRunsMust) throw failureOf(MOVES)
        },
      },
    )
  }

  private async answer(key: string, job: JobSpec): Promise<JobOutcome> {
    const digest = bytesToHex(sha256(utf8ToBytes(canonicalJson(job))))
    const known = this.answers.get(key) ?? this.open.get(key)
    if (known) {
      if (known.digest === digest) return await known.outcome
      return { kind: 'problem', problem: problem('InvalidRequest', OTHER_JOB, { reason: 'DigestMismatch' }) }
    }
    const outcome = this.run(key, digest, job)
    this.open.set(key, { digest, outcome })
    return await outcome
  }

  private async run(key: string, digest: string, job: JobSpec): Promise<JobOutcome> {
    this.runs++
    let outcome: JobOutcome
    try {
      outcome = { kind: 'result', result: decodedResult(await this.sandbox.run(job)) }
    } catch (error) {
      const known = isCancellation(error)
        ? problem('Cancelled', 'the session was cancelled')
        : problemOf(error)
      if (known === null) throw error
      outcome = { kind: 'problem', problem: known }
    } finally {
      this.open.delete(key)
      this.lastUse = Date.now()
      this.show()
    }
    this.jobs++
    // Whatever certainly never started may be asked again under the same key.
    if (mayHaveStarted(outcome)) this.keep({ key, digest, outcome })
    return outcome
  }

  /** Keeps an answer, and drops the oldest ones beyond what a continue-as-new may carry. */
  private keep(answer: SessionAnswer): void {
    this.answers.set(answer.key, answer)
    this.answerBytes += bytesOf(answer)
    for (const [key, oldest] of this.answers) {
      const { sessionAnswers, sessionAnswerBytes } = LIMIT
      if (this.answers.size <= sessionAnswers && this.answerBytes <= sessionAnswerBytes) return
      this.answers.delete(key)
      this.answerBytes -= bytesOf(oldest)
    }
  }

  private show(): void {
    const { pool, acquire, ttlMs } = this.checked
    setCurrentDetails(
      [
        `### Session on pool ${pool}: ${this.jobs} jobs`,
        [
          `- **Caller**: ${plain(acquire.caller)}, slot ${plain(acquire.slot)}`,
          `- **Pod**: ${this.sandbox.pod ?? 'none held; the next job acquires one'}`,
          `- **Ends** when it was not used for ${ttlMs / 1_000} s, or by signal ${SIGNAL.endSession}`,
        ].join('\n'),
        LAST_LINE,
      ].join('\n\n'),
    )
  }
}

const OTHER_JOB = 'another job was asked for under this key; give each job a key of its own'

/** To somebody who asks in the moment when a run of the session ends. The client asks again. */
const MOVES = problem('LeaseRevoked', 'the session ends or continues as new at this moment; ask again', {
  reason: 'SessionMoves',
})

function mayHaveStarted(outcome: JobOutcome): boolean {
  if (outcome.kind === 'result') return true
  const { code, origin } = outcome.problem
  return origin === 'job' || code === 'PodLost' || code === 'Cancelled'
}

function bytesOf(answer: SessionAnswer): number {
  return utf8Bytes(JSON.stringify(answer))
}
