/**
 * Checks of what comes in over an edge. By hand and without a library: they run inside workflows, where a schema
 * library costs 16 times the heap of the workflow itself (676 against 40 KiB, measured).
 * Each returns the value with its defaults filled in, or a Problem that says the cause and the remedy.
 */
import { durationMs } from './duration.js'
import { type Problem, problem } from './errors.js'
import type { AcquireOptions, Holder, LeaseRequest, Release } from './lease.js'
import { LIMIT, TIMEOUT } from './limits.js'

export type Checked<T> = { value: T; problem?: undefined } | { value?: undefined; problem: Problem }

const UUID4 = /^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/
const POOL_NAME = /^[a-z0-9]([a-z0-9-]*[a-z0-9])?$/

export function invalid(message: string): { problem: Problem } {
  return { problem: problem('InvalidRequest', message) }
}

/** A text shortened for a message: what came in may be anything of any size. */
export function shown(value: unknown): string {
  let text: string
  try {
    // NaN and Infinity would be null.
    text = typeof value === 'number' ? String(value) : (JSON.stringify(value) ?? String(value))
  } catch (error) {
    const circular = /circular/i.test(String(error)) ? 'contains itself' : 'is no JSON'
    const kind = Array.isArray(value) ? 'a list' : 'an object'
    text = typeof value === 'object' ? `${kind} that ${circular}` : String(value)
  }
  return text.length > 80 ? `${text.slice(0, 77)}...` : text
}

/** Bytes of a text in UTF-8. */
export function utf8Bytes(text: string): number {
  let bytes = 0
  for (const char of text) {
    const code = char.codePointAt(0)!
    bytes += code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4
  }
  return bytes
}

export function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

/** A text used as a key: any characters but NUL (it separates keys), within its bound. */
function checkKey(name: string, value: unknown, otherwise: string, maxBytes: number): Checked<string> {
  if (value === undefined || value === null) return { value: otherwise }
  if (typeof value !== 'string') return invalid(`${name} must be a text, not ${shown(value)}`)
  if (value.includes('\u0000')) return invalid(`${name} has a NUL character; remove it`)
  const bytes = utf8Bytes(value)
  if (bytes > maxBytes)
    return invalid(
      `${name} has ${bytes} bytes, at most ${maxBytes} are allowed; use a shorter key, for example a hash of it`,
    )
  return { value }
}

export function checkPoolName(value: unknown): Checked<string> {
  if (typeof value !== 'string' || value.length > LIMIT.poolNameChars || !POOL_NAME.test(value)) {
    return invalid(
      `a pool's name has 1 to ${LIMIT.poolNameChars} characters a-z, 0-9 and '-', and starts and ends with a letter or digit; ${shown(value)} is not one`,
    )
  }
  return { value }
}

/** A number within bounds; `value` may be a Duration when `duration` is set (then bounds are ms). */
export function checkNumber(
  name: string,
  value: unknown,
  bounds: { min: number; max: number; otherwise?: number; duration?: boolean },
): Checked<number> {
  if ((value === undefined || value === null) && bounds.otherwise !== undefined)
    return { value: bounds.otherwise }
  const number = bounds.duration ? durationMs(value) : value
  if (typeof number !== 'number' || !Number.isFinite(number)) {
    return invalid(
      `${name} must be ${bounds.duration ? "a duration such as '90s' or a number of milliseconds" : 'a number'}, not ${shown(value)}`,
    )
  }
  if (!bounds.duration && !Number.isInteger(number))
    return invalid(`${name} must be a whole number, not ${number}`)
  if (number < bounds.min || number > bounds.max) {
    const unit = bounds.duration ? ' ms' : ''
    return invalid(`${name} is ${number}${unit}; it must be between ${bounds.min} and ${bounds.max}${unit}`)
  }
  return { value: bounds.duration ? Math.ceil(number) : number }
}

/** What AcquireOptions has; a new option without an entry does not compile. */
const ACQUIRE: Readonly<Record<keyof AcquireOptions, true>> = {
  caller: true,
  reuseTag: true,
  slot: true,
  tenant: true,
  priority: true,
  acquireTimeout: true,
  pin: true,
}
export const ACQUIRE_OPTIONS: readonly string[] = Object.keys(ACQUIRE)

export interface Acquire {
  caller: string
  reuseTag: string
  slot: string
  tenant: string
  priority: number
  acquireMs: number
  /** 0: not pinned */
  pinMs: number
}

