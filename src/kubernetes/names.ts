import { createHash } from 'node:crypto'
import type { PodOrder } from '../contract/index.js'
import { LABEL_PREFIX } from '../contract/index.js'

/** Names, labels and annotations of what this backend makes: how it finds its own, and what a person sees with kubectl. */

export const LABEL = {
  managedBy: 'app.kubernetes.io/managed-by',
  /** whose key the pod trusts: two deployments of Firepool in one namespace never touch each other's pods */
  broker: `${LABEL_PREFIX}broker`,
  pool: `${LABEL_PREFIX}pool`,
  /** the pod's name in Firepool, shortened to what a label may have */
  pod: `${LABEL_PREFIX}pod`,
  generation: `${LABEL_PREFIX}generation`,
  /** of a pod in a seat set: its number in the pool */
  seatSet: `${LABEL_PREFIX}seat-set`,
} as const

export const ANNOTATION = {
  /** the pod's whole name in Firepool */
  pod: `${LABEL_PREFIX}pod`,
  startTimeoutMs: `${LABEL_PREFIX}start-timeout-ms`,
  /** of a pod with the node agent's volume: its name */
  seatVolume: `${LABEL_PREFIX}seat-volume`,
  /** written once for each lease */
  lease: `${LABEL_PREFIX}lease`,
  epoch: `${LABEL_PREFIX}epoch`,
  caller: `${LABEL_PREFIX}caller`,
} as const

export const MANAGED_BY = 'firepool'

/** A pod's name is its host name as well, and a label's value has no more either. */
const NAME_CHARS = 63
const HASH_CHARS = 8

/** The same for every worker of a deployment, and another one for another key. */
export function brokerId(publicKeyBase64: string): string {
  return hash(`broker/${publicKeyBase64}`, 16)
}

/** The pod's name in the cluster: the same at each try, and another one in another generation. */
export function podName({ pod, generation }: Pick<PodOrder, 'pod' | 'generation'>): string {
  return shortened(pod, `-g${generation}`)
}

/** The value of the label `pod`: found by it without knowing the generation. */
export function podLabel(pod: string): string {
  return shortened(pod, '')
}

/** The object that owns all pods of a pool (or of one shard of it): with it they go. */
export function anchorName(pool: string, broker: string): string {
  return `firepool-${pool.replaceAll('.', '-')}-${broker.slice(0, HASH_CHARS)}`
}

/** The selector of all pods of a deployment, of one of its pools, or of one pod's label. */
export function podSelector(broker: string, { pool, pod }: { pool?: string; pod?: string } = {}): string {
  return [
    `${LABEL.managedBy}=${MANAGED_BY}`,
    `${LABEL.broker}=${broker}`,
    // What pulls images ahead has no such label.
    pod === undefined ? LABEL.pod : `${LABEL.pod}=${podLabel(pod)}`,
    ...(pool === undefined ? [] : [`${LABEL.pool}=${pool}`]),
  ].join(',')
}

/** Names that are too long keep their beginning, and a hash that tells them apart. */
function shortened(name: string, suffix: string): string {
  const whole = `${name}${suffix}`
  if (whole.length <= NAME_CHARS) return whole
  const kept = name.slice(0, NAME_CHARS - suffix.length - HASH_CHARS - 1).replace(/[^a-z0-9]+$/, '')
  return `${kept}-${hash(name, HASH_CHARS)}${suffix}`
}

/** Tells texts apart in a name. */
export function shortHash(text: string): string {
  return hash(text, HASH_CHARS)
}

function hash(text: string, chars: number): string {
  return createHash('sha256').update(text).digest('hex').slice(0, chars)
}
