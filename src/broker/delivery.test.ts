import { describe, expect, it } from 'vitest'
import { makeWorld } from '../../test/support/broker-world.js'
import { TIMEOUT } from '../contract/index.js'

/** How a grant reaches its holder: by signal or by token, once, whatever gets lost. */

const SECOND = 1_000

describe('a grant to a sender that waits for the answer', () => {
  it('is the answer to a request whose sender waits for it: nothing is delivered, the pod is his', () => {
    const w = makeWorld({ spec: { standby: 1 } })
    w.advance(3_000)
    const asked = w.aRequest()
    w.send({ kind: 'request', request: asked, answered: true })
    w.advance(1)
    expect(w.granted(asked.leaseId)).toMatchObject({ epoch: 1, hit: 'standby' })
    expect(w.effectsOf('deliver')).toHaveLength(0)
    expect(w.pods('leased')).toEqual([w.granted(asked.leaseId).pod])
    expect(w.job(asked.leaseId, 1)).toBe('started')
  })

  it('that has to wait is delivered as usual, although the sender had hoped for an answer', () => {
    const w = makeWorld({ spec: { standby: 0 } })
    const asked = w.aRequest()
    w.send({ kind: 'request', request: asked, answered: true })
    w.advance(5_000)
    expect(w.effectsOf('deliver')).toHaveLength(1)
    expect(w.granted(asked.leaseId).hit).toBe('cold')
  })
})

it('a grant says whose its tenant is, since version 4 of the core', () => {
  for (const [coreVersion, tenant] of [
    [4, 'team-a'],
    [3, undefined],
  ] as const) {
    const w = makeWorld({ coreVersion })
    w.request({ tenant: 'team-a' })
    w.request({ caller: 'bob' })
    w.advance(5_000)
    expect(w.effectsOf('deliver').map((effect) => effect.tenant)).toEqual([tenant, undefined])
  }
})

describe('the page of a lease', () => {
  it('names the pod once the lease is held for a while, and once only', () => {
    const w = makeWorld()
    const lease = w.request()
    w.advance(3 * SECOND)
    const grant = w.granted(lease)
    expect(w.announced.has(lease)).toBe(false)
    w.advance(TIMEOUT.announceMs)
    expect(w.announced.get(lease)).toEqual([grant])
    w.advance(5 * TIMEOUT.announceMs)
    expect(w.announced.get(lease)).toHaveLength(1)
  })

  it('is told after a continue-as-new too, before and after its time', () => {
    const w = makeWorld()
    const lease = w.request()
    w.advance(3 * SECOND)
    w.restart()
    w.advance(TIMEOUT.announceMs)
    expect(w.announced.get(lease)).toHaveLength(1)
    w.restart()
    w.advance(2 * TIMEOUT.announceMs)
    expect(w.announced.get(lease)).toHaveLength(1)
  })

  it('is told although its time came in a long pause, after which the pool continued as new', () => {
    const w = makeWorld()
    const lease = w.request()
    w.advance(3 * SECOND)
    w.jump(TIMEOUT.clockGapMs + SECOND)
    // Something in the inbox goes first, and the pool continues as new before anything else.
    w.token(w.random.uuid(), 'early')
    w.step()
    w.restart()
    w.advance(2 * SECOND)
    expect(w.announced.get(lease)).toHaveLength(1)
  })

  it('costs a short lease nothing', () => {
    const w = makeWorld()
    const lease = w.request()
    w.advance(3 * SECOND)
    w.release(lease)
    w.advance(2 * TIMEOUT.announceMs)
    expect(w.effectsOf('announce')).toHaveLength(0)
  })

  it('is not told apart when the holder is the lease workflow itself', () => {
    const w = makeWorld()
    const lease = w.request({ workflowId: 'own', leaseWorkflowId: 'own' })
    w.advance(3 * TIMEOUT.announceMs)
    expect(w.granted(lease).epoch).toBe(1)
    expect(w.effectsOf('announce')).toHaveLength(0)
  })

  it('that is gone is a release: nobody watches over the holder any more', () => {
    const w = makeWorld({ spec: { keepAliveMs: 60 * SECOND } })
    const lease = w.request()
    w.advance(3 * SECOND)
    const { pod } = w.granted(lease)
    w.goneLeases.add(w.lease(lease)!.request.leaseWorkflowId)
    w.advance(TIMEOUT.announceMs + SECOND)
    expect(w.lease(lease)).toBeUndefined()
    expect(w.pods('idle')).toEqual([pod])
    expect(w.state.counters.leaked).toBe(1)
  })
})

