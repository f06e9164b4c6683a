import type { ObservedPod } from '../contract/backend.js'
import type { LeaseRequest, Release } from '../contract/lease.js'
import type { PoolSpec, ShardOrder } from '../contract/pool.js'
import type { EffectResult } from './effect.js'

/** Everything that can happen to a pool. Shapes are checked before they come here; `step` never sees raw input. */
export type PoolEvent =
  | {
      kind: 'request'
      request: LeaseRequest
      /**
       * The sender waits for the outcome of this very step (an update) and binds the pod itself: a grant made in it
       * needs no delivery. What has to wait is delivered later as replyTo says.
       */
      answered?: boolean
    }
  | { kind: 'release'; release: Release }
  | { kind: 'renew'; leaseId: string }
  | { kind: 'token'; leaseId: string; token: string }
  | { kind: 'setBudget'; budget: number; expiresAtMs: number }
  | { kind: 'resize'; budget?: number | null; standby?: number | null }
  | { kind: 'mode'; mode: 'running' | 'paused' | 'draining' | 'deleting' }
  | { kind: 'apply'; spec: PoolSpec }
  | { kind: 'shard'; order: ShardOrder }
  | { kind: 'poison'; name: string; reason: string }
  | { kind: 'result'; id: string; result: EffectResult }
  | {
      kind: 'observed'
      /** when the observation was ordered: it cannot know what was created after that */
      asOfMs: number
      /** all pods of the pool (what is missing is gone), or only those that changed */
      full: boolean
      pods: ObservedPod[]
    }
