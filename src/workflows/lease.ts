import {
  condition,
  defineSignal,
  isCancellation,
  log,
  setCurrentDetails,
  setHandler,
  workflowInfo,
} from '@temporalio/workflow'
import {
  checkAcquire,
  checkHolder,
  checkLeaseId,
  checkOptionalVersion,
  checkPoolName,
  checkReplyTo,
  isRecord,
} from '../contract/check.js'
import type { Grant, HitClass, Holder, LeaseEnd, LeaseInput, LeaseRequest } from '../contract/lease.js'
import { TIMEOUT } from '../contract/limits.js'
import { poolWorkflowId, SIGNAL } from '../contract/names.js'
import { poolOfShard } from '../contract/shards.js'
import { checkInput } from './decoded.js'
import { checkedValue } from './failure.js'
import { grantIn } from './grant-in.js'
import { setLeaseAttributes } from './lease-attributes.js'
import { LAST_LINE, plain } from './markdown.js'
import { tellPool } from './tell-pool.js'

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
  let at = pool
  const show = (end: LeaseEnd | null) => setCurrentDetails(detailsOf(at, request, granted, end))
  setHandler(grantSignal, (payload) => {
    granted = grantIn(payload, request.leaseId) ?? granted
    show(null)
  })
  setHandler(endedSignal, (payload) => {
    ended = endIn(payload, request.leaseId) ?? ended
  })
  show(null)
  const end = await liveAndEnd(pool, request, {
    get: () => ended,
    clear: () => {
      ended = null
    },
    asked: (name) => {
      at = name
      show(null)
    },
  })
  show(end)
  return end
}

/** What the lease's handlers heard of its end, and where it was asked for. */
interface Heard {
  get: () => LeaseEnd | null
  clear: () => void
  asked: (shard: string) => void
}

async function liveAndEnd(pool: string, request: LeaseRequest, ended: Heard): Promise<LeaseEnd> {
  const { leaseId, caller } = request
  let at = pool
  try {
    for (let fresh = false; ; fresh = true) {
      const told = await tellPool(
        pool,
        { signal: SIGNAL.request, payload: request },
        { caller, ...(fresh ? { fresh } : {}) },
      )
      if (told.problem) return { v: 1, leaseId, end: 'failed', problem: told.problem }
      if (told.searchAttributes && !fresh) setLeaseAttributes(pool, request)
      const before = at
      at = told.at ?? pool
      // Its notice may have come twice, and it may have been asked again in between: nothing stays there.
      if (fresh && at !== before) await releaseLease(pool, leaseId, false, before)
      if (at !== pool) ended.asked(at)
      await condition(() => ended.get() !== null)
      // The shard that was asked leaves: another one is asked. The token of an offer has been told of the end already.
      if (request.replyTo === 'token' || ended.get()!.problem?.details?.reason !== 'ShardMoved')
        return ended.get()!
      ended.clear()
    }
  } catch (error) {
    if (!isCancellation(error)) throw error
    await releaseLease(pool, leaseId, false, at)
    return ended.get() ?? { v: 1, leaseId, end: 'released' }
  }
}

/**
 * Tells the pool that a lease is over. A pool that is gone holds nothing.
 * @param at the shard that was asked for it; all of them are told when it is not known
 * @param forMs then it is left to the pool, which looks whether holders still run: for who ends with the lease; until it has
 * arrived when absent
 */
export async function releaseLease(
  pool: string,
  leaseId: string,
  retire = false,
  at?: string,
  forMs?: number,
): Promise<void> {
  const release = { signal: SIGNAL.release, payload: { v: 1, leaseId, retire } } as const
  const where = at === undefined ? {} : { at }
  const told = await tellPool(pool, release, where, forMs).catch((error: unknown) => {
    if (forMs === undefined || isCancellation(error)) throw error
    log.warn('Firepool: the pool could not be told of a release; it will find out by itself', {
      pool,
      leaseId,
    })
  })
  if (told?.problem) log.info('Firepool: the pool of a released lease is gone', { pool, leaseId })
}

function leaseRequest(input: LeaseInput): { pool: string; request: LeaseRequest } {
  const info = workflowInfo()
  checkInput(input, "the lease workflow's input")
  const given: Partial<LeaseInput> = isRecord(input) ? input : {}
  const { parent } = info
  const ownHolder: Holder | undefined = parent && {
    workflowId: parent.workflowId,
    firstExecutionRunId: parent.runId,
    runId: parent.runId,
  }
  checkedValue(checkOptionalVersion(given.v))
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
    requestedAtMs: info.startTime.getTime(),
    deadlineMs: info.startTime.getTime() + acquireMs,
    replyTo: checkedValue(checkReplyTo(given.replyTo ?? 'token')),
  }
  return { pool, request }
}

/** The payload of `firepool.ended`, as far as we rely on it. */
export function endIn(payload: unknown, leaseId: string): LeaseEnd | null {
  if (!isRecord(payload) || payload.v !== 1 || payload.leaseId !== leaseId || typeof payload.end !== 'string')
    return null
  return payload as unknown as LeaseEnd
}

/** The lease's current details: whose it is, which pod it holds and why that one, and how it ended. */
function detailsOf(pool: string, request: LeaseRequest, granted: Grant | null, end: LeaseEnd | null): string {
  const { leaseId, caller, slot, reuseTag, holder, priority, deadlineMs, pinMs } = request
  const now = granted ? `holds pod ${granted.pod}` : 'asked for a pod'
  const facts = [
    `- **Caller**: ${plain(caller)}, slot ${plain(slot)}${reuseTag === '' ? '' : `, reuse tag ${plain(reuseTag)}`}`,
    `- **Holder**: workflow ${plain(holder.workflowId, 120)}`,
    `- **Lease**: ${leaseId}, priority ${priority}`,
    ...(pinMs > 0
      ? [`- **Pinned**: never recalled; expires when neither used nor renewed for ${pinMs / 1_000} s`]
      : []),
  ]
  if (granted) {
    facts.push(
      `- **Pod**: ${granted.pod}, epoch ${granted.epoch}, after ${granted.waitedMs} ms in the pool`,
      `- **Hit class**: ${granted.hit}, ${HIT_MEANS[granted.hit]}`,
    )
  } else if (!end) {
    const until = new Date(deadlineMs).toISOString().slice(0, 19).replace('T', ' ')
    facts.push(
      `- **Waits** until ${until} UTC at most, for ${poolWorkflowId(pool)}: the page of that workflow says what for and at which position, or which pod this lease has`,
      `- **Pod**: named here once it is held for ${TIMEOUT.announceMs / 1_000} s`,
    )
  }
  return [
    `### Lease of pool ${poolOfShard(pool)}: ${end ? end.end : now}`,
    ...(end?.problem ? [`**${end.problem.code}**: ${plain(end.problem.message, REASON_CHARS)}`] : []),
    facts.join('\n'),
    LAST_LINE,
  ].join('\n\n')
}

const REASON_CHARS = 500

const HIT_MEANS: Record<HitClass, string> = {
  warm: 'a pod that this caller used before',
  standby: 'a started pod that had no caller',
  cold: 'a pod that was started for it',
}
