/** Which service accounts of a cluster may have tokens for leases. Pure. */

const ACCOUNT_PREFIX = 'system:serviceaccount:'
/** names of namespaces and of service accounts, as Kubernetes takes them */
const NAMESPACE = /^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$/
const ACCOUNT = /^[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?$/

/** One service account, or all of a namespace. */
export interface Caller {
  namespace: string
  /** null: all of the namespace */
  account: string | null
}

/** Reads `agents/trainer,eval/*`. @returns the entry that is none, when there is one */
export function parseCallers(text: string): { callers: Caller[] } | { wrong: string } {
  const callers: Caller[] = []
  for (const entry of text.split(',').map((part) => part.trim())) {
    const [namespace = '', account = '', ...more] = entry.split('/')
    const isAll = account === '*'
    if (!NAMESPACE.test(namespace) || more.length > 0 || !(isAll || ACCOUNT.test(account)))
      return { wrong: entry }
    callers.push({ namespace, account: isAll ? null : account })
  }
  return { callers }
}

/** @param user as the API server names it: system:serviceaccount:{namespace}:{name} */
export function isAllowed(callers: readonly Caller[], user: string): boolean {
  if (!user.startsWith(ACCOUNT_PREFIX)) return false
  const [namespace, account, ...more] = user.slice(ACCOUNT_PREFIX.length).split(':')
  if (more.length > 0) return false
  return callers.some((c) => c.namespace === namespace && (c.account === null || c.account === account))
}

/**
 * Who a service-account token says it is, unverified: enough to refuse it without a question to the API server, never to take it.
 * @returns null when it is no token of an account, or not for this audience
 */
export function claimedUser(token: string, audience: string): string | null {
  const [, payload = ''] = token.split('.')
  try {
    const { sub, aud } = JSON.parse(Buffer.from(payload, 'base64url').toString('utf8'))
    const isOurs = Array.isArray(aud) ? aud.includes(audience) : aud === audience
    return isOurs && typeof sub === 'string' ? sub : null
  } catch {
    return null
  }
}
