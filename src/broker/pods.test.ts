import { describe, expect, it } from 'vitest'
import { makeWorld } from '../../test/support/broker-world.js'
import type { ObservedPod } from '../contract/backend.js'
import { podsPage, statusOf } from './status.js'

/** What happens to pods: lost, restarted, unknown, not starting. */

const SECOND = 1_000

describe('a lost pod', () => {
  it.each([
    ['failed', 'Evicted'],
    ['gone', 'Deleted'],
  ] as const)('that is seen %s: its lease is told PodLost, and it is replaced (F4, F9)', (how, reason) => {
    const w = makeWorld({ spec: { standby: 1 } })
    const lease = w.request()
    w.advance(5 * SECOND)
    const { pod } = w.granted(lease)
    w.backend.kill(pod, how)
    w.advance(3 * SECOND)
    expect(w.end(lease)).toMatchObject({
      end: 'podLost',
      problem: { code: 'PodLost', origin: 'infrastructure' },
    })
    expect(w.end(lease).problem?.details).toMatchObject({ pod, epoch: 1, reason })
    expect(w.state.pods.has(pod)).toBe(false)
    expect(w.backend.pods.has(pod)).toBe(false)
    expect(w.pods('standby')).toHaveLength(1)
    const next = w.request({ workflowId: 'next' })
    w.advance(3 * SECOND)
    expect(w.granted(next).pod).not.toBe(pod)
  })

  it('that nobody reports is found by a full observation', () => {
    const w = makeWorld()
    const lease = w.request()
    w.advance(3 * SECOND)
    w.observeMs = null
    w.backend.kill(w.granted(lease).pod, 'gone')
    w.advance(10)
    expect(w.lease(lease)?.kind).toBe('granted')
    w.observeAll()
    w.advance(100)
    expect(w.end(lease).end).toBe('podLost')
  })

  it('is found by the bind of its next lease', () => {
    const w = makeWorld()
    const first = w.request()
    w.advance(3 * SECOND)
    w.release(first)
    w.observeMs = null
    w.backend.kill(w.granted(first).pod, 'gone')
    const second = w.request({ workflowId: 'next' })
    w.advance(100)
    expect(w.end(second)).toMatchObject({ end: 'podLost', problem: { details: { reason: 'NotFound' } } })
    expect(w.grants.has(second)).toBe(false)
  })

  it('is found by the drain', () => {
    const w = makeWorld({ spec: { keepAliveMs: 5 * SECOND } })
    const lease = w.request()
    w.advance(3 * SECOND)
    w.observeMs = null
    w.backend.kill(w.granted(lease).pod, 'gone')
    w.advance(10 * SECOND)
    expect(w.end(lease).end).toBe('podLost')
    expect(w.state.pods.size).toBe(0)
  })

  it('was a standby: nobody is told, it is replaced', () => {
    const w = makeWorld({ spec: { standby: 1 } })
    w.advance(3 * SECOND)
    w.backend.kill(w.pods('standby')[0]!, 'gone')
    w.advance(3 * SECOND)
    expect(w.pods('standby')).toHaveLength(1)
    expect(w.effectsOf('notify')).toHaveLength(0)
  })

  it('is not what an answer about an earlier epoch says', () => {
    const w = makeWorld()
    const first = w.request()
    w.advance(3 * SECOND)
    const early = w.effectsOf('deliver')[0]!
    const request = w.aRequest({ leaseId: first })
    w.handling = (effect) =>
      effect.kind === 'deliver' && effect.grant.epoch === 1
        ? { beforeMs: 5 * SECOND, result: { kind: 'podLost', reason: 'Old' } }
        : {}
    w.send({ kind: 'request', request })
    w.advance(10)
    w.release(first)
    const second = w.request({ workflowId: 'next' })
    w.advance(10 * SECOND)
    expect(early.grant.epoch).toBe(1)
    expect(w.granted(second)).toMatchObject({ pod: early.grant.pod, epoch: 2 })
    expect(w.lease(second)?.kind).toBe('granted')
  })

  it('restarted in place: another incarnation knows nothing of its epoch', () => {
    const w = makeWorld()
    const lease = w.request()
    w.advance(3 * SECOND)
    const { pod } = w.granted(lease)
    w.backend.restart(pod)
    w.advance(SECOND)
    expect(w.end(lease)).toMatchObject({ end: 'podLost', problem: { details: { reason: 'Restarted' } } })
    expect(w.backend.pods.has(pod)).toBe(false)
  })
})

