import type { Acquired, Grant, LeaseEnd } from '../contract/lease.js'

/** Who asked for a lease, as far as the pool and the cluster speak to it. */
export interface Holder {
  /** the pod is bound, and the grant has come */
  granted(grant: Grant): void
  /** the lease is over, and it was not the holder who said so */
  ended(end: LeaseEnd): void
  /** the answer to a request by update */
  answered(answer: Acquired): void
}

/** Holders of live leases by lease id: what is over is forgotten, and its messages find nobody. */
export type Holders = Map<string, Holder>
