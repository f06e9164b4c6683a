import { createReadStream } from 'node:fs'
import type { IncomingMessage, ServerResponse } from 'node:http'
import { performance } from 'node:perf_hooks'
import { pipeline } from 'node:stream/promises'
import {
  CONTRACT_VERSION,
  FirepoolError,
  type JobOutcome,
  type JobRequest,
  LIMIT,
  type Problem,
  problem,
  type RunnerIdentity,
  type RunnerStatus,
  type TokenClaims,
} from '../contract/index.js'
import { createVerifier, type Verifier } from '../token/token.js'
import { type EndDecision, Fence, type FenceInit } from './fence.js'
import { dropOutputFiles, openForRead, openUpload, outputName } from './folder.js'
import { type JobPlace, JobProcess, type KillReason } from './process.js'
import { killMarked } from './process-tree.js'
import { uselessBy } from './seat.js'
import {
  ackRequest,
  bindRequest,
  cancelRequest,
  drainRequest,
  jobRequest,
  promoteRequest,
  revokeRequest,
} from './validation.js'
import { reply, replyProblem, send, withJson } from './wire.js'

/** of the body of a refused call, what is read only to keep the connection */
const UNWANTED_BYTES_MAX = 64 * 1024 * 1024

/** What the runner is made of. */
export interface RunnerOptions {
  place: JobPlace
  /** the broker's raw 32-byte public key, base64 */
  brokerKey: string
  lifetimeMs: number
  /** UUIDs of the GPUs of its container */
  gpus?: string[]
  earlier?: FenceInit['earlier']
  fenceLimits?: FenceInit['limits']
  /** called before a bind is answered: what must outlive this process */
  onBound?: (epoch: number, ownerHash: string) => void
  /** called once no job can be run in this pod any more, after its callers were answered */
  onUseless?: (reason: string, message: string) => void
}

interface Call {
  req: IncomingMessage
  res: ServerResponse
  claims: TokenClaims
  /** what stands behind the question mark */
  query: string
}

interface Route {
  scopes: readonly TokenClaims['scope'][]
  /** with the body read and parsed, where `body` is set; else the handler reads it */
  json?: (call: Call, body: unknown, bytes: number) => Promise<void> | void
  stream?: (call: Call) => Promise<void> | void
}

const BROKER = ['broker'] as const
const LEASE = ['lease'] as const
const BOTH = ['broker', 'lease'] as const

/** The shell around the fence: HTTP in, decisions out, processes started and ended. */
export class RunnerApp {
  readonly fence: Fence
  readonly #options: RunnerOptions
  readonly #verify: Verifier
  readonly #routes: Record<string, Route>
  readonly #bornAtMs = performance.now()
  #lastContactMs = performance.now()
  /** connections that wait for a job's outcome */
  readonly #attached = new Map<string, Set<ServerResponse>>()
  #process: JobProcess | null = null
  #files = 0
  /** the newest epoch that onBound has saved */
  #savedEpoch = 0
  /** why no job can be run here any more, when that was said by no job */
  #useless: { reason: string; message: string } | null = null

