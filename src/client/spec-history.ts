import type { Client } from '@temporalio/client'
import { isRecord, type PoolSpec, readPoolSpec, SIGNAL, UPDATE } from '../contract/index.js'
import { firstValue } from './payload.js'

const PAGE_EVENTS = 1_000

type ReversePage = Awaited<ReturnType<Client['workflowService']['getWorkflowExecutionHistoryReverse']>>
type HistoryEvent = NonNullable<NonNullable<ReversePage['history']>['events']>[number]

/**
 * The spec that a pool has now, read from its history: the newest one that was applied, else that of its start (a
 * continue-as-new carries the newest one over). Needs no worker. A run's history has at most LIMIT.continueEvents.
 * @returns null when the history holds none that can be read
 * @throws an error of the Temporal client, e.g. when there is no such workflow
 */
export async function specInForce(
  client: Client,
  workflowId: string,
  runId?: string,
): Promise<PoolSpec | null> {
  let nextPageToken: Uint8Array | null | undefined
  do {
    const page: ReversePage = await client.workflowService.getWorkflowExecutionHistoryReverse({
      namespace: client.options.namespace,
      execution: { workflowId, ...(runId ? { runId } : {}) },
      maximumPageSize: PAGE_EVENTS,
      ...(nextPageToken ? { nextPageToken } : {}),
    })
    for (const event of page.history?.events ?? []) {
      const spec = await specIn(client, event)
      if (spec) return spec
    }
    nextPageToken = page.nextPageToken
  } while (nextPageToken && nextPageToken.length > 0)
  return null
}

async function specIn(client: Client, event: HistoryEvent): Promise<PoolSpec | null> {
  const update = event.workflowExecutionUpdateAcceptedEventAttributes?.acceptedRequest?.input
  if (update?.name === UPDATE.apply) return read(client, update.args?.payloads, (value) => value)
  const signal = event.workflowExecutionSignaledEventAttributes
  if (signal?.signalName === SIGNAL.apply) return read(client, signal.input?.payloads, (value) => value)
  const start = event.workflowExecutionStartedEventAttributes
  if (start) return read(client, start.input?.payloads, (value) => (isRecord(value) ? value.spec : undefined))
  return null
}

/** The checked spec in the first payload; null when it is not one (a pool drops such a signal, too). */
async function read(
  client: Client,
  payloads: readonly object[] | null | undefined,
  pick: (value: unknown) => unknown,
): Promise<PoolSpec | null> {
  return readPoolSpec(pick(await firstValue(client, payloads))).value ?? null
}
