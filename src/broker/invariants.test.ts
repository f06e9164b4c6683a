import { describe, expect, it } from 'vitest'
import { makeWorld, type World, withSeatSets } from '../../test/support/broker-world.js'
import type { PoolSpec } from '../contract/pool.js'
import type { Effect } from './effect.js'
import { checkIndex } from './index-check.js'
import { INVARIANTS, type InvariantId, Monitor } from './invariants.js'
import { restore, snapshot } from './snapshot.js'
import type { GrantedLease, PoolState } from './state.js'

/** An invariant that never fails proves nothing: each one is shown a state or a history that breaks it. */

/** Two held pods, an idle one, a standby, one request in the queue. */
function aWorld(): World {
  const w = makeWorld({ spec: { standby: 1, budget: 3 } })
  const asked = ['ann', 'bob', 'carl'].map((caller) => w.request({ caller }))
  w.advance(5_000)
  w.release(asked[2]!)
  w.request({ caller: 'dora' })
  w.advance(100)
  return w
}

/** What the monitor says of a step after which the state is as `harm` leaves it. */
function verdict(
  harm: (state: PoolState, w: World) => Effect[] | undefined,
  events: Parameters<Monitor['observe']>[0]['events'] = [],
) {
  const w = aWorld()
  const { state } = restore(snapshot(w.state))
  const monitor = new Monitor(state)
  expect(monitor.observe({ events: [], effects: [], now: w.now, state })).toEqual([])
  const effects = harm(state, w) ?? []
  return monitor.observe({ events, effects, now: w.now, state }).map((v) => v.id)
}

const podOf = (state: PoolState, kind: string) => [...state.pods.values()].find((p) => p.kind === kind)!
const leaseOf = (state: PoolState, kind: string) => [...state.leases.values()].find((l) => l.kind === kind)!

const HARM: Record<
  Exclude<InvariantId, 'I3' | 'I11' | 'I12'>,
  (state: PoolState, w: World) => Effect[] | undefined
> = {
  I1: (state) => {
    podOf(state, 'leased').epoch = 0
    return undefined
  },
  I2: (state) => {
    podOf(state, 'idle').owner = { caller: 'mallory', reuseTag: '' }
    return undefined
  },
  I4: (state) => {
    podOf(state, 'standby').heldSince = 1
    return undefined
  },
  I5: (state) => {
    podOf(state, 'standby').epoch = 1
    return undefined
  },
  I6: (state) => {
    leaseOf(state, 'waiting').request.deadlineMs = 1
    return undefined
  },
  I7: (state) => {
    podOf(state, 'idle').keepAliveAt = 1
    return undefined
  },
  I8: (_, w) => {
    const old = w.effects[0]!
    return [old, old]
  },
  I9: (state) => {
    const lease = leaseOf(state, 'waiting')
    const pod = podOf(state, 'standby')
    const leaseId = lease.request.leaseId
    Object.assign(pod, {
      kind: 'promoting',
      leaseId,
      epoch: 1,
      address: '',
      owner: { caller: 'dora', reuseTag: '' },
    })
    state.leases.set(leaseId, {
      ...lease,
      kind: 'granted',
      pod: pod.pod,
      epoch: 1,
      grantedAt: 1,
      hit: 'standby',
      delivery: 'delivered',
    })
    return undefined
  },
  I13: (state) => {
    podOf(state, 'standby').reserved = true
    return undefined
  },
  I14: (state) => {
    state.generation++
    return undefined
  },
  I10: (state) => {
    const lease = leaseOf(state, 'waiting')
    const pod = podOf(state, 'standby')
    const late = { ...lease, arrival: lease.arrival + 1, request: { ...lease.request, leaseId: 'late' } }
    Object.assign(pod, {
      kind: 'promoting',
      leaseId: 'late',
      epoch: 1,
      owner: { caller: 'dora', reuseTag: '' },
    })
    state.leases.set('late', {
      ...late,
      kind: 'granted',
      pod: pod.pod,
      epoch: 1,
      grantedAt: 1,
      hit: 'standby',
      delivery: 'delivered',
    })
    return undefined
  },
}

