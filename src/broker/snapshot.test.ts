import { describe, expect, it } from 'vitest'
import { makeWorld, type World } from '../../test/support/broker-world.js'
import { LIMIT, TIMEOUT } from '../contract/limits.js'
import type { EffectKind } from './effect.js'
import { restore, snapshot, stateBytes, step } from './index.js'

/** What continue-as-new carries: the whole truth, small, and good for the same behaviour. */

const SECOND = 1_000
const carried = (w: World) => JSON.stringify(snapshot(w.state))

/** A pool with everything in it: all kinds of pods, leases, tokens and effects. */
function aFullWorld(): World {
  const w = makeWorld({ spec: { standby: 2, budget: 5, maxPods: 12 } })
  w.handling = () => ({ beforeMs: w.random.int(1, 400), afterMs: w.random.int(1, 400) })
  w.advance(2 * SECOND)
  for (let i = 0; i < 8; i++)
    w.request({ caller: `c${i % 6}`, workflowId: `wf${i}`, replyTo: i % 2 ? 'token' : 'signal' })
  w.token(w.random.uuid(), 'early')
  w.advance(SECOND)
  const [first] = w.grants.keys()
  if (first) w.release(first)
  w.advance(30)
  return w
}

/** How a pool comes to order each kind of effect. */
const ORDERED: Record<EffectKind, (w: World) => void> = {
  create: (w) => void w.request(),
  deliver: (w) => {
    w.request()
    w.advance(3 * SECOND)
  },
  announce: (w) => {
    w.request()
    w.advance(3 * SECOND + TIMEOUT.announceMs)
  },
  describe: (w) => {
    w.request({ pinMs: 3_600 * SECOND })
    w.advance(3 * TIMEOUT.reconcileMs)
  },
  drain: (w) => {
    w.request()
    w.advance(3 * SECOND + w.state.spec.keepAliveMs)
  },
  revoke: (w) => {
    const lease = w.request()
    w.advance(3 * SECOND)
    w.release(lease)
  },
  delete: (w) => {
    const lease = w.request()
    w.advance(3 * SECOND)
    w.release(lease, { retire: true })
  },
  notify: (w) => {
    w.send({ kind: 'resize', budget: 0 })
    w.request({ timeoutMs: SECOND })
    w.advance(2 * SECOND)
  },
  shard: (w) => w.send({ kind: 'apply', spec: { ...w.state.spec, shards: 2 } }),
}