describe('a grant by token', () => {
  it('goes to a token that came before the request', () => {
    const w = makeWorld()
    const request = w.aRequest({ replyTo: 'token' })
    w.token(request.leaseId, 't1')
    w.advance(10)
    w.send({ kind: 'request', request })
    w.advance(3 * SECOND)
    expect(w.granted(request.leaseId).epoch).toBe(1)
    expect(w.lease(request.leaseId)).toMatchObject({ delivery: 'delivered' })
    expect(w.state.earlyTokens.size).toBe(0)
  })

  it('waits for a token that comes after it', () => {
    const w = makeWorld()
    const lease = w.request({ replyTo: 'token' })
    w.advance(3 * SECOND)
    expect(w.lease(lease)).toMatchObject({ kind: 'granted', delivery: 'needsToken' })
    expect(w.grants.has(lease)).toBe(false)
    w.token(lease, 't1')
    w.advance(100)
    expect(w.granted(lease).epoch).toBe(1)
  })

  it('goes to the newest token only', () => {
    const w = makeWorld({ spec: { budget: 0 } })
    const lease = w.request({ replyTo: 'token' })
    w.token(lease, 'old')
    w.token(lease, 'new')
    w.advance(100)
    w.send({ kind: 'resize', budget: 1 })
    w.advance(3 * SECOND)
    expect(w.granted(lease).epoch).toBe(1)
    expect([...w.tokens]).toEqual(['old'])
  })

  it('waits for the next token when this one is gone', () => {
    const w = makeWorld()
    const lease = w.request({ replyTo: 'token' })
    w.token(lease, 'dead')
    w.advance(10)
    w.tokens.delete('dead')
    w.advance(3 * SECOND)
    expect(w.lease(lease)).toMatchObject({ delivery: 'needsToken', token: null })
    w.token(lease, 'alive')
    w.advance(100)
    expect(w.granted(lease).epoch).toBe(1)
  })

  it('waits for the next token longer than a short keep-alive, which begins when the holder has the grant', () => {
    const w = makeWorld({ spec: { keepAliveMs: 0 } })
    const lease = w.request({ replyTo: 'token', timeoutMs: 60 * SECOND })
    w.token(lease, 'dead')
    w.advance(10)
    w.tokens.delete('dead')
    w.advance(30 * SECOND)
    expect(w.lease(lease)).toMatchObject({ kind: 'granted', delivery: 'needsToken' })
    w.token(lease, 'alive')
    w.advance(100)
    expect(w.granted(lease).epoch).toBe(1)
    w.advance(10 * SECOND)
    expect(w.end(lease).end).toBe('recalled')
  })

  it('that nobody fetches goes back at the deadline, although plans were made and dropped meanwhile', () => {
    const w = makeWorld({ spec: { keepAliveMs: 600 * SECOND } })
    w.handling = (effect) => (effect.kind === 'deliver' ? { beforeMs: 5 * SECOND } : {})
    const lease = w.request({ replyTo: 'token', timeoutMs: 20 * SECOND })
    w.token(lease, 'dead')
    w.advance(10)
    w.tokens.delete('dead')
    w.advance(19 * SECOND)
    expect(w.lease(lease)).toMatchObject({ delivery: 'needsToken' })
    w.advance(2 * SECOND)
    expect(w.end(lease).end).toBe('expired')
    w.advance(2 * SECOND)
    expect(w.state.pods.size).toBe(0)
  })

  it('that was fetched although the pool was told otherwise is not taken away from under a job', () => {
    const w = makeWorld({ spec: { keepAliveMs: 600 * SECOND } })
    // The worker completes the activity and dies; its successor finds the token gone.
    w.handling = (effect) => (effect.kind === 'deliver' && effect.attempt === 1 ? { fault: 'unheard' } : {})
    const lease = w.request({ replyTo: 'token', timeoutMs: 20 * SECOND })
    w.token(lease, 't1')
    w.advance(5 * SECOND)
    expect(w.granted(lease).epoch).toBe(1)
    expect(w.lease(lease)).toMatchObject({ delivery: 'needsToken' })
    expect(w.job(lease, 100 * SECOND)).toBe('started')
    w.advance(30 * SECOND)
    expect(w.lease(lease)).toMatchObject({ delivery: 'delivered' })
    expect(w.effectsOf('revoke')).toHaveLength(0)
    expect(w.job(lease, SECOND)).toBe('started')
  })

  it('is not taken back because a repeated message finds the token used (even after the deadline)', () => {
    const w = makeWorld({ spec: { keepAliveMs: 600 * SECOND } })
    const request = w.aRequest({ replyTo: 'token', timeoutMs: 10 * SECOND })
    w.token(request.leaseId, 't1')
    w.send({ kind: 'request', request })
    w.advance(3 * SECOND)
    expect(w.lease(request.leaseId)).toMatchObject({ delivery: 'delivered' })
    w.send({ kind: 'request', request })
    w.advance(SECOND)
    expect(w.lease(request.leaseId)).toMatchObject({ delivery: 'delivered' })
    w.advance(20 * SECOND)
    w.send({ kind: 'request', request })
    w.advance(5 * SECOND)
    expect(w.lease(request.leaseId)).toMatchObject({ delivery: 'delivered' })
    expect(w.ends.has(request.leaseId)).toBe(false)
  })

  it('tells a token of an ended lease so', () => {
    const w = makeWorld()
    const lease = w.request({ replyTo: 'token' })
    w.advance(10)
    w.release(lease)
    w.advance(10)
    w.token(lease, 'late')
    w.advance(100)
    expect(w.end(lease).problem?.code).toBe('LeaseRevoked')
  })

  it('tells a waiting token why there is no grant', () => {
    const w = makeWorld({ spec: { budget: 0 } })
    const lease = w.request({ replyTo: 'token', timeoutMs: SECOND })
    w.token(lease, 't1')
    w.advance(2 * SECOND)
    expect(w.tokens.size).toBe(0)
    expect(w.end(lease).problem?.code).toBe('QueueTimeout')
  })

  it('forgets a token whose request never comes', () => {
    const w = makeWorld()
    w.token('4b3f0c7e-0000-4000-8000-000000000000', 't1')
    w.advance(59 * SECOND)
    expect(w.state.earlyTokens.size).toBe(1)
    w.advance(2 * SECOND)
    expect(w.state.earlyTokens.size).toBe(0)
  })
})

