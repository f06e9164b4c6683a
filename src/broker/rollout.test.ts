import { describe, expect, it } from 'vitest'
import { makeWorld, type World } from '../../test/support/broker-world.js'
import { LIMIT, TIMEOUT } from '../contract/limits.js'
import { podsPage, restore, type Snapshot, snapshot, stateBytes, statusOf } from './index.js'

/** A change of template: what serves meanwhile, what is replaced when, and what happens when the new one is broken. */

const SECOND = 1_000
const BROKEN = { BROKEN: 'PrepareFailed' }

function apply(w: World, env: Record<string, string>): void {
  const { spec } = w.state
  w.send({ kind: 'apply', spec: { ...spec, profile: { ...spec.profile, env } } })
}

function leases(w: World, n: number): string[] {
  const asked = Array.from({ length: n }, (_, i) => w.request({ caller: `c${i}` }))
  w.advance(5 * SECOND)
  return asked
}

const generations = (w: World, kind?: string) =>
  w.pods(kind).map((name) => w.state.pods.get(name)!.generation)
const ready = (w: World) => w.pods('standby').length
const rollout = (w: World) => statusOf(w.state, w.now).rollout

describe('a new template', () => {
  it('takes the place of standbys one after the other, and of leased pods when they are released (F6, F11)', () => {
    const w = makeWorld({ spec: { standby: 4, maxPods: 12 } })
    w.advance(3 * SECOND)
    const [held] = leases(w, 1)
    let least = ready(w)
    let most = w.state.pods.size
    apply(w, { NEW: '1' })
    for (let i = 0; i < 100; i++) {
      w.advance(100)
      least = Math.min(least, ready(w))
      most = Math.max(most, w.state.pods.size)
    }
    expect(least).toBe(4)
    // A surge of one, and the one before it on its way out.
    expect(most).toBeLessThanOrEqual(5 + 2)
    expect(generations(w, 'standby')).toEqual([2, 2, 2, 2])
    expect(rollout(w)).toMatchObject({ from: 1, to: 2, oldPods: 1, newReady: 4, proven: true })
    expect(w.job(held!, SECOND)).toBe('started')
    w.release(held!)
    w.advance(SECOND)
    expect(w.backend.pods.has(w.granted(held!).pod)).toBe(false)
    expect(w.state.rollout).toBeNull()
    expect(rollout(w)).toBeUndefined()
  })

  it('is tried first where the one before does not start either, and there is room for one pod', () => {
    const w = makeWorld({ spec: { standby: 1, maxPods: 1 } })
    w.advance(3 * SECOND)
    w.backend.broken = 'PrepareFailed'
    apply(w, { NEW: '1' })
    w.backend.kill(w.pods('standby')[0]!, 'gone')
    w.advance(600 * SECOND)
    expect(rollout(w)).toMatchObject({ from: 1, to: 2, newReady: 0 })
    w.send({ kind: 'resize', standby: 0 })
    w.advance(600 * SECOND)
    w.backend.broken = null
    w.send({ kind: 'resize', standby: null })
    w.advance(600 * SECOND)
    expect(generations(w, 'standby')).toEqual([2])
    expect(w.state.rollout).toBeNull()
  })

  it('starts a quarter of the standbys beside them, and no more than may fail before the first is Ready', () => {
    const w = makeWorld({ spec: { standby: 40, maxPods: 100 }, checkIndex: false })
    w.advance(3 * SECOND)
    apply(w, { NEW: '1' })
    w.advance(100)
    expect(w.pods('starting')).toHaveLength(LIMIT.breakerFailures)
    w.advance(1_000)
    expect(w.pods('starting')).toHaveLength(10)
  })

  it('is granted before the earlier one, once it is Ready; until then standbys of the earlier one are', () => {
    const w = makeWorld({ spec: { standby: 2 } })
    w.advance(3 * SECOND)
    apply(w, { NEW: '1' })
    w.advance(100)
    const early = w.request({ caller: 'early' })
    w.advance(100)
    expect(w.granted(early).hit).toBe('standby')
    expect(w.state.pods.get(w.granted(early).pod)?.generation).toBe(1)
    w.advance(1_000)
    const late = w.request({ caller: 'late' })
    w.advance(100)
    expect(w.state.pods.get(w.granted(late).pod)?.generation).toBe(2)
  })

  it('leaves a warm pod to its caller, for a last minute once it has proven itself', () => {
    const w = makeWorld({ spec: { keepAliveMs: 3_600 * SECOND } })
    const [one, two] = leases(w, 2)
    w.release(one!)
    w.release(two!)
    w.advance(100)
    apply(w, { NEW: '1' })
    w.advance(3 * SECOND)
    // No standby is wanted: one pod tries the template.
    expect(generations(w, 'standby')).toEqual([2])
    const again = w.request({ caller: 'c0', workflowId: 'again' })
    w.advance(100)
    expect(w.granted(again)).toMatchObject({ hit: 'warm', pod: w.granted(one!).pod })
    expect(w.job(again, SECOND)).toBe('started')
    w.advance(TIMEOUT.rollIdleMs)
    expect(w.backend.pods.has(w.granted(two!).pod)).toBe(false)
    w.release(again)
    w.advance(SECOND)
    expect(w.backend.pods.has(w.granted(one!).pod)).toBe(false)
    expect(w.state.rollout).toBeNull()
  })

  it('lets pods of the earlier one that start serve who waits for them', () => {
    const w = makeWorld()
    w.advance(SECOND)
    leases(w, 1)
    w.backend.startMs = () => 10 * SECOND
    const asked = w.request({ caller: 'bob' })
    w.advance(8 * SECOND)
    apply(w, { NEW: '1' })
    w.advance(3 * SECOND)
    expect(w.state.pods.get(w.granted(asked).pod)?.generation).toBe(1)
  })

  it('makes room for itself where maxPods leaves none, one pod at a time', () => {
    const w = makeWorld({ spec: { standby: 3, budget: 1, maxPods: 3 } })
    w.advance(3 * SECOND)
    let least = 3
    apply(w, { NEW: '1' })
    for (let i = 0; i < 100; i++) {
      w.advance(100)
      least = Math.min(least, ready(w))
    }
    expect(least).toBe(2)
    expect(w.backend.mostPods).toBe(3)
    expect(generations(w)).toEqual([2, 2, 2])
  })

  it('does not leave the earlier one for ever in a pool whose only pod comes and goes', () => {
    const w = makeWorld({ spec: { budget: 1, maxPods: 1 } })
    const [held] = leases(w, 1)
    apply(w, { NEW: '1' })
    w.advance(SECOND)
    w.release(held!)
    const next = w.request({ workflowId: 'next' })
    w.advance(5 * SECOND)
    expect(w.state.pods.get(w.granted(next).pod)?.generation).toBe(2)
  })

  it('that follows another one at once is rolled over both', () => {
    const w = makeWorld({ spec: { standby: 2 } })
    w.advance(3 * SECOND)
    apply(w, { NEW: '1' })
    w.advance(1_200)
    expect(generations(w, 'standby').sort()).toEqual([1, 2])
    apply(w, { NEW: '2' })
    w.advance(100)
    expect(ready(w)).toBe(2)
    expect(rollout(w)).toMatchObject({ from: 2, to: 3 })
    w.advance(10 * SECOND)
    expect(generations(w)).toEqual([3, 3])
    expect(w.state.rollout).toBeNull()
  })
})

