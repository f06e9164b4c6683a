import { setTimeout as pause } from 'node:timers/promises'
import type { Client, WorkflowHandle } from '@temporalio/client'
import type { InjectedSinks } from '@temporalio/worker'
import { Random } from '../test/support/random.js'
import type { askSignal, ScaleSinks } from './workflows.js'

const LOOK_MS = 50

/** What became of one request. Times are ms since the epoch, by the clock of this machine. */
export interface Asked {
  dueAtMs: number
  caller: string
  askedAtMs?: number
  grantedAtMs?: number
  hit?: string
  inPoolMs?: number
  isOver?: boolean
  failed?: string
}

export interface OpenLoop {
  perSecond: number
  seconds: number
  /** of 100 requests so many are of callers that were not there before; the others are of those who came back last */
  freshPercent: number
}

/**
 * Callers of a pool. A few workflows ask for all of them, as trainers ask for their rollouts. A request counts from the moment when
 * it is due, whatever keeps it from being sent: a system that is behind must not slow down what is asked of it.
 */
export class ScaleLoad {
  readonly asked: Asked[] = []
  readonly sinks: InjectedSinks<ScaleSinks>
  private readonly random: Random
  private callers = 0
  private readonly idle: string[] = []
  private crowds: WorkflowHandle[] = []
  /** the first of those that are asked for now */
  private from = 0

  constructor(
    private readonly pool: string,
    private readonly holdMs: number,
    seed: number,
    private readonly signal: AbortSignal,
  ) {
    this.random = new Random(seed)
    const once = <A extends unknown[]>(fn: (request: number, ...rest: A) => void) => ({
      fn: (_: unknown, request: number, ...rest: A) => fn(request, ...rest),
      callDuringReplay: false,
    })
    this.sinks = {
      scale: {
        granted: once((request, askedAtMs: number, hit: string, inPoolMs: number) =>
          Object.assign(this.asked[request]!, { askedAtMs, hit, inPoolMs, grantedAtMs: Date.now() }),
        ),
        ended: once((request) => {
          const { caller } = Object.assign(this.asked[request]!, { isOver: true })
          this.idle.push(caller)
        }),
        failed: once((request, why: string) =>
          Object.assign(this.asked[request]!, { isOver: true, failed: why }),
        ),
      },
    }
  }

  /** Starts the workflows that ask, before anything is measured. */
  async begin(client: Client, crowds: number): Promise<void> {
    const ids = Array.from({ length: crowds }, (_, n) => `crowd-${n}`)
    this.crowds = await Promise.all(
      ids.map((workflowId) =>
        client.workflow.start('crowd', { workflowId, taskQueue: 'bench', args: [this.pool, this.holdMs] }),
      ),
    )
  }

  /** Requests of new callers, all in one moment. @returns what became of them */
  async burst(count: number, limitMs: number): Promise<Asked[]> {
    this.from = this.asked.length
    const dueAtMs = Date.now()
    for (let i = 0; i < count; i++) this.send(this.newCaller(), dueAtMs)
    return this.settled(limitMs)
  }

  /** Requests that come by chance at a steady rate, whatever becomes of those before. @returns what became of them */
  async openLoop({ perSecond, seconds, freshPercent }: OpenLoop, limitMs: number): Promise<Asked[]> {
    this.from = this.asked.length
    const beganAtMs = Date.now()
    const endAtMs = beganAtMs + seconds * 1_000
    const gapMs = () => (-Math.log(1 - this.random.next()) * 1_000) / perSecond
    for (let dueAtMs = beganAtMs + gapMs(); dueAtMs < endAtMs; dueAtMs += gapMs()) {
      const waitMs = dueAtMs - Date.now()
      if (waitMs > 0) await pause(waitMs, undefined, { signal: this.signal })
      const isFresh = this.random.next() * 100 < freshPercent
      this.send(isFresh ? this.newCaller() : (this.idle.pop() ?? this.newCaller()), dueAtMs)
    }
    return this.settled(limitMs)
  }

  private newCaller(): string {
    return `agent-${++this.callers}`
  }

  private send(caller: string, dueAtMs: number): void {
    const request = this.asked.push({ dueAtMs, caller }) - 1
    const crowd = this.crowds[request % this.crowds.length]!
    const name: (typeof askSignal)['name'] = 'ask'
    crowd
      .signal(name, request, caller)
      .catch(
        (error: Error) => void Object.assign(this.asked[request]!, { isOver: true, failed: error.message }),
      )
  }

  get isAsking(): boolean {
    return this.asked.slice(this.from).some(({ isOver }) => !isOver)
  }

  /** For people. */
  progress(): string {
    const mine = this.asked.slice(this.from)
    const count = (is: (asked: Asked) => unknown) => mine.filter(is).length
    const granted = count(({ grantedAtMs }) => grantedAtMs !== undefined)
    const over = count(({ isOver }) => isOver)
    return `${mine.length} asked, ${granted} granted, ${over} over, ${count(({ failed }) => failed !== undefined)} of them failed`
  }

  /** Waits until all that are asked for now are over, or for so long. */
  private async settled(limitMs: number): Promise<Asked[]> {
    const until = Date.now() + limitMs
    const mine = this.asked.slice(this.from)
    while (Date.now() < until && !mine.every(({ isOver }) => isOver))
      await pause(LOOK_MS, undefined, { signal: this.signal })
    return mine
  }
}