describe('a snapshot', () => {
  it('restores to the same snapshot, at any moment', () => {
    const w = aFullWorld()
    for (let i = 0; i < 300; i++) {
      w.advance(17)
      const text = carried(w)
      expect(JSON.stringify(snapshot(restore(JSON.parse(text)).state))).toBe(text)
    }
    expect(w.state.effects.size).toBe(0)
  })

  it('shares nothing with the state', () => {
    const w = aFullWorld()
    const saved = snapshot(w.state)
    const text = JSON.stringify(saved)
    const { state } = restore(saved)
    step(state, [{ kind: 'mode', mode: 'deleting' }], w.now + 1)
    w.send({ kind: 'mode', mode: 'draining' })
    w.advance(5 * SECOND)
    expect(JSON.stringify(saved)).toBe(text)
  })

  it('hands out again what was in flight, under the same ids', () => {
    const w = aFullWorld()
    const inFlight = [...w.state.effects.values()].filter((e) => e.retryAt === 0).map((e) => [e.id, e.kind])
    expect(inFlight.length).toBeGreaterThan(1)
    const { effects } = restore(snapshot(w.state))
    expect(effects.map((e) => [e.id, e.kind])).toEqual(inFlight)
    for (const effect of effects) expect(effect).not.toHaveProperty('retryAt')
  })

  it.each(Object.keys(ORDERED) as EffectKind[])(
    'loses no %s that was ordered and not carried out: the next run does it, under the same id',
    (kind) => {
      const w = makeWorld({ spec: { keepAliveMs: 20 * SECOND } })
      w.handling = (effect) => (effect.kind === kind ? { beforeMs: 3_600 * SECOND } : {})
      ORDERED[kind](w)
      w.advance(100)
      const ordered = w.effectsOf(kind)
      expect(ordered.length).toBeGreaterThan(0)
      w.handling = () => ({})
      w.restart()
      expect(w.effectsOf(kind).slice(ordered.length)).toEqual(ordered)
      w.advance(SECOND)
      for (const { id } of ordered) expect(w.state.effects.has(id)).toBe(false)
    },
  )

  it('does not lose or double anything when the pool is restored again and again', () => {
    const w = makeWorld({ spec: { standby: 1 } })
    w.handling = () => ({ beforeMs: w.random.int(1, 40), afterMs: w.random.int(1, 40) })
    const asked = Array.from({ length: 4 }, (_, i) => w.request({ caller: `c${i}` }))
    for (let i = 0; i < 60; i++) {
      w.advance(100)
      w.restart()
    }
    w.advance(5 * SECOND)
    for (const lease of asked) expect(w.granted(lease).epoch).toBe(1)
    expect(w.backend.created).toBe(5)
    expect(w.state.effects.size).toBe(0)
  })

  it('goes on as the original does, whatever comes', () => {
    const w = aFullWorld()
    w.fork()
    w.send({ kind: 'resize', budget: 2 })
    w.advance(90 * SECOND)
    w.fork()
    w.send({ kind: 'mode', mode: 'draining' })
    w.advance(90 * SECOND)
  })

  it('keeps asking busy pods when the budget is exceeded', () => {
    const w = makeWorld()
    const asked = ['ann', 'bob'].map((caller) => w.request({ caller }))
    w.advance(3 * SECOND)
    for (const lease of asked) w.job(lease, 3_600 * SECOND)
    w.send({ kind: 'resize', budget: 1 })
    w.advance(100)
    const before = w.effectsOf('drain').length
    w.restart()
    w.advance(10 * SECOND)
    expect(w.effectsOf('drain').length).toBeGreaterThanOrEqual(before + 4)
  })

  it('lets what is due at one moment happen in the same order', () => {
    const w = makeWorld({ spec: { budget: 0 } })
    const deadlineMs = w.now + 10 * SECOND
    const asked = Array.from({ length: 40 }, (_, i) => w.request({ caller: `c${i}`, deadlineMs }))
    w.advance(SECOND)
    for (let i = 0; i < 40; i += 3) w.release(asked[i]!)
    w.advance(SECOND)
    w.fork()
    w.advance(20 * SECOND)
  })

  it('of another core is refused by name', () => {
    const saved = { ...snapshot(makeWorld().state), coreVersion: 99 }
    expect(() => restore(saved)).toThrow('no core of version 99')
  })
})

