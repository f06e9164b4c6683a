import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { aSpec, World } from '../../test/support/broker-world.js'
import type { PoolSpec, ShardOrder, ShardReport } from '../contract/pool.js'
import { shardOfCaller } from '../contract/shards.js'
import type { EffectResult } from './effect.js'
import { isFinished, restore, routesOf, shardReport, snapshot, statusOf } from './index.js'
import { shardCount } from './policy/shares.js'

/** A pool with shards: the head and the others as worlds of their own, whose clocks go together. */

const SECOND = 1_000
const SLICE_MS = 50

class Sharded {
  readonly head: World
  readonly others = new Map<number, World>()
  /** where each lease was asked for, and by whom */
  readonly asked = new Map<string, { world: World; caller: string }>()
  /** orders that the head gave, in order */
  readonly orders: ShardOrder[] = []
  /** the last word of each shard that has ended by itself */
  readonly ended = new Map<number, ShardReport>()
  private started = 0
  private given = 0

  constructor(readonly spec: Partial<PoolSpec>) {
    this.head = new World({ spec })
    this.head.tellShard = (order) => this.tell(order)
    this.advance(SECOND)
  }

  private tell(order: ShardOrder): EffectResult {
    this.orders.push(order)
    let world = this.others.get(order.index)
    if (!world) {
      const report = this.ended.get(order.index)
      if (order.leaving) return { kind: 'shardGone', ...(report ? { report } : {}) }
      world = new World({ spec: order.spec, seed: 100 + this.orders.length })
      // Each life of a shard has an id of its own.
      world.state.uid = `abc${123 + this.started++}`
      world.jump(this.head.now - world.now)
      this.others.set(order.index, world)
    }
    this.catchUp(world)
    world.send({ kind: 'shard', order })
    world.advance(0)
    return { kind: 'shardTold', report: shardReport(world.state) }
  }

  private catchUp(world: World): void {
    if (world.now < this.head.now) world.advance(this.head.now - world.now)
  }

  get worlds(): World[] {
    return [this.head, ...this.others.values()]
  }

  /** Seats held now in each shard. */
  get seats(): number[] {
    return this.worlds.map((world) => world.state.index.held)
  }

  get leases(): number {
    return this.worlds.reduce((sum, world) => sum + world.state.leases.size, 0)
  }

  advance(ms: number): void {
    for (let passed = 0; passed < ms; passed += SLICE_MS) {
      this.head.advance(SLICE_MS)
      for (const [index, world] of this.others) {
        this.catchUp(world)
        if (!isFinished(world.state)) continue
        this.others.delete(index)
        this.ended.set(index, shardReport(world.state))
      }
      this.check()
    }
  }

  /**
   * No shard holds more than the head allows it, as far as it knows, and all that is allowed or held is within the budget:
   * but for what was given away before it was lowered, and that only gets less.
   */
  private check(): void {
    const { operator, spec, shards } = this.head.state
    let given = this.head.state.index.held
    for (const [index, { cap }] of shards) {
      given += cap.seats
      const held = this.others.get(index)?.state.index.held ?? 0
      if (held > cap.seats) throw new Error(`shard ${index} holds ${held} of ${cap.seats}`)
    }
    const budget = operator.budget ?? spec.budget
    if (given > budget && given > this.given) throw new Error(`${given} seats are given of ${budget}`)
    this.given = given
  }

  request(caller: string, more: { workflowId?: string } = {}): string {
    const { routes } = routesOf(this.head.state)
    const index = shardOfCaller(caller, routes)
    const world = index === 0 ? this.head : this.others.get(index)
    if (!world) throw new Error(`requests are routed to shard ${index}, which is not there`)
    this.catchUp(world)
    const leaseId = world.request({ caller, ...more })
    this.asked.set(leaseId, { world, caller })
    return leaseId
  }

  release(leaseId: string): void {
    this.asked.get(leaseId)!.world.release(leaseId, { clean: true })
  }

  holds(leaseId: string): boolean {
    return this.asked.get(leaseId)!.world.lease(leaseId)?.kind === 'granted'
  }

