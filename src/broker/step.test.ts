import { describe, expect, it } from 'vitest'
import { type Ask, makeWorld, type World } from '../../test/support/broker-world.js'
import type { LeaseEndReason } from '../contract/lease.js'
import { LIMIT } from '../contract/limits.js'
import type { PoolSpec } from '../contract/pool.js'
import type { PoolEvent } from './event.js'
import { tombstoneKey } from './keys.js'

/** Acquire order, slots, queue and ends of leases: what a caller sees. Each step is checked by all invariants. */

const SECOND = 1_000

describe('acquire order', () => {
  it('takes a warm pod of the same caller before a standby', () => {
    const w = makeWorld({ spec: { standby: 1 } })
    w.advance(2 * SECOND)
    const first = w.request()
    w.advance(2 * SECOND)
    expect(w.granted(first).hit).toBe('standby')
    w.release(first, { clean: true })
    w.advance(100)
    expect(w.pods('standby')).toHaveLength(1)
    const second = w.request()
    w.advance(100)
    expect(w.granted(second)).toMatchObject({ hit: 'warm', pod: w.granted(first).pod, epoch: 2 })
    expect(w.pods('standby')).toHaveLength(1)
  })

  it('promotes a standby before it creates a pod, and replaces the standby', () => {
    const w = makeWorld({ spec: { standby: 1 } })
    w.advance(2 * SECOND)
    expect(w.backend.created).toBe(1)
    const lease = w.request()
    w.advance(20)
    expect(w.granted(lease).hit).toBe('standby')
    expect(w.granted(lease).waitedMs).toBe(0)
    w.advance(2 * SECOND)
    expect(w.pods('standby')).toHaveLength(1)
    expect(w.backend.created).toBe(2)
  })

  it('creates a pod within the budget, and calls it cold', () => {
    const w = makeWorld()
    const lease = w.request()
    w.advance(5 * SECOND)
    expect(w.granted(lease)).toMatchObject({ hit: 'cold', epoch: 1 })
    expect(w.granted(lease).waitedMs).toBeGreaterThanOrEqual(SECOND)
  })

  it('queues beyond the budget and serves when a pod of the budget is gone', () => {
    const w = makeWorld({ spec: { budget: 1, keepAliveMs: 10 * SECOND } })
    const ann = w.request({ caller: 'ann' })
    w.advance(5 * SECOND)
    const bob = w.request({ caller: 'bob' })
    w.advance(2 * SECOND)
    expect(w.lease(bob)?.kind).toBe('waiting')
    expect(w.backend.created).toBe(1)
    w.release(ann)
    // Ann's pod stays hers for its keep-alive: it is never given to Bob.
    w.advance(9 * SECOND)
    expect(w.lease(bob)?.kind).toBe('waiting')
    w.advance(5 * SECOND)
    expect(w.granted(bob)).toMatchObject({ hit: 'cold', epoch: 1 })
    expect(w.granted(bob).pod).not.toBe(w.granted(ann).pod)
  })

  it('counts pods on their way: one burst makes as many pods as it needs (F16)', () => {
    const w = makeWorld({ spec: { budget: 8 } })
    for (let i = 0; i < 5; i++) {
      w.request({ caller: `c${i}` })
      w.advance(50)
    }
    expect(w.backend.created).toBe(5)
  })
})

