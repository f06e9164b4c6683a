import type { WorkflowHandle } from '@temporalio/client'
import { ACTIVITY, type PoolInput } from '../../dist/contract/index.js'
import { Random } from './random.js'
import type { PoolHandle, World } from './world.js'

/** What a flood is made of; each leaves something that can be counted. */
const KINDS = ['poison', 'release', 'token', 'request'] as const
export type FloodKind = (typeof KINDS)[number]

export interface Flood {
  seed: number
  /** ids of each kind: the lease's, or the poison's own */
  ids: Record<FloodKind, string[]>
  /** when each was sent, ms since the epoch */
  sentAt: Map<string, number>
  /** how long each took until the server had it, ms */
  acceptedMs: number[]
  /** signals that were sent a second, by the clock */
  perSecond: number
}

export interface FloodOptions {
  perSecond: number
  seconds: number
  kinds?: readonly FloodKind[]
  seed?: number
}

/** A spec in which a flood's requests wait or are refused at once, and nothing else happens. */
export const FLOODED = { budget: 0, standby: 0, maxPods: 1, queueLimit: 1_000 }

const HOUR_MS = 3_600_000

/**
 * Sends signals at a pace that does not wait for answers, of all kinds in turn. Who hears of refused requests is the
 * workflow `collector` (see callers.ts); without requests there need not be one.
 */
export async function flood(
  pool: Pick<PoolHandle, 'handle'>,
  collector: WorkflowHandle | null,
  { perSecond, seconds, kinds = KINDS, seed = Date.now() % 1_000_000 }: FloodOptions,
): Promise<Flood> {
  const random = new Random(seed)
  const runId = (await collector?.describe())?.runId ?? ''
  const holder = { workflowId: collector?.workflowId ?? '', firstExecutionRunId: runId, runId }
  const result: Flood = {
    seed,
    ids: { poison: [], release: [], token: [], request: [] },
    sentAt: new Map(),
    acceptedMs: [],
    perSecond: 0,
  }
  const payload = (kind: FloodKind, leaseId: string): [string, unknown] => {
    switch (kind) {
      case 'poison':
        return ['firepool.request', { v: 1, poison: leaseId }]
      case 'release':
        return ['firepool.release', { v: 1, leaseId }]
      case 'token':
        return ['firepool.token', { v: 1, leaseId, token: 'dG9rZW4=' }]
      case 'request': {
        const deadlineMs = Date.now() + HOUR_MS
        const rest = { deadlineMs, replyTo: 'signal', caller: leaseId }
        return ['firepool.request', { v: 1, leaseId, holder, leaseWorkflowId: holder.workflowId, ...rest }]
      }
    }
  }
  const total = perSecond * seconds
  const sending: Promise<void>[] = []
  const from = performance.now()
  while (sending.length < total) {
    const due = Math.min(total, Math.ceil(((performance.now() - from) / 1_000) * perSecond))
    while (sending.length < due) {
      const kind = kinds[sending.length % kinds.length]!
      // Version 4: Random's are of none.
      const id = random.uuid().replace(/^(.{14}).(.{4}).(.*)$/, '$14$28$3')
      result.ids[kind].push(id)
      result.sentAt.set(id, Date.now())
      const at = performance.now()
      const sent = pool.handle.signal(...payload(kind, id))
      sending.push(sent.then(() => void result.acceptedMs.push(performance.now() - at)))
    }
    await new Promise((resolve) => setTimeout(resolve, 5))
  }
  result.perSecond = Math.round(total / ((performance.now() - from) / 1_000))
  await Promise.all(sending)
  return result
}

type Events = NonNullable<Awaited<ReturnType<WorkflowHandle['fetchHistory']>>['events']>

/** The histories of all runs of a workflow that continues as new, the first one first. */
export async function runsOf(world: Pick<World, 'client'>, workflowId: string): Promise<Events[]> {
  const runs: Events[] = []
  const { workflow } = world.client
  let { runId } = await workflow.getHandle(workflowId).describe()
  for (;;) {
    const { events } = await workflow.getHandle(workflowId, runId).fetchHistory()
    runs.unshift(events!)
    const before = events![0]!.workflowExecutionStartedEventAttributes?.continuedExecutionRunId
    if (!before) return runs
    runId = before
  }
}