  apply(change: Partial<PoolSpec>): void {
    this.head.send({ kind: 'apply', spec: { ...this.head.state.spec, ...change } })
  }
}

const callers = (n: number) => Array.from({ length: n }, (_, i) => `agent-${i}`)

describe('a pool with shards', () => {
  it('splits budget, standbys, maxPods and queue, and routes requests once all shards are there', () => {
    const pool = new Sharded({ budget: 8, standby: 4, maxPods: 14, queueLimit: 11, shards: 3 })
    pool.advance(60 * SECOND)
    expect(routesOf(pool.head.state)).toEqual({ routes: 3, all: 3 })
    const parts = pool.worlds.map(({ state, now }) => {
      const { budget, standby, queue } = statusOf(state, now)
      return [budget.inForce, standby.ready, queue.limit]
    })
    expect(parts).toEqual([
      [3, 2, 4],
      [3, 1, 4],
      [2, 1, 3],
    ])
    expect(pool.worlds.map((world) => world.state.spec.name)).toEqual(['p', 'p.1', 'p.2'])
    const asked = callers(30).map((caller) => pool.request(caller))
    pool.advance(5 * SECOND)
    expect(pool.seats).toEqual([3, 3, 2])
    for (const leaseId of asked) pool.release(leaseId)
    pool.advance(120 * SECOND)
    expect([pool.leases, ...pool.seats]).toEqual([0, 0, 0, 0])
  })

  it('names its pods without a dot, and everybody by the name that users know', () => {
    const pool = new Sharded({ budget: 2, standby: 2, queueLimit: 0, shards: 2 })
    const shard = pool.others.get(1)!
    expect(shard.pods()[0]).toMatch(/^p-1-abc123-\d+$/)
    shard.request({ caller: 'a' })
    const refused = shard.request({ caller: 'b' })
    pool.advance(SECOND)
    expect(shard.end(refused).problem?.message).toContain('firepool pool resize')
  })

  it('tells its shards nothing while nothing changes, but for a look now and then', () => {
    const pool = new Sharded({ budget: 4, shards: 2 })
    const before = pool.orders.length
    pool.request('a')
    pool.advance(20 * SECOND)
    expect(pool.orders.length).toBe(before)
    pool.advance(20 * SECOND)
    expect(pool.orders.length).toBe(before + 1)
  })

  it('starts a shard again that somebody terminated', () => {
    const pool = new Sharded({ budget: 4, shards: 2 })
    pool.others.delete(1)
    pool.advance(40 * SECOND)
    expect(pool.others.has(1)).toBe(true)
  })

  it('has no more shards than seats: no caller waits for ever at a shard without any', () => {
    const pool = new Sharded({ budget: 4, shards: 4 })
    pool.head.send({ kind: 'resize', budget: 2 })
    pool.advance(10 * SECOND)
    expect(routesOf(pool.head.state)).toEqual({ routes: 2, all: 2 })
    pool.head.send({ kind: 'resize', budget: null })
    pool.advance(10 * SECOND)
    expect(routesOf(pool.head.state)).toEqual({ routes: 4, all: 4 })
    expect(pool.worlds.map(({ state, now }) => statusOf(state, now).budget.inForce)).toEqual([1, 1, 1, 1])
  })

  it('follows the fleet budget, and its end leaves the guarantee', () => {
    const pool = new Sharded({ budget: 8, guarantee: 4, shards: 2 })
    const inForce = () => pool.worlds.map(({ state, now }) => statusOf(state, now).budget.inForce)
    pool.head.send({ kind: 'setBudget', budget: 5, expiresAtMs: pool.head.now + 30 * SECOND })
    pool.advance(10 * SECOND)
    expect(inForce()).toEqual([3, 2])
    pool.advance(30 * SECOND)
    expect(inForce()).toEqual([2, 2])
  })

  it('ignores an order that comes late', () => {
    const pool = new Sharded({ budget: 4, shards: 2 })
    const [old] = pool.orders
    pool.head.send({ kind: 'resize', budget: 8 })
    pool.advance(5 * SECOND)
    const shard = pool.others.get(1)!
    shard.send({ kind: 'shard', order: old! })
    pool.advance(SECOND)
    expect(shard.state.spec.budget).toBe(4)
  })

  it('tells again what could not be told, and goes on after a continue-as-new', () => {
    const pool = new Sharded({ budget: 4, shards: 2 })
    pool.head.handling = (effect) => (effect.kind === 'shard' ? { fault: 'unheard' } : {})
    pool.head.send({ kind: 'resize', budget: 8 })
    pool.advance(2 * SECOND)
    pool.head.restart()
    pool.others.get(1)!.restart()
    pool.head.handling = () => ({})
    pool.advance(5 * SECOND)
    expect(pool.worlds.map(({ state, now }) => statusOf(state, now).budget.inForce)).toEqual([4, 4])
  })
})

