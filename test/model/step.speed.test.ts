import { expect, it } from 'vitest'
import type { EffectKind, EffectResult } from '../../src/broker/effect.js'
import { createState, type PoolEvent, type PoolState, step } from '../../src/broker/index.js'
import type { PoolSpec } from '../../src/contract/pool.js'
import { aSpec, withSeatSets } from '../support/broker-world.js'

/**
 * The cost of a step must not grow with the pool: measured as a ratio within one run, alternating, so that a busy
 * machine slows both sides. Absolute numbers are printed, not checked.
 */

const SMALL = 200
const LARGE = 2_000
/** Maps, sets and heaps of ten times the size miss more caches; a scan of the pool would cost ten times as much. */
const MOST = 4
const ROUNDS = 15
const STEPS = 400
const T0 = 1_900_000_000_000

class Pool {
  state: PoolState
  now = T0
  private n = 0

  constructor(pods: number, waiting: number, change: Partial<PoolSpec> = {}) {
    const limits = { maxPods: LIMITLESS, queueLimit: LIMITLESS, keepAliveMs: 3_600_000 }
    const spec = aSpec({ budget: pods, ...limits, ...change })
    this.state = createState(spec, 'abc123', this.now)
    for (let i = 0; i < pods; i++) {
      this.send({ kind: 'request', request: this.request(`held${i}`) })
      this.settle()
    }
    for (let i = 0; i < waiting; i++)
      this.send({ kind: 'request', request: this.request(`waits${i}`, 3_600_000) })
  }

  request(caller: string, forMs = 300_000) {
    const id = (++this.n).toString(16).padStart(12, '0')
    return {
      v: 1 as const,
      leaseId: `${id.slice(0, 8)}-${id.slice(8)}-4000-8000-000000000000`,
      holder: { workflowId: `wf-${caller}`, firstExecutionRunId: 'first', runId: 'run' },
      leaseWorkflowId: `lease/p/${caller}/${id}`,
      caller,
      reuseTag: '',
      slot: '0',
      tenant: '',
      priority: this.n % 3,
      requestedAtMs: 0,
      deadlineMs: this.now + forMs,
      replyTo: 'signal' as const,
      pinMs: 0,
    }
  }

  /** A new template, while every pod is held: it cannot replace one before they are released. */
  change(): this {
    const { spec } = this.state
    this.send({ kind: 'apply', spec: { ...spec, profile: { ...spec.profile, env: { NEW: '1' } } } })
    this.settle()
    return this
  }

  send(...events: PoolEvent[]): void {
    this.now += 1
    step(this.state, events, this.now)
  }

  /** Answers all that is in flight, as a driver does, until nothing is. */
  settle(): void {
    for (let round = 0; round < 10 && this.state.effects.size > 0; round++)
      for (const effect of [...this.state.effects.values()]) {
        this.send({ kind: 'result', id: effect.id, result: ANSWERS[effect.kind] })
        if (effect.kind !== 'create') continue
        const { pod, generation } = effect.order
        const address = `http://${pod}`
        const pods = [{ pod, generation, phase: 'ready' as const, address, incarnation: pod }]
        this.send({ kind: 'observed', asOfMs: this.now, full: false, pods })
      }
  }

  /** What a pool does all day: a warm caller comes and goes, another waits and gives up. */
  work(steps: number): void {
    const [held] = [...this.state.leases.values()].filter((l) => l.kind === 'granted')
    const caller = held!.request.caller
    let { leaseId } = held!.request
    for (let i = 0; i < steps / 8; i++) {
      this.send({ kind: 'release', release: { v: 1, leaseId, clean: true } })
      const request = this.request(caller)
      leaseId = request.leaseId
      this.send({ kind: 'request', request })
      this.settle()
      const other = this.request(`other${i}`)
      this.send({ kind: 'request', request: other })
      this.send({ kind: 'request', request: other })
      this.send({ kind: 'release', release: { v: 1, leaseId: other.leaseId } })
      this.send()
    }
  }
}

const LIMITLESS = 1_000_000

/** Sets of 8 seats for 20 parked pods each; one more than is held, so that there is room to plan with. */
const SETS = (pods: number): Partial<PoolSpec> => ({
  budget: 8 * (pods / 20 + 1),
  profile: withSeatSets({ seatSet: 8, idle: 'park', duty: 0.26, trust: 'shared' }),
})

const ANSWERS: Record<EffectKind, EffectResult> = {
  create: { kind: 'created' },
  delete: { kind: 'deleted' },
  drain: { kind: 'drained', drained: false, useSeq: 1, idleMs: 0 },
  revoke: { kind: 'revoked' },
  deliver: { kind: 'delivered', useSeq: 0 },
  announce: { kind: 'announced' },
  notify: { kind: 'notified' },
  shard: { kind: 'shardGone' },
  describe: { kind: 'described', closed: [] },
}

/** Microseconds a step, the best of several alternating rounds of each. */
function compare(small: Pool, large: Pool): { small: number; large: number } {
  const best = { small: Number.POSITIVE_INFINITY, large: Number.POSITIVE_INFINITY }
  for (let round = 0; round < ROUNDS; round++)
    for (const [name, pool] of [
      ['small', small],
      ['large', large],
    ] as const) {
      const before = pool.now
      const start = performance.now()
      pool.work(STEPS)
      const us = ((performance.now() - start) * 1_000) / (pool.now - before)
      best[name] = Math.min(best[name], us)
    }
  return best
}

it.each([
  ['pods', (n: number) => new Pool(n, 0)],
  ['waiting requests', (n: number) => new Pool(20, n)],
  ['pods and as many waiting requests', (n: number) => new Pool(n, n)],
  ['pods on seat sets', (n: number) => new Pool(n, 0, SETS(n))],
  ['pods of an earlier template', (n: number) => new Pool(n, 0).change()],
])('a step costs the same with many %s', (what, make) => {
  const us = compare(make(SMALL), make(LARGE))
  const ratio = us.large / us.small
  const rate = (each: number) =>
    `${each.toFixed(1)} us = ${Math.round(1e6 / each).toLocaleString('en')} steps/s`
  console.log(`${what}: ${SMALL}: ${rate(us.small)}; ${LARGE}: ${rate(us.large)}; ratio ${ratio.toFixed(2)}`)
  expect(ratio).toBeLessThan(MOST)
})
