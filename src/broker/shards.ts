import { shardMoved } from '../contract/errors.js'
import { TIMEOUT } from '../contract/limits.js'
import type { PoolSpec, ShardCap, ShardOrder, ShardReport } from '../contract/pool.js'
import { poolOfShard, shardName, shareOf } from '../contract/shards.js'
import type { EffectResult, ShardEffect } from './effect.js'
import { endLease } from './leases.js'
import { removePod } from './pods.js'
import { wholeBudget } from './policy/budget.js'
import { standbyOfWhole } from './policy/replenish.js'
import { seatsTaken } from './policy/seat-sets.js'
import { othersHave, ownShare, shardCount } from './policy/shares.js'
import type { PoolState, ShardRecord } from './state.js'
import { issue, type Turn, wakeAt } from './turn.js'

/** A shard that has to let go of something is looked at this often. */
const REBALANCE_MS = 2_000
/** Every shard is told what it knows already this often: one that somebody terminated is started again. */
const KEEP_MS = 30_000

/**
 * The head tells its shards what they should be: each change of the whole changes their orders, and an order that a shard
 * does not have yet is sent. One is on its way to each shard at a time. Seats and pods are given to one only once
 * another has let go of them.
 */
export function tellShards(turn: Turn): void {
  const { state, now } = turn
  const { shards } = state
  const wanted = state.mode === 'deleting' ? 1 : shardCount(state)
  for (let index = 1; index < wanted; index++) if (!shards.has(index)) shards.set(index, newRecord())
  if (shards.size === 0) {
    state.routes = 1
    return
  }
  const room = roomLeft(turn)
  for (const [index, record] of [...shards].sort(([a], [b]) => a - b)) {
    const order = orderFor(turn, index, record, index >= wanted, room)
    if (order.leaving) record.open = false
    if (record.effect !== null) continue
    const key = keyOf(order)
    if (now < record.at && (record.told === key || record.told === '')) continue
    send(turn, record, order)
  }
  route(state, wanted)
}

/**
 * Shards 1 to `last` may be there, of a head that was terminated: each counts as one that holds the whole until it has said what it
 * holds, and is told what it is now, be it to leave.
 */
export function expectShards({ shards, spec }: PoolState, last: number): void {
  const cap = { seats: spec.budget, pods: spec.maxPods }
  for (let index = 1; index <= last; index++) shards.set(index, { ...newRecord(), cap })
}

function newRecord(): ShardRecord {
  return { cap: { seats: 0, pods: 0 }, told: '', effect: null, at: 0, open: false, report: null }
}

/** What is neither the head's nor given to any shard yet. */
function roomLeft({ state, now }: Turn): ShardCap {
  const others = othersHave(state)
  const left = (whole: number, taken: number, mine: number) =>
    Math.max(0, whole - taken - Math.max(mine, Math.min(ownShare(state, whole), whole - taken)))
  return {
    seats: left(wholeBudget(state, now).seats, others.seats, seatsTaken(state)),
    pods: left(state.spec.maxPods, others.pods, state.pods.size),
  }
}

/** Takes what it adds to a shard out of the room. */
function orderFor(
  { state, now }: Turn,
  index: number,
  { cap }: ShardRecord,
  leaving: boolean,
  room: ShardCap,
): ShardOrder {
  const n = shardCount(state)
  const part = (whole: number) => (leaving ? 0 : shareOf(whole, n, index))
  const grown = (kind: keyof ShardCap, whole: number): number => {
    const target = part(whole)
    const more = Math.max(0, Math.min(target - cap[kind], room[kind]))
    room[kind] -= more
    return Math.min(target, cap[kind] + more)
  }
  const { spec, mode, fleet } = state
  const budget = part(state.operator.budget ?? spec.budget)
  const share: PoolSpec = {
    ...spec,
    name: shardName(spec.name, index),
    shards: 1,
    budget,
    guarantee: Math.min(budget, part(spec.guarantee)),
    standby: part(standbyOfWhole(state)),
    maxPods: part(spec.maxPods),
    queueLimit: part(spec.queueLimit),
  }
  return {
    v: 1,
    index,
    by: state.uid,
    seq: state.nextEffect,
    generation: state.generation,
    spec: share,
    mode: leaving && mode !== 'deleting' ? 'draining' : mode,
    leaving,
    fleet: fleet && { budget: part(fleet.budget), expiresAt: fleet.expiresAt },
    cap: { seats: grown('seats', wholeBudget(state, now).seats), pods: grown('pods', spec.maxPods) },
  }
}