describe('a broken template', () => {
  /** Three standbys and a leased pod, and a template that does not start. */
  function broken(spec = {}): { w: World; held: string } {
    const w = makeWorld({ spec: { standby: 3, maxPods: 10, ...spec } })
    w.advance(3 * SECOND)
    const [held] = leases(w, 1)
    apply(w, BROKEN)
    return { w, held: held! }
  }

  it('is named at its first failure, stops after a few, and the earlier one goes on serving (F7)', () => {
    const { w, held } = broken()
    const before = w.backend.created
    w.advance(1_200)
    expect(statusOf(w.state, w.now).breaker).toMatchObject({ failures: 1, last: { code: 'PodStartFailed' } })
    w.advance(4 * SECOND)
    expect(w.backend.created - before).toBe(LIMIT.breakerFailures)
    expect(rollout(w)).toMatchObject({
      from: 1,
      to: 2,
      oldPods: 4,
      newReady: 0,
      proven: false,
      stopped: { code: 'PodStartFailed', details: { reason: 'PrepareFailed' } },
    })
    expect(generations(w, 'standby')).toEqual([1, 1, 1])
    const asked = w.request({ caller: 'bob' })
    w.release(held)
    w.advance(100)
    expect(w.granted(asked).hit).toBe('standby')
    // The released pod stays warm, as ever.
    const again = w.request({ caller: 'c0', workflowId: 'again' })
    w.advance(100)
    expect(w.granted(again)).toMatchObject({ hit: 'warm', pod: w.granted(held).pod })
  })

  it('does not fail requests beyond what is there: pods of the earlier template are made meanwhile', () => {
    const { w } = broken({ standby: 0 })
    const asked = Array.from({ length: 3 }, (_, i) => w.request({ caller: `more${i}` }))
    w.advance(20 * SECOND)
    for (const lease of asked) expect(w.state.pods.get(w.granted(lease).pod)?.generation).toBe(1)
    expect(w.ends.size).toBe(0)
    expect(w.state.breaker.openUntil).not.toBeNull()
  })

  it('keeps the stock of the earlier template full', () => {
    const { w } = broken()
    w.advance(5 * SECOND)
    w.backend.kill(w.pods('standby')[0]!, 'gone')
    w.advance(3 * SECOND)
    expect(generations(w, 'standby')).toEqual([1, 1, 1])
  })

  it('is tried again after a pause, one pod at a time, and rolls when it starts after all', () => {
    const { w } = broken()
    w.advance(5 * SECOND)
    const before = w.backend.created
    w.advance(8 * SECOND)
    expect(w.backend.created - before).toBe(1)
    w.backend.brokenTemplate = () => null
    w.advance(60 * SECOND)
    expect(generations(w, 'standby')).toEqual([2, 2, 2])
  })

  it('that fails after its first pods is tried again also when it needs no pod just now', () => {
    const w = makeWorld({ spec: { standby: 1, maxPods: 10 } })
    w.advance(3 * SECOND)
    const [held] = leases(w, 1)
    apply(w, { NEW: '1' })
    w.advance(3 * SECOND)
    w.backend.brokenTemplate = ({ env }) => (env.NEW ? 'NoDevice' : null)
    const asked = Array.from({ length: 3 }, (_, i) => w.request({ caller: `more${i}` }))
    w.advance(4 * SECOND)
    expect(rollout(w)).toMatchObject({ proven: true, stopped: { details: { reason: 'NoDevice' } } })
    for (const lease of asked) expect(w.lease(lease)?.kind).toBe('granted')
    w.backend.brokenTemplate = () => null
    w.advance(30 * SECOND)
    expect(rollout(w)?.stopped).toBeUndefined()
    w.release(held!)
    w.advance(SECOND)
    expect(w.backend.pods.has(w.granted(held!).pod)).toBe(false)
  })

  it('fails requests with the reason when pods of the earlier one do not start any more either', () => {
    const { w } = broken({ standby: 0 })
    w.advance(20 * SECOND)
    w.backend.broken = 'NoNetwork'
    const asked = w.request({ caller: 'bob' })
    w.advance(20 * SECOND)
    expect(w.end(asked).problem).toMatchObject({ code: 'PodStartFailed' })
  })

  it('heals by a good one', () => {
    const { w, held } = broken()
    w.advance(6 * SECOND)
    apply(w, { NEW: '2' })
    w.advance(10 * SECOND)
    expect(generations(w, 'standby')).toEqual([3, 3, 3])
    w.release(held)
    w.advance(SECOND)
    expect(w.state.rollout).toBeNull()
    expect(statusOf(w.state, w.now)).toMatchObject({ generation: 3, breaker: { failures: 0 } })
  })

  it('heals by the one before, whose pods are the newest again without a restart', () => {
    const { w, held } = broken()
    w.advance(6 * SECOND)
    const before = w.pods()
    const created = w.backend.created
    apply(w, {})
    w.advance(SECOND)
    w.release(held)
    w.advance(SECOND)
    expect(w.pods()).toEqual(before)
    expect(w.backend.created).toBe(created)
    expect(w.state).toMatchObject({ generation: 1, rollout: null })
    expect(w.pods('idle')).toEqual([w.granted(held).pod])
    // A number is never given twice: leftovers of the broken one could be taken for pods of another template.
    apply(w, { NEW: '3' })
    w.advance(10 * SECOND)
    expect(generations(w, 'standby')).toEqual([3, 3, 3])
  })

  it('after another broken one leaves the last that did start', () => {
    const { w } = broken()
    w.advance(6 * SECOND)
    apply(w, { ...BROKEN, NEW: '2' })
    w.advance(6 * SECOND)
    expect(rollout(w)).toMatchObject({ from: 1, to: 3, stopped: { code: 'PodStartFailed' } })
    expect(generations(w, 'standby')).toEqual([1, 1, 1])
  })

  it('after a rollout that was half done goes back over both', () => {
    const w = makeWorld({ spec: { standby: 4, maxPods: 12 } })
    w.advance(3 * SECOND)
    apply(w, { NEW: '1' })
    w.advance(2_500)
    expect(new Set(generations(w, 'standby'))).toEqual(new Set([1, 2]))
    apply(w, BROKEN)
    w.advance(5 * SECOND)
    // The one that was starting was Ready meanwhile, and stands for a keep-alive.
    expect(rollout(w)).toMatchObject({ from: 2, to: 3, oldPods: 5 })
    apply(w, { NEW: '1' })
    w.advance(10 * SECOND)
    expect(new Set(generations(w, 'standby'))).toEqual(new Set([2]))
    expect(w.state.rollout).toBeNull()
  })

  it('survives continue-as-new: the earlier template is carried, and pods are made of it afterwards', () => {
    const { w } = broken({ standby: 1 })
    w.advance(6 * SECOND)
    w.handling = (effect) => (effect.kind === 'create' ? { beforeMs: 2 * SECOND } : {})
    w.backend.kill(w.pods('standby')[0]!, 'gone')
    w.advance(SECOND)
    w.restart()
    w.advance(10 * SECOND)
    expect(generations(w, 'standby')).toEqual([1])
    expect(w.backend.pods.get(w.pods('standby')[0]!)?.order.profile.env).toEqual({})
  })

  it('is counted with its size', () => {
    const w = makeWorld({ spec: { standby: 1 } })
    const big = { A: '\u2603'.repeat(10_000) }
    apply(w, big)
    w.advance(3 * SECOND)
    apply(w, BROKEN)
    w.advance(6 * SECOND)
    const { spec, ...rest } = snapshot(w.state)
    const bytes = Buffer.byteLength(JSON.stringify(rest))
    expect(bytes).toBeGreaterThan(30_000)
    expect(stateBytes(w.state)).toBeGreaterThan(bytes)
  })
})