describe('growing', () => {
  it('gives new shards only what the head has let go of, and loses no lease', () => {
    const pool = new Sharded({ budget: 6, maxPods: 8 })
    const asked = callers(6).map((caller) => pool.request(caller))
    pool.advance(5 * SECOND)
    expect(pool.seats).toEqual([6])
    for (const leaseId of asked) pool.head.job(leaseId, 60 * SECOND)
    pool.apply({ shards: 3 })
    pool.advance(10 * SECOND)
    expect(pool.seats).toEqual([6, 0, 0])
    expect(asked.every((leaseId) => pool.holds(leaseId))).toBe(true)
    expect(routesOf(pool.head.state)).toEqual({ routes: 3, all: 3 })
    const later = callers(20)
      .slice(6)
      .map((caller) => pool.request(caller))
    for (const leaseId of asked) pool.release(leaseId)
    pool.advance(30 * SECOND)
    expect(pool.seats).toEqual([2, 2, 2])
    // The head's two are warm for those who had them.
    expect(later.filter((leaseId) => pool.holds(leaseId)).length).toBeGreaterThanOrEqual(4)
  })
})

describe('shrinking', () => {
  it('lets held leases go on, and tells who waits or comes late to ask again', () => {
    const pool = new Sharded({ budget: 3, shards: 3 })
    const asked = callers(12).map((caller) => pool.request(caller))
    pool.advance(5 * SECOND)
    const held = asked.filter((leaseId) => pool.holds(leaseId))
    expect(held).toHaveLength(3)
    const leaving = pool.others.get(2)!
    const mine = held.find((leaseId) => pool.asked.get(leaseId)!.world === leaving)!
    leaving.job(mine, 30 * SECOND)
    pool.apply({ shards: 1 })
    pool.advance(5 * SECOND)
    expect(routesOf(pool.head.state)).toMatchObject({ routes: 1, all: 3 })
    expect(pool.holds(mine)).toBe(true)
    const waited = asked.find((id) => pool.asked.get(id)!.world === leaving && id !== mine)!
    const moved = { code: 'LeaseRevoked', details: { reason: 'ShardMoved' } }
    expect(leaving.end(waited).problem).toMatchObject(moved)
    const late = leaving.request({ caller: 'late' })
    leaving.advance(100)
    expect(leaving.end(late).problem).toMatchObject(moved)
    pool.advance(60 * SECOND)
    expect(leaving.end(mine).end).toBe('recalled')
    expect(routesOf(pool.head.state)).toEqual({ routes: 1, all: 1 })
    expect(pool.others.size).toBe(0)
    expect(statusOf(pool.head.state, pool.head.now).budget.inForce).toBe(3)
  })

  it('is taken back while a shard still leaves', () => {
    const pool = new Sharded({ budget: 4, shards: 2 })
    const asked = callers(8).map((caller) => pool.request(caller))
    pool.advance(5 * SECOND)
    for (const id of asked) if (pool.holds(id)) pool.asked.get(id)!.world.job(id, 60 * SECOND)
    pool.apply({ shards: 1 })
    pool.advance(5 * SECOND)
    pool.apply({ shards: 2 })
    pool.advance(5 * SECOND)
    expect(routesOf(pool.head.state)).toEqual({ routes: 2, all: 2 })
    expect(pool.others.get(1)!.state.mode).toBe('running')
    expect(pool.seats).toEqual([2, 2])
  })
})