describe('caller-keyed reuse', () => {
  it('never gives a pod to another caller or another reuse tag (I2, F10)', () => {
    const w = makeWorld()
    const ann = w.request({ caller: 'ann', reuseTag: 'x' })
    w.advance(3 * SECOND)
    w.release(ann)
    w.advance(100)
    const bob = w.request({ caller: 'bob', reuseTag: 'x' })
    const other = w.request({ caller: 'ann', reuseTag: 'y' })
    const same = w.request({ caller: 'ann', reuseTag: 'x', slot: '1' })
    w.advance(3 * SECOND)
    const { pod } = w.granted(ann)
    expect(w.granted(bob).pod).not.toBe(pod)
    expect(w.granted(other).pod).not.toBe(pod)
    expect(w.granted(same)).toMatchObject({ pod, hit: 'warm' })
  })

  it('does not take two callers for one whatever their names are', () => {
    const w = makeWorld()
    const one = w.request({ caller: 'a', reuseTag: 'b\u0000c' })
    w.advance(3 * SECOND)
    w.release(one)
    w.advance(100)
    const two = w.request({ caller: 'a\u0000b', reuseTag: 'c' })
    w.advance(3 * SECOND)
    expect(w.granted(two).pod).not.toBe(w.granted(one).pod)
  })

  it('gives a slot its own pod back, not the one that is idle longest', () => {
    const w = makeWorld()
    const [zero, one] = [w.request({ slot: '0' }), w.request({ slot: '1' })]
    w.advance(3 * SECOND)
    w.release(zero)
    w.advance(SECOND)
    w.release(one)
    w.advance(SECOND)
    const again = w.request({ slot: '1' })
    w.advance(100)
    expect(w.granted(again).pod).toBe(w.granted(one).pod)
  })

  it('serves the waiting slot of a pod that becomes idle, else the oldest of its owner', () => {
    const w = makeWorld({ spec: { budget: 1 } })
    const zero = w.request({ slot: '0', workflowId: 'a' })
    w.advance(3 * SECOND)
    const one = w.request({ slot: '1', workflowId: 'b' })
    const mine = w.request({ slot: '0', workflowId: 'c' })
    w.advance(100)
    w.release(zero)
    w.advance(100)
    expect(w.granted(mine).pod).toBe(w.granted(zero).pod)
    expect(w.lease(one)?.kind).toBe('waiting')
    w.release(mine)
    w.advance(100)
    expect(w.granted(one).pod).toBe(w.granted(zero).pod)
  })
})

describe('slots', () => {
  it('queues another holder of the same slot with SlotBusy, and names who has it', () => {
    const w = makeWorld()
    const first = w.request({ workflowId: 'one' })
    w.advance(3 * SECOND)
    const second = w.request({ workflowId: 'two', timeoutMs: 5 * SECOND })
    w.advance(4 * SECOND)
    expect(w.lease(second)).toMatchObject({ kind: 'waiting', claims: false })
    w.advance(2 * SECOND)
    expect(w.end(second)).toMatchObject({ end: 'failed', problem: { code: 'SlotBusy', origin: 'caller' } })
    expect(w.end(second).problem?.message).toContain('one')
    expect(w.lease(first)?.kind).toBe('granted')
  })

  it('hands the slot to the next in line, by priority, then arrival', () => {
    const w = makeWorld()
    const first = w.request({ workflowId: 'one' })
    w.advance(3 * SECOND)
    const late = w.request({ workflowId: 'two' })
    const high = w.request({ workflowId: 'three', priority: 5 })
    w.advance(10)
    w.release(first)
    w.advance(100)
    expect(w.granted(high).pod).toBe(w.granted(first).pod)
    expect(w.lease(late)?.kind).toBe('waiting')
  })

  it('counts those who wait for a slot against the queue limit', () => {
    const w = makeWorld({ spec: { queueLimit: 3 } })
    w.request({ workflowId: 'one' })
    w.advance(3 * SECOND)
    const waiting = ['two', 'three', 'four', 'five'].map((workflowId) => w.request({ workflowId }))
    w.advance(100)
    expect(w.state.index.waiting).toBe(3)
    expect(w.end(waiting[3]!).problem?.code).toBe('QueueFull')
  })

  it('supersedes the old lease of the same holder and slot (rule 6): a reset heals', () => {
    const w = makeWorld()
    const old = w.request({ workflowId: 'wf', runId: 'run-1' })
    w.advance(3 * SECOND)
    w.job(old, 3_600 * SECOND)
    const fresh = w.request({ workflowId: 'wf', runId: 'run-2' })
    w.advance(100)
    expect(w.end(old).end).toBe('superseded')
    expect(w.granted(fresh)).toMatchObject({ pod: w.granted(old).pod, epoch: 2 })
    // Nothing else would stop the job of the old run.
    expect(w.effectsOf('revoke')).toMatchObject([{ epoch: 1 }])
    expect(w.job(old, 1)).toBe('LeaseRevoked')
    expect(w.job(fresh, 1)).toBe('started')
  })

  it('is not superseded by a request of an earlier run that comes late', () => {
    const w = makeWorld()
    const old = w.aRequest({ workflowId: 'wf', runId: 'run-1' })
    w.advance(SECOND)
    const fresh = w.request({ workflowId: 'wf', runId: 'run-2' })
    w.advance(3 * SECOND)
    w.send({ kind: 'request', request: old })
    w.advance(100)
    expect(w.end(old.leaseId)).toMatchObject({ end: 'failed', problem: { code: 'LeaseRevoked' } })
    expect(w.job(fresh, 1)).toBe('started')
  })

  it('lets the superseding request have the slot before others that wait for it', () => {
    const w = makeWorld()
    const old = w.request({ workflowId: 'wf' })
    w.advance(3 * SECOND)
    const other = w.request({ workflowId: 'other', priority: 9 })
    w.advance(10)
    const fresh = w.request({ workflowId: 'wf' })
    w.advance(100)
    expect(w.granted(fresh).pod).toBe(w.granted(old).pod)
    expect(w.lease(other)?.kind).toBe('waiting')
  })

  it('kills the job of an ended lease although the pod has a younger one by then', () => {
    const w = makeWorld()
    const old = w.request({ workflowId: 'wf' })
    w.advance(3 * SECOND)
    w.job(old, 3_600 * SECOND)
    let lost = 2
    w.handling = (effect) => (effect.kind === 'revoke' && lost-- > 0 ? { fault: 'lost' } : {})
    const fresh = w.request({ workflowId: 'wf' })
    w.advance(10 * SECOND)
    expect(w.granted(fresh).epoch).toBe(2)
    expect(w.backend.pods.get(w.granted(old).pod)?.revoked).toBe(1)
  })
})

