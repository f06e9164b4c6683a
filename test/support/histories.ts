/** Recorded histories in test/histories: one JSON file for each, as `temporal workflow show --output json` writes them. */
import { mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { hostname } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { type History, historyToJSON } from '@temporalio/common/lib/proto-utils.js'

export const HISTORIES = fileURLToPath(new URL('../histories', import.meta.url))

interface JsonEvent {
  eventType: string
  workflowExecutionStartedEventAttributes?: { workflowType: { name: string }; workflowId: string }
  [key: string]: unknown
}

export interface JsonHistory {
  events: JsonEvent[]
}

export function historyNames(): string[] {
  return readdirSync(HISTORIES)
    .filter((file) => file.endsWith('.json'))
    .map((file) => file.slice(0, -'.json'.length))
    .sort()
}

export function readHistory(name: string): JsonHistory {
  return JSON.parse(readFileSync(join(HISTORIES, `${name}.json`), 'utf8')) as JsonHistory
}

export function workflowOf({ events }: JsonHistory): { type: string; workflowId: string } {
  const started = events[0]!.workflowExecutionStartedEventAttributes!
  return { type: started.workflowType.name, workflowId: started.workflowId }
}

/**
 * Replaces all recorded histories, one event a line, so that a new recording shows as a readable change.
 * @param beside those that were not recorded now stay
 */
export function writeHistories(histories: ReadonlyMap<string, JsonHistory>, beside = false): void {
  if (!beside) rmSync(HISTORIES, { recursive: true, force: true })
  mkdirSync(HISTORIES, { recursive: true })
  for (const [name, { events }] of histories) {
    const lines = events.map((event) => JSON.stringify(event)).join(',\n')
    writeFileSync(join(HISTORIES, `${name}.json`), `{"events":[\n${lines}\n]}\n`)
  }
}

/** A history as it may be published: without what only its server and its machine knew. */
export function published(history: History): JsonHistory {
  return scrub(JSON.parse(historyToJSON(history))) as JsonHistory
}

/** What tells of the machine that recorded: process and host of a worker, absolute paths of its files. */
const PRIVATE: [RegExp, string][] = [
  [/\b\d+@[\w.-]+/g, 'worker@host'],
  [new RegExp(`\\b${hostname().replace(/[^\w]/g, '\\$&')}\\b`, 'g'), 'host'],
  [/(?<![\w:/.])\/(?:tmp|home|root|work|workspace|private|Users|var\/folders)\/[^\s"'\\:)]*/g, '/somewhere'],
]

/** The first thing in a text that a history may not tell, or null. */
export function privateIn(text: string): string | null {
  for (const [pattern, instead] of PRIVATE) {
    for (const [found] of text.matchAll(pattern)) if (found !== instead) return found
  }
  return null
}

function cleaned(text: string): string {
  let clean = text
  for (const [pattern, instead] of PRIVATE) clean = clean.replace(pattern, instead)
  return clean
}

/** What replay does not read: who did it and with what, and the server's own bookkeeping. */
const BOOKKEEPING = new Set([
  'identity',
  'workerVersion',
  'meteringMetadata',
  'taskId',
  'requestId',
  'namespaceId',
  'normalName',
  'stackTrace',
])

function scrub(value: unknown, key = ''): unknown {
  if (Array.isArray(value)) return value.map((item) => scrub(item))
  if (typeof value === 'string') return key === 'data' ? rewritten(value) : cleaned(value)
  if (typeof value !== 'object' || value === null) return value
  const kept = Object.entries(value).filter(([name]) => !BOOKKEEPING.has(name))
  return Object.fromEntries(kept.map(([name, inner]) => [name, scrub(inner, name)]))
}

/** A payload's bytes: JSON in base64. */
function rewritten(data: string): string {
  return Buffer.from(cleaned(payloadText(data))).toString('base64')
}

function payloadText(data: string): string {
  return Buffer.from(data, 'base64').toString('utf8')
}

/** A history as text, with its payloads readable. */
export function historyText(history: JsonHistory): string {
  return JSON.stringify(history, (key, value) =>
    key === 'data' && typeof value === 'string' ? payloadText(value) : value,
  )
}
