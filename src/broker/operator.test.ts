import { describe, expect, it } from 'vitest'
import { makeWorld, type World } from '../../test/support/broker-world.js'
import { LIMIT } from '../contract/limits.js'
import { budgetInForce, isFinished, podsPage, queuePage, statusOf } from './index.js'

/** What operators and the fleet may do: budgets, resize, pause, drain, delete, new specs; and what they see. */

const SECOND = 1_000

function leases(w: World, n: number): string[] {
  const asked = Array.from({ length: n }, (_, i) => w.request({ caller: `c${i}` }))
  w.advance(5 * SECOND)
  return asked
}

describe('budget', () => {
  it('that shrinks takes idle pods first, then asks held ones, oldest first (I4)', () => {
    const w = makeWorld()
    const asked = leases(w, 4)
    w.release(asked[3]!)
    w.advance(100)
    w.job(asked[1]!, 60 * SECOND)
    w.send({ kind: 'resize', budget: 1 })
    w.advance(100)
    expect(w.pods('idle')).toHaveLength(0)
    // Two are over: the oldest two were asked, one of them is busy.
    expect(w.effectsOf('drain').map((e) => e.pod)).toEqual([
      w.granted(asked[0]!).pod,
      w.granted(asked[1]!).pod,
    ])
    expect(w.end(asked[0]!).end).toBe('recalled')
    w.advance(5 * SECOND)
    expect(w.end(asked[2]!).end).toBe('recalled')
    expect(w.lease(asked[1]!)?.kind).toBe('granted')
    expect(w.state.index.held).toBe(1)
  })

  it('that shrinks does not ask the pod that it grants in the same step, but soon after', () => {
    const w = makeWorld({ spec: { budget: 1 } })
    leases(w, 1)
    const again = w.aRequest({ caller: 'c0' })
    w.send({ kind: 'resize', budget: 0 }, { kind: 'request', request: again, answered: true })
    w.advance(10)
    expect(w.granted(again.leaseId)).toMatchObject({ epoch: 2, hit: 'warm' })
    expect(w.effectsOf('drain')).toHaveLength(0)
    w.advance(5 * SECOND)
    expect(w.end(again.leaseId).end).toBe('recalled')
  })

  it('does not take standbys that are on their way out for held pods on their way out', () => {
    const w = makeWorld({ spec: { standby: 3 } })
    const asked = leases(w, 2)
    w.handling = (effect) => (effect.kind === 'delete' ? { beforeMs: 60 * SECOND } : {})
    w.send({ kind: 'resize', standby: 0, budget: 1 })
    w.advance(SECOND)
    expect(w.ends.has(asked[0]!)).toBe(true)
  })

  it('of the fleet counts until it expires, then the guarantee is left and nothing is drained for it', () => {
    const w = makeWorld({ spec: { guarantee: 1, keepAliveMs: 60 * SECOND } })
    w.send({ kind: 'setBudget', budget: 3, expiresAtMs: w.now + 20 * SECOND })
    const asked = leases(w, 4)
    expect(w.state.index.held).toBe(3)
    expect(w.lease(asked[3]!)?.kind).toBe('waiting')
    w.advance(16 * SECOND)
    expect(budgetInForce(w.state, w.now)).toMatchObject({ seats: 1 })
    expect(w.effectsOf('drain')).toHaveLength(0)
    w.release(asked[0]!)
    w.advance(30 * SECOND)
    expect(w.lease(asked[3]!)?.kind).toBe('waiting')
    w.send({ kind: 'setBudget', budget: 4, expiresAtMs: w.now + 600 * SECOND })
    w.advance(3 * SECOND)
    expect(w.lease(asked[3]!)?.kind).toBe('granted')
  })

  it('of the operator is enforced also while the fleet budget is expired', () => {
    const w = makeWorld()
    leases(w, 4)
    w.send({ kind: 'setBudget', budget: 4, expiresAtMs: w.now })
    w.send({ kind: 'resize', budget: 2 })
    w.advance(SECOND)
    expect(w.state.index.held).toBe(2)
  })

  it('is the least of the words of the operator and the fleet; null takes the word back', () => {
    const w = makeWorld()
    const force = () => budgetInForce(w.state, w.now).seats
    w.send({ kind: 'resize', budget: 2 })
    w.advance(0)
    expect(force()).toBe(2)
    w.send({ kind: 'setBudget', budget: 1, expiresAtMs: w.now + SECOND })
    w.advance(0)
    expect(force()).toBe(1)
    w.send({ kind: 'resize', budget: null }, { kind: 'setBudget', budget: 9, expiresAtMs: w.now + SECOND })
    w.advance(0)
    expect(force()).toBe(4)
  })
})

