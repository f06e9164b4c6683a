import {
  ACQUIRE_OPTIONS,
  type Acquire,
  type Checked,
  checkAcquire,
  checkNumber,
  checkOnPodLost,
  checkPoolName,
  invalid,
  isRecord,
  shown,
} from './check.js'
import { checkJob } from './check-job.js'
import type { JobSpec } from './job.js'
import { LIMIT, TIMEOUT } from './limits.js'
import { refuseUnknownNames } from './option-names.js'

export interface CheckedSession {
  pool: string
  acquire: Acquire
  ttlMs: number
  onPodLost: 'fail' | 'rerun'
}

const SESSION_OPTIONS = ['v', 'pool', ...ACQUIRE_OPTIONS, 'ttl', 'onPodLost', 'carried']
const KEY = /^[\x21-\x7e]{1,128}$/

/** The argument of `firepool.session`, from any SDK. `caller` defaults to the session's own workflow id. */
export function checkSession(value: unknown, workflowId: string): Checked<CheckedSession> {
  if (!isRecord(value)) return invalid(`firepool.session takes { pool, caller, ttl }, not ${shown(value)}`)
  const { v, pool, ttl, onPodLost, ...who } = withoutNulls(value)
  if (v !== undefined && v !== 1)
    return invalid(`this Firepool understands version 1 of the contract, not ${shown(v)}`)
  const names = refuseUnknownNames('firepool.session', 'option', value, SESSION_OPTIONS)
  if (names.problem) return names
  const name = checkPoolName(pool)
  if (name.problem) return name
  const acquire = checkAcquire(who, workflowId)
  if (acquire.problem) return acquire
  const lost = checkOnPodLost(onPodLost)
  if (lost.problem) return lost
  const bounds = { min: 1, max: LIMIT.sessionTtlMsMax, otherwise: TIMEOUT.sessionTtlMs, duration: true }
  const ttlMs = checkNumber('ttl', ttl, bounds)
  if (ttlMs.problem) return ttlMs
  return { value: { pool: name.value, acquire: acquire.value, ttlMs: ttlMs.value, onPodLost: lost.value } }
}

/** The argument of a session's update `firepool.run`. */
export function checkSessionRun(value: unknown): Checked<{ job: JobSpec; key: string | null }> {
  if (!isRecord(value)) return invalid(`firepool.run of a session takes { job, key }, not ${shown(value)}`)
  const { v, job, key, ...rest } = withoutNulls(value)
  if (v !== undefined && v !== 1)
    return invalid(`this Firepool understands version 1 of the contract, not ${shown(v)}`)
  const [unknown] = Object.keys(rest)
  if (unknown !== undefined)
    return invalid(`firepool.run of a session has no field '${unknown}'; known are job and key`)
  if (key !== undefined && !(typeof key === 'string' && KEY.test(key)))
    return invalid(`key must be 1 to 128 printable ASCII characters without blanks, not ${shown(key)}`)
  const checked = checkJob(job)
  if (checked.problem) return checked
  return { value: { job: job as JobSpec, key: key === undefined ? null : (key as string) } }
}

/** Other SDKs write null for a field that is not set. */
function withoutNulls(record: Record<string, unknown>): Record<string, unknown> {
  return Object.fromEntries(Object.entries(record).filter(([, value]) => value !== null))
}