describe('what shards have counted', () => {
  const counted = (pool: Sharded) => {
    const all = pool.worlds.map(({ state, now }) => statusOf(state, now))
    const sum = (read: (status: (typeof all)[0]) => number) => all.reduce((n, status) => n + read(status), 0)
    const total = (of: Record<string, number>) => Object.values(of).reduce((a, b) => a + b)
    return {
      grants: sum(({ grants }) => total(grants)),
      ends: sum(({ ends }) => total(ends)),
      podsCreated: sum(({ podsCreated }) => podsCreated),
      poison: sum(({ poison }) => poison.count),
    }
  }

  it('stays with the head when they leave, what they counted after their last report too', () => {
    const pool = new Sharded({ budget: 6, keepAliveMs: 20 * SECOND, shards: 3 })
    for (const [shard, n] of [2, 4, 4].entries()) {
      const own = callers(60).filter((caller) => shardOfCaller(caller, 3) === shard)
      for (const caller of own.slice(0, n)) pool.request(caller)
    }
    pool.advance(5 * SECOND)
    pool.others.get(1)!.send({ kind: 'poison', name: 'x', reason: 'y' })
    // Who waits there is told to ask again, and leases that nobody uses are taken back: ends that were not reported before.
    pool.apply({ shards: 1 })
    pool.advance(60 * SECOND)
    expect([pool.others.size, pool.head.state.shards.size]).toEqual([0, 0])
    const left = [...pool.ended.values()].map((report) => report.counted!)
    expect(left.map(({ grants }) => grants.cold)).toEqual([2, 2])
    expect(left.map(({ ends }) => ends.failed)).toEqual([2, 2])
    const { counters, poison } = pool.head.state
    expect([counters.grants.cold, counters.podsCreated, poison.count]).toEqual([6, 6, 1])
    expect(counters.ends.failed).toBe(4)
  })

  it('stays when one is terminated and started again, as far as it had told', () => {
    const pool = new Sharded({ budget: 4, shards: 2 })
    const asked = callers(4).map((caller) => pool.request(caller))
    pool.advance(2 * SECOND)
    for (const leaseId of asked) pool.release(leaseId)
    pool.advance(40 * SECOND)
    const before = counted(pool)
    expect(pool.head.state.shards.get(1)!.report!.counted!.podsCreated).toBeGreaterThan(0)
    pool.others.delete(1)
    pool.advance(80 * SECOND)
    expect(pool.others.has(1)).toBe(true)
    expect(counted(pool)).toEqual(before)
  })

  it('is carried over by a head that continues as new, and nothing is kept of an earlier release, which told nothing', () => {
    const pool = new Sharded({ budget: 4, shards: 2 })
    pool.request('agent-1')
    pool.advance(40 * SECOND)
    const record = restore(snapshot(pool.head.state)).state.shards.get(1)!
    expect(record.report).toEqual(pool.head.state.shards.get(1)!.report)
    const { uid: _, counted: told, ...old } = record.report!
    expect(told).toBeDefined()
    pool.head.state.shards.get(1)!.report = old
    const before = structuredClone(pool.head.state.counters)
    pool.advance(40 * SECOND)
    expect(pool.head.state.counters).toEqual(before)
  })
})

