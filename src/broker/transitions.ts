/**
 * The life of a pod as one complete table. A missing cell does not compile; a cell `null` says that the event
 * cannot happen in that state, and `step` asserts it (a broken assertion stalls the pool, it never corrupts).
 */

export type PodKind = 'starting' | 'standby' | 'promoting' | 'leased' | 'idle' | 'draining' | 'deleting'

export type PodEvent =
  /** the backend says Ready */
  | 'ready'
  /** a request got this pod; bind and grant are on their way */
  | 'grant'
  /** the grant was delivered */
  | 'delivered'
  /** the lease ended, the pod stays with its caller */
  | 'release'
  /** the pool asked the runner to drain */
  | 'drain'
  /** the runner refused, the lease goes on */
  | 'refused'
  /** end of this pod, for whatever reason: delete it */
  | 'remove'
  /** the backend says it is no more */
  | 'gone'

export type Next = PodKind | 'end' | 'same' | null

export const TRANSITIONS: Record<PodKind, Record<PodEvent, Next>> = {
  starting: {
    ready: 'standby',
    grant: null,
    delivered: null,
    release: null,
    drain: null,
    refused: null,
    remove: 'deleting',
    gone: 'end',
  },
  standby: {
    ready: 'same',
    grant: 'promoting',
    delivered: null,
    release: null,
    drain: null,
    refused: null,
    remove: 'deleting',
    gone: 'end',
  },
  promoting: {
    ready: 'same',
    grant: null,
    delivered: 'leased',
    release: 'idle',
    drain: null,
    refused: null,
    remove: 'deleting',
    gone: 'end',
  },
  leased: {
    ready: 'same',
    grant: null,
    delivered: 'same',
    release: 'idle',
    drain: 'draining',
    refused: null,
    remove: 'deleting',
    gone: 'end',
  },
  idle: {
    ready: 'same',
    grant: 'promoting',
    delivered: null,
    release: null,
    drain: null,
    refused: null,
    remove: 'deleting',
    gone: 'end',
  },
  draining: {
    ready: 'same',
    grant: null,
    delivered: null,
    release: 'idle',
    drain: null,
    refused: 'leased',
    remove: 'deleting',
    gone: 'end',
  },
  deleting: {
    ready: 'same',
    grant: null,
    delivered: null,
    release: null,
    drain: null,
    refused: null,
    remove: 'same',
    gone: 'end',
  },
}