describe('pods and what the pool knows of them', () => {
  it('does not take a pod for gone because an older report lacks it (F1)', () => {
    const w = makeWorld()
    w.observeMs = null
    const lease = w.request()
    const asOfMs = w.now
    w.advance(100)
    w.send({ kind: 'observed', asOfMs, full: true, pods: [] })
    w.advance(10)
    expect(w.pods('starting')).toHaveLength(1)
    w.advance(2 * SECOND)
    w.observeAll()
    w.advance(100)
    expect(w.granted(lease).epoch).toBe(1)
    expect(w.backend.created).toBe(1)
  })

  it('does not take a pod for gone whose create was not answered yet', () => {
    const w = makeWorld()
    w.handling = (effect) => (effect.kind === 'create' ? { beforeMs: 10 * SECOND } : {})
    w.request()
    w.advance(SECOND)
    w.observeAll()
    w.advance(SECOND)
    expect(w.pods('starting')).toHaveLength(1)
    w.advance(60 * SECOND)
    expect(w.backend.created).toBe(1)
  })

  it('finds the loss of a pod whose create was never answered but which was seen', () => {
    const w = makeWorld()
    w.handling = (effect) => (effect.kind === 'create' ? { afterMs: 3_600 * SECOND } : {})
    const lease = w.request()
    w.advance(5 * SECOND)
    w.observeMs = null
    w.backend.kill(w.granted(lease).pod, 'gone')
    w.observeAll()
    w.advance(100)
    expect(w.end(lease).end).toBe('podLost')
  })

  it('deletes pods that it does not know, once each (F3, F22)', () => {
    const w = makeWorld()
    w.handling = (effect) => (effect.kind === 'delete' ? { beforeMs: 5 * SECOND } : {})
    const pod = 'p-earlier-7'
    w.send({ kind: 'observed', asOfMs: w.now, full: true, pods: [{ pod, generation: 1, phase: 'ready' }] })
    w.advance(10)
    w.send({ kind: 'observed', asOfMs: w.now, full: true, pods: [{ pod, generation: 1, phase: 'ready' }] })
    w.advance(10)
    expect(w.effectsOf('delete').map((e) => e.pod)).toEqual([pod])
    w.send({
      kind: 'observed',
      asOfMs: w.now,
      full: false,
      pods: [{ pod: 'other', generation: 1, phase: 'gone' }],
    })
    w.advance(10)
    expect(w.effectsOf('delete')).toHaveLength(1)
  })

  it('deletes a pod only after its create was answered, so that no create comes after the delete', () => {
    const w = makeWorld({ spec: { budget: 0, standby: 3, maxPods: 3 } })
    w.handling = (effect) => (effect.kind === 'create' ? { beforeMs: w.random.int(1, 3_000) } : {})
    for (let i = 1; i <= 5; i++) {
      const profile = { ...w.state.spec.profile, env: { I: String(i) } }
      w.send({ kind: 'apply', spec: { ...w.state.spec, profile } })
      w.advance(500)
    }
    w.advance(30 * SECOND)
    expect(w.backend.mostPods).toBeLessThanOrEqual(3)
    expect(w.backend.pods.size).toBe(3)
  })

  it('never has more pods than maxPods, however many ask (F1, F8)', () => {
    const w = makeWorld({ spec: { budget: 50, maxPods: 5, standby: 3 } })
    w.handling = () => ({
      beforeMs: w.random.int(1, 2_000),
      afterMs: w.random.int(1, 2_000),
      fault: w.random.pick(['none', 'lost', 'unheard', 'twice']),
    })
    for (let i = 0; i < 20; i++) w.request({ caller: `c${i}` })
    w.advance(60 * SECOND)
    expect(w.backend.mostPods).toBe(5)
    expect(w.backend.created).toBe(5)
  })

  it('bounds how many start at once', () => {
    const w = makeWorld({ spec: { budget: 500, maxPods: 1_000, queueLimit: 1_000 }, checkIndex: false })
    for (let i = 0; i < 300; i++) w.request({ caller: `c${i}` })
    w.advance(500)
    expect(w.pods('starting')).toHaveLength(100)
  })
})

