import type { Problem } from './errors.js'

/** Who holds a lease: the workflow that asked, by its chain and its run. */
export interface Holder {
  workflowId: string
  firstExecutionRunId: string
  runId: string
}

/** Signal `firepool.request`: one request, or a batch of them in `batch`. */
export interface LeaseRequest {
  v: 1
  /** uuid4 minted in the caller's workflow */
  leaseId: string
  holder: Holder
  /** the workflow that watches over this lease; it hears `firepool.ended` */
  leaseWorkflowId: string
  caller: string
  reuseTag: string
  slot: string
  tenant: string
  /** 0 (last) .. 9 (first) */
  priority: number
  /** ms since the epoch of the caller's workflow clock: of two requests of one holder and slot the younger counts */
  requestedAtMs: number
  /** ms since the epoch of the caller's workflow clock */
  deadlineMs: number
  /** where the grant goes: a signal to the holder, or the newest token from firepool.awaitLease */
  replyTo: 'signal' | 'token'
  /** ms that the lease may stay unused before it expires, and it is not recalled before; 0: not pinned */
  pinMs: number
}

export type HitClass = 'warm' | 'standby' | 'cold'

/** Signal `firepool.grant` to the holder, and the result of `firepool.awaitLease`. */
export interface Grant {
  v: 1
  leaseId: string
  pool: string
  pod: string
  /** of the pod's runner, e.g. http://127.0.3.1:40123 */
  address: string
  incarnation: string
  epoch: number
  hit: HitClass
  /** how long the request waited in the pool, ms */
  waitedMs: number
}

/** Answer of update `firepool.acquire`: a grant whose pod the asker binds itself, or what became of the request. */
export type Acquired =
  | { v: 1; outcome: 'granted'; grant: Grant }
  /** it is in the queue: the grant will come by signal */
  | { v: 1; outcome: 'waiting' }
  | { v: 1; outcome: 'refused'; problem: Problem }

/** Signal `firepool.release`. Without pod and epoch it is for whatever the lease holds. */
export interface Release {
  v: 1
  leaseId: string
  pod?: string
  epoch?: number
  /** the sender knows that nothing runs under this epoch, so nothing needs to be killed */
  clean?: boolean
  /** do not keep the pod warm: nobody will come back for it, or it does not answer */
  retire?: boolean
  /** no job gets its GPUs in the pod's seat set, and why: the pod goes, and the set has no new ones for a while */
  sick?: string
}

/** Signal `firepool.renew`: the pin of this lease counts from now on again, as if a job had ended. */
export interface Renewal {
  v: 1
  leaseId: string
}

/** Signal `firepool.token`, sent by firepool.awaitLease: complete this activity when the lease is granted. */
export interface TokenOffer {
  v: 1
  leaseId: string
  /** base64 of the activity's task token */
  token: string
}

export type LeaseEndReason = 'released' | 'recalled' | 'expired' | 'podLost' | 'superseded' | 'failed'

/** Result of the lease workflow: the notice that the lease is over. */
export interface LeaseEnd {
  v: 1
  leaseId: string
  end: LeaseEndReason
  /** for `failed` and `podLost`: why */
  problem?: Problem
}

/** Options of a caller, for openPool, firepool.runJob and the CLI alike. */
export interface AcquireOptions {
  /** who reuses the pod; default the caller's workflow id */
  caller?: string
  /** distinguishes environments of one caller; default '' */
  reuseTag?: string
  /** which of a caller's parallel leases; default '0' */
  slot?: string
  tenant?: string
  priority?: number
  /** how long to wait for a pod; default TIMEOUT.acquireMs */
  acquireTimeout?: number | string
  /**
   * Pins the lease: while held it is never recalled, neither for idleness nor for a smaller budget. It expires when it was
   * neither used nor renewed for this long; default: not pinned
   */
  pin?: number | string
}

/** Input of the workflow `firepool.lease`, started as a child of the holder with REQUEST_CANCEL. Plain JSON from any SDK. */
export interface LeaseInput extends AcquireOptions {
  v?: 1
  pool: string
  /** a random uuid (version 4), minted in the caller's workflow */
  leaseId: string
  /** default: the parent workflow */
  holder?: Holder
  /** default 'token': the caller then executes the activity firepool.awaitLease */
  replyTo?: 'signal' | 'token'
}
