import type { PodOrder } from '../contract/backend.js'
import type { Grant, Holder, LeaseEnd } from '../contract/lease.js'
import type { ShardOrder, ShardReport } from '../contract/pool.js'

/** Who a pod belongs to once it has served: it never serves anybody else (invariant I2). */
export interface Owner {
  caller: string
  reuseTag: string
}

interface EffectBase {
  /** unique in the life of the pool; a result names it, and the second result for one id changes nothing (I8) */
  id: string
  /** how often it was handed to the driver; 1 at first */
  attempt: number
}

export interface CreateEffect extends EffectBase {
  kind: 'create'
  order: PodOrder
}

export interface DeleteEffect extends EffectBase {
  kind: 'delete'
  pod: string
}

/** Ask the runner to drain: a compare-and-set that succeeds only when nothing ran since useSeq. */
export interface DrainEffect extends EffectBase {
  kind: 'drain'
  pod: string
  address: string
  epoch: number
  useSeq: number
}

/** Kill everything that runs under this epoch (and older ones). */
export interface RevokeEffect extends EffectBase {
  kind: 'revoke'
  pod: string
  address: string
  epoch: number
}

/** Bind the pod to the epoch, then hand the grant to the holder. */
export interface DeliverEffect extends EffectBase {
  kind: 'deliver'
  grant: Grant
  owner: Owner
  /** whom the pod's node charges its seats to; absent: nobody by name, or before version 4 of the core */
  tenant?: string
  holder: Holder
  replyTo: 'signal' | 'token'
  token: string | null
}

/** Tell the lease workflow which pod it has, for its page; it also shows whether the death watch is still there. */
export interface AnnounceEffect extends EffectBase {
  kind: 'announce'
  leaseWorkflowId: string
  grant: Grant
}

/** Tell the lease workflow (and a waiting token) that the lease is over. */
export interface NotifyEffect extends EffectBase {
  kind: 'notify'
  leaseWorkflowId: string | null
  token: string | null
  end: LeaseEnd
}

/** Ask the server which of these holders still run. */
export interface DescribeEffect extends EffectBase {
  kind: 'describe'
  leases: { leaseId: string; holder: Holder; leaseWorkflowId: string }[]
}

/** Tell a shard all that it should be; start it when it is not there, unless it is to leave. */
export interface ShardEffect extends EffectBase {
  kind: 'shard'
  order: ShardOrder
}

export type Effect =
  | CreateEffect
  | DeleteEffect
  | DrainEffect
  | RevokeEffect
  | DeliverEffect
  | AnnounceEffect
  | NotifyEffect
  | DescribeEffect
  | ShardEffect

export type EffectKind = Effect['kind']

/** What came of an effect. `undone`: the driver could not carry it out; the core decides whether to try again. */
export type EffectResult =
  | { kind: 'created'; problem?: { reason: string; message: string } }
  | { kind: 'deleted' }
  | { kind: 'drained'; drained: boolean; useSeq: number; idleMs: number }
  | { kind: 'revoked' }
  | { kind: 'delivered'; useSeq: number }
  | { kind: 'holderGone' }
  | { kind: 'tokenGone' }
  | { kind: 'podLost'; reason: string }
  | { kind: 'announced' }
  | { kind: 'notified' }
  | { kind: 'described'; closed: string[] }
  | { kind: 'shardTold'; report: ShardReport }
  /** `report`: its last word, when it had one */
  | { kind: 'shardGone'; report?: ShardReport }
  | { kind: 'undone'; reason: string }