describe('resize of the stock', () => {
  it('makes standbys, and takes them away at once', () => {
    const w = makeWorld()
    w.send({ kind: 'resize', standby: 3 })
    w.advance(2 * SECOND)
    expect(w.pods('standby')).toHaveLength(3)
    w.send({ kind: 'resize', standby: 1 })
    w.advance(SECOND)
    expect(w.pods('standby')).toHaveLength(1)
    w.send({ kind: 'resize', standby: null })
    w.advance(SECOND)
    expect(w.state.pods.size).toBe(0)
  })

  it('leaves no more standbys than a lowered maxPods has room for', () => {
    const w = makeWorld({ spec: { standby: 3 } })
    w.advance(2 * SECOND)
    w.send({ kind: 'apply', spec: { ...w.state.spec, maxPods: 1 } })
    w.advance(SECOND)
    expect(w.pods('standby')).toHaveLength(1)
  })
})

describe('pause and resume', () => {
  it('stops grants and creation, not the leases that are held', () => {
    const w = makeWorld({ spec: { standby: 1 } })
    const [held] = leases(w, 1)
    w.send({ kind: 'mode', mode: 'paused' })
    const asked = w.request({ caller: 'bob' })
    w.advance(5 * SECOND)
    expect(w.lease(asked)?.kind).toBe('waiting')
    expect(w.job(held!, 1)).toBe('started')
    w.release(held!)
    const warm = w.request({ caller: 'c0', workflowId: 'again' })
    w.advance(SECOND)
    expect(w.lease(warm)?.kind).toBe('waiting')
    w.send({ kind: 'mode', mode: 'running' })
    w.advance(SECOND)
    expect(w.granted(asked).hit).toBe('standby')
    expect(w.granted(warm).hit).toBe('warm')
  })
})

describe('drain by the operator', () => {
  it('empties the pool: standbys and idle pods at once, held ones when they are idle', () => {
    const w = makeWorld({ spec: { standby: 1 } })
    const [busy, idle] = leases(w, 2)
    w.job(busy!, 20 * SECOND)
    w.backend.startMs = () => 3 * SECOND
    w.request({ caller: 'later' })
    w.advance(100)
    w.send({ kind: 'mode', mode: 'draining' })
    w.advance(SECOND)
    expect(w.end(idle!).end).toBe('recalled')
    expect(w.lease(busy!)?.kind).toBe('granted')
    w.advance(40 * SECOND)
    expect(w.end(busy!).end).toBe('recalled')
    expect(w.state.pods.size).toBe(0)
    expect(w.backend.pods.size).toBe(0)
    w.send({ kind: 'mode', mode: 'running' })
    w.advance(10 * SECOND)
    expect(w.pods('standby')).toHaveLength(1)
  })
})

describe('delete', () => {
  it('ends everything, tells everybody, and finishes', () => {
    const w = makeWorld({ spec: { standby: 1, budget: 2 } })
    const asked = leases(w, 3)
    w.job(asked[0]!, 3_600 * SECOND)
    w.send({ kind: 'mode', mode: 'deleting' })
    w.advance(5)
    expect(isFinished(w.state)).toBe(false)
    w.advance(SECOND)
    for (const lease of asked) expect(w.end(lease).problem?.code).toBe('PoolNotFound')
    expect(w.backend.pods.size).toBe(0)
    expect(isFinished(w.state)).toBe(true)
    const late = w.request()
    w.advance(100)
    expect(w.end(late).problem?.code).toBe('PoolNotFound')
  })

  it('is final', () => {
    const w = makeWorld({ spec: { standby: 1 } })
    w.advance(3 * SECOND)
    w.send({ kind: 'mode', mode: 'deleting' }, { kind: 'mode', mode: 'running' })
    const profile = { ...w.state.spec.profile, env: { A: '1' } }
    w.send({ kind: 'apply', spec: { ...w.state.spec, profile } })
    w.advance(3 * SECOND)
    expect(w.state.mode).toBe('deleting')
    expect(isFinished(w.state)).toBe(true)
  })
})

