import { type Checked, checkNumber, invalid, isRecord, shown } from './check.js'
import { readPoolSpec } from './check-spec.js'
import type { PoolSpec, PoolStatus, ShardOrder } from './pool.js'
import { poolOfShard } from './shards.js'

const MODES: readonly unknown[] = ['running', 'paused', 'draining', 'deleting'] satisfies PoolStatus['mode'][]

/** A spec under the name of a shard. */
export function readShardSpec(value: unknown): Checked<PoolSpec> {
  if (!isRecord(value) || typeof value.name !== 'string' || !/^[^.]+\.\d{1,2}$/.test(value.name))
    return invalid(`${shown(isRecord(value) ? value.name : value)} is no shard of a pool`)
  const { name } = value
  const spec = readPoolSpec({ ...value, name: poolOfShard(name) })
  return spec.problem ? spec : { value: { ...spec.value, name } }
}

/** The argument of update `firepool.shard`, for the shard of that name. */
export function checkShardOrder(value: unknown, name: string): Checked<ShardOrder> {
  if (!isRecord(value) || value.v !== 1)
    return invalid(`an order of a shard is an object of version 1, not ${shown(value)}`)
  const spec = readShardSpec(value.spec)
  if (spec.problem) return spec
  if (spec.value.name !== name) return invalid(`this is ${name}, the order is for ${spec.value.name}`)
  const whole = (of: string, number: unknown) =>
    checkNumber(of, number, { min: 0, max: Number.MAX_SAFE_INTEGER })
  const cap: Record<string, unknown> = isRecord(value.cap) ? value.cap : {}
  const fleet = isRecord(value.fleet) ? value.fleet : null
  const numbers = [
    whole('index', value.index),
    whole('seq', value.seq),
    whole('generation', value.generation),
    whole('cap.seats', cap.seats),
    whole('cap.pods', cap.pods),
    ...(fleet ? [whole('fleet.budget', fleet.budget), whole('fleet.expiresAt', fleet.expiresAt)] : []),
  ]
  for (const number of numbers) if (number.problem) return number
  if (!MODES.includes(value.mode) || typeof value.by !== 'string' || typeof value.leaving !== 'boolean')
    return invalid('an order of a shard has a mode, by and leaving')
  return { value: { ...(value as unknown as ShardOrder), spec: spec.value } }
}
