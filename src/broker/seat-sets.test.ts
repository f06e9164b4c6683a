import { describe, expect, it } from 'vitest'
import { makeWorld, type World, withSeatSets } from '../../test/support/broker-world.js'
import type { GpuShare } from '../contract/gpu.js'
import type { PoolSpec } from '../contract/pool.js'
import { statusOf } from './status.js'

/** A pool with sets of two seats, unless a test wants others. */
function aPool(gpu: Partial<GpuShare>, spec: Partial<PoolSpec> = {}): World {
  return makeWorld({
    spec: { budget: 4, maxPods: 40, ...spec, profile: withSeatSets({ seatSet: 2, ...gpu }) },
  })
}

/** Sets of the pods that these requests were granted. */
function setsOf(w: World, leases: string[]): (number | null)[] {
  return leases.map((id) => w.state.pods.get(w.granted(id).pod)!.set)
}

function ask(w: World, callers: string[], tenant = ''): string[] {
  const asked = callers.map((caller) => w.request({ caller, tenant }))
  w.advance(5_000)
  return asked
}

describe('pods of a pool with seat sets', () => {
  it('are ordered with their set, and hold no more than its seats', () => {
    const w = aPool({})
    expect(setsOf(w, ask(w, ['a', 'b', 'c', 'd']))).toEqual([0, 0, 1, 1])
    expect(w.effectsOf('create').map(({ order }) => order.seatSet)).toEqual(
      [0, 0, 1, 1].map((index) => ({ index })),
    )
    const [fifth] = ask(w, ['e'])
    expect(w.grants.has(fifth!)).toBe(false)
    expect(w.pods().length).toBe(4)
    expect(statusOf(w.state, w.now).budget).toMatchObject({ inForce: 4, held: 4 })
  })

  it('take turns on the seats where they park, as many as find one free', () => {
    const w = aPool({ seatSet: 4, idle: 'park', duty: 0.2 })
    const callers = Array.from({ length: 11 }, (_, i) => `c${i}`)
    const leases = ask(w, callers)
    expect(setsOf(w, leases.slice(0, 10))).toEqual(Array(10).fill(0))
    expect(w.grants.has(leases[10]!)).toBe(false)
  })

  it('are in no set in a pool of an earlier core', () => {
    const w = makeWorld({ coreVersion: 2, spec: { profile: withSeatSets() } })
    expect(setsOf(w, ask(w, ['a']))).toEqual([null])
  })

  it('of several tenants are in several sets, and whose set is free first is the next one’s', () => {
    const w = aPool({})
    const red = ask(w, ['r'], 'red')
    const blue = ask(w, ['b'], 'blue')
    expect(setsOf(w, [...red, ...blue])).toEqual([0, 1])
    const [green] = ask(w, ['g'], 'green')
    expect(w.grants.has(green!)).toBe(false)
    expect(w.state.index.held).toBe(2)
    w.release(red[0]!, { retire: true })
    w.advance(5_000)
    expect(setsOf(w, [green!])).toEqual([0])
  })

  it('of several tenants are in one set where the profile trusts them', () => {
    const w = aPool({ trust: 'shared' })
    expect(setsOf(w, [...ask(w, ['r'], 'red'), ...ask(w, ['b'], 'blue')])).toEqual([0, 0])
  })

  it('who waits for a set is told so, and what to raise', () => {
    const w = aPool({})
    ask(w, ['r'], 'red')
    ask(w, ['b'], 'blue')
    const id = w.request({ caller: 'g', tenant: 'green', timeoutMs: 1_000 })
    w.advance(3_000)
    const { problem } = w.end(id)
    expect(problem).toMatchObject({ code: 'QueueTimeout', details: { reason: 'BudgetExhausted' } })
    expect(problem?.message).toContain("all 2 seat sets of the budget of 4 are full, or other tenants'")
  })

  it('another tenant passes by one who waits for a set, and not who comes before it', () => {
    const w = aPool({}, { standby: 2 })
    w.advance(5_000)
    ask(w, ['r'], 'red')
    ask(w, ['b'], 'blue')
    const waits = ask(w, ['g1', 'g2'], 'green')
    const next = ask(w, ['r2'], 'red')
    expect(setsOf(w, next)).toEqual([0])
    expect(waits.some((id) => w.grants.has(id))).toBe(false)
  })
})