describe('one request, one grant', () => {
  it('answers a repeated request with the same pod and epoch (F2)', () => {
    const w = makeWorld()
    const request = w.aRequest()
    w.send({ kind: 'request', request }, { kind: 'request', request })
    w.advance(3 * SECOND)
    w.send({ kind: 'request', request })
    w.advance(100)
    const grants = w.grants.get(request.leaseId)!
    expect(grants.length).toBeGreaterThan(1)
    expect(new Set(grants.map((g) => `${g.pod}/${g.epoch}`)).size).toBe(1)
    expect(w.backend.created).toBe(1)
  })

  it('never grants what was released before it was asked for', () => {
    const w = makeWorld()
    const request = w.aRequest()
    w.release(request.leaseId)
    w.advance(10)
    w.send({ kind: 'request', request })
    w.advance(5 * SECOND)
    expect(w.grants.has(request.leaseId)).toBe(false)
    expect(w.end(request.leaseId)).toMatchObject({ end: 'failed', problem: { code: 'LeaseRevoked' } })
    expect(w.backend.created).toBe(0)
  })

  it('never grants a lease that ended, however late the repetition (I12)', () => {
    const w = makeWorld({ spec: { keepAliveMs: SECOND } })
    const request = w.aRequest({ timeoutMs: 24 * 3_600 * SECOND })
    w.send({ kind: 'request', request })
    w.advance(10 * SECOND)
    expect(w.end(request.leaseId).end).toBe('recalled')
    // A late release must not shorten the memory of it: the request is good for a day.
    w.release(request.leaseId)
    w.advance(3_600 * SECOND)
    w.send({ kind: 'request', request })
    w.advance(10 * SECOND)
    expect(w.lease(request.leaseId)).toBeUndefined()
    expect(w.grants.get(request.leaseId)).toHaveLength(1)
  })

  it.each<[LeaseEndReason, Ask, (w: World, lease: string, pod: () => string) => void]>([
    ['released', {}, (w, lease) => w.release(lease)],
    ['recalled', {}, (w) => w.advance(20 * SECOND)],
    ['expired', { pinMs: 10 * SECOND }, (w) => w.advance(20 * SECOND)],
    ['podLost', {}, (w, _, pod) => w.backend.kill(pod(), 'failed')],
    ['superseded', {}, (w) => void w.request({ caller: 'ann' })],
    ['failed', {}, (w) => w.send({ kind: 'mode', mode: 'deleting' })],
  ])('remembers a lease that ended as %s, also when the pool continued as new', (end, ask, ends) => {
    const w = makeWorld({ spec: { keepAliveMs: 10 * SECOND } })
    const request = w.aRequest({ caller: 'ann', ...ask })
    w.send({ kind: 'request', request })
    w.advance(3 * SECOND)
    ends(w, request.leaseId, () => w.granted(request.leaseId).pod)
    w.advance(SECOND)
    expect(w.lease(request.leaseId)).toBeUndefined()
    expect(w.state.counters.ends[end]).toBe(1)
    w.restart()
    const told = w.ends.get(request.leaseId)?.length ?? 0
    w.send({ kind: 'request', request })
    w.advance(3 * SECOND)
    expect(w.grants.get(request.leaseId)).toHaveLength(1)
    expect(w.ends.get(request.leaseId)!.slice(told)).toMatchObject([
      { end: 'failed', problem: { code: 'LeaseRevoked' } },
    ])
  })

  it('remembers so many ends at most, the newest', () => {
    const w = makeWorld({ checkIndex: false })
    const first = w.random.uuid()
    for (let i = 0; i <= LIMIT.tombstones; i++) w.release(i === 0 ? first : w.random.uuid())
    const last = w.random.uuid()
    w.release(last)
    w.step()
    const { tombstones } = w.state
    expect([
      tombstones.size,
      tombstones.has(tombstoneKey(first)),
      tombstones.has(tombstoneKey(last)),
    ]).toEqual([LIMIT.tombstones, false, true])
  })

  it('forgets a tombstone when its request can no longer be repeated', () => {
    const w = makeWorld()
    const lease = w.request({ timeoutMs: 10 * SECOND })
    w.advance(3 * SECOND)
    w.release(lease)
    w.advance(5 * 60 * SECOND)
    expect(w.state.tombstones.size).toBe(1)
    w.advance(15 * SECOND)
    expect(w.state.tombstones.size).toBe(0)
  })

  it('ignores a release that names another grant (F20)', () => {
    const w = makeWorld()
    const lease = w.request()
    w.advance(3 * SECOND)
    const { pod, epoch } = w.granted(lease)
    w.release(lease, { pod, epoch: epoch + 1 })
    w.release(lease, { pod: 'another', epoch })
    w.advance(100)
    expect(w.lease(lease)?.kind).toBe('granted')
    w.release(lease, { pod, epoch })
    w.advance(100)
    expect(w.lease(lease)).toBeUndefined()
  })

  it('kills what runs when a lease is released, but not when the sender knows that nothing runs', () => {
    const w = makeWorld()
    const [one, two] = [w.request({ slot: '1' }), w.request({ slot: '2' })]
    w.advance(3 * SECOND)
    w.release(one)
    w.release(two, { clean: true })
    w.advance(100)
    expect(w.effectsOf('revoke').map((e) => e.pod)).toEqual([w.granted(one).pod])
  })
})

