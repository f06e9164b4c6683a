import type { Client } from '@temporalio/client'
import type { Backend } from '../contract/backend.js'
import { ACTIVITY } from '../contract/names.js'
import { readFeatures } from '../server/search-attributes.js'
import type { Signer } from '../token/token.js'
import { createAwaitLease } from './await-lease.js'
import { createDeliver } from './deliver.js'
import { createDescribeHolders } from './holders.js'
import { KnownAttributes } from './known-attributes.js'
import { createObserve } from './observe.js'
import { createPodActivities } from './pods.js'
import { createRun } from './run.js'
import { createRunOnce } from './run-once.js'
import { ShardRoutes } from './shard-routes.js'
import { createTellPool } from './tell-pool.js'
import { createTellShards } from './tell-shards.js'

export interface ActivityDeps {
  client: Client
  signer: Signer
  backend: Backend
}

interface Known {
  /** of pools' shards */
  shards: ShardRoutes
  /** of the namespace */
  attributes: KnownAttributes
}

/** What a worker knows of the server: one cache for all of its activities. */
const known = new WeakMap<Client, Known>()

function knownOf(client: Client): Known {
  let own = known.get(client)
  if (!own) {
    const read = async () => (await featuresOf(client)).searchAttributes
    own = { shards: new ShardRoutes(client), attributes: new KnownAttributes(read) }
    known.set(client, own)
  }
  return own
}

function featuresOf({ connection, options }: Client) {
  return readFeatures(connection as Parameters<typeof readFeatures>[0], options.namespace)
}

/** Activities of the queue `firepool`: jobs on held leases. */
export function createJobActivities({ client, signer, backend }: ActivityDeps) {
  const own = knownOf(client)
  return {
    [ACTIVITY.run]: createRun({ client, signer }),
    [ACTIVITY.runOnce]: createRunOnce({ client, signer, backend, ...own }),
    [ACTIVITY.awaitLease]: createAwaitLease(client, own.shards),
  }
}

/** Activities of the queue `firepool-workflows`, beside the pools and leases that schedule them: short; eager or local. */
export function createDeliveryActivities({ client, signer, backend }: ActivityDeps) {
  const { shards, attributes } = knownOf(client)
  return {
    [ACTIVITY.deliver]: createDeliver({ client, signer, backend }),
    [ACTIVITY.tellPool]: createTellPool(client, shards, attributes),
  }
}

/** Activities of the queue `firepool-broker`: the effects of pools. */
export function createBrokerActivities({ client, signer, backend }: ActivityDeps) {
  const pods = createPodActivities({ backend, signer })
  return {
    [ACTIVITY.createPods]: pods.createPods,
    [ACTIVITY.deletePods]: pods.deletePods,
    [ACTIVITY.drainPods]: pods.drainPods,
    [ACTIVITY.revokeLeases]: pods.revokeLeases,
    [ACTIVITY.observe]: createObserve({ backend, signer }),
    [ACTIVITY.describeHolders]: createDescribeHolders(client),
    [ACTIVITY.tellShards]: createTellShards(client),
    [ACTIVITY.forgetPool]: ({ pool }: { pool: string }) => backend.forget(pool),
    [ACTIVITY.namespaceFeatures]: async () => ({ v: 1, ...(await featuresOf(client)) }),
  }
}
