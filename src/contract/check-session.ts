import {
  ACQUIRE_OPTIONS,
  type Acquire,
  type Checked,
  checkAcquire,
  checkNumber,
  checkOnPodLost,
  checkOptionalVersion,
  checkPoolName,
  invalid,
  isRecord,
  shown,
  withoutNulls,
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
  const version = checkOptionalVersion(v)
  if (version.problem) return version
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
  const { v, job, key } = withoutNulls(value)
  const version = checkOptionalVersion(v)
  if (version.problem) return version
  const names = refuseUnknownNames('firepool.run of a session', 'field', value, ['v', 'job', 'key'])
  if (names.problem) return names
  if (key !== undefined && !(typeof key === 'string' && KEY.test(key)))
    return invalid(`key must be 1 to 128 printable ASCII characters without blanks, not ${shown(key)}`)
  const checked = checkJob(job)
  if (checked.problem) return checked
  return { value: { job: job as JobSpec, key: key === undefined ? null : (key as string) } }
}