describe('a new template', () => {
  const apply = (pool: Sharded, env: Record<string, string>) =>
    pool.apply({ profile: { ...pool.head.state.spec.profile, env } })
  const rollouts = (pool: Sharded) => pool.worlds.map(({ state, now }) => statusOf(state, now).rollout)
  const standbys = (pool: Sharded) => pool.worlds.map((world) => world.pods('standby'))

  it('rolls in each shard by itself, with a surge of its own', () => {
    const pool = new Sharded({ budget: 8, standby: 8, maxPods: 24, shards: 2 })
    pool.advance(5 * SECOND)
    const before = standbys(pool)
    apply(pool, { NEW: '1' })
    pool.advance(800)
    expect(pool.worlds.map((world) => world.pods('starting').length)).toEqual([1, 1])
    pool.advance(10 * SECOND)
    expect(standbys(pool).map((pods) => pods.length)).toEqual([4, 4])
    expect(standbys(pool).flat()).not.toEqual(expect.arrayContaining([before[0]![0], before[1]![0]]))
    expect(rollouts(pool)).toEqual([undefined, undefined])
  })

  it('that is broken stops in each shard, and going back restarts no pod in any of them', () => {
    const pool = new Sharded({ budget: 8, standby: 4, maxPods: 24, shards: 2 })
    pool.advance(5 * SECOND)
    const before = standbys(pool)
    apply(pool, { BROKEN: 'PrepareFailed' })
    pool.advance(8 * SECOND)
    for (const rollout of rollouts(pool)) expect(rollout?.stopped?.code).toBe('PodStartFailed')
    expect(standbys(pool)).toEqual(before)
    apply(pool, {})
    pool.advance(2 * SECOND)
    expect(rollouts(pool)).toEqual([undefined, undefined])
    expect(standbys(pool)).toEqual(before)
  })
})

it('a deleted pool ends when all its shards have ended', () => {
  const pool = new Sharded({ budget: 4, standby: 2, shards: 3 })
  const asked = callers(6).map((caller) => pool.request(caller))
  pool.advance(5 * SECOND)
  const { others } = pool
  const ends = asked.map((id) => [id, pool.asked.get(id)!.world] as const)
  pool.head.send({ kind: 'mode', mode: 'deleting' })
  pool.advance(10 * SECOND)
  expect(others.size).toBe(0)
  expect(isFinished(pool.head.state)).toBe(true)
  for (const [id, world] of ends) expect(world.end(id).problem?.code).toBe('PoolNotFound')
})

it('never exceeds the whole and loses nothing, however often it is split anew', () => {
  const change = fc.record({
    shards: fc.integer({ min: 1, max: 5 }),
    budget: fc.integer({ min: 0, max: 12 }),
    fault: fc.constantFrom('none', 'lost', 'unheard', 'twice'),
    ask: fc.array(fc.integer({ min: 0, max: 40 }), { maxLength: 15 }),
    release: fc.array(fc.nat(30), { maxLength: 10 }),
    restart: fc.boolean(),
    waitMs: fc.constantFrom(100, 1_000, 5_000, 40_000),
  })
  fc.assert(
    fc.property(fc.array(change, { minLength: 1, maxLength: 8 }), (changes) => {
      const pool = new Sharded({ budget: 6, standby: 2, maxPods: 16, keepAliveMs: 20 * SECOND })
      let open: string[] = []
      let n = 0
      for (const { shards, budget, fault, ask, release, restart, waitMs } of changes) {
        pool.head.handling = (effect) => (effect.kind === 'shard' ? { fault } : {})
        pool.apply({ shards })
        pool.head.send({ kind: 'resize', budget })
        for (const i of ask) open.push(pool.request(`agent-${i}`, { workflowId: `wf-${n++}` }))
        pool.advance(waitMs)
        if (restart) for (const world of pool.worlds) world.restart()
        for (const i of release) if (open[i]) pool.release(open[i])
        open = open.filter((_, i) => !release.includes(i))
      }
      pool.head.handling = () => ({})
      for (const leaseId of open) pool.release(leaseId)
      pool.advance(150 * SECOND)
      expect(pool.leases).toBe(0)
      const wanted = shardCount(pool.head.state)
      expect(routesOf(pool.head.state)).toEqual({ routes: wanted, all: wanted })
      const inForce = pool.worlds.map(({ state, now }) => statusOf(state, now).budget.inForce)
      expect(inForce.reduce((sum, seats) => sum + seats, 0)).toBe(pool.head.state.operator.budget)
      for (const world of pool.worlds) expect(world.violations).toEqual([])
    }),
    { numRuns: 60, seed: 20_261_201 },
  )
})

it('a pool that is whole has nothing of shards in its state or status', () => {
  const world = new World({ spec: aSpec({ budget: 2 }) })
  world.request()
  world.advance(5 * SECOND)
  expect(world.effectsOf('shard')).toEqual([])
  expect(statusOf(world.state, world.now)).not.toHaveProperty('shards')
})
