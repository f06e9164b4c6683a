import { type Checked, checkOptionalVersion, invalid, isRecord, shown, withoutNulls } from './check.js'
import type { JobSpec } from './job.js'
import type { Grant } from './lease.js'
import type { RunInput } from './run.js'

/** A run whose defaults are filled in. */
export type CheckedRun = RunInput & { v: 1; jobId: string }

const JOB_ID = /^[\x21-\x7e]{1,256}$/

/**
 * The argument of `firepool.run`, which may come from any SDK. The job itself is checked by the runner.
 * @param ownId the job's id when none is given: the same in each attempt of one activity, and in no other activity
 */
export function checkRunInput(value: unknown, ownId: string): Checked<CheckedRun> {
  if (!isRecord(value)) return invalid(`firepool.run takes { grant, job }, not ${shown(value)}`)
  const { v, grant, job, jobId = ownId, releaseAfter, posted } = withoutNulls(value)
  const version = checkOptionalVersion(v)
  if (version.problem) return version
  if (!isRecord(grant))
    return invalid(`grant is what firepool.awaitLease returned, handed on as it is, not ${shown(grant)}`)
  const grantVersion = checkOptionalVersion(grant.v)
  if (grantVersion.problem) return grantVersion
  for (const name of ['leaseId', 'pool', 'pod', 'address', 'incarnation']) {
    if (typeof grant[name] !== 'string' || grant[name] === '')
      return invalid(`grant.${name} must be a text; hand the grant of firepool.awaitLease on as it is`)
  }
  if (!Number.isSafeInteger(grant.epoch))
    return invalid(`grant.epoch must be a whole number; hand the grant of firepool.awaitLease on as it is`)
  if (!isRecord(job)) return invalid(`job is { command, ... }, not ${shown(job)}`)
  if (typeof jobId !== 'string' || !JOB_ID.test(jobId))
    return invalid(`jobId must be 1 to 256 printable ASCII characters without blanks, not ${shown(jobId)}`)
  if (releaseAfter !== undefined && releaseAfter !== 'keep' && releaseAfter !== 'retire')
    return invalid(`releaseAfter is 'keep' or 'retire', not ${shown(releaseAfter)}`)
  return {
    value: {
      v: 1,
      grant: grant as unknown as Grant,
      jobId,
      job: forThePod(job),
      ...(releaseAfter ? { releaseAfter } : {}),
      ...(posted === true ? { posted } : {}),
    },
  }
}

/** That a job is short concerns its caller alone: a pod of an earlier version need not know the word. */
function forThePod(job: Record<string, unknown>): JobSpec {
  const { short: _, ...rest } = withoutNulls(job)
  return rest as unknown as JobSpec
}