/** temporal.api.enums.v1.WorkflowTaskFailedCause: a run may not end while something has come that it has not seen. */
const UNHANDLED_COMMAND = 1
/** More than 100 events came during one task: its commands are dropped, and the next task sees all of them. */
const FORCE_CLOSE_COMMAND = 17

/** Workflow tasks that failed or timed out, but for those that the server repeats because something came meanwhile. */
export function badTasks(runs: readonly Events[]): { forceClosed: number; others: string[] } {
  let forceClosed = 0
  const others = runs.flat().flatMap((event) => {
    const { workflowTaskFailedEventAttributes: failed, workflowTaskTimedOutEventAttributes: late } = event
    if (failed?.cause === FORCE_CLOSE_COMMAND) forceClosed++
    else if (failed && failed.cause !== UNHANDLED_COMMAND)
      return [`failed, cause ${failed.cause}: ${failed.failure?.message}`]
    return late ? [`timed out (${late.timeoutType})`] : []
  })
  return { forceClosed, others }
}

/** Ids of the effects that a pool had carried out, as often as it did. */
export function effectIds(runs: readonly Events[]): string[] {
  return runs.flat().flatMap((event) => {
    const { activityType, input } = event.activityTaskScheduledEventAttributes ?? {}
    if (activityType?.name !== ACTIVITY.deliver) return []
    return (json(input?.payloads?.[0]?.data) as { effects: { id: string }[] }).effects.map(({ id }) => id)
  })
}

const json = (data: Uint8Array | null | undefined) => JSON.parse(Buffer.from(data ?? []).toString())

interface Timed {
  eventTime?: { seconds?: unknown; nanos?: number | null } | null
}

const eventMs = ({ eventTime }: Timed) =>
  Number(eventTime?.seconds ?? 0) * 1_000 + (eventTime?.nanos ?? 0) / 1e6

/**
 * For each signal of a flood: how long from its sending until the pool had acted on it, that is until the workflow task
 * that saw it was completed; ms. By the clocks of one machine.
 */
export function handledMs(
  runs: readonly Events[],
  sentAt: ReadonlyMap<string, number>,
): Map<string, number[]> {
  const handled = new Map<string, number[]>()
  for (const events of runs) {
    let arrived: string[] = []
    let seen: string[] = []
    for (const event of events) {
      const signal = event.workflowExecutionSignaledEventAttributes
      if (signal) {
        const { leaseId, poison } = json(signal.input?.payloads?.[0]?.data)
        arrived.push(leaseId ?? poison)
      } else if (event.workflowTaskStartedEventAttributes) {
        seen = arrived
      } else if (event.workflowTaskCompletedEventAttributes) {
        for (const id of seen) {
          const from = sentAt.get(id)
          if (from !== undefined) handled.set(id, [...(handled.get(id) ?? []), eventMs(event) - from])
        }
        arrived = arrived.slice(seen.length)
        seen = []
      }
    }
  }
  return handled
}

/** p50, p99 and the longest, ms. */
export function spread(ms: readonly number[]): { p50: number; p99: number; max: number } {
  const sorted = [...ms].sort((a, b) => a - b)
  const at = (q: number) => Math.round(sorted[Math.max(0, Math.ceil(q * sorted.length) - 1)] ?? Number.NaN)
  return { p50: at(0.5), p99: at(0.99), max: at(1) }
}

/** The bytes that a run was started with. */
export function inputBytes(events: Events): number {
  const { payloads } = events[0]!.workflowExecutionStartedEventAttributes!.input!
  return payloads!.reduce((sum, { data }) => sum + (data?.length ?? 0), 0)
}

/** What a run was given: for one that continued as new, with the state that it carries. */
export function inputOf(events: Events): PoolInput & {
  carried: { tombstones: unknown[]; earlyTokens: [string][]; leases: [string][]; poison: { count: number } }
} {
  return json(events[0]!.workflowExecutionStartedEventAttributes!.input!.payloads![0]!.data)
}
