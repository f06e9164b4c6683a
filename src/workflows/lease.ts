import {
  CancellationScope,
  condition,
  defineSignal,
  isCancellation,
  log,
  setCurrentDetails,
  setHandler,
  workflowInfo,
} from '@temporalio/workflow'
import {
  type Checked,
  checkAcquire,
  checkHolder,
  checkLeaseId,
  checkPoolName,
  isRecord,
} from '../contract/check.js'
import type { Grant, Holder, LeaseEnd, LeaseInput, LeaseRequest } from '../contract/lease.js'
import { SIGNAL } from '../contract/names.js'
import { failureOf } from './failure.js'
import { grantIn, poolHandle, refuseMissingPool } from './pool-handle.js'

const grantSignal = defineSignal<[unknown]>(SIGNAL.grant)
const endedSignal = defineSignal<[unknown]>(SIGNAL.ended)

/**
 * The workflow `firepool.lease`: request, death watch and UI object of one lease. A child of the holder with
 * ParentClosePolicy REQUEST_CANCEL: however the holder ends, this is cancelled, and a cancel is a release.
 * @returns the end-of-lease notice; it fails only for bad input (InvalidRequest)
 */
export async function lease(input: LeaseInput): Promise<LeaseEnd> {
  const { pool, request } = leaseRequest(input)
  let granted: Grant | null = null
  let ended: LeaseEnd | null = null
  setHandler(grantSignal, (payload) => {
    granted = grantIn(payload, request.leaseId) ?? granted
    if (granted) setCurrentDetails(detailsOf(pool, request, granted))
  })
  setHandler(endedSignal, (payload) => {
    ended = endIn(payload, request.leaseId) ?? ended
  })
  setCurrentDetails(detailsOf(pool, request, null))
  try {
    const missing = await refuseMissingPool(pool, () => poolHandle(pool).signal(SIGNAL.request, request))
    if (missing) return { v: 1, leaseId: request.leaseId, end: 'failed', problem: missing }
    await condition(() => ended !== null)
    return ended!
  } catch (error) {
    if (!isCancellation(error)) throw error
    await CancellationScope.nonCancellable(() => releaseLease(pool, request.leaseId))
    return ended ?? { v: 1, leaseId: request.leaseId, end: 'released' }
  }
}

/** Tells the pool that a lease is over. A pool that is gone holds nothing. */
export async function releaseLease(pool: string, leaseId: string): Promise<void> {
  const missing = await refuseMissingPool(pool, () =>
    poolHandle(pool).signal(SIGNAL.release, { v: 1, leaseId }),
  )
  if (missing) log.info('Firepool: the pool of a released lease is gone', { pool, leaseId })
}

function leaseRequest(input: LeaseInput): { pool: string; request: LeaseRequest } {
  const info = workflowInfo()
  const given: Partial<LeaseInput> = isRecord(input) ? input : {}
  const { parent } = info
  const ownHolder: Holder | undefined = parent && {
    workflowId: parent.workflowId,
    firstExecutionRunId: parent.runId,
    runId: parent.runId,
  }
  const pool = checkedValue(checkPoolName(given.pool))
  const leaseId = checkedValue(checkLeaseId(given.leaseId))
  const holder = checkedValue(checkHolder(given.holder ?? ownHolder))
  const { acquireMs, ...who } = checkedValue(checkAcquire(given, holder.workflowId))
  const request: LeaseRequest = {
    v: 1,
    leaseId,
    holder,
    leaseWorkflowId: info.workflowId,
    ...who,
    deadlineMs: info.startTime.getTime() + acquireMs,
    replyTo: given.replyTo === 'signal' ? 'signal' : 'token',
  }
  return { pool, request }
}

function checkedValue<T>(checked: Checked<T>): T {
  if (checked.problem) throw failureOf(checked.problem)
  return checked.value
}

/** The payload of `firepool.ended`, as far as we rely on it. */
export function endIn(payload: unknown, leaseId: string): LeaseEnd | null {
  if (!isRecord(payload) || payload.v !== 1 || payload.leaseId !== leaseId || typeof payload.end !== 'string')
    return null
  return payload as unknown as LeaseEnd
}

function detailsOf(pool: string, request: LeaseRequest, granted: Grant | null): string {
  const who = `slot \`${request.slot}\` of caller \`${request.caller}\``
  const asked = `Lease \`${request.leaseId}\` on pool **${pool}** for ${who}, holder \`${request.holder.workflowId}\`.`
  if (!granted) return `${asked}\n\nWaits for a pod until ${new Date(request.deadlineMs).toISOString()}.`
  return `${asked}\n\nHolds pod \`${granted.pod}\`, epoch ${granted.epoch}: **${granted.hit}**, after ${granted.waitedMs} ms in the pool.`
}