describe('standbys of a pool with seat sets', () => {
  it('stand in sets of the budget, in those in use before others', () => {
    const w = aPool({ idle: 'park', duty: 0.2, trust: 'shared' }, { standby: 1 })
    w.advance(5_000)
    expect(setsOf(w, ask(w, ['a']))).toEqual([0])
    w.advance(5_000)
    expect(w.pods('standby').map((name) => w.state.pods.get(name)!.set)).toEqual([0])
  })

  it('serve a tenant whose own set has none rather than a start', () => {
    const w = aPool({}, { standby: 2 })
    w.advance(5_000)
    const [first] = ask(w, ['a'], 'red')
    expect(w.granted(first!).hit).toBe('standby')
  })

  /** A pod of red's in set 0, and beside it a pod that nobody waits for any more. */
  function withLeftover(maxPods: number): World {
    const w = aPool({}, { maxPods })
    ask(w, ['r1'], 'red')
    const nobody = w.request({ caller: 'r2', tenant: 'red' })
    w.advance(1)
    w.release(nobody)
    w.advance(5_000)
    expect(w.pods('standby').map((name) => w.state.pods.get(name)!.set)).toEqual([0])
    return w
  }

  it('in another set are no pods for who needs one of his own', () => {
    const w = withLeftover(8)
    expect(setsOf(w, ask(w, ['b'], 'blue'))).toEqual([1])
    expect(w.pods('standby').length).toBe(1)
  })

  it('in the way of one who waits for another set go at once', () => {
    const w = withLeftover(2)
    expect(setsOf(w, ask(w, ['b'], 'blue'))).toEqual([1])
    expect(w.pods('standby').length).toBe(0)
  })

  it('leave no room for pods in sets where others hold seats alone', () => {
    const w = makeWorld({ coreVersion: 2, spec: { budget: 4, profile: withSeatSets({ seatSet: 2 }) } })
    const before = ask(w, ['a', 'b', 'c'])
    w.restart(3)
    w.advance(1_000)
    const [late] = ask(w, ['d'])
    expect(w.grants.has(late!)).toBe(false)
    w.release(before[0]!, { retire: true })
    w.advance(5_000)
    expect(setsOf(w, [late!])).toEqual([0])
  })

  it('are none where the budget is less than a set', () => {
    const w = aPool({}, { standby: 2 })
    w.advance(5_000)
    w.send({ kind: 'resize', budget: 1 })
    w.advance(5_000)
    expect(w.pods()).toEqual([])
    const [id] = ask(w, ['a'])
    w.send({ kind: 'resize', budget: 2 })
    w.advance(5_000)
    expect(setsOf(w, [id!])).toEqual([0])
  })
})

describe('a budget that shrinks', () => {
  it('empties the last sets: idle pods and standbys go, held ones when their runner says so', () => {
    const w = aPool({}, { standby: 0 })
    const [a, b, c, d] = ask(w, ['a', 'b', 'c', 'd'])
    w.release(c!)
    w.job(d!, 20_000)
    w.send({ kind: 'resize', budget: 2 })
    w.advance(10_000)
    expect(w.ends.has(d!)).toBe(false)
    expect(w.pods().length).toBe(3)
    w.advance(30_000)
    expect(w.end(d!).end).toBe('recalled')
    expect(setsOf(w, [a!, b!])).toEqual([0, 0])
    expect(w.pods().length).toBe(2)
  })

  it('opens no set in the stead of one that still has its GPUs', () => {
    const w = aPool({})
    const [a, b, c] = ask(w, ['a', 'b', 'c'])
    expect(setsOf(w, [a!, b!, c!])).toEqual([0, 0, 1])
    w.job(c!, 60_000)
    w.send({ kind: 'resize', budget: 2 })
    w.release(a!, { retire: true })
    w.release(b!, { retire: true })
    w.advance(5_000)
    const [d] = ask(w, ['d'])
    expect(w.grants.has(d!)).toBe(false)
    expect(w.pods().map((name) => w.state.pods.get(name)!.set)).toEqual([1])
    w.advance(90_000)
    expect(setsOf(w, [d!])).toEqual([0])
  })

  it('takes nothing when the fleet’s word has expired, and lets nothing new into sets beyond the guarantee', () => {
    const w = aPool({}, { guarantee: 2 })
    const [a, b, c] = ask(w, ['a', 'b', 'c'])
    w.send({ kind: 'setBudget', budget: 4, expiresAtMs: w.now + 100 })
    w.advance(5_000)
    expect([a, b, c].every((id) => w.lease(id!)?.kind === 'granted')).toBe(true)
    const [d] = ask(w, ['d'])
    expect(w.grants.has(d!)).toBe(false)
  })

  it('leaves those sets to be used that have pods when the fleet’s word has expired', () => {
    const w = aPool({}, { guarantee: 2 })
    const [a, b] = ask(w, ['a', 'b', 'c'])
    w.send({ kind: 'setBudget', budget: 4, expiresAtMs: w.now + 100 })
    w.release(a!, { retire: true })
    w.release(b!, { retire: true })
    w.advance(5_000)
    // The set of c is one that stays, and has room.
    expect(setsOf(w, ask(w, ['d']))).toEqual([1])
    const [e] = ask(w, ['e'])
    expect(w.grants.has(e!)).toBe(false)
  })

  it('leaves a standby to be used where the fleet’s word has expired, in whatever set it is', () => {
    const w = aPool({ seatSet: 1 }, { budget: 2, guarantee: 1, standby: 2 })
    w.advance(5_000)
    const [first, second] = w.pods('standby')
    w.send({ kind: 'setBudget', budget: 2, expiresAtMs: w.now + 100 })
    w.advance(5_000)
    w.backend.kill(first!, 'gone')
    w.advance(60_000)
    expect(w.pods('standby').map((name) => w.state.pods.get(name)!.set)).toEqual([1, 1])
    const [a] = ask(w, ['a'])
    expect(w.granted(a!).pod).toBe(second)
  })
})

it('a new template takes the places of the one before in the same sets', () => {
  const w = aPool({ idle: 'park', duty: 0.2, trust: 'shared' }, { standby: 2 })
  w.advance(5_000)
  const { spec } = w.state
  w.send({ kind: 'apply', spec: { ...spec, profile: { ...spec.profile, env: { A: '1' } } } })
  w.advance(20_000)
  const standbys = w.pods('standby').map((name) => w.state.pods.get(name)!)
  expect(standbys.map(({ generation }) => generation)).toEqual([2, 2])
  expect(standbys.every(({ set }) => set !== null && set < 2)).toBe(true)
  expect(w.state.rollout).toBeNull()
})
