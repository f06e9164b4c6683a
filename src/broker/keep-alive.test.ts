import { describe, expect, it } from 'vitest'
import { makeWorld, type World } from '../../test/support/broker-world.js'

/** How idle pods go: by a drain that the runner agrees to, never under a job. */

const SECOND = 1_000
const KEEP = 10 * SECOND

function aLeasedPod(spec = {}): { w: World; lease: string; pod: string } {
  const w = makeWorld({ spec: { keepAliveMs: KEEP, ...spec } })
  const lease = w.request()
  w.advance(2 * SECOND)
  return { w, lease, pod: w.granted(lease).pod }
}

describe('keep-alive of a held lease', () => {
  it('asks the runner when it ends, and tells the lease workflow that the lease was recalled', () => {
    const { w, lease, pod } = aLeasedPod()
    w.advance(8 * SECOND)
    expect(w.effectsOf('drain')).toHaveLength(0)
    w.advance(2 * SECOND)
    expect(w.effectsOf('drain')).toMatchObject([{ pod, epoch: 1, useSeq: 0 }])
    expect(w.end(lease)).toEqual({ v: 1, leaseId: lease, end: 'recalled' })
    w.advance(SECOND)
    expect(w.backend.pods.has(pod)).toBe(false)
    expect(w.state.pods.size).toBe(0)
    expect(w.effectsOf('revoke')).toHaveLength(0)
  })

  it('goes on when the runner refuses, and asks again when the pause has lasted long enough', () => {
    const { w, lease } = aLeasedPod()
    w.advance(6 * SECOND)
    w.job(lease, 2 * SECOND)
    w.advance(5 * SECOND)
    expect(w.effectsOf('drain')).toHaveLength(1)
    expect(w.lease(lease)?.kind).toBe('granted')
    // The job was over 2 s before it was asked: 8 s are left.
    w.advance(4 * SECOND)
    expect(w.effectsOf('drain')).toHaveLength(1)
    w.advance(6 * SECOND)
    expect(w.effectsOf('drain')).toHaveLength(2)
    expect(w.end(lease).end).toBe('recalled')
  })

  it('loses no job that comes while the drain is on its way (F18)', () => {
    const { w, lease, pod } = aLeasedPod()
    w.handling = (effect) => (effect.kind === 'drain' ? { beforeMs: 2 * SECOND } : {})
    w.advance(9 * SECOND + 100)
    expect(w.state.pods.get(pod)?.kind).toBe('draining')
    expect(w.job(lease, 30 * SECOND)).toBe('started')
    w.advance(3 * SECOND)
    expect(w.state.pods.get(pod)).toMatchObject({ kind: 'leased', useSeq: 1 })
    w.advance(20 * SECOND)
    expect(w.lease(lease)?.kind).toBe('granted')
  })

  it('asks again when nobody could say, and believes the answer that was lost the first time', () => {
    const { w, lease } = aLeasedPod()
    w.handling = (effect) => (effect.kind === 'drain' && effect.attempt === 1 ? { fault: 'unheard' } : {})
    w.advance(10 * SECOND)
    expect(w.lease(lease)?.kind).toBe('granted')
    // The runner has drained. A job sent now never starts there, and the lease ends when the second answer comes.
    expect(w.job(lease, SECOND)).toBe('LeaseRevoked')
    w.advance(3 * SECOND)
    expect(w.effectsOf('drain').map((e) => [e.id, e.attempt])).toEqual([
      [w.effectsOf('drain')[0]!.id, 1],
      [w.effectsOf('drain')[0]!.id, 2],
    ])
    expect(w.end(lease).end).toBe('recalled')
  })

  it('does not hold a pod for ever that never answers (F14)', () => {
    const { w, lease, pod } = aLeasedPod()
    w.handling = (effect) => (effect.kind === 'drain' ? { fault: 'lost' } : {})
    w.advance(14 * 60 * SECOND)
    expect(w.state.pods.get(pod)?.kind).toBe('draining')
    w.advance(3 * 60 * SECOND)
    expect(w.end(lease)).toMatchObject({ end: 'podLost', problem: { details: { reason: 'Unreachable' } } })
    expect(w.state.pods.has(pod)).toBe(false)
  })
})

