/**
 * What a pool's activities answer, as far as `step` relies on it. Anybody with Temporal's own tools can complete an activity with
 * whatever they like, and a worker of another release may: an answer that cannot be read counts as none, and the pool asks again.
 */
import type { EffectResult } from '../broker/index.js'
import type { ObservedPod } from '../contract/backend.js'
import { isRecord } from '../contract/check.js'
import type { Observation } from './pool-observation.js'

type Test = (value: unknown) => boolean

const text: Test = (value) => typeof value === 'string'
const flag: Test = (value) => typeof value === 'boolean'
const number: Test = (value) => typeof value === 'number' && Number.isFinite(value)
const texts: Test = (value) => Array.isArray(value) && value.every(text)
const maybe =
  (test: Test): Test =>
  (value) =>
    value === undefined || test(value)
const shape =
  (fields: Record<string, Test>): Test =>
  (value) =>
    isRecord(value) && Object.entries(fields).every(([name, test]) => test(value[name]))
const numbers: Test = (value) => isRecord(value) && Object.values(value).every(number)

const report = shape({
  held: number,
  pods: number,
  leases: number,
  waiting: number,
  uid: maybe(text),
  counted: maybe(
    shape({
      grants: numbers,
      ends: numbers,
      podsCreated: number,
      podsLost: number,
      leaked: number,
      heldPodMs: number,
      poison: maybe(number),
    }),
  ),
})

const RESULT: Record<EffectResult['kind'], Test> = {
  created: shape({ problem: maybe(shape({ reason: text, message: text })) }),
  deleted: () => true,
  drained: shape({ drained: flag, useSeq: number, idleMs: number }),
  revoked: () => true,
  delivered: shape({ useSeq: number }),
  holderGone: () => true,
  tokenGone: () => true,
  podLost: shape({ reason: text }),
  announced: () => true,
  notified: () => true,
  described: shape({ closed: texts }),
  shardTold: shape({ report }),
  shardGone: shape({ report: maybe(report) }),
  undone: shape({ reason: text }),
}

/** One result of a batch of effects; null when it cannot be read. */
export function readResult(value: unknown): { id: string; result: EffectResult } | null {
  if (!isRecord(value) || !text(value.id) || !isRecord(value.result)) return null
  const { kind } = value.result
  if (typeof kind !== 'string' || !Object.hasOwn(RESULT, kind)) return null
  return RESULT[kind as EffectResult['kind']](value.result) ? (value as never) : null
}

const PHASES: readonly unknown[] = ['starting', 'ready', 'failed', 'gone'] satisfies ObservedPod['phase'][]

const observedPod = shape({
  pod: text,
  generation: number,
  phase: (value) => PHASES.includes(value),
  reason: maybe(text),
  message: maybe(text),
  address: maybe(text),
  incarnation: maybe(text),
  retire: maybe(text),
})

/** @returns the observation; null when it cannot be read */
export function readObservation(value: unknown): Observation | null {
  const all = shape({
    cursor: text,
    full: flag,
    pods: (pods) => Array.isArray(pods) && pods.every(observedPod),
  })
  return all(value) ? (value as never) : null
}