describe('the breaker', () => {
  it('opens after three failures: waiting requests fail typed, with the reason (F7, F19)', () => {
    const w = makeWorld({ spec: { budget: 8 } })
    w.backend.broken = 'PrepareFailed'
    const first = w.request({ caller: 'c0' })
    w.advance(1_500)
    expect(w.state.breaker).toMatchObject({ failures: 1, openUntil: null })
    w.advance(4 * SECOND)
    expect(w.end(first)).toMatchObject({
      end: 'failed',
      problem: { code: 'PodStartFailed', details: { reason: 'PrepareFailed', failures: 3 } },
    })
    expect(w.end(first).problem?.message).toContain('PrepareFailed')
    expect(w.backend.created).toBe(3)
    const second = w.request({ caller: 'c1' })
    w.advance(20)
    expect(w.end(second).problem?.code).toBe('PodStartFailed')
  })

  it('starts at most three at once after a first failure', () => {
    const w = makeWorld({ spec: { budget: 50, maxPods: 100 } })
    w.backend.broken = 'PrepareFailed'
    w.request({ caller: 'one' })
    w.advance(1_100)
    for (let i = 0; i < 20; i++) w.request({ caller: `c${i}` })
    w.advance(500)
    expect(w.pods('starting')).toHaveLength(3)
  })

  it('probes with one pod when the pause is over, waits twice as long when that fails, and closes when it starts', () => {
    const w = makeWorld({ spec: { standby: 4 } })
    w.backend.broken = 'PrepareFailed'
    w.advance(3 * SECOND)
    expect(w.state.breaker.backoffMs).toBe(5 * SECOND)
    const { created } = w.backend
    w.advance(2 * SECOND)
    expect(w.backend.created).toBe(created)
    w.advance(3 * SECOND)
    expect(w.backend.created).toBe(created + 1)
    w.advance(2 * SECOND)
    expect(w.state.breaker.backoffMs).toBe(10 * SECOND)
    w.backend.broken = null
    w.advance(15 * SECOND)
    expect(w.state.breaker).toMatchObject({ failures: 0, openUntil: null, backoffMs: 0 })
    w.advance(2 * SECOND)
    expect(w.pods('standby')).toHaveLength(4)
  })

  it('waits no longer because many pods were starting when it opened', () => {
    const w = makeWorld({ spec: { standby: 8 } })
    w.backend.broken = 'PrepareFailed'
    w.advance(1_500)
    expect(w.state.breaker.failures).toBe(8)
    expect(w.state.breaker.backoffMs).toBe(5 * SECOND)
  })

  it('is closed by a new template, and pods of the old one say nothing about it', () => {
    const w = makeWorld({ spec: { standby: 3 } })
    w.backend.broken = 'PrepareFailed'
    w.advance(3 * SECOND)
    expect(w.state.breaker.openUntil).not.toBeNull()
    w.backend.broken = null
    const profile = { ...w.state.spec.profile, env: { FIXED: '1' } }
    w.send({ kind: 'apply', spec: { ...w.state.spec, profile } })
    w.advance(2 * SECOND)
    expect(w.pods('standby')).toHaveLength(3)
    expect(w.state.breaker.failures).toBe(0)
  })

  it('hears of a backend that refuses a create, and of a pod that never becomes Ready', () => {
    const w = makeWorld({ spec: { podStartMs: 5 * SECOND } })
    w.backend.startMs = () => Number.NaN
    w.handling = (effect) =>
      effect.kind === 'create' && effect.order.pod.endsWith('-1')
        ? { result: { kind: 'created', problem: { reason: 'NoSpace', message: 'disk is full' } } }
        : {}
    const lease = w.request()
    w.advance(100)
    expect(w.state.breaker.last?.message).toContain('NoSpace: disk is full')
    w.advance(60 * SECOND)
    expect(w.end(lease).problem?.details?.reason).toBe('StartTimeout')
  })

  it('lets warm pods and standbys serve while it is open', () => {
    const w = makeWorld({ spec: { standby: 2, budget: 2 } })
    const lease = w.request()
    w.advance(5 * SECOND)
    w.backend.broken = 'PrepareFailed'
    for (const pod of w.pods('standby').slice(0, 1)) w.backend.kill(pod, 'gone')
    w.advance(10 * SECOND)
    expect(w.state.breaker.openUntil).not.toBeNull()
    const bob = w.request({ caller: 'bob' })
    w.release(lease)
    w.advance(20)
    const again = w.request({ workflowId: 'again' })
    w.advance(100)
    expect(w.granted(bob).hit).toBe('standby')
    expect(w.granted(again).hit).toBe('warm')
  })
})

