import { defineSearchAttributeKey, SearchAttributeType } from '@temporalio/common'
import {
  makeContinueAsNewFunc,
  proxyActivities,
  upsertMemo,
  upsertSearchAttributes,
  workflowInfo,
} from '@temporalio/workflow'
import { TIMEOUT } from '../contract/limits.js'
import { ACTIVITY, QUEUE, SEARCH_ATTRIBUTE } from '../contract/names.js'
import type { PoolInput, PoolStatus, Routes } from '../contract/pool.js'
import { ROUTES_MEMO, routesIn } from '../contract/shards.js'
import { poolLine } from './pool-page.js'

/** Each mirroring is an event or two in the pool's history, so it is done at most this often. */
const MIRROR_MS = 30_000

interface NamespaceFeatures {
  v: 1
  /** names of our search attributes that the namespace has */
  searchAttributes: string[]
  /** why some are not there */
  reason?: string
}

const KEY = {
  pool: defineSearchAttributeKey('FirepoolPool', SearchAttributeType.KEYWORD),
  state: defineSearchAttributeKey('FirepoolState', SearchAttributeType.KEYWORD),
  leased: defineSearchAttributeKey('FirepoolLeased', SearchAttributeType.INT),
  warm: defineSearchAttributeKey('FirepoolWarm', SearchAttributeType.INT),
}

/**
 * A short state in the memo and, where the namespace has our search attributes, there: current details need a live
 * worker, these do not. An attribute that is not registered would wedge the workflow, so nothing is set before an
 * activity has seen them all.
 */
export class Mirror {
  private hasAttributes = false
  private whyNot: string | null = null
  private shownAt = 0
  private shown = ''

  readFeatures(): void {
    const activities = proxyActivities<Record<string, () => Promise<NamespaceFeatures>>>({
      taskQueue: QUEUE.broker,
      startToCloseTimeout: TIMEOUT.effectMs,
      retry: { maximumAttempts: 3 },
      summary: 'which search attributes has this namespace?',
    })
    activities[ACTIVITY.namespaceFeatures]!()
      .then(({ searchAttributes, reason }) => {
        this.hasAttributes = Object.keys(SEARCH_ATTRIBUTE).every((name) => searchAttributes.includes(name))
        if (!this.hasAttributes && typeof reason === 'string') this.whyNot = reason
      })
      // Without an answer, or with one that another worker has encoded with keys of its own, nothing is mirrored there: the
      // pool works all the same. A rejection that nobody takes would fail its workflow task for ever.
      .catch(() => undefined)
  }

  /** Says at once where requests go, when that has changed: nothing for a pool that is whole. */
  route(routes: Routes): void {
    const said = routesIn(workflowInfo().memo)
    if (said.routes !== routes.routes || said.all !== routes.all) upsertMemo({ [ROUTES_MEMO]: routes })
  }

  /** Continues the pool as new with its memo. */
  async continueAsNew(next: PoolInput): Promise<never> {
    const { memo } = workflowInfo()
    return await makeContinueAsNewFunc<(input: PoolInput) => Promise<unknown>>(memo ? { memo } : {})(next)
  }

  /** Why no search attributes are set, or null. They are looked for again when the pool continues as new. */
  get refusal(): string | null {
    return this.whyNot
  }

  /**
   * Shows the state if it is time and it changed; the status costs O(pods), so it is not even asked for before.
   * @param happened whether anything happened since the last call
   * @returns when to come again, ms since the epoch, or null
   */
  show(status: () => PoolStatus, now: number, happened: boolean): number | null {
    if (now < this.shownAt + MIRROR_MS) return happened ? this.shownAt + MIRROR_MS : null
    const current = status()
    const line = poolLine(current)
    if (line === this.shown) return null
    this.shown = line
    this.shownAt = now
    upsertMemo({ firepool: line })
    if (!this.hasAttributes) return null
    upsertSearchAttributes([
      { key: KEY.pool, value: current.pool },
      { key: KEY.state, value: current.mode },
      { key: KEY.leased, value: current.leases },
      { key: KEY.warm, value: current.pods.idle },
    ])
    return null
  }
}