describe('a holder that is gone', () => {
  it('is a release: the pod stays warm for its caller', () => {
    const w = makeWorld()
    w.backend.startMs = () => 5 * SECOND
    const lease = w.request({ workflowId: 'gone' })
    w.advance(SECOND)
    w.closedHolders.add('gone')
    w.advance(5 * SECOND)
    expect(w.lease(lease)).toBeUndefined()
    expect(w.state.counters.ends.released).toBe(1)
    expect(w.pods('idle')).toHaveLength(1)
    const next = w.request({ workflowId: 'next' })
    w.advance(100)
    expect(w.granted(next).hit).toBe('warm')
  })

  it('is found by reconcile when nobody says so (F5, F22), and counted', () => {
    const w = makeWorld({ spec: { keepAliveMs: 3_600 * SECOND } })
    const [lost, kept] = [
      w.request({ workflowId: 'lost', slot: '1' }),
      w.request({ workflowId: 'kept', slot: '2' }),
    ]
    w.advance(10 * SECOND)
    w.closedHolders.add('lost')
    w.advance(20 * SECOND)
    expect(w.lease(lost)?.kind).toBe('granted')
    w.advance(45 * SECOND)
    expect(w.lease(lost)).toBeUndefined()
    expect(w.lease(kept)?.kind).toBe('granted')
    expect(w.state.counters.leaked).toBe(1)
    expect(w.end(lost).end).toBe('released')
    // What it ran has to be stopped by somebody.
    expect(w.effectsOf('revoke').map((e) => e.pod)).toEqual([w.granted(lost).pod])
  })

  it('describes all holders in turn, a bounded number at a time', () => {
    const w = makeWorld({ spec: { budget: 0, queueLimit: 2_000 }, checkIndex: false })
    for (let i = 0; i < 700; i++) w.request({ caller: `c${i}` })
    w.advance(95 * SECOND)
    const rounds = w.effectsOf('describe').map((e) => e.leases.map((l) => l.leaseId))
    expect(rounds.map((r) => r.length)).toEqual([300, 300, 100])
    expect(new Set(rounds.flat()).size).toBe(700)
  })
})

