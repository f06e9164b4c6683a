import type { Effect, EffectKind, EffectResult } from '../broker/index.js'
import { LIMIT } from '../contract/limits.js'
import { readResult } from './answers.js'

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

export type LaneName = 'create' | 'delete' | 'drain' | 'revoke' | 'deliver' | 'describe' | 'shard'

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

/**
 * Carries out effects in batches, by activities that the pool's main loop never awaits. A lane has few calls in flight;
 * what comes meanwhile goes with the next one, so that load makes batches larger instead of histories longer.
 */
export class Lanes {
  private readonly waiting = new Map<LaneName, Effect[]>()
  private readonly inFlight = new Map<LaneName, number>()
  private stopped = false

  /**
   * @param call one activity: effects in, one result for each out
   * @param onResult exactly one for each effect that was issued
   */
  constructor(
    private readonly call: (lane: LaneName, effects: Effect[]) => Promise<EffectResults>,
    private readonly onResult: (id: string, result: EffectResult) => void,
  ) {}

  /** No call is in flight and nothing waits for one. */
  get idle(): boolean {
    for (const count of this.inFlight.values()) if (count > 0) return false
    for (const list of this.waiting.values()) if (list.length > 0 && !this.stopped) return false
    return true
  }

  /** Issues nothing until it goes on: what waits is carried over to the next run with its ids. */
  stop(): void {
    this.stopped = true
  }

  goOn(): void {
    if (!this.stopped) return
    this.stopped = false
    for (const lane of this.waiting.keys()) this.pump(lane)
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
    const answered = new Set<string>()
    let reason = 'the worker gave no result for it that can be read'
    try {
      const { results } = await this.call(lane, effects)
      for (const answer of results) {
        const read = readResult(answer)
        if (!read) continue
        answered.add(read.id)
        this.onResult(read.id, read.result)
      }
    } catch (error) {
      reason = error instanceof Error ? error.message : String(error)
    }
    for (const { id } of effects) if (!answered.has(id)) this.onResult(id, { kind: 'undone', reason })
    this.inFlight.set(lane, (this.inFlight.get(lane) ?? 1) - 1)
    this.pump(lane)
  }
}