describe('what a backend says beside the phase', () => {
  const see = (w: ReturnType<typeof makeWorld>, seen: Omit<ObservedPod, 'generation'>) => {
    w.send({ kind: 'observed', asOfMs: w.now, full: false, pods: [{ generation: 1, ...seen }] })
    w.advance(100)
  }

  it('what a starting pod waits for is shown while it waits, and in the time-out of who waits for it', () => {
    const w = makeWorld()
    w.backend.startMs = () => Number.NaN
    const lease = w.request({ deadlineMs: w.now + 20 * SECOND })
    w.advance(SECOND)
    const [pod] = w.pods('starting')
    see(w, { pod: pod!, phase: 'starting', reason: 'Unschedulable', message: '0/3 nodes' })
    const { starting } = statusOf(w.state, w.now)
    expect(starting).toEqual([{ reason: 'Unschedulable', message: '0/3 nodes', pods: 1 }])
    expect(podsPage(w.state, {}).rows[0]?.note).toBe('Unschedulable: 0/3 nodes')
    w.advance(20 * SECOND)
    expect(w.end(lease).problem?.message).toContain('1 pods start and wait (Unschedulable: 0/3 nodes)')
    see(w, { pod: pod!, phase: 'starting' })
    expect(statusOf(w.state, w.now).starting).toBeUndefined()
  })

  it('a pod that retires serves its lease on, and nobody after it; an idle one and a standby go at once (F4)', () => {
    const w = makeWorld({ spec: { standby: 1, budget: 3 } })
    const [held, idle] = [w.request({ caller: 'a' }), w.request({ caller: 'b' })]
    w.advance(5 * SECOND)
    w.release(idle)
    w.advance(SECOND)
    const [standby] = w.pods('standby')
    const pods = [w.granted(held).pod, w.granted(idle).pod, standby!]
    for (const pod of pods) {
      const { address, incarnation } = w.state.pods.get(pod)!
      see(w, { pod, phase: 'ready', address, incarnation, retire: 'NodeCordoned' })
    }
    w.advance(100)
    expect(w.lease(held)?.kind).toBe('granted')
    expect(w.state.pods.get(pods[0]!)?.note?.reason).toBe('NodeCordoned')
    for (const pod of pods.slice(1)) expect(w.backend.pods.has(pod)).toBe(false)
    w.release(held)
    w.advance(3 * SECOND)
    expect(w.backend.pods.has(pods[0]!)).toBe(false)
    expect(w.pods('standby')).toHaveLength(1)
  })

  it('what it says of a lost pod goes to the holder of its lease, cut', () => {
    const w = makeWorld()
    const lease = w.request()
    w.advance(3 * SECOND)
    const { pod } = w.granted(lease)
    see(w, { pod, phase: 'failed', reason: 'OOMKilled', message: `end of its log: ${'x'.repeat(5_000)}` })
    expect(w.end(lease).problem?.details).toMatchObject({ reason: 'OOMKilled' })
    expect(String(w.end(lease).problem?.details?.said)).toMatch(/^end of its log: x+$/)
    expect(String(w.end(lease).problem?.details?.said)).toHaveLength(1_000)
  })
})