describe('its size', () => {
  it('is bounded by stateBytes, whatever the names are', () => {
    const w = makeWorld({ spec: { budget: 50, maxPods: 60, queueLimit: 500 }, checkIndex: false })
    for (let i = 0; i < 300; i++) {
      w.request({
        caller: `${i}\u0001"\\\u{1F525}\u2603`.repeat(20),
        slot: '\u00e9'.repeat(40),
        replyTo: 'token',
      })
      if (i % 3 === 0) w.token([...w.state.leases.keys()].at(-1) ?? '', 't'.repeat(900))
    }
    for (let i = 0; i < 20; i++) {
      w.advance(100)
      const { spec, ...rest } = snapshot(w.state)
      expect(Buffer.byteLength(JSON.stringify(rest))).toBeLessThanOrEqual(stateBytes(w.state))
      expect(spec.name).toBe('p')
    }
  })

  it('stays below what the server takes, however many ask with long names and nobody takes the answers', () => {
    const w = makeWorld({ spec: { budget: 2_000, maxPods: 2_000, queueLimit: 2_000 }, checkIndex: false })
    w.handling = (effect) => (effect.kind === 'notify' ? { fault: 'lost' } : {})
    for (let i = 0; i < 5_000; i++) {
      w.request({ caller: `${i}${'x'.repeat(500)}`, timeoutMs: i % 2 ? 20 * SECOND : 3_600 * SECOND })
      if (i % 250 === 0) w.advance(SECOND)
      if (i % 1_000 === 0) expect(Buffer.byteLength(carried(w))).toBeLessThan(LIMIT.stateBytes)
    }
    w.advance(100)
    expect(Buffer.byteLength(carried(w))).toBeLessThan(LIMIT.stateBytes)
  }, 120_000)

  it('keeps room for a pod for each who waits, and to tell those who are refused', () => {
    const spec = { budget: 2_000, maxPods: 2_000, queueLimit: 2_000, keepAliveMs: 3_600 * SECOND }
    const w = makeWorld({ spec, checkIndex: false })
    const ask = (count: number) => {
      for (let i = 0; i < count; i++)
        w.request({ caller: `agent-session-${w.random.uuid()}`, timeoutMs: 3_600 * SECOND })
    }
    for (let i = 0; i < 40; i++) {
      ask(50)
      w.advance(SECOND)
    }
    w.advance(120 * SECOND)
    const refused = () => w.effectsOf('notify').filter(({ end }) => end.problem?.code === 'QueueFull').length
    const granted = [...w.state.leases.values()].filter(({ kind }) => kind === 'granted').length
    // Nobody waits for a pod that there is no room for.
    expect(granted).toBe(w.state.leases.size)
    expect(granted + refused()).toBe(2_000)
    expect(refused()).toBeGreaterThan(0)
    const before = refused()
    ask(50)
    w.advance(SECOND)
    expect(refused()).toBe(before + 50)
    expect(Buffer.byteLength(carried(w))).toBeLessThan(LIMIT.stateBytes)
  }, 120_000)

  it.each<[string, (w: World) => void]>([
    [
      'ends are remembered',
      (w) => {
        for (let i = 0; i < LIMIT.tombstones; i++) w.release(w.random.uuid())
      },
    ],
    [
      'tokens come early',
      (w) => {
        for (let i = 0; i < LIMIT.queue; i++) w.token(w.random.uuid(), 't'.repeat(540))
      },
    ],
  ])('keeps room to tell those who are refused, however many %s', (_, flood) => {
    const w = makeWorld({ spec: { budget: 0, queueLimit: 2_000 }, checkIndex: false })
    const ask = (count: number) => {
      const asked: string[] = []
      for (let i = 0; i < count; i++)
        asked.push(w.request({ caller: `${w.random.uuid()}${'x'.repeat(400)}`, timeoutMs: 3_600 * SECOND }))
      return asked
    }
    for (let i = 0; i < 20; i++) {
      ask(100)
      w.advance(SECOND)
    }
    flood(w)
    w.advance(SECOND)
    const refused = ask(50)
    w.advance(SECOND)
    for (const lease of refused) expect(w.end(lease).problem?.code).toBe('QueueFull')
    expect(Buffer.byteLength(carried(w))).toBeLessThan(LIMIT.stateBytes)
  })

  it('stays below what the server takes, however many wait with a token', () => {
    const w = makeWorld({ spec: { budget: 0, queueLimit: 2_000 }, checkIndex: false })
    for (let i = 0; i < 20; i++) {
      for (let n = 0; n < 100; n++)
        w.request({ caller: w.random.uuid(), timeoutMs: 3_600 * SECOND, replyTo: 'token' })
      w.advance(SECOND)
    }
    for (const length of [540, 4_096]) {
      for (const lease of w.state.leases.keys()) w.token(lease, 't'.repeat(length))
      w.advance(SECOND)
      expect(Buffer.byteLength(carried(w))).toBeLessThan(LIMIT.stateBytes)
    }
  })

  it('does not contain the profile once for each pod that starts', () => {
    const w = makeWorld({ spec: { standby: 100, maxPods: 200 } })
    const profile = { ...w.state.spec.profile, env: { BIG: 'x'.repeat(50_000) } }
    w.handling = () => ({ beforeMs: 5 * SECOND })
    w.send({ kind: 'apply', spec: { ...w.state.spec, profile } })
    w.advance(SECOND)
    expect(w.effectsOf('create').at(-1)?.order.profile === profile).toBe(true)
    expect(Buffer.byteLength(carried(w))).toBeLessThan(150_000)
    const again = restore(snapshot(w.state)).effects.find((e) => e.kind === 'create')
    expect(again?.kind === 'create' && JSON.stringify(again.order.profile) === JSON.stringify(profile)).toBe(
      true,
    )
  })
})
