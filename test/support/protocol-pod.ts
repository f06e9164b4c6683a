import type { ObservedPod, PodOrder } from '../../src/contract/backend.js'
import { type Problem, problem } from '../../src/contract/errors.js'
import type { JobOutcome, JobResult } from '../../src/contract/job.js'
import type { JobRequest } from '../../src/contract/runner-api.js'
import { type EndDecision, Fence } from '../../src/runner/fence.js'
import type { Simulation } from './simulation.js'

/** What a client of a runner hears: an answer, a refusal, that nobody listens, or that the connection broke. */
export type Reply = { outcome: JobOutcome } | { refused: Problem } | 'unreachable' | 'broken'

export interface JobStart {
  pod: string
  jobId: string
  epoch: number
}

/** A pod of the model: the real fence, with jobs that take time in place of processes. */
export class ModelPod {
  fence: Fence
  phase: 'starting' | 'ready' | 'failed' | 'gone' = 'starting'
  incarnation: string
  private lives = 1
  private readonly waiting = new Map<string, ((reply: Reply) => void)[]>()
  readonly kills: string[] = []

  constructor(
    private readonly sim: Simulation,
    readonly order: PodOrder,
    private readonly onStart: (start: JobStart) => void,
  ) {
    this.incarnation = `${order.pod}#1`
    this.fence = new Fence({ incarnation: this.incarnation, nowMs: sim.now })
  }

  get listens(): boolean {
    return this.phase === 'ready'
  }

  seen(): ObservedPod {
    const { pod, generation } = this.order
    if (this.phase === 'ready')
      return { pod, generation, phase: 'ready', address: `http://${pod}`, incarnation: this.incarnation }
    return { pod, generation, phase: this.phase }
  }

  /** POST /jobs; `reply` is called once, when there is an answer or the connection breaks. */
  post(request: JobRequest, tokenEpoch: number, reply: (reply: Reply) => void): void {
    const decision = this.fence.post(request, tokenEpoch, this.sim.now)
    if (decision.kind === 'refuse') {
      reply({ refused: decision.problem })
      return
    }
    if (decision.kind === 'answer') {
      this.fence.sent(request.jobId, this.sim.now)
      reply({ outcome: decision.outcome })
      return
    }
    const others = this.waiting.get(request.jobId)
    if (others) others.push(reply)
    else this.waiting.set(request.jobId, [reply])
    if (decision.kind === 'start') this.start(request)
  }

  /** Carries out what a bind, cancel or revoke decided. */
  end(decision: EndDecision, why: 'cancelled' | 'revoked'): void {
    for (const { jobId, outcome } of decision.ended) this.answer(jobId, outcome)
    if (decision.kill === null) return
    const jobId = decision.kill
    const { lives } = this
    this.kills.push(`${jobId} ${why}`)
    const over =
      why === 'cancelled'
        ? problem('Cancelled', `${jobId} was cancelled`)
        : problem('PodLost', `${jobId} ran when its lease ended`, { reason: 'Revoked' })
    this.sim.at(this.sim.random.int(0, 50), () =>
      this.finish(lives, jobId, { kind: 'problem', problem: over }),
    )
  }

  /** The pod or its runner dies: everything in it is gone, connections break. */
  die(how: 'failed' | 'gone' | 'restart'): void {
    const earlier = { epoch: this.fence.epoch, ownerHash: this.ownerHash ?? '' }
    this.lives++
    for (const replies of this.waiting.values()) for (const reply of replies) reply('broken')
    this.waiting.clear()
    if (how !== 'restart') {
      this.phase = how
      return
    }
    this.incarnation = `${this.order.pod}#${this.lives}`
    this.fence = new Fence({
      incarnation: this.incarnation,
      nowMs: this.sim.now,
      earlier: earlier.epoch > 0 ? earlier : undefined,
    })
  }

  ownerHash: string | null = null

  private start(request: JobRequest): void {
    const { jobId, epoch, spec } = request
    this.onStart({ pod: this.order.pod, jobId, epoch })
    const { lives } = this
    this.sim.at(Number(spec.timeout), () =>
      this.finish(lives, jobId, { kind: 'result', result: this.result(jobId, epoch) }),
    )
  }

  private finish(lives: number, jobId: string, outcome: JobOutcome): void {
    if (lives !== this.lives || this.fence.running !== jobId) return
    const { start } = this.fence.finish(jobId, outcome, 100, this.sim.now)
    this.answer(jobId, outcome)
    if (start) this.start(start)
  }

  private answer(jobId: string, outcome: JobOutcome): void {
    const replies = this.waiting.get(jobId) ?? []
    this.waiting.delete(jobId)
    if (replies.length > 0) this.fence.sent(jobId, this.sim.now)
    for (const reply of replies) reply({ outcome })
  }

  private result(jobId: string, epoch: number): JobResult {
    const stream = { bytes: 0, truncated: false }
    return {
      v: 1,
      jobId,
      exitCode: 0,
      signal: null,
      stdout: jobId,
      stderr: '',
      output: { stdout: stream, stderr: stream },
      files: [],
      missing: [],
      durationMs: 1,
      pod: this.order.pod,
      epoch,
    }
  }
}
