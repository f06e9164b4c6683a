import { createHash } from 'node:crypto'
import {
  ActivityCompletionError,
  ActivityNotFoundError,
  type Client,
  WorkflowNotFoundError,
} from '@temporalio/client'
import type { Effect, EffectResult } from '../broker/index.js'
import type { Backend } from '../contract/backend.js'
import { problem } from '../contract/errors.js'
import type { LeaseEnd } from '../contract/lease.js'
import { SIGNAL } from '../contract/names.js'
import { createRunnerClient, RunnerUnreachable } from '../runner/client.js'
import type { Signer } from '../token/token.js'
import { effectActivity } from './batch.js'
import { activityFailure, reasonOf } from './failure.js'
import { CONTROL_MS, lostReason } from './pods.js'

type Deliver = Extract<Effect, { kind: 'deliver' }>
type Announce = Extract<Effect, { kind: 'announce' }>
type Notify = Extract<Effect, { kind: 'notify' }>

export interface DeliverDeps {
  client: Client
  signer: Signer
  backend: Pick<Backend, 'annotate'>
}

/** Who a pod belongs to, as its runner keeps it: it refuses to be bound to another. */
export function ownerHash(owner: Deliver['owner']): string {
  return createHash('sha256')
    .update(JSON.stringify([owner.caller, owner.reuseTag]))
    .digest('hex')
}

/** The activity that binds pods to their new epochs, hands out grants and tells of ends. */
export function createDeliver({ client, signer, backend }: DeliverDeps) {
  /** @returns whether the workflow was there */
  const signal = async (
    workflowId: string,
    runId: string | undefined,
    name: string,
    payload: unknown,
  ): Promise<boolean> => {
    try {
      await client.workflow.getHandle(workflowId, runId).signal(name, payload)
      return true
    } catch (error) {
      if (error instanceof WorkflowNotFoundError) return false
      throw error
    }
  }

  const deliver = async (effect: Deliver): Promise<EffectResult> => {
    const { grant, holder, token } = effect
    let useSeq: number
    try {
      useSeq = await bind({ signer, backend }, effect)
    } catch (error) {
      // Whatever kept it from answering: nothing has started there, another pod costs less than waiting for this one.
      const reason = error instanceof RunnerUnreachable ? reasonOf(error) : lostReason(error)
      if (reason === null) throw error
      return { kind: 'podLost', reason }
    }
    if (effect.replyTo === 'signal') {
      const there = await signal(holder.workflowId, holder.runId, SIGNAL.grant, grant)
      return there ? { kind: 'delivered', useSeq } : { kind: 'holderGone' }
    }
    if (token === null) return { kind: 'delivered', useSeq }
    const fetched = await complete(token, (taskToken) => client.activity.complete(taskToken, grant))
    return fetched ? { kind: 'delivered', useSeq } : { kind: 'tokenGone' }
  }

  const announce = async ({ leaseWorkflowId, grant }: Announce): Promise<EffectResult> => {
    const there = await signal(leaseWorkflowId, undefined, SIGNAL.grant, grant)
    return { kind: there ? 'announced' : 'holderGone' }
  }

  const notify = async ({ leaseWorkflowId, token, end }: Notify): Promise<EffectResult> => {
    if (token !== null) {
      // Nothing was ever sent to the pod of a grant that was not fetched, whatever became of it.
      const failure = activityFailure(end.end === 'failed' && end.problem ? end.problem : endedProblem(end))
      await complete(token, (taskToken) => client.activity.fail(taskToken, failure))
    }
    if (leaseWorkflowId !== null) await signal(leaseWorkflowId, undefined, SIGNAL.ended, end)
    return { kind: 'notified' }
  }

  return effectActivity({ deliver, announce, notify })
}

/** Makes a pod its grant's: what an older epoch still runs is ended. @returns the pod's use counter */
export async function bind(
  { signer, backend }: Pick<DeliverDeps, 'signer' | 'backend'>,
  { grant, owner, tenant }: Pick<Deliver, 'grant' | 'owner' | 'tenant'>,
): Promise<number> {
  const runner = createRunnerClient(grant.address, () =>
    signer(grant.pod, 'broker', grant.epoch, grant.leaseId, tenant),
  )
  const { epoch, leaseId, incarnation } = grant
  const { useSeq } = await runner.bind(
    { v: 1, epoch, leaseId, ownerHash: ownerHash(owner), incarnation },
    { timeoutMs: CONTROL_MS },
  )
  backend.annotate(grant.pod, { leaseId, epoch, caller: owner.caller })
  return useSeq
}

/** @returns false when the activity of this token is over: another attempt has another token */
async function complete(token: string, send: (taskToken: Uint8Array) => Promise<void>): Promise<boolean> {
  try {
    await send(Buffer.from(token, 'base64'))
    return true
  } catch (error) {
    if (error instanceof ActivityNotFoundError) return false
    // No token of this server: somebody has sent it by hand. The SDK keeps no code of it, only the server's words.
    if (error instanceof ActivityCompletionError && /task token/i.test(error.message)) return false
    throw error
  }
}

function endedProblem(end: LeaseEnd) {
  return problem('LeaseRevoked', `lease ${end.leaseId} ended (${end.end}) before it was fetched; ask again`)
}
