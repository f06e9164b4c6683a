/**
 * Every name that another part, another SDK or a running history relies on.
 * Changing one is a breaking change of the published contract.
 */

/** Version carried by every JSON shape that crosses an edge. */
export const CONTRACT_VERSION = 1

/** Of the service-account tokens with which callers' workers in a cluster ask for tokens of their leases. */
export const TOKEN_AUDIENCE = 'firepool'

export const WORKFLOW = {
  pool: 'firepool.pool',
  lease: 'firepool.lease',
  runJob: 'firepool.runJob',
  session: 'firepool.session',
} as const

export const ACTIVITY = {
  run: 'firepool.run',
  /** local, of callers' own workers with the plugin: a short job on a held lease */
  runShort: 'firepool.runShort',
  cancelShort: 'firepool.cancelShort',
  /** for firepool.runJob alone: acquires and runs in one activity */
  runOnce: 'firepool.runOnce',
  awaitLease: 'firepool.awaitLease',
  /** local, of lease workflows: one signal to the pool */
  tellPool: 'firepool.tellPool',
  createPods: 'firepool.createPods',
  deletePods: 'firepool.deletePods',
  drainPods: 'firepool.drainPods',
  revokeLeases: 'firepool.revokeLeases',
  deliver: 'firepool.deliver',
  observe: 'firepool.observe',
  describeHolders: 'firepool.describeHolders',
  tellShards: 'firepool.tellShards',
  /** of a pool that has ended, on a backend that keeps something for each pool */
  forgetPool: 'firepool.forgetPool',
  namespaceFeatures: 'firepool.namespaceFeatures',
} as const

export const QUEUE = {
  /** pool, lease and runJob workflows */
  workflows: 'firepool-workflows',
  /** jobs: `firepool.run` and `firepool.awaitLease` */
  jobs: 'firepool',
  /** pool effects */
  broker: 'firepool-broker',
} as const

export const SIGNAL = {
  request: 'firepool.request',
  release: 'firepool.release',
  token: 'firepool.token',
  /** a pinned lease is still wanted */
  renew: 'firepool.renew',
  setBudget: 'firepool.setBudget',
  resize: 'firepool.resize',
  pause: 'firepool.pause',
  resume: 'firepool.resume',
  drain: 'firepool.drain',
  apply: 'firepool.apply',
  /** to a session: give the pod back and end */
  endSession: 'firepool.endSession',
  /** to a session: continue as new when no job runs */
  renewSession: 'firepool.renewSession',
  /** pool -> holder: here is your pod */
  grant: 'firepool.grant',
  /** pool -> lease workflow: the lease is over */
  ended: 'firepool.ended',
} as const

/** Update twins of the operator's signals: they validate, and answer with what is in force. */
export const UPDATE = {
  setBudget: 'firepool.setBudget',
  resize: 'firepool.resize',
  pause: 'firepool.pause',
  resume: 'firepool.resume',
  drain: 'firepool.drain',
  apply: 'firepool.apply',
  upgrade: 'firepool.upgrade',
  /** for firepool.runOnce: a request whose grant is the answer */
  acquire: 'firepool.acquire',
  delete: 'firepool.delete',
  /** the head of a sharded pool to a shard: all that it should be */
  shard: 'firepool.shard',
} as const

/** Updates of a session, by update-with-start. */
export const SESSION_UPDATE = {
  /** one job */
  run: 'firepool.run',
} as const

export const QUERY = {
  status: 'firepool.status',
  pods: 'firepool.pods',
  queue: 'firepool.queue',
} as const

/** Custom search attributes, used only where the namespace has them. */
export const SEARCH_ATTRIBUTE = {
  FirepoolPool: 'Keyword',
  FirepoolState: 'Keyword',
  FirepoolTenant: 'Keyword',
  FirepoolCaller: 'Keyword',
  FirepoolLeased: 'Int',
  FirepoolWarm: 'Int',
} as const

/** Workflow id of a pool: one entity for each name. */
export function poolWorkflowId(pool: string): string {
  return `pool/${pool}`
}
