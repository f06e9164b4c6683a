import type { DrainEffect, EffectResult, Owner } from '../broker/effect.js'
import { ownerKey } from '../broker/keys.js'
import type { JobOutcome } from '../contract/job.js'
import type { Grant } from '../contract/lease.js'
import type { DrainReply } from '../contract/runner-api.js'
import { Fence } from '../runner/fence.js'

/** Every job is this one, and every outcome this: the fence looks at neither. */
const SPEC = { command: 'simulated' }
const DIGEST = ''
const STREAM = { bytes: 0, truncated: false }
const OUTCOME: JobOutcome = {
  kind: 'result',
  result: {
    v: 1,
    jobId: '',
    exitCode: 0,
    signal: null,
    stdout: '',
    stderr: '',
    output: { stdout: STREAM, stderr: STREAM },
    files: [],
    missing: [],
    durationMs: 0,
    pod: '',
    epoch: 0,
  },
}

/** A pod: the fence that decides in a real runner, and jobs that take time in place of processes. */
export class SimulatedPod {
  private readonly fence: Fence

  constructor(
    readonly name: string,
    now: number,
  ) {
    this.fence = new Fence({ incarnation: name, nowMs: now })
  }

  /** @returns the pod's use counter; null when it refuses */
  bind({ epoch, leaseId, incarnation }: Grant, owner: Owner, now: number): number | null {
    const bound = this.fence.bind({ v: 1, epoch, leaseId, ownerHash: ownerKey(owner), incarnation }, now)
    return 'reply' in bound ? bound.reply.useSeq : null
  }

  /** @returns whether the job starts: it does not when the lease is over */
  post(jobId: string, epoch: number, now: number): boolean {
    const decision = this.fence.post({ v: 1, jobId, digest: DIGEST, epoch, spec: SPEC }, epoch, now)
    return decision.kind === 'start'
  }

  /** The job's process has ended, and its caller has heard of it. */
  finish(jobId: string, epoch: number, now: number): void {
    this.fence.finish(jobId, OUTCOME, 0, now)
    this.fence.sent(jobId, now)
    this.fence.ack({ v: 1, jobId, digest: DIGEST }, epoch)
  }

  drain({ id, epoch, useSeq }: DrainEffect, now: number): DrainReply {
    return this.fence.drain({ v: 1, drainId: id, epoch, useSeq }, now)
  }

  /** @throws Error when a job runs under this epoch: no simulated caller lets go of a pod that it uses */
  revoke(epoch: number): EffectResult {
    const { kill } = this.fence.revoke(epoch)
    if (kill !== null) throw new Error(`the simulator revoked ${this.name}/${epoch} under job ${kill}`)
    return { kind: 'revoked' }
  }
}
