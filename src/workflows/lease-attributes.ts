import { defineSearchAttributeKey, SearchAttributeType } from '@temporalio/common'
import { upsertSearchAttributes } from '@temporalio/workflow'
import { callerHash } from './lease-id.js'

/** SQL visibility stores no more of a keyword; past 2,048 bytes the server terminates the workflow that sets it. */
const KEYWORD_CHARS = 255

const KEY = {
  pool: defineSearchAttributeKey('FirepoolPool', SearchAttributeType.KEYWORD),
  caller: defineSearchAttributeKey('FirepoolCaller', SearchAttributeType.KEYWORD),
  tenant: defineSearchAttributeKey('FirepoolTenant', SearchAttributeType.KEYWORD),
}

/** Makes a lease found by whose it is. Only where a worker has seen that the namespace has these attributes. */
export function setLeaseAttributes(
  pool: string,
  { caller, tenant }: { caller: string; tenant: string },
): void {
  upsertSearchAttributes([
    { key: KEY.pool, value: pool },
    { key: KEY.caller, value: callerKeyword(caller) },
    { key: KEY.tenant, value: tenant },
  ])
}

/** A caller as a keyword: one that is too long is cut, and a hash of it tells it from others that begin alike. */
export function callerKeyword(caller: string): string {
  if (caller.length <= KEYWORD_CHARS) return caller
  const hash = callerHash(caller)
  return `${caller.slice(0, KEYWORD_CHARS - hash.length - 1).replace(/[\uD800-\uDBFF]$/, '')}-${hash}`
}
