import type { EffectResult } from '../broker/index.js'
import type { Backend } from '../contract/backend.js'
import { FirepoolError } from '../contract/errors.js'
import { createRunnerClient, RunnerUnreachable } from '../runner/client.js'
import type { Signer } from '../token/token.js'
import { effectActivity } from './batch.js'
import { reasonOf } from './failure.js'

export interface PodDeps {
  backend: Backend
  signer: Signer
}

/** A call of the broker to a runner must answer within this: it is control, not work. */
export const CONTROL_MS = 10_000

/** Answers of a runner that mean: it is not the one that we knew, or not there at all. */
export function lostReason(error: unknown): string | null {
  if (error instanceof RunnerUnreachable && error.refused) return 'nobody listens at its address'
  if (error instanceof FirepoolError && error.problem.code === 'PodLost') return reasonOf(error)
  return null
}

/** The activities that create, delete, drain and revoke pods, in batches. */
export function createPodActivities({ backend, signer }: PodDeps) {
  const runner = (pod: string, address: string) =>
    createRunnerClient(address, () => signer(pod, 'broker', 0, ''))
  const orLost = async (work: Promise<EffectResult>): Promise<EffectResult> => {
    try {
      return await work
    } catch (error) {
      const reason = lostReason(error)
      if (reason === null) throw error
      return { kind: 'podLost', reason }
    }
  }
  return {
    createPods: effectActivity({
      create: async ({ order }) => {
        const [outcome] = await backend.create([order])
        return outcome?.problem ? { kind: 'created', problem: outcome.problem } : { kind: 'created' }
      },
    }),
    deletePods: effectActivity({
      delete: async ({ pod }) => {
        await backend.remove([pod])
        return { kind: 'deleted' }
      },
    }),
    drainPods: effectActivity({
      drain: ({ id, pod, address, epoch, useSeq }) =>
        orLost(
          runner(pod, address)
            .drain({ v: 1, drainId: id, epoch, useSeq }, { timeoutMs: CONTROL_MS })
            .then((reply) => ({
              kind: 'drained',
              drained: reply.drained,
              useSeq: reply.useSeq,
              idleMs: reply.idleMs,
            })),
        ),
    }),
    revokeLeases: effectActivity({
      revoke: ({ pod, address, epoch }) =>
        orLost(
          runner(pod, address)
            .revoke(epoch, { timeoutMs: CONTROL_MS })
            .then(() => ({ kind: 'revoked' })),
        ),
    }),
  }
}