/** AcquireOptions with defaults. `caller` defaults to the workflow that asks. */
export function checkAcquire(options: AcquireOptions, workflowId: string): Checked<Acquire> {
  const caller = checkKey('caller', options.caller, workflowId, LIMIT.callerBytes)
  if (caller.problem) return caller
  if (caller.value === '') return invalid('caller is empty; name who reuses the pod, or leave it out')
  const reuseTag = checkKey('reuseTag', options.reuseTag, '', LIMIT.keyBytes)
  if (reuseTag.problem) return reuseTag
  const slot = checkKey('slot', options.slot, '0', LIMIT.keyBytes)
  if (slot.problem) return slot
  const tenant = checkKey('tenant', options.tenant, 'default', LIMIT.keyBytes)
  if (tenant.problem) return tenant
  const priority = checkNumber('priority', options.priority, {
    min: LIMIT.priorityMin,
    max: LIMIT.priorityMax,
    otherwise: 5,
  })
  if (priority.problem) return priority
  const acquire = checkNumber('acquireTimeout', options.acquireTimeout, {
    min: 1,
    max: LIMIT.acquireMsMax,
    otherwise: TIMEOUT.acquireMs,
    duration: true,
  })
  if (acquire.problem) return acquire
  const pin = checkPin('pin', options.pin)
  if (pin.problem) return pin
  return {
    value: {
      caller: caller.value,
      reuseTag: reuseTag.value,
      slot: slot.value,
      tenant: tenant.value,
      priority: priority.value,
      acquireMs: acquire.value,
      pinMs: pin.value,
    },
  }
}

/** The options that were checked, to be handed on. */
export function asOptions({ acquireMs, pinMs, ...who }: Acquire): AcquireOptions {
  return { ...who, acquireTimeout: acquireMs, ...(pinMs > 0 ? { pin: pinMs } : {}) }
}

/** @returns 0 when it is not given */
function checkPin(name: string, value: unknown): Checked<number> {
  if (value === undefined || value === null || value === 0) return { value: 0 }
  return checkNumber(name, value, { min: LIMIT.pinMsMin, max: LIMIT.pinMsMax, duration: true })
}

/** @returns 'fail' when it is not given */
export function checkOnPodLost(value: unknown): Checked<'fail' | 'rerun'> {
  if (value === undefined || value === null) return { value: 'fail' }
  if (value === 'fail' || value === 'rerun') return { value }
  return invalid(`onPodLost must be 'fail' or 'rerun', not ${shown(value)}; leave it out for 'fail'`)
}

export function checkLeaseId(value: unknown): Checked<string> {
  if (typeof value === 'string' && UUID4.test(value)) return { value }
  return invalid(
    `a leaseId is a random uuid (version 4) in lower case, minted in the caller's workflow; ${shown(value)} is not one`,
  )
}

/** The `v` of a shape in which it may be left out. */
export function checkOptionalVersion(v: unknown): Checked<1> {
  const problem = v === undefined || v === null ? null : checkVersion({ v })
  return problem ? { problem } : { value: 1 }
}

function checkVersion(value: Record<string, unknown>): Problem | null {
  if (value.v === 1) return null
  return problem(
    'InvalidRequest',
    `this Firepool understands version 1 of the contract, not ${shown(value.v)}; upgrade its workers, or send v: 1`,
  )
}

export function checkHolder(value: unknown): Checked<Holder> {
  if (!isRecord(value))
    return invalid(`holder must be { workflowId, firstExecutionRunId, runId }, not ${shown(value)}`)
  const { workflowId, firstExecutionRunId, runId } = value
  for (const [name, id] of Object.entries({ workflowId, firstExecutionRunId, runId })) {
    // The server itself allows ids of 1,000 characters.
    if (typeof id !== 'string' || id === '' || id.length > 1_000)
      return invalid(`holder.${name} must be an id of 1 to 1,000 characters, not ${shown(id)}`)
  }
  return {
    value: {
      workflowId: workflowId as string,
      firstExecutionRunId: firstExecutionRunId as string,
      runId: runId as string,
    },
  }
}

export function checkReplyTo(value: unknown): Checked<LeaseRequest['replyTo']> {
  if (value === 'signal' || value === 'token') return { value }
  return invalid(`replyTo must be 'signal' or 'token', not ${shown(value)}; leave it out for 'token'`)
}

/** The payload of `firepool.request`, without its batch. */
export function checkLeaseRequest(value: unknown, now: number): Checked<LeaseRequest> {
  if (!isRecord(value)) return invalid(`a request is an object, not ${shown(value)}`)
  const version = checkVersion(value)
  if (version) return { problem: version }
  const leaseId = checkLeaseId(value.leaseId)
  if (leaseId.problem) return leaseId
  const holder = checkHolder(value.holder)
  if (holder.problem) return holder
  const { leaseWorkflowId, replyTo } = value
  if (typeof leaseWorkflowId !== 'string' || leaseWorkflowId === '' || leaseWorkflowId.length > 1_000) {
    return invalid(`leaseWorkflowId must be an id of 1 to 1,000 characters, not ${shown(leaseWorkflowId)}`)
  }
  const reply = checkReplyTo(replyTo)
  if (reply.problem) return reply
  const options = checkAcquire(
    { ...(value as AcquireOptions), acquireTimeout: TIMEOUT.acquireMs },
    holder.value.workflowId,
  )
  if (options.problem) return options
  const requested = checkNumber('requestedAtMs', value.requestedAtMs, {
    min: 0,
    max: now + TIMEOUT.clockGapMs,
    otherwise: now,
  })
  if (requested.problem) return requested
  const deadline = checkNumber('deadlineMs', value.deadlineMs, {
    min: 0,
    max: now + LIMIT.acquireMsMax + TIMEOUT.clockGapMs,
  })
  if (deadline.problem) return deadline
  const pin = checkPin('pinMs', value.pinMs)
  if (pin.problem) return pin
  const { caller, reuseTag, slot, tenant, priority } = options.value
  return {
    value: {
      v: 1,
      leaseId: leaseId.value,
      holder: holder.value,
      leaseWorkflowId,
      caller,
      reuseTag,
      slot,
      tenant,
      priority,
      requestedAtMs: requested.value,
      deadlineMs: deadline.value,
      replyTo: reply.value,
      pinMs: pin.value,
    },
  }
}

