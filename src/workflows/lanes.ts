import { proxyActivities } from '@temporalio/workflow'
import type { Effect, EffectKind, EffectResult } from '../broker/index.js'
import { LIMIT, TIMEOUT } from '../contract/limits.js'
import { ACTIVITY, QUEUE } from '../contract/names.js'
import { summaryText } from './summary.js'

/** One call of a pool effect activity: effects in, one result for each out. */
export interface EffectBatch {
  v: 1
  pool: string
  effects: Effect[]
}

export interface EffectResults {
  v: 1
  results: { id: string; result: EffectResult }[]
}

export type EffectActivity = (batch: EffectBatch) => Promise<EffectResults>

type LaneName = 'create' | 'delete' | 'drain' | 'revoke' | 'deliver' | 'describe' | 'shard'

const LANE_OF: Record<EffectKind, LaneName> = {
  create: 'create',
  delete: 'delete',
  drain: 'drain',
  revoke: 'revoke',
  deliver: 'deliver',
  announce: 'deliver',
  notify: 'deliver',
  describe: 'describe',
  shard: 'shard',
}

const ACTIVITY_OF: Record<LaneName, string> = {
  create: ACTIVITY.createPods,
  delete: ACTIVITY.deletePods,
  drain: ACTIVITY.drainPods,
  revoke: ACTIVITY.revokeLeases,
  deliver: ACTIVITY.deliver,
  describe: ACTIVITY.describeHolders,
  shard: ACTIVITY.tellShards,
}

/**
 * Carries out effects in batches, by activities that the pool's main loop never awaits. A lane has few calls in flight;
 * what comes meanwhile goes with the next one, so that load makes batches larger instead of histories longer.
 */
export class Lanes {
  private readonly waiting = new Map<LaneName, Effect[]>()
  private readonly inFlight = new Map<LaneName, number>()
  private stopped = false

  constructor(
    private readonly pool: string,
    private readonly onResult: (id: string, result: EffectResult) => void,
  ) {}

  /** No call is in flight and nothing waits for one. */
  get idle(): boolean {
    for (const count of this.inFlight.values()) if (count > 0) return false
    for (const list of this.waiting.values()) if (list.length > 0 && !this.stopped) return false
    return true
  }

  /** Issues nothing from now on: what waits is carried over to the next run with its ids. */
  stop(): void {
    this.stopped = true
  }

  get isStopped(): boolean {
    return this.stopped
  }

  push(effects: Effect[]): void {
    for (const effect of effects) {
      const lane = LANE_OF[effect.kind]
      const list = this.waiting.get(lane)
      if (list) list.push(effect)
      else this.waiting.set(lane, [effect])
    }
    for (const lane of this.waiting.keys()) this.pump(lane)
  }

  private pump(lane: LaneName): void {
    const waiting = this.waiting.get(lane) ?? []
    while (!this.stopped && waiting.length > 0 && (this.inFlight.get(lane) ?? 0) < LIMIT.laneInFlight) {
      const effects = waiting.splice(0, LIMIT.effectBatch)
      this.inFlight.set(lane, (this.inFlight.get(lane) ?? 0) + 1)
      void this.carryOut(lane, effects)
    }
  }

  private async carryOut(lane: LaneName, effects: Effect[]): Promise<void> {
    const name = ACTIVITY_OF[lane]
    const activities = proxyActivities<Record<string, EffectActivity>>({
      // Grants go out on the pool's own queue: the server then hands the activity over with the answer to the workflow
      // task (eager dispatch), which saves a hop and a write. Everything slower keeps off that worker's slots.
      taskQueue: lane === 'deliver' ? QUEUE.workflows : QUEUE.broker,
      startToCloseTimeout: TIMEOUT.effectMs,
      heartbeatTimeout: TIMEOUT.observeHeartbeatMs,
      retry: { initialInterval: 100, backoffCoefficient: 1, maximumAttempts: 3 },
      summary: summaryOf(lane, effects),
    })
    const answered = new Set<string>()
    let reason = 'the worker gave no result for it'
    try {
      const { results } = await activities[name]!({ v: 1, pool: this.pool, effects })
      for (const { id, result } of results) {
        answered.add(id)
        this.onResult(id, result)
      }
    } catch (error) {
      reason = error instanceof Error ? error.message : String(error)
    }
    for (const { id } of effects) if (!answered.has(id)) this.onResult(id, { kind: 'undone', reason })
    this.inFlight.set(lane, (this.inFlight.get(lane) ?? 1) - 1)
    this.pump(lane)
  }
}

const VERB: Record<LaneName, string> = {
  create: 'start',
  delete: 'delete',
  drain: 'drain, if unused:',
  revoke: 'end what still runs of ended leases on',
  deliver: '',
  describe: 'look whether they still run:',
  shard: '',
}

/** What a batch does, by its first effect. */
function summaryOf(lane: LaneName, effects: Effect[]): string {
  const [first] = effects
  const more = effects.length > 1 ? ` and ${effects.length - 1} more` : ''
  return summaryText(`${VERB[lane]} ${first ? objectOf(first) : ''}${more}`)
}

function objectOf(effect: Effect): string {
  switch (effect.kind) {
    case 'create':
      return `pod ${effect.order.pod}`
    case 'deliver':
      return `grant pod ${effect.grant.pod} (${effect.grant.hit}) to lease ${effect.grant.leaseId.slice(0, 8)}`
    case 'announce':
      return `tell lease ${effect.grant.leaseId.slice(0, 8)} that it holds pod ${effect.grant.pod}`
    case 'notify':
      return `tell lease ${effect.end.leaseId.slice(0, 8)} that it ended: ${effect.end.end}`
    case 'describe':
      return `${effect.leases.length} holders of leases`
    case 'shard':
      return effect.order.leaving
        ? `tell shard ${effect.order.spec.name} to leave`
        : `tell shard ${effect.order.spec.name} its part: ${effect.order.cap.seats} seats`
    default:
      return `pod ${effect.pod}`
  }
}