describe('each invariant fails when it is broken', () => {
  it.each(Object.keys(HARM) as (keyof typeof HARM)[])('%s', (id) => {
    expect(verdict(HARM[id])).toContain(id)
  })

  it.each([
    ['that is full', { tenant: '' }, 'beside 2 of at most 2'],
    ['of another tenant', { tenant: 'other' }, 'for tenant other, beside tenant '],
    ['beyond the budget', { tenant: '', set: 2 }, 'the budget leaves 2'],
  ])('I3, when a caller gets a pod in a set %s', (_, change, text) => {
    const w = makeWorld({ spec: { budget: 4, profile: withSeatSets({ seatSet: 2 }) } })
    const asked = ['ann', 'bob', 'carl'].map((caller) => w.request({ caller }))
    w.advance(5_000)
    const third = w.lease(asked[2]!) as GrantedLease
    const [first, pod] = [w.state.pods.get(w.granted(asked[0]!).pod)!, w.state.pods.get(third.pod)!]
    w.monitor.memory.grants.delete(asked[2]!)
    Object.assign(pod, { set: first.set }, change)
    const broken = w.monitor.observe({ events: [], effects: [], now: w.now, state: w.state })
    expect(
      broken
        .filter(({ id }) => id === 'I3')
        .map((v) => v.text)
        .join(),
    ).toContain(text)
  })

  it('I11', () => {
    const w = aWorld()
    w.monitor.jobStarted('pod', 'job/1')
    w.monitor.jobStarted('pod', 'job/2')
    w.monitor.jobStarted('other', 'job/1')
    w.step()
    w.monitor.jobStarted('pod', 'job/1')
    expect(() => w.step()).toThrow('I11: job job/1 started twice on pod')
  })

  it('I12', () => {
    const w = aWorld()
    const [id, lease] = [...w.state.leases][0]!
    w.release(id)
    w.step()
    w.state.leases.set(id, lease)
    expect(() => w.step()).toThrow('I12')
  })

  it('F1', () => {
    const harm = (state: PoolState) => {
      for (let i = 0; i < 9; i++) state.pods.set(`x${i}`, { ...podOf(state, 'standby'), pod: `x${i}` })
      return undefined
    }
    expect(verdict(harm)).toContain('F1')
  })

  it('I14, when standbys of an earlier template are taken before others stand there', () => {
    const harm = (state: PoolState) => {
      state.generation++
      state.rollout = { template: null }
      Object.assign(podOf(state, 'standby'), { kind: 'deleting' })
      state.index.byKind.standby.clear()
      return undefined
    }
    expect(verdict(harm)).toContain('I14')
  })

  it.each([
    ['is made although the newest template starts', (profile: PoolSpec['profile']) => profile],
    [
      'is made of another template than others of its generation',
      (profile: PoolSpec['profile']) => ({ ...profile, env: { A: '1' } }),
    ],
  ])('I14, when a pod of an earlier template %s', (what, change) => {
    const w = aWorld()
    const order = w.effectsOf('create').at(-1)!
    const { generation, profile } = order.order
    if (what.includes('another')) w.state.breaker.openUntil = w.now
    else w.state.generation++
    w.state.rollout = { template: null }
    w.state.pods.set('new', { ...podOf(w.state, 'standby'), pod: 'new', kind: 'starting' })
    const create = {
      ...order,
      id: 'e999',
      order: { ...order.order, pod: 'new', generation, profile: change(profile) },
    }
    const broken = w.monitor.observe({ events: [], effects: [create], now: w.now, state: w.state })
    expect(broken.map((v) => v.text).join()).toMatch(
      what.includes('another') ? /another template/ : /earlier/,
    )
  })

  it('the index', () => {
    const w = aWorld()
    expect(checkIndex(w.state)).toEqual([])
    w.state.index.held++
    w.state.index.claims.clear()
    podOf(w.state, 'idle').keepAliveAt += 7
    const wrong = checkIndex(w.state).join('\n')
    expect(wrong).toContain('index.held is')
    expect(wrong).toContain('index.claims is')
    expect(wrong).toContain('is not planned')
  })

  it('and none is missing', () => {
    expect(Object.keys(INVARIANTS)).toEqual(Array.from({ length: 14 }, (_, i) => `I${i + 1}`))
  })
})