  constructor(options: RunnerOptions) {
    this.#options = options
    const { pod, incarnation } = options.place
    this.#verify = createVerifier(options.brokerKey, pod)
    options.place.seats?.onUseless?.((reason, message) => this.#becameUseless({ reason, message }))
    this.fence = new Fence({
      incarnation,
      nowMs: performance.now(),
      earlier: options.earlier,
      limits: options.fenceLimits,
    })
    this.#routes = {
      'POST /jobs': { scopes: LEASE, json: (call, body, bytes) => this.#postJob(call, body, bytes) },
      'POST /ack': { scopes: BOTH, json: (call, body) => this.#postAck(call, body) },
      'POST /cancel': { scopes: BOTH, json: (call, body) => this.#postCancel(call, body) },
      'POST /bind': { scopes: BROKER, json: (call, body) => this.#postBind(call, body) },
      'POST /revoke': { scopes: BROKER, json: (call, body) => this.#postRevoke(call, body) },
      'POST /drain': { scopes: BROKER, json: (call, body) => this.#postDrain(call, body) },
      'POST /promote': { scopes: BROKER, json: (call, body) => this.#postPromote(call, body) },
      'GET /status': { scopes: BOTH, stream: (call) => reply(call.res, 200, this.status()) },
      'GET /files': { scopes: BOTH, stream: (call) => this.#getFile(call) },
      'PUT /files': { scopes: BOTH, stream: (call) => this.#putFile(call) },
    }
    this.#forkAhead()
  }

  /** called when a drain has succeeded: the connections that clients keep are to be closed */
  onDrained: () => void = () => {}

  /** How long ago the broker or a lease was last heard, ms; a client that waits for its job is heard all the time. */
  sinceContactMs(): number {
    if (this.#attached.size > 0) this.#lastContactMs = performance.now()
    return performance.now() - this.#lastContactMs
  }

  ageMs(): number {
    return performance.now() - this.#bornAtMs
  }

  isOccupied(): boolean {
    return this.fence.isOccupied(performance.now())
  }

  status(): RunnerStatus {
    const now = performance.now()
    const { fence } = this
    const { zygote } = this.#options.place
    return {
      v: 1,
      pod: this.#options.place.pod,
      incarnation: this.#options.place.incarnation,
      epoch: fence.epoch,
      state: fence.state,
      useSeq: fence.useSeq,
      running: fence.running,
      waiting: fence.waiting,
      undelivered: fence.undelivered(now),
      idleMs: fence.idleMs(now),
      lifetimeLeftMs: Math.max(0, this.#options.lifetimeMs - this.ageMs()),
      ...(zygote === undefined ? {} : { preload: zygote.status() }),
    }
  }

  identity(): RunnerIdentity {
    const { place, gpus = [] } = this.#options
    const { pod, incarnation } = place
    return { v: CONTRACT_VERSION, pod, incarnation, ...(gpus.length > 0 ? { gpus } : {}) }
  }

  /** Answers one request. Never throws, never rejects. */
  handle(req: IncomingMessage, res: ServerResponse): void {
    const fail = (error: unknown) => this.#failed(req, res, error)
    try {
      const url = req.url ?? ''
      const mark = url.indexOf('?')
      const path = mark < 0 ? url : url.slice(0, mark)
      const name = `${req.method} ${path}`
      if (name === 'GET /ready') {
        reply(res, 200, this.identity())
        return
      }
      const route = Object.hasOwn(this.#routes, name) ? this.#routes[name] : undefined
      if (route === undefined) throw new FirepoolError(noRoute(name))
      const token = this.#verify(req.headers.authorization, route.scopes, Date.now())
      if ('problem' in token) throw new FirepoolError(token.problem)
      if (token.claims.scope === 'lease' && this.fence.isOtherLease(token.claims.epoch, token.claims.leaseId))
        throw new FirepoolError(otherLease())
      this.#lastContactMs = performance.now()
      if (token.claims.scope === 'lease') this.#options.place.seats?.heard?.(req.headers.authorization!)
      const call = { req, res, claims: token.claims, query: mark < 0 ? '' : url.slice(mark + 1) }
      if (route.json !== undefined) withJson(req, fail, (body, bytes) => route.json?.(call, body, bytes))
      else route.stream?.(call)?.catch(fail)
    } catch (error) {
      fail(error)
    }
  }

  #postJob({ res, claims }: Call, body: unknown, bytes: number): void {
    const request = jobRequest(body, bytes)
    const decision = this.fence.post(request, claims.epoch, performance.now())
    switch (decision.kind) {
      case 'start':
        this.#attach(request.jobId, res)
        this.#start(decision.request)
        break
      case 'attach':
        this.#attach(request.jobId, res)
        break
      case 'answer':
        this.#answer(res, request.jobId, JSON.stringify({ v: 1, outcome: decision.outcome }))
        break
      case 'refuse':
        replyProblem(res, decision.problem)
    }
  }

  #attach(jobId: string, res: ServerResponse): void {
    let attached = this.#attached.get(jobId)
    if (attached === undefined) {
      attached = new Set()
      this.#attached.set(jobId, attached)
    }
    attached.add(res)
    res.on('close', () => {
      // A client that goes away detaches; its job goes on.
      const rest = this.#attached.get(jobId)
      if (rest?.delete(res) === true && rest.size === 0) {
        this.#attached.delete(jobId)
        this.#lastContactMs = performance.now()
      }
    })
  }

  #start(request: JobRequest): void {
    const { place } = this.#options
    const job = new JobProcess(request, place, outputName(request.epoch, place.incarnation, ++this.#files))
    this.#process = job
    void job.done.then((outcome) => this.#finished(request.jobId, outcome))
  }

  #finished(jobId: string, outcome: JobOutcome): void {
    const body = JSON.stringify({ v: 1, outcome })
    this.#process = null
    const useless = uselessBy(outcome) ?? this.#useless
    if (useless !== null) this.#answerEnded(this.fence.close().ended)
    const { start } = this.fence.finish(jobId, outcome, 2 * body.length, performance.now())
    this.#answerAttached(jobId, body)
    if (start !== null) this.#start(start)
    else this.#forkAhead()
    if (useless !== null) this.#options.onUseless?.(useless.reason, useless.message)
  }

  /** Said while no job runs, or by its end. */
  #becameUseless(why: { reason: string; message: string }): void {
    this.#useless ??= why
    if (this.#process !== null) return
    this.#answerEnded(this.fence.close().ended)
    this.#options.onUseless?.(this.#useless.reason, this.#useless.message)
  }

  #answerAttached(jobId: string, body: string): void {
    const attached = this.#attached.get(jobId)
    if (attached === undefined) return
    this.#attached.delete(jobId)
    this.#lastContactMs = performance.now()
    for (const res of attached) this.#answer(res, jobId, body)
  }

  #answer(res: ServerResponse, jobId: string, body: string): void {
    res.on('finish', () => this.fence.sent(jobId, performance.now()))
    send(res, 200, body)
  }

  /** Jobs that will never start: each is answered as a post would be refused now. */
  #answerEnded(ended: EndDecision['ended']): void {
    for (const { jobId, outcome } of ended) {
      const attached = this.#attached.get(jobId)
      this.#attached.delete(jobId)
      for (const res of attached ?? []) {
        if (outcome.kind === 'problem') replyProblem(res, outcome.problem)
      }
    }
  }

  #postAck({ res, claims }: Call, body: unknown): void {
    const refused = this.fence.ack(ackRequest(body), epochOf(claims))
    if (refused) replyProblem(res, refused)
    else reply(res, 200, {})
  }

  #postCancel({ res, claims }: Call, body: unknown): void {
    const decision = this.fence.cancel(cancelRequest(body).jobId, epochOf(claims))
    if ('problem' in decision) {
      replyProblem(res, decision.problem)
      return
    }
    if (decision.reply.kill !== null) this.#process?.kill('cancelled')
    this.#answerEnded(decision.reply.ended)
    reply(res, 200, {})
  }

  #postBind({ res, claims }: Call, body: unknown): void {
    const request = bindRequest(body)
    const decision = this.fence.bind(request, performance.now())
    this.#answerEnded(decision.ended)
    if ('problem' in decision) {
      replyProblem(res, decision.problem)
      return
    }
    this.#options.place.seats?.bound?.(request.epoch, claims.tenant ?? '')
    if (request.epoch > this.#savedEpoch) {
      // A throw here fails the call, and the broker's next try comes here again.
      this.#options.onBound?.(request.epoch, request.ownerHash)
      this.#savedEpoch = request.epoch
      void dropOutputFiles(this.#options.place.folders, request.epoch)
      void this.#leaveEpochs(request.epoch - 1)
    }
    reply(res, 200, decision.reply)
  }

  async #postRevoke({ res }: Call, body: unknown): Promise<void> {
    const { epoch } = revokeRequest(body)
    await this.#endJobs(this.fence.revoke(epoch), 'revoked', epoch)
    reply(res, 200, {})
  }

  /** Answered only when nothing of the ended epochs runs any more. */
  async #endJobs(
    decision: EndDecision,
    reason: KillReason,
    epochMax = Number.POSITIVE_INFINITY,
  ): Promise<void> {
    const running = decision.kill === null ? null : this.#process
    running?.kill(reason)
    this.#answerEnded(decision.ended)
    await this.#killLeftovers(epochMax)
    await running?.done
    // A process that was on its way to its exec during the first look carries its marker now.
    if (running !== null) await this.#killLeftovers(epochMax)
    await this.#options.place.seats?.endEpochs(epochMax)
    this.#forkAhead()
  }

  /** A new epoch has begun. A job of an earlier one may go on; a seat that none of their jobs uses is given back, without their processes. */
  async #leaveEpochs(epochMax: number): Promise<void> {
    const { seats } = this.#options.place
    if (seats?.holds(epochMax)) await this.#killLeftovers(epochMax)
    await seats?.endEpochs(epochMax)
    this.#forkAhead()
  }

  /** The next job's process, when there is an interpreter to fork it from, and nothing that it could be taken for a part of. */
  #forkAhead(): void {
    const { zygote, seats } = this.#options.place
    const isAtRest = this.#process === null && this.fence.state !== 'draining' && seats?.hasNone() !== false
    if (isAtRest) zygote?.forkAhead()
  }

  async #killLeftovers(epochMax: number): Promise<void> {
    const { pod, incarnation, log } = this.#options.place
    const env = { FIREPOOL_POD: pod, FIREPOOL_INCARNATION: incarnation }
    const killed = await killMarked({ env, epochMax })
    if (killed > 0) log(`killed ${killed} processes that jobs had left`)
  }

  async #postDrain({ res }: Call, body: unknown): Promise<void> {
    const answer = this.fence.drain(drainRequest(body), performance.now())
    if (answer.drained) {
      // This runner ends soon. A job sent over a kept connection in that moment would find it broken, and nobody could
      // tell that it never started; over a new one it is refused with LeaseRevoked, or nobody listens.
      res.shouldKeepAlive = false
      this.onDrained()
      this.#options.place.zygote?.drop()
      await this.#killLeftovers(Number.POSITIVE_INFINITY)
      await this.#options.place.seats?.endEpochs(Number.POSITIVE_INFINITY)
    }
    reply(res, 200, answer)
  }

