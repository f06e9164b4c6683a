import { describe, expect, it } from 'vitest'
import { makeWorld, type World } from '../../test/support/broker-world.js'
import { restore, snapshot } from './snapshot.js'

/** A pinned lease: never recalled while held, it renews or expires, and its pod waits for its slot. */

const SECOND = 1_000
const PIN = 60 * SECOND

function aPinnedPod(spec = {}): { w: World; lease: string; pod: string } {
  const w = makeWorld({ spec: { keepAliveMs: SECOND, budget: 2, ...spec } })
  const lease = w.request({ pinMs: PIN })
  w.advance(2 * SECOND)
  return { w, lease, pod: w.granted(lease).pod }
}

describe('while it is held', () => {
  it('is not asked before its pin is over, however short the keep-alive; then it has expired', () => {
    const { w, lease, pod } = aPinnedPod()
    w.advance(PIN - 3 * SECOND)
    expect(w.effectsOf('drain')).toEqual([])
    w.advance(3 * SECOND)
    expect(w.end(lease)).toEqual({ v: 1, leaseId: lease, end: 'expired' })
    w.advance(SECOND)
    expect(w.backend.pods.has(pod)).toBe(false)
  })

  it('counts its pin from the end of its last job', () => {
    const { w, lease } = aPinnedPod()
    w.advance(30 * SECOND)
    w.job(lease, 20 * SECOND)
    w.advance(PIN + 10 * SECOND)
    expect(w.lease(lease)?.kind).toBe('granted')
    w.advance(20 * SECOND)
    expect(w.end(lease).end).toBe('expired')
  })

  it('counts its pin from its last renewal; one for another lease, or for one that is not pinned, does nothing', () => {
    const { w, lease } = aPinnedPod()
    const plain = w.request({ caller: 'bob' })
    for (let i = 0; i < 4; i++) {
      w.advance(PIN / 2)
      w.send({ kind: 'renew', leaseId: lease }, { kind: 'renew', leaseId: plain })
      w.send({ kind: 'renew', leaseId: w.random.uuid() })
    }
    w.advance(PIN - SECOND)
    expect(w.lease(lease)?.kind).toBe('granted')
    expect(w.end(plain).end).toBe('recalled')
    w.advance(2 * SECOND)
    expect(w.end(lease).end).toBe('expired')
  })

  it('is not asked by a shrinking budget, an emptied pool, a new template or an old pod', () => {
    const { w, lease, pod } = aPinnedPod({ podLifetimeMs: 20 * SECOND })
    const plain = w.request({ caller: 'bob' })
    w.advance(2 * SECOND)
    w.send({ kind: 'resize', budget: 0 })
    w.advance(5 * SECOND)
    expect(w.end(plain).end).toBe('recalled')
    w.send({
      kind: 'apply',
      spec: { ...w.state.spec, profile: { ...w.state.spec.profile, env: { A: '1' } } },
    })
    w.advance(20 * SECOND)
    w.send({ kind: 'mode', mode: 'draining' })
    w.advance(20 * SECOND)
    expect(w.lease(lease)).toMatchObject({ kind: 'granted', pod })
    // Nobody is kept waiting for it any more: the pod is of no use to its caller's next lease.
    w.release(lease)
    w.advance(SECOND)
    expect(w.state.pods.has(pod)).toBe(false)
  })

  it('a renewal that comes after the runner was asked is too late, one that comes with it is not', () => {
    const { w, lease } = aPinnedPod()
    w.handling = (effect) => (effect.kind === 'drain' ? { beforeMs: 2 * SECOND } : {})
    w.advance(PIN - 2 * SECOND + 1)
    w.send({ kind: 'renew', leaseId: lease })
    w.advance(PIN + SECOND)
    expect(w.effectsOf('drain')).toHaveLength(1)
    w.send({ kind: 'renew', leaseId: lease })
    w.advance(3 * SECOND)
    expect(w.end(lease).end).toBe('expired')
  })
})

describe('the pod of a pinned lease that was released', () => {
  it('waits for its caller and slot although the keep-alive is shorter, and then goes', () => {
    const { w, lease, pod } = aPinnedPod()
    w.release(lease)
    w.advance(20 * SECOND)
    const again = w.request({ pinMs: PIN })
    w.advance(SECOND)
    expect(w.granted(again)).toMatchObject({ pod, hit: 'warm' })
    w.release(again)
    w.advance(31 * SECOND)
    expect(w.state.pods.has(pod)).toBe(false)
  })

  it('serves no other slot of its caller meanwhile, and is not taken by a shrinking budget', () => {
    const { w, lease, pod } = aPinnedPod()
    w.release(lease)
    w.send({ kind: 'resize', budget: 1 })
    const other = w.request({ slot: '1' })
    w.advance(2 * SECOND)
    expect(w.lease(other)?.kind).toBe('waiting')
    w.send({ kind: 'resize', budget: 0 })
    w.advance(2 * SECOND)
    expect(w.state.pods.get(pod)?.kind).toBe('idle')
  })

  it('is an ordinary warm pod for the rest of a longer keep-alive', () => {
    const { w, lease, pod } = aPinnedPod({ keepAliveMs: 90 * SECOND, budget: 1 })
    w.release(lease)
    const other = w.request({ slot: '1' })
    w.advance(29 * SECOND)
    expect(w.lease(other)?.kind).toBe('waiting')
    w.advance(2 * SECOND)
    expect(w.granted(other)).toMatchObject({ pod, hit: 'warm' })
  })

  it('is a place in the queue that is full', () => {
    const { w, lease, pod } = aPinnedPod({ budget: 1, queueLimit: 1 })
    w.release(lease)
    w.request({ caller: 'bob' })
    w.advance(SECOND)
    const again = w.request({ pinMs: PIN })
    w.advance(SECOND)
    expect(w.granted(again).pod).toBe(pod)
  })

  it('stays reserved over a continue-as-new, and an earlier release knows no pins', () => {
    const { w, lease, pod } = aPinnedPod()
    const saved = snapshot(w.state)
    expect(restore(saved).state.leases.get(lease)?.request.pinMs).toBe(PIN)
    w.release(lease)
    w.advance(SECOND)
    w.restart()
    expect(w.state.pods.get(pod)).toMatchObject({ kind: 'idle', reserved: true })
    const old = snapshot(w.state)
    old.pods = old.pods.map((row) => row.slice(0, 19) as typeof row)
    expect(restore(old).state.pods.get(pod)?.reserved).toBe(false)
  })
})
