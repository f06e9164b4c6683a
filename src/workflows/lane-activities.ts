import { proxyActivities } from '@temporalio/workflow'
import type { Effect } from '../broker/index.js'
import { TIMEOUT } from '../contract/limits.js'
import { ACTIVITY, QUEUE } from '../contract/names.js'
import type { EffectActivity, EffectResults, LaneName } from './lanes.js'
import { summaryText } from './summary.js'

const ACTIVITY_OF: Record<LaneName, string> = {
  create: ACTIVITY.createPods,
  delete: ACTIVITY.deletePods,
  drain: ACTIVITY.drainPods,
  revoke: ACTIVITY.revokeLeases,
  deliver: ACTIVITY.deliver,
  describe: ACTIVITY.describeHolders,
  shard: ACTIVITY.tellShards,
}

/** Carries out a batch of a pool's effects by the activity of their lane. */
export function callLane(pool: string, lane: LaneName, effects: Effect[]): Promise<EffectResults> {
  const activities = proxyActivities<Record<string, EffectActivity>>({
    // Grants go out on the pool's own queue: the server then hands the activity over with the answer to the workflow
    // task (eager dispatch), which saves a hop and a write. Everything slower keeps off that worker's slots.
    taskQueue: lane === 'deliver' ? QUEUE.workflows : QUEUE.broker,
    startToCloseTimeout: TIMEOUT.effectMs,
    heartbeatTimeout: TIMEOUT.observeHeartbeatMs,
    retry: { initialInterval: 100, backoffCoefficient: 1, maximumAttempts: 3 },
    summary: summaryOf(lane, effects),
  })
  return activities[ACTIVITY_OF[lane]]!({ v: 1, pool, effects })
}

const VERB: Record<LaneName, string> = {
  create: 'start',
  delete: 'delete',
  drain: 'drain, if unused:',
  revoke: 'end what still runs of ended leases on',
  deliver: '',
  describe: 'look whether they still run:',
  shard: '',
}

/** What a batch does, by its first effect. */
function summaryOf(lane: LaneName, effects: Effect[]): string {
  const [first] = effects
  const more = effects.length > 1 ? ` and ${effects.length - 1} more` : ''
  return summaryText(`${VERB[lane]} ${first ? objectOf(first) : ''}${more}`)
}

function objectOf(effect: Effect): string {
  switch (effect.kind) {
    case 'create':
      return `pod ${effect.order.pod}`
    case 'deliver':
      return `grant pod ${effect.grant.pod} (${effect.grant.hit}) to lease ${effect.grant.leaseId.slice(0, 8)}`
    case 'announce':
      return `tell lease ${effect.grant.leaseId.slice(0, 8)} that it holds pod ${effect.grant.pod}`
    case 'notify':
      return `tell lease ${effect.end.leaseId.slice(0, 8)} that it ended: ${effect.end.end}`
    case 'describe':
      return `${effect.leases.length} holders of leases`
    case 'shard':
      return effect.order.leaving
        ? `tell shard ${effect.order.spec.name} to leave`
        : `tell shard ${effect.order.spec.name} its part: ${effect.order.cap.seats} seats`
    default:
      return `pod ${effect.pod}`
  }
}