describe('a new spec', () => {
  it('of another name is not applied: a pool cannot be renamed', () => {
    const w = makeWorld()
    w.send({ kind: 'apply', spec: { ...w.state.spec, name: 'other', budget: 1 } })
    w.advance(1)
    expect(w.state.spec.name).not.toBe('other')
    expect(w.state.poison).toMatchObject({ count: 1, last: expect.stringContaining('other') })
  })

  it('that changes only numbers rolls nothing', () => {
    const w = makeWorld({ spec: { standby: 1 } })
    w.advance(3 * SECOND)
    const pods = w.pods()
    w.send({ kind: 'apply', spec: { ...w.state.spec, keepAliveMs: 5 * SECOND, standby: 2 } })
    w.advance(3 * SECOND)
    expect(w.state.generation).toBe(1)
    expect(w.pods()).toEqual([...pods, 'p-abc123-2'])
  })
})

describe('what is shown', () => {
  it('counts what there is', () => {
    const w = makeWorld({ spec: { budget: 2, standby: 1 } })
    const asked = leases(w, 3)
    w.request({ caller: 'c0', workflowId: 'second of c0' })
    w.advance(100)
    const status = statusOf(w.state, w.now)
    expect(status).toMatchObject({
      pool: 'p',
      mode: 'running',
      leases: 2,
      budget: { inForce: 2, held: 2 },
      standby: { target: 1, ready: 1 },
      pods: { leased: 2, standby: 1, starting: 0 },
      queue: { capacity: 1, slotBusy: 1 },
      leaked: 0,
    })
    expect(status.queue.oldestWaitMs).toBeGreaterThan(4 * SECOND)
    expect(status.heldPodMs).toBeGreaterThan(0)
    const rows = queuePage(w.state, {}, w.now).rows
    expect(rows.map((r) => [r.position, r.caller, r.reason])).toEqual([
      [1, 'c2', 'BudgetExhausted'],
      [2, 'c0', 'SlotBusy'],
    ])
    const page = podsPage(w.state, { offset: 1, limit: 1 })
    expect(page).toMatchObject({ total: 3, next: 2 })
    expect(page.rows).toHaveLength(1)
    expect(w.lease(asked[0]!)?.kind).toBe('granted')
  })

  it('comes in pages that fit an answer, whatever is asked for, and all of it comes', () => {
    const w = makeWorld({ spec: { budget: 0, queueLimit: 2_000 }, checkIndex: false })
    for (let i = 0; i < 1_200; i++) w.request({ caller: `c${i}` })
    w.step()
    const seen: string[] = []
    for (let offset: number | null = 0; offset !== null; ) {
      const page: ReturnType<typeof queuePage> = queuePage(w.state, { offset, limit: 1e9 }, w.now)
      expect(page.rows.length).toBeLessThanOrEqual(LIMIT.pageRows)
      expect(page.total).toBe(1_200)
      seen.push(...page.rows.map(({ caller }) => caller))
      offset = page.next
    }
    expect(seen).toEqual(Array.from({ length: 1_200 }, (_, i) => `c${i}`))
    for (const limit of [0, -1, 0.5, Number.NaN, 'all' as unknown as number])
      expect(queuePage(w.state, { limit }, w.now).rows.length).toBeLessThanOrEqual(LIMIT.pageRows)
  })

  it('names inputs that could not be read (F26)', () => {
    const w = makeWorld()
    w.send({ kind: 'poison', name: 'firepool.request', reason: 'not JSON' })
    w.advance(0)
    expect(statusOf(w.state, w.now).poison).toEqual({ count: 1, last: 'firepool.request: not JSON' })
  })
})
