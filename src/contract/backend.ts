import type { SeatSetPlace } from './gpu.js'
import type { Profile } from './pool.js'

/** An order for one pod. The name is deterministic: creating it twice makes one pod. */
export interface PodOrder {
  pod: string
  pool: string
  generation: number
  profile: Profile
  /** the pod ends itself when it is this old, whatever the broker does */
  lifetimeMs: number
  /** and when it is not Ready by then */
  startTimeoutMs: number
  /** whose GPUs it shares; absent: its own alone */
  seatSet?: SeatSetPlace
}

/** A pod as the backend sees it now. A `failed` pod will never serve again: remove it. A `gone` one holds nothing. */
export interface ObservedPod {
  pod: string
  generation: number
  phase: 'starting' | 'ready' | 'failed' | 'gone'
  /**
   * CamelCase, as Kubernetes names it. Of `failed`: why, e.g. PrepareFailed, Exited, StartTimeout. Of `starting`: what it waits
   * for, when that is more than time, e.g. Unschedulable
   */
  reason?: string
  message?: string
  address?: string
  incarnation?: string
  /** of `ready`: it serves whom it serves, and nobody after that; why, e.g. NodeCordoned */
  retire?: string
}

/** Whom a pod serves now. */
export interface LeaseNote {
  leaseId: string
  epoch: number
  caller: string
}

/**
 * Where pods live. One implementation for each backend; all methods are idempotent
 * and may be called by several workers at once.
 */
export interface Backend {
  /** Starts each pod and returns without waiting for Ready. A pod that exists already is success. */
  create(orders: PodOrder[]): Promise<{ pod: string; problem?: { reason: string; message: string } }[]>
  /** Ends each pod and everything in it, and forgets it. A pod that does not exist is success. Resolves when they are gone. */
  remove(pods: string[]): Promise<void>
  /** All pods of a pool that have not been removed. */
  list(pool: string): Promise<ObservedPod[]>
  /**
   * Calls back with each change of a pod of the pool from now on, first with all that are there.
   * @returns a function that ends the watch
   */
  watch(pool: string, onChange: (pod: ObservedPod) => void): () => void
  /**
   * Writes on the pod whom it serves now, where its people look for it. Once for each lease, never for a job. Returns at once:
   * nothing waits for it, and nothing depends on it.
   */
  annotate(pod: string, lease: LeaseNote): void
  /** The pool has ended and its pods are gone: what the backend kept for it goes too. */
  forget(pool: string): Promise<void>
}

/** The problem of an order that came to a worker of another backend. All workers of a deployment serve the same one. */
export function otherBackend(
  wanted: Profile['backend'],
  served: Profile['backend'],
): { reason: string; message: string } {
  return {
    reason: 'BackendNotServed',
    message: `the pool's profile is of backend '${wanted}', this worker serves '${served}'; start its workers with --backend ${wanted}, or change profile.backend`,
  }
}