  #postPromote({ res }: Call, body: unknown): void {
    promoteRequest(body)
    const refused = this.fence.promoteProblem()
    if (refused) replyProblem(res, refused)
    else reply(res, 200, this.status())
  }

  async #getFile(call: Call): Promise<void> {
    const { res } = call
    const path = this.#filePath(call)
    const file = await openForRead(this.#options.place.folders, path)
    res.writeHead(200, { 'content-type': 'application/octet-stream', 'content-length': file.bytes })
    if (file.bytes === 0) {
      await file.handle.close()
      res.end()
      return
    }
    // To the size that was announced: the file of a running job may grow meanwhile.
    const source = createReadStream('', { fd: file.handle, start: 0, end: file.bytes - 1 })
    await pipeline(source, res)
  }

  async #putFile(call: Call): Promise<void> {
    const { req, res } = call
    const path = this.#filePath(call)
    const name = `${this.#options.place.incarnation}-${++this.#files}.upload`
    const upload = await openUpload(this.#options.place.folders, path, name)
    try {
      let bytes = 0
      for await (const chunk of req.iterator({ destroyOnReturn: false }) as AsyncIterable<Buffer>) {
        bytes += chunk.length
        if (bytes > LIMIT.outputFileBytes)
          throw new FirepoolError(
            problem(
              'InvalidRequest',
              `A file of more than ${LIMIT.outputFileBytes} bytes is refused. Split it.`,
            ),
          )
        await upload.handle.writeFile(chunk)
      }
      await upload.commit()
    } catch (error) {
      await upload.abort()
      throw error
    }
    reply(res, 200, {})
  }

  #filePath(call: Call): string {
    const { claims, query } = call
    const refused = claims.scope === 'broker' ? undefined : this.fence.leaseProblem(claims.epoch)
    if (refused) throw new FirepoolError(refused)
    const path = new URLSearchParams(query).get('path')
    if (path === null)
      throw new FirepoolError(
        problem('InvalidRequest', 'Name the file: /files?path=<path in the work folder>.'),
      )
    return path
  }

  /** Ends everything in the pod. Resolves when nothing of it runs and the clients that waited were answered. */
  async close(): Promise<void> {
    await this.#endJobs(this.fence.close(), 'ended')
  }

  #failed(req: IncomingMessage, res: ServerResponse, error: unknown): void {
    if (res.headersSent || res.destroyed) {
      res.destroy()
      return
    }
    // node reads the rest of the body, so that the client gets to see the answer; but not for ever.
    const restBytes = Number(req.headers['content-length'] ?? Number.NaN)
    if (!req.complete && !(restBytes <= UNWANTED_BYTES_MAX)) res.setHeader('connection', 'close')
    if (error instanceof FirepoolError) {
      replyProblem(res, error.problem)
      return
    }
    const text = error instanceof Error ? (error.stack ?? error.message) : String(error)
    this.#options.place.log(`${req.method} ${req.url?.slice(0, 100)} failed: ${text}`)
    replyProblem(
      res,
      problem('PodLost', 'The runner failed while it handled the call; its log says why. Replace the pod.', {
        reason: 'RunnerFailed',
      }),
    )
  }
}

/** The epoch that a token acts under; null for the broker, who may act under all. */
function epochOf(claims: TokenClaims): number | null {
  return claims.scope === 'broker' ? null : claims.epoch
}

function otherLease(): Problem {
  return problem(
    'InvalidRequest',
    'The token is for another lease of this pod. Ask for one with the grant as it came.',
    {
      reason: 'TokenForAnotherLease',
    },
  )
}

function noRoute(name: string): Problem {
  return problem(
    'InvalidRequest',
    `The runner has no ${name.slice(0, 100)}. See its API, and that worker and pod image have matching versions.`,
  )
}