describe('release', () => {
  it('keeps the pod for its caller until the keep-alive ends, then deletes it without asking', () => {
    const { w, lease, pod } = aLeasedPod()
    w.release(lease)
    w.advance(KEEP - SECOND)
    expect(w.state.pods.get(pod)?.kind).toBe('idle')
    w.advance(2 * SECOND)
    expect(w.state.pods.has(pod)).toBe(false)
    expect(w.effectsOf('drain')).toHaveLength(0)
  })

  it('deletes the pod at once when the sender says that nobody comes back', () => {
    const { w, lease, pod } = aLeasedPod()
    w.release(lease, { clean: true, retire: true })
    w.advance(100)
    expect(w.state.pods.has(pod) && w.state.pods.get(pod)?.kind !== 'deleting').toBe(false)
    expect(w.effectsOf('delete')).toHaveLength(1)
  })

  it('during a drain: the pod serves nobody until the runner has answered', () => {
    const { w, lease, pod } = aLeasedPod()
    w.handling = (effect) => (effect.kind === 'drain' ? { afterMs: SECOND } : {})
    w.advance(9 * SECOND + 100)
    expect(w.state.pods.get(pod)?.kind).toBe('draining')
    w.release(lease)
    const next = w.request({ workflowId: 'next' })
    w.advance(100)
    expect(w.lease(next)?.kind).toBe('waiting')
    w.advance(5 * SECOND)
    // It had drained: a bind would have been refused, and the new lease lost.
    expect(w.granted(next).pod).not.toBe(pod)
    expect(w.ends.has(next)).toBe(false)
  })

  it('during a drain that the runner refuses: the pod is warm for the next run', () => {
    const { w, lease, pod } = aLeasedPod()
    w.handling = (effect) => (effect.kind === 'drain' ? { beforeMs: 200, afterMs: 200 } : {})
    w.advance(9 * SECOND + 50)
    expect(w.state.pods.get(pod)?.kind).toBe('draining')
    w.job(lease, 50)
    w.release(lease, { clean: true })
    const next = w.request({ workflowId: 'next' })
    w.advance(SECOND)
    expect(w.granted(next)).toMatchObject({ pod, hit: 'warm', epoch: 2 })
  })

  it('while the grant is being delivered: the late delivery changes nothing', () => {
    const w = makeWorld()
    w.handling = (effect) => (effect.kind === 'deliver' ? { beforeMs: 300, afterMs: 300 } : {})
    const lease = w.request()
    w.advance(1_200)
    expect(w.state.pods.get([...w.pods('promoting')][0]!)?.leaseId).toBe(lease)
    w.release(lease)
    w.advance(2 * SECOND)
    expect(w.lease(lease)).toBeUndefined()
    expect(w.state.index.byKind.promoting.size + w.state.index.byKind.leased.size).toBe(0)
  })
})

describe('lifetime of a pod', () => {
  it('replaces a standby that is too old', () => {
    const w = makeWorld({ spec: { standby: 1, podLifetimeMs: 60 * SECOND } })
    w.advance(50 * SECOND)
    const [old] = w.pods('standby')
    w.advance(15 * SECOND)
    expect(w.pods('standby')).toHaveLength(1)
    expect(w.pods('standby')).not.toContain(old)
  })

  it('lets a job end on a pod that is too old, and takes it at its next idle moment', () => {
    const { w, lease, pod } = aLeasedPod({ podLifetimeMs: 30 * SECOND, keepAliveMs: 600 * SECOND })
    w.advance(20 * SECOND)
    w.job(lease, 60 * SECOND)
    w.advance(55 * SECOND)
    expect(w.lease(lease)?.kind).toBe('granted')
    w.advance(20 * SECOND)
    expect(w.end(lease).end).toBe('recalled')
    expect(w.state.pods.has(pod)).toBe(false)
  })

  it('does not keep a pod of that age for its caller', () => {
    const { w, lease, pod } = aLeasedPod({ podLifetimeMs: 30 * SECOND, keepAliveMs: 600 * SECOND })
    w.job(lease, 60 * SECOND)
    w.advance(40 * SECOND)
    w.release(lease)
    w.advance(100)
    expect(w.state.pods.has(pod)).toBe(false)
  })

  it('is what the pod was told when it was made, whatever a later spec says', () => {
    const { w, lease, pod } = aLeasedPod({ podLifetimeMs: 30 * SECOND, keepAliveMs: 600 * SECOND })
    w.send({ kind: 'apply', spec: { ...w.state.spec, podLifetimeMs: 3_600 * SECOND } })
    w.advance(20 * SECOND)
    w.job(lease, 30 * SECOND)
    w.advance(25 * SECOND)
    expect(w.lease(lease)?.kind).toBe('granted')
    // Asked again soon, although the keep-alive is ten minutes.
    w.advance(20 * SECOND)
    expect(w.end(lease).end).toBe('recalled')
    expect(w.state.pods.has(pod)).toBe(false)
  })

  it('does not leave a standby that became too old while it started', () => {
    const w = makeWorld({ spec: { standby: 1, podLifetimeMs: 2 * SECOND } })
    w.backend.startMs = (order) => (order.pod.endsWith('-1') ? 3 * SECOND : 100)
    w.advance(3 * SECOND + 100)
    expect(w.pods('standby')).not.toContain('p-abc123-1')
  })
})

describe('standbys', () => {
  it('beyond the target go when they have stood for a keep-alive', () => {
    const w = makeWorld({ spec: { keepAliveMs: KEEP } })
    const lease = w.request()
    w.advance(100)
    w.release(lease)
    w.advance(2 * SECOND)
    expect(w.pods('standby')).toHaveLength(1)
    w.advance(KEEP)
    expect(w.state.pods.size).toBe(0)
  })

  it('also when nobody could decide it at that moment, because the pool was paused', () => {
    const w = makeWorld({ spec: { keepAliveMs: KEEP } })
    const lease = w.request({ timeoutMs: 5 * SECOND })
    w.advance(100)
    w.send({ kind: 'mode', mode: 'paused' })
    w.advance(2 * KEEP)
    expect(w.end(lease).problem?.code).toBe('QueueTimeout')
    expect(w.pods('standby')).toHaveLength(1)
    w.send({ kind: 'mode', mode: 'running' })
    w.advance(KEEP)
    expect(w.state.pods.size).toBe(0)
  })

  it('are not created anew by a pool at rest: it does not even wake up', () => {
    const w = makeWorld({ spec: { standby: 2 } })
    w.advance(120 * SECOND)
    const { steps } = w
    w.advance(3_600 * SECOND)
    expect(w.steps).toBe(steps)
    expect(w.backend.created).toBe(2)
  })
})