describe('a run of version 1', () => {
  it('rolls all that nobody holds at once, as it always did', () => {
    const w = makeWorld({ spec: { standby: 1 }, coreVersion: 1 })
    const [held, idle] = leases(w, 2)
    w.release(idle!)
    w.advance(100)
    const [standby] = w.pods('standby')
    apply(w, { NEW: '1' })
    w.advance(3 * SECOND)
    expect(w.backend.pods.has(w.granted(idle!).pod)).toBe(false)
    expect(w.backend.pods.has(standby!)).toBe(false)
    expect(generations(w, 'standby')).toEqual([2])
    expect(statusOf(w.state, w.now)).toMatchObject({ coreVersion: 1, generation: 2 })
    w.release(held!)
    w.advance(SECOND)
    expect(w.backend.pods.has(w.granted(held!).pod)).toBe(false)
  })

  it('moves on to the newest when it continues as new, with what an earlier release wrote', () => {
    const w = makeWorld({ spec: { standby: 1 }, coreVersion: 1 })
    w.advance(3 * SECOND)
    const { proven: _, generations: __, ...old } = snapshot(w.state)
    expect(restore(old as Snapshot).state).toMatchObject({ coreVersion: 1, generations: 1, proven: true })
    w.restart(2)
    apply(w, BROKEN)
    w.advance(6 * SECOND)
    expect(generations(w, 'standby')).toEqual([1])
  })
})

it('the rows of pods name their generations', () => {
  const w = makeWorld({ spec: { standby: 2 } })
  w.advance(3 * SECOND)
  apply(w, { NEW: '1' })
  w.advance(100)
  expect(podsPage(w.state, {}).rows.map((row) => row.generation)).toEqual([1, 1, 2])
})
