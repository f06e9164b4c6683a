import { sha256 } from '@noble/hashes/sha2.js'
import { bytesToHex, utf8ToBytes } from '@noble/hashes/utils.js'
import { type Checked, invalid, utf8Bytes } from '../contract/check.js'
import { LIMIT } from '../contract/limits.js'

const SLUG_CHARS = 40

/** A readable part of an id: what is not a letter, digit, '.', '_' or '-' becomes '-'. */
export function slug(text: string): string {
  return text.replace(/[^A-Za-z0-9._-]+/g, '-').slice(0, SLUG_CHARS)
}

/** Tells callers apart whose readable parts are equal: 12 hex digits. */
export function callerHash(caller: string): string {
  return bytesToHex(sha256(utf8ToBytes(caller))).slice(0, 12)
}

/**
 * Id of a lease workflow. The slug is for people, the hash tells callers with equal slugs apart, and the random
 * leaseId makes it new each time: with a deterministic id a reset parent fails to start its child.
 */
export function leaseWorkflowId(
  pool: string,
  caller: string,
  slot: string,
  leaseId: string,
): Checked<string> {
  const hash = callerHash(caller)
  const id = `lease/${pool}/${slug(caller)}-${hash}/${slug(slot)}/${leaseId}`
  const bytes = utf8Bytes(id)
  if (bytes > LIMIT.workflowIdBytes)
    return invalid(
      `the lease's workflow id would have ${bytes} bytes, at most ${LIMIT.workflowIdBytes} are allowed; use a shorter pool name`,
    )
  return { value: id }
}