describe('the queue', () => {
  it('serves by priority, then by arrival', () => {
    const w = makeWorld({ spec: { budget: 0 } })
    const low = w.request({ caller: 'low' })
    const first = w.request({ caller: 'first', priority: 3 })
    const second = w.request({ caller: 'second', priority: 3 })
    w.advance(10)
    for (const [budget, who] of [
      [1, first],
      [2, second],
      [3, low],
    ] as const) {
      w.send({ kind: 'resize', budget })
      w.advance(3 * SECOND)
      expect(w.lease(who)?.kind).toBe('granted')
      expect(w.state.index.held).toBe(budget)
    }
  })

  it('ends a request at its deadline with the position and the reason (F13)', () => {
    const w = makeWorld({ spec: { budget: 1 } })
    w.request({ caller: 'ann' })
    w.advance(3 * SECOND)
    w.request({ caller: 'bob' })
    const carl = w.request({ caller: 'carl', timeoutMs: 2 * SECOND })
    w.advance(2 * SECOND)
    w.advance(20)
    const { end, problem } = w.end(carl)
    expect(end).toBe('failed')
    expect(problem).toMatchObject({
      code: 'QueueTimeout',
      origin: 'infrastructure',
      details: { reason: 'BudgetExhausted', position: 2, waitedMs: 2_000 },
    })
    expect(problem?.message).toContain('position 2')
  })

  it.each([
    ['PodStarting', {}],
    ['PoolPaused', { mode: 'paused' as const }],
    ['PoolDraining', { mode: 'draining' as const }],
  ])('says %s when that is why', (reason, { mode }: { mode?: 'paused' | 'draining' }) => {
    const w = makeWorld()
    w.backend.startMs = () => 60 * SECOND
    if (mode) w.send({ kind: 'mode', mode })
    const lease = w.request({ timeoutMs: SECOND })
    w.advance(2 * SECOND)
    expect(w.end(lease).problem?.details?.reason).toBe(reason)
  })

  it.each<[string, Partial<PoolSpec>, PoolEvent | null, RegExp]>([
    [
      'a budget of 0',
      { budget: 0 },
      null,
      /BudgetExhausted.*; the budget is 0 \(the pool file says so\): raise/,
    ],
    [
      'those ahead',
      { budget: 1 },
      null,
      /PodStarting.*; the 1 free of the budget of 1 are for those ahead: raise/,
    ],
    [
      'the fleet',
      {},
      { kind: 'setBudget', budget: 0, expiresAtMs: 1e15 },
      /; the budget is 0 \(the fleet budget/,
    ],
    [
      'maxPods',
      { budget: 4, maxPods: 1 },
      null,
      /PodStarting.*; maxPods is 1, and as many pods .*raise maxPods/,
    ],
    [
      'slow starts',
      {},
      null,
      /PodStarting.*; pods take longer to start: raise acquireTimeout, or keep standbys/,
    ],
    ['a pause', {}, { kind: 'mode', mode: 'paused' }, /PoolPaused.*: firepool pool resume p$/],
  ])('names the remedy that fits: %s', (_, spec, event, message) => {
    const w = makeWorld({ spec })
    w.backend.startMs = () => 60 * SECOND
    if (event) w.send(event)
    w.request({ caller: 'first', timeoutMs: 100 * SECOND })
    const lease = w.request({ caller: 'second', timeoutMs: SECOND })
    w.advance(2 * SECOND)
    expect(w.end(lease).problem?.message).toMatch(message)
  })

  it('names the remedy that fits: seats that are held', () => {
    const w = makeWorld({ spec: { budget: 1 } })
    w.request({ caller: 'first' })
    w.advance(3 * SECOND)
    const lease = w.request({ caller: 'second', timeoutMs: SECOND })
    w.advance(2 * SECOND)
    expect(w.end(lease).problem?.message).toMatch(
      /BudgetExhausted.*; all 1 of the budget are held \(the pool file says so\): raise .*acquireTimeout$/,
    )
  })

  it('refuses beyond its limit at once', () => {
    const w = makeWorld({ spec: { budget: 0, queueLimit: 2 } })
    const asked = [1, 2, 3].map((n) => w.request({ caller: `c${n}` }))
    w.advance(20)
    expect(w.end(asked[2]!).problem).toMatchObject({ code: 'QueueFull', details: { position: 3 } })
    expect(w.state.leases.size).toBe(2)
  })

  it('holds its limit in one burst of a caller that has one warm pod', () => {
    const w = makeWorld({ spec: { budget: 1, queueLimit: 2 } })
    const warm = w.request({ slot: 'warm' })
    w.advance(3 * SECOND)
    w.release(warm)
    w.advance(100)
    for (let i = 0; i < 10; i++) w.request({ slot: `s${i}` })
    w.advance(1)
    expect(w.state.index.waiting).toBeLessThanOrEqual(2)
  })

  it('refuses a request that comes after its own deadline', () => {
    const w = makeWorld()
    const lease = w.request({ timeoutMs: -1 })
    w.advance(20)
    expect(w.end(lease).problem?.code).toBe('QueueTimeout')
  })

  it('takes the inbox first after a long pause: nothing expires for a release that had come (clock gap)', () => {
    const w = makeWorld({ spec: { budget: 1 } })
    const ann = w.request({ caller: 'ann', workflowId: 'a' })
    w.advance(3 * SECOND)
    const next = w.request({ caller: 'ann', workflowId: 'b', timeoutMs: 30 * SECOND })
    w.advance(10)
    w.jump(120 * SECOND)
    w.release(ann)
    w.step()
    expect(w.lease(next)?.kind).toBe('granted')
    // What is really late goes in the step after, which comes at once.
    const late = w.request({ caller: 'bob', timeoutMs: 30 * SECOND })
    w.advance(0)
    w.jump(120 * SECOND)
    w.advance(20)
    expect(w.end(late).problem?.code).toBe('QueueTimeout')
  })
})