/** The payload of `firepool.release`. */
export function checkRelease(value: unknown): Checked<Release> {
  if (!isRecord(value)) return invalid(`a release is an object, not ${shown(value)}`)
  const version = checkVersion(value)
  if (version) return { problem: version }
  const leaseId = checkLeaseId(value.leaseId)
  if (leaseId.problem) return leaseId
  const { pod, epoch, clean } = value
  if (pod !== undefined && typeof pod !== 'string') return invalid(`pod must be a name, not ${shown(pod)}`)
  if (epoch !== undefined && !Number.isSafeInteger(epoch))
    return invalid(`epoch must be a whole number, not ${shown(epoch)}`)
  return {
    value: {
      v: 1,
      leaseId: leaseId.value,
      ...(pod !== undefined ? { pod } : {}),
      ...(epoch !== undefined ? { epoch: epoch as number } : {}),
      clean: clean === true,
      retire: value.retire === true,
      ...(typeof value.sick === 'string' ? { sick: value.sick } : {}),
    },
  }
}

/** The payload of `firepool.renew`. */
export function checkRenewal(value: unknown): Checked<{ leaseId: string }> {
  if (!isRecord(value)) return invalid(`a renewal is an object, not ${shown(value)}`)
  const version = checkVersion(value)
  if (version) return { problem: version }
  const leaseId = checkLeaseId(value.leaseId)
  return leaseId.problem ? leaseId : { value: { leaseId: leaseId.value } }
}

/** The payload of `firepool.token`. */
export function checkTokenOffer(value: unknown): Checked<{ leaseId: string; token: string }> {
  if (!isRecord(value)) return invalid(`a token offer is an object, not ${shown(value)}`)
  const version = checkOptionalVersion(value.v)
  if (version.problem) return version
  const leaseId = checkLeaseId(value.leaseId)
  if (leaseId.problem) return leaseId
  const { token } = value
  // The server's task tokens have about 400 bytes.
  if (typeof token !== 'string' || token === '' || token.length > 4_096)
    return invalid('token must be the base64 of a task token, at most 4,096 characters')
  return { value: { leaseId: leaseId.value, token } }
}

/** The payload of `firepool.resize`. */
export function checkResize(value: unknown): Checked<{ budget?: number | null; standby?: number | null }> {
  if (!isRecord(value)) return invalid(`a resize is { budget, standby }, not ${shown(value)}`)
  const version = checkOptionalVersion(value.v)
  if (version.problem) return version
  const out: { budget?: number | null; standby?: number | null } = {}
  for (const name of ['budget', 'standby'] as const) {
    const number = value[name]
    if (number === undefined) continue
    if (number === null) {
      out[name] = null
      continue
    }
    const checked = checkNumber(name, number, { min: 0, max: LIMIT.pods })
    if (checked.problem) return checked
    out[name] = checked.value
  }
  if (out.budget === undefined && out.standby === undefined)
    return invalid('a resize names budget, standby or both (null takes an earlier resize back)')
  return { value: out }
}

/** The payload of `firepool.setBudget`. */
export function checkSetBudget(value: unknown): Checked<{ budget: number; expiresAtMs: number }> {
  if (!isRecord(value)) return invalid(`a fleet budget is { budget, expiresAtMs }, not ${shown(value)}`)
  const version = checkOptionalVersion(value.v)
  if (version.problem) return version
  const budget = checkNumber('budget', value.budget, { min: 0, max: LIMIT.pods })
  if (budget.problem) return budget
  const expires = checkNumber('expiresAtMs', value.expiresAtMs, { min: 0, max: Number.MAX_SAFE_INTEGER })
  if (expires.problem) return expires
  return { value: { budget: budget.value, expiresAtMs: expires.value } }
}

/** Other SDKs write null for a field that is not set. */
export function withoutNulls(record: Record<string, unknown>): Record<string, unknown> {
  return Object.fromEntries(Object.entries(record).filter(([, value]) => value !== null))
}