describe('an effect that could not be carried out', () => {
  it('is handed out again under the same id, with growing pauses', () => {
    const w = makeWorld()
    let fails = 3
    const times: number[] = []
    w.handling = (effect) => {
      if (effect.kind !== 'deliver') return {}
      times.push(w.now)
      return fails-- > 0 ? { fault: 'lost' } : {}
    }
    const lease = w.request()
    w.advance(20 * SECOND)
    const delivers = w.effectsOf('deliver')
    expect(delivers.map((e) => e.attempt)).toEqual([1, 2, 3, 4])
    expect(new Set(delivers.map((e) => e.id)).size).toBe(1)
    expect(times.slice(1).map((t, i) => Math.round((t - times[i]!) / 1000))).toEqual([1, 2, 4])
    expect(w.granted(lease).epoch).toBe(1)
    expect(w.state.effects.size).toBe(0)
  })

  it('counts once although its result comes twice or late (I8)', () => {
    const w = makeWorld({ spec: { standby: 2 } })
    w.handling = () => ({ fault: 'twice' })
    const lease = w.request()
    w.advance(5 * SECOND)
    expect(w.granted(lease).epoch).toBe(1)
    expect(w.grants.get(lease)).toHaveLength(1)
    expect(w.backend.created).toBe(3)
  })

  it('is not hurried or delayed by the same word said twice', () => {
    const w = makeWorld()
    w.handling = (effect) => (effect.kind === 'create' ? { fault: 'lost' } : {})
    w.request()
    w.advance(10)
    const [create] = [...w.state.effects.values()]
    expect(create?.attempt).toBe(2)
    const { retryAt } = create!
    w.send({ kind: 'result', id: create!.id, result: { kind: 'undone', reason: 'again' } })
    w.advance(10)
    expect([...w.state.effects.values()][0]).toMatchObject({ attempt: 2, retryAt })
  })

  it('gives a grant back when its request ends, not when the pause is over', () => {
    const w = makeWorld()
    w.handling = (effect) => (effect.kind === 'deliver' ? { fault: 'lost' } : {})
    const lease = w.request({ timeoutMs: 100 * SECOND })
    w.advance(99 * SECOND)
    expect(w.lease(lease)).toMatchObject({ kind: 'granted', delivery: 'sending' })
    w.advance(SECOND + 20)
    expect(w.end(lease).end).toBe('expired')
    expect(w.pods('idle')).toHaveLength(1)
  })

  it('gives up a notice that nobody takes', () => {
    const w = makeWorld({ spec: { budget: 0 } })
    w.handling = (effect) => (effect.kind === 'notify' ? { fault: 'lost' } : {})
    w.request({ timeoutMs: SECOND })
    w.advance(3_600 * SECOND)
    expect(w.state.effects.size).toBe(0)
    expect(w.effectsOf('notify')).toHaveLength(20)
  })
})
