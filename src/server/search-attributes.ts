import { setTimeout } from 'node:timers/promises'
import type { Connection } from '@temporalio/client'
import { SEARCH_ATTRIBUTE } from '../contract/index.js'

type SearchAttributeName = keyof typeof SEARCH_ATTRIBUTE
type SearchAttributeType = (typeof SEARCH_ATTRIBUTE)[SearchAttributeName]

const NAMES = Object.keys(SEARCH_ATTRIBUTE) as SearchAttributeName[]

/** temporal.api.enums.v1.IndexedValueType */
const INDEXED_VALUE_TYPE: Record<SearchAttributeType, number> = { Keyword: 2, Int: 3 }

// gRPC status codes
const ALREADY_EXISTS = 6
const NOT_FOUND = 5
const PERMISSION_DENIED = 7

/** A server that was asked for a namespace before it was created says for a second more that it is not there. */
const NEW_NAMESPACE_MS = 3_000
const NEW_NAMESPACE_RETRY_MS = 250

export interface SearchAttributeReport {
  /** those of Firepool's that the namespace has now, with the type Firepool needs: only these may be set */
  present: SearchAttributeName[]
  missing: SearchAttributeName[]
  /** why some are missing, with what to do; absent when none is */
  reason?: string
}

/** What the namespace offers that Firepool uses where it can. */
export interface NamespaceFeatures {
  searchAttributes: SearchAttributeName[]
  /** why some search attributes are not there */
  reason?: string
}

/**
 * Registers Firepool's search attributes where the namespace lacks them and we may. Can be called at any
 * time, by several processes at once. Never throws: what stays missing has a reason, and Firepool works
 * without it.
 */
export async function ensureSearchAttributes(
  connection: Connection,
  namespace: string,
): Promise<SearchAttributeReport> {
  const before = await listOfNewNamespace(connection, namespace)
  if (before.unreadable || before.missing.length === 0) return report(before, namespace)
  const refusals: string[] = []
  // One by one: a server refuses a whole batch for one type that its table has no column left for.
  for (const name of before.missing) {
    if (before.mistyped.includes(name)) continue
    const refusal = await add(connection, namespace, name)
    if (refusal === undefined) continue
    refusals.push(`${name}: ${messageOf(refusal)}`)
    if (refusal.code === PERMISSION_DENIED) break
  }
  await removeDoubles(connection, namespace)
  return report(await list(connection, namespace), namespace, refusals)
}

/** Reads what the namespace offers and changes nothing. Never throws; what cannot be read counts as missing. */
export async function readFeatures(connection: Connection, namespace: string): Promise<NamespaceFeatures> {
  const { present, reason } = report(await list(connection, namespace), namespace)
  return { searchAttributes: present, ...(reason === undefined ? {} : { reason }) }
}

type ServiceError = Error & { code?: number; details?: string }

async function add(
  connection: Connection,
  namespace: string,
  name: SearchAttributeName,
): Promise<ServiceError | undefined> {
  try {
    await connection.operatorService.addSearchAttributes({
      namespace,
      searchAttributes: { [name]: INDEXED_VALUE_TYPE[SEARCH_ATTRIBUTE[name]] },
    })
  } catch (error) {
    if ((error as ServiceError).code !== ALREADY_EXISTS) return error as ServiceError
  }
  return undefined
}

/**
 * On SQL the server maps each name to a column chosen at random, and two processes that add the same name
 * at once can give it two columns; a value then lands in either of them. Whoever sees that frees all but
 * the first column, so all agree on which one stays. Without the right to do so nothing changes.
 */
async function removeDoubles(connection: Connection, namespace: string): Promise<void> {
  try {
    const { config } = await connection.workflowService.describeNamespace({ namespace })
    const aliases = Object.entries(config?.customSearchAttributeAliases ?? {}).sort(([a], [b]) =>
      a < b ? -1 : 1,
    )
    const seen = new Set<string>()
    const surplus: Record<string, string> = {}
    for (const [column, name] of aliases) {
      if (seen.has(name) && name in SEARCH_ATTRIBUTE) surplus[column] = ''
      seen.add(name)
    }
    if (Object.keys(surplus).length === 0) return
    await connection.workflowService.updateNamespace({
      namespace,
      config: { customSearchAttributeAliases: surplus },
    })
  } catch {
    // Without search attributes, or with a doubled one, Firepool works; only a search may miss.
  }
}

interface Listing {
  present: SearchAttributeName[]
  missing: SearchAttributeName[]
  /** registered under another type, so not usable and not to be added */
  mistyped: SearchAttributeName[]
  unreadable?: string
  /** unreadable because the server knows no such namespace, or not yet */
  notFound?: boolean
}

/** The namespace may be new, and this server not have seen it yet. */
async function listOfNewNamespace(connection: Connection, namespace: string): Promise<Listing> {
  const until = performance.now() + NEW_NAMESPACE_MS
  for (;;) {
    const listing = await list(connection, namespace)
    if (!listing.notFound || performance.now() > until) return listing
    await setTimeout(NEW_NAMESPACE_RETRY_MS)
  }
}

async function list(connection: Connection, namespace: string): Promise<Listing> {
  let registered: Record<string, number | null>
  try {
    registered = (await connection.operatorService.listSearchAttributes({ namespace })).customAttributes ?? {}
  } catch (error) {
    const { code } = error as ServiceError
    const unreadable = messageOf(error as ServiceError)
    return { present: [], missing: [...NAMES], mistyped: [], unreadable, notFound: code === NOT_FOUND }
  }
  const present = NAMES.filter((name) => registered[name] === INDEXED_VALUE_TYPE[SEARCH_ATTRIBUTE[name]])
  const missing = NAMES.filter((name) => !present.includes(name))
  return { present, missing, mistyped: missing.filter((name) => registered[name]) }
}

function report(listing: Listing, namespace: string, refusals: string[] = []): SearchAttributeReport {
  const { present, missing, mistyped, unreadable } = listing
  if (missing.length === 0) return { present, missing }
  const causes = [
    ...(unreadable === undefined ? [] : [`they cannot be read (${unreadable})`]),
    ...mistyped.map((name) => `${name} is registered with another type than ${SEARCH_ATTRIBUTE[name]}`),
    ...refusals,
  ]
  const commands = missing
    .filter((name) => !mistyped.includes(name))
    .map((name) => `--name ${name} --type ${SEARCH_ATTRIBUTE[name]}`)
    .join(' ')
  const advice =
    commands && `to add them: temporal operator search-attribute create -n ${namespace} ${commands}`
  const what = `namespace ${namespace} lacks ${missing.join(', ')}`
  return { present, missing, reason: [what, ...causes, advice].filter(Boolean).join('; ') }
}

function messageOf(error: ServiceError): string {
  return error.details || error.message || String(error)
}