/** All that an order says but its number. The profile is named by its generation: it may be long. */
function keyOf(order: ShardOrder): string {
  return JSON.stringify({ ...order, seq: 0, spec: { ...order.spec, profile: null } })
}

function send(turn: Turn, record: ShardRecord, order: ShardOrder): void {
  record.cap = larger(record.cap, order.cap)
  record.told = ''
  record.effect = issue(turn, { kind: 'shard', order })
}

const larger = (a: ShardCap, b: ShardCap): ShardCap => ({
  seats: Math.max(a.seats, b.seats),
  pods: Math.max(a.pods, b.pods),
})

/** Requests go to new shards when all of them are there, and to one that leaves no longer at once. */
function route(state: PoolState, wanted: number): void {
  if (wanted <= state.routes) {
    state.routes = wanted
    return
  }
  for (let index = 1; index < wanted; index++) if (state.shards.get(index)?.open !== true) return
  state.routes = wanted
}

/** What became of an order. */
export function shardAnswered(turn: Turn, effect: ShardEffect, result: EffectResult): void {
  const { state, now } = turn
  const { order } = effect
  const record = state.shards.get(order.index)
  if (record?.effect !== effect.id) return
  record.effect = null
  if (result.kind === 'shardGone') {
    keepCounted(state, record.report, result.report)
    if (result.report) keepCounted(state, result.report)
    state.shards.delete(order.index)
    return
  }
  if (result.kind !== 'shardTold') {
    record.at = now + TIMEOUT.effectRetryMs
  } else {
    const { report } = result
    keepCounted(state, record.report, report)
    record.report = report
    record.cap = larger(order.cap, { seats: report.held, pods: report.pods })
    record.told = keyOf(order)
    record.open = !order.leaving
    const lets = order.leaving || report.held > order.spec.budget || report.pods > order.spec.maxPods
    record.at = now + (lets ? REBALANCE_MS : KEEP_MS)
  }
  wakeAt(turn, record.at, 'pool', 'shards')
}

/**
 * What a shard has counted stays when it is over: with the head's own, so that the counts of a whole pool never go down.
 * @param next said since by a shard under that name: the same one counts on
 */
function keepCounted({ counters, poison }: PoolState, last: ShardReport | null, next?: ShardReport): void {
  if (!last?.counted || last.uid === next?.uid) return
  const { grants, ends, podsCreated, podsLost, leaked, heldPodMs, poison: dropped = 0 } = last.counted
  add(counters.grants, grants)
  add(counters.ends, ends)
  counters.podsCreated += podsCreated
  counters.podsLost += podsLost
  counters.leaked += leaked
  counters.heldPodMs += heldPodMs
  poison.count += dropped
}

function add<K extends string>(to: Record<K, number>, more: Record<K, number>): void {
  for (const key of Object.keys(to) as K[]) to[key] += more[key] ?? 0
}

/** The head's order, in the shard. @returns whether it is news */
export function isNews({ shard }: PoolState, order: ShardOrder): boolean {
  return shard === null || shard.by !== order.by || shard.seq <= order.seq
}

/** A shard that goes: who waits is told to ask again, what is held goes on until it is released or idle. */
export function leave(turn: Turn): void {
  const { state } = turn
  const why = shardMoved(poolOfShard(state.spec.name))
  for (const lease of [...state.leases.values()]) {
    if (lease.kind !== 'waiting') continue
    endLease(turn, lease.request.leaseId, 'failed', { problem: why, notify: true })
  }
  for (const name of [...state.index.byKind.starting]) removePod(turn, state.pods.get(name)!)
}

/** What a shard answers to an order. */
export function shardReport(state: PoolState): ShardReport {
  const { index, pods, leases, uid, counters, poison } = state
  const { waiting } = index
  const { grants, ends, ...rest } = counters
  const counted = { ...rest, grants: { ...grants }, ends: { ...ends }, poison: poison.count }
  const held = seatsTaken(state)
  return { v: 1, held, pods: pods.size, leases: leases.size - waiting, waiting, uid, counted }
}
