import fc from 'fast-check'
import type { Effect } from '../../src/broker/effect.js'
import { CORE_VERSION, OLDEST_CORE_VERSION, snapshot, stateBytes } from '../../src/broker/index.js'
import type { PoolSpec } from '../../src/contract/pool.js'
import { seatSetRule } from '../../src/contract/seat-set.js'
import { aSpec, type Handling, World, withSeatSets } from './broker-world.js'

/** Templates between which a pool goes back and forth; pods of one of them never start. */
const TEMPLATES = { first: {}, other: { A: '1' }, third: { A: '2' }, broken: { BROKEN: 'PrepareFailed' } }

/** One thing that happens to a pool in a random history. `n` picks among what there is at that moment. */
export type Op =
  | {
      op: 'request'
      caller: number
      slot: number
      tag: number
      priority: number
      timeoutMs: number
      by: number
      token: boolean
      answered: boolean
      pinMs: number
    }
  | { op: 'repeat'; n: number }
  | { op: 'renew'; n: number }
  | { op: 'release'; n: number; how: 'plain' | 'named' | 'wrong' | 'clean' | 'early' }
  | { op: 'token'; n: number; early: boolean }
  | { op: 'loseToken'; n: number }
  | { op: 'job'; n: number; ms: number }
  | { op: 'wait'; ms: number }
  | { op: 'jump'; ms: number }
  | { op: 'kill'; n: number; how: 'failed' | 'gone' | 'restart' }
  | { op: 'sick'; n: number; how: 'told' | 'SeatSetSick' | 'SeatLost' }
  | { op: 'template'; broken: boolean }
  | { op: 'resize'; budget: number | null; standby: number | null }
  | { op: 'fleet'; budget: number; forMs: number }
  | { op: 'mode'; mode: 'running' | 'paused' | 'draining' }
  | {
      op: 'apply'
      profile: keyof typeof TEMPLATES
      keepAliveMs: number
      maxPods: number
      queueLimit: number
      podLifetimeMs: number
    }
  | { op: 'observe'; delayMs: number }
  | { op: 'restart' }
  | { op: 'fork' }
  | { op: 'closeHolder'; n: number }
  | { op: 'staleResult'; n: number; kind: number }

export interface History {
  /** of the delays, losses and repetitions of effects and results */
  seed: number
  /** how bad the network and the workers are, 0 .. 1 */
  faults: number
  startMs: number
  /** of the pool's first run: the next ones have the newest */
  coreVersion: number
  /** of a pool whose pods share GPUs; null: of one whose pods do not */
  sets: { seatSet: 1 | 2 | 4; idle: 'hold' | 'park'; trust: 'tenant' | 'shared' } | null
  spec: { budget: number; standby: number; maxPods: number; queueLimit: number; keepAliveMs: number }
  ops: Op[]
}

const small = (most: number) => fc.integer({ min: 0, max: most })
const waits = fc.constantFrom(0, 1, 7, 20, 100, 900, 5_000, 12_000, 31_000, 65_000)

const op: fc.Arbitrary<Op> = fc.oneof(
  {
    weight: 14,
    arbitrary: fc.record({
      op: fc.constant('request' as const),
      caller: small(2),
      slot: small(1),
      tag: fc.constantFrom(0, 0, 1, 2),
      priority: small(2),
      timeoutMs: fc.constantFrom(50, 2_000, 20_000, 300_000),
      by: small(1),
      token: fc.boolean(),
      answered: fc.boolean(),
      pinMs: fc.constantFrom(0, 0, 10_000, 60_000),
    }),
  },
  { weight: 14, arbitrary: fc.record({ op: fc.constant('wait' as const), ms: waits }) },
  {
    weight: 8,
    arbitrary: fc.record({
      op: fc.constant('release' as const),
      n: small(20),
      how: fc.constantFrom('plain', 'named', 'wrong', 'clean', 'early'),
    }),
  },
  { weight: 4, arbitrary: fc.record({ op: fc.constant('repeat' as const), n: small(20) }) },
  { weight: 2, arbitrary: fc.record({ op: fc.constant('renew' as const), n: small(20) }) },
  {
    weight: 5,
    arbitrary: fc.record({ op: fc.constant('token' as const), n: small(20), early: fc.boolean() }),
  },
  { weight: 2, arbitrary: fc.record({ op: fc.constant('loseToken' as const), n: small(5) }) },
  { weight: 6, arbitrary: fc.record({ op: fc.constant('job' as const), n: small(20), ms: waits }) },
  {
    weight: 1,
    arbitrary: fc.record({
      op: fc.constant('jump' as const),
      ms: fc.constantFrom(-5_000, 10_000, 61_000, 200_000),
    }),
  },
  {
    weight: 3,
    arbitrary: fc.record({
      op: fc.constant('kill' as const),
      n: small(8),
      how: fc.constantFrom('failed', 'gone', 'restart'),
    }),
  },
  {
    weight: 2,
    arbitrary: fc.record({
      op: fc.constant('sick' as const),
      n: small(20),
      how: fc.constantFrom('told', 'SeatSetSick', 'SeatLost'),
    }),
  },
  { weight: 1, arbitrary: fc.record({ op: fc.constant('template' as const), broken: fc.boolean() }) },
  {
    weight: 2,
    arbitrary: fc.record({
      op: fc.constant('resize' as const),
      budget: fc.option(small(4)),
      standby: fc.option(small(2)),
    }),
  },
  {
    weight: 1,
    arbitrary: fc.record({
      op: fc.constant('fleet' as const),
      budget: small(4),
      forMs: fc.constantFrom(10, 5_000, 60_000),
    }),
  },
  {
    weight: 2,
    arbitrary: fc.record({
      op: fc.constant('mode' as const),
      mode: fc.constantFrom('running', 'running', 'paused', 'draining'),
    }),
  },
  {
    weight: 3,
    arbitrary: fc.record({
      op: fc.constant('apply' as const),
      profile: fc.constantFrom(...(Object.keys(TEMPLATES) as (keyof typeof TEMPLATES)[])),
      keepAliveMs: fc.constantFrom(0, 1_000, 60_000),
      maxPods: fc.integer({ min: 1, max: 8 }),
      queueLimit: fc.integer({ min: 1, max: 10 }),
      podLifetimeMs: fc.constantFrom(20_000, 43_200_000),
    }),
  },
  {
    weight: 2,
    arbitrary: fc.record({ op: fc.constant('observe' as const), delayMs: fc.constantFrom(0, 20, 3_000) }),
  },
  { weight: 2, arbitrary: fc.record({ op: fc.constant('restart' as const) }) },
  { weight: 2, arbitrary: fc.record({ op: fc.constant('fork' as const) }) },
  { weight: 1, arbitrary: fc.record({ op: fc.constant('closeHolder' as const), n: small(20) }) },
  {
    weight: 2,
    arbitrary: fc.record({ op: fc.constant('staleResult' as const), n: small(30), kind: small(6) }),
  },
)

/** Most have ten things that happen at most, which are quick; `long` ones up to sixty. */
export const history = (length: 'short' | 'long'): fc.Arbitrary<History> =>
  fc.record({
    seed: fc.integer({ min: 0, max: 0x7fffffff }),
    faults: fc.constantFrom(0, 0.05, 0.3),
    startMs: fc.constantFrom(10, 900, 25_000),
    spec: fc.record({
      budget: small(4),
      standby: small(2),
      maxPods: fc.integer({ min: 1, max: 8 }),
      queueLimit: fc.integer({ min: 1, max: 10 }),
      keepAliveMs: fc.constantFrom(0, 1_000, 60_000),
    }),
    sets: fc.option(
      fc.record({
        seatSet: fc.constantFrom(1, 2, 4),
        idle: fc.constantFrom('hold', 'park'),
        trust: fc.constantFrom('tenant', 'shared'),
      }),
    ),
    coreVersion: fc.constantFrom(OLDEST_CORE_VERSION, CORE_VERSION, CORE_VERSION, CORE_VERSION),
    ops: fc.array(op, { maxLength: 60, size: length === 'long' ? 'max' : 'small' }),
  })

/** Runs a history; every step is checked by the invariants, and a violation throws. */
export function play(h: History): World {
  const world = new World({ spec: specOf(h), seed: h.seed, coreVersion: h.coreVersion })
  const { random } = world
  world.backend.startMs = () => (random.chance(h.faults / 4) ? Number.NaN : h.startMs * (0.5 + random.next()))
  world.handling = (): Partial<Handling> => {
    if (!random.chance(h.faults * 2)) return { beforeMs: random.int(0, 12), afterMs: random.int(0, 12) }
    const fault = random.chance(0.5) ? random.pick(['lost', 'unheard', 'twice'] as const) : 'none'
    return { beforeMs: random.int(0, 4_000), afterMs: random.int(0, 4_000), fault }
  }
  const asked: ReturnType<World['aRequest']>[] = []
  world.advance(0)
  for (const each of h.ops) {
    apply(world, asked, each, h)
    if (each.op === 'wait') checkSize(world)
  }
  return world
}

/** One caller in ten finds its set busy: of two pods for a seat, where they park. */
function specOf({ spec, sets }: History): Partial<PoolSpec> {
  return sets ? { ...spec, profile: withSeatSets({ ...sets, duty: 0.2 }) } : spec
}

type Requests = ReturnType<World['aRequest']>[]

function apply(world: World, asked: Requests, o: Op, h: History): void {
  const at = (n: number) => (asked.length === 0 ? undefined : asked[asked.length - 1 - (n % asked.length)])
  switch (o.op) {
    case 'request':
      ask(world, asked, o)
      return
    case 'repeat': {
      const request = at(o.n)
      if (request) world.at(world.random.int(0, 500), () => world.send({ kind: 'request', request }))
      return
    }
    case 'renew': {
      const leaseId = at(o.n)?.leaseId
      if (leaseId) world.send({ kind: 'renew', leaseId })
      return
    }
    case 'release':
      release(world, at(o.n)?.leaseId, o.how)
      return
    case 'token': {
      const leaseId = o.early ? world.random.uuid() : at(o.n)?.leaseId
      if (leaseId) world.token(leaseId, `t${world.random.uuid()}`)
      return
    }
    case 'loseToken': {
      const token = [...world.tokens][o.n % Math.max(1, world.tokens.size)]
      if (token) world.tokens.delete(token)
      return
    }
    case 'job': {
      const leaseId = at(o.n)?.leaseId
      if (leaseId && world.grants.has(leaseId)) world.job(leaseId, o.ms)
      return
    }
    case 'wait':
      world.advance(o.ms)
      return
    case 'jump':
      world.jump(o.ms)
      return
    case 'kill': {
      const pods = [...world.backend.pods.keys()]
      const pod = pods[o.n % Math.max(1, pods.length)]
      if (pod && o.how === 'restart') world.backend.restart(pod)
      else if (pod && o.how !== 'restart') world.backend.kill(pod, o.how)
      return
    }
    case 'sick':
      sick(world, at(o.n)?.leaseId, o)
      return
    case 'template':
      world.backend.broken = o.broken ? 'PrepareFailed' : null
      return
    case 'resize':
      world.send({ kind: 'resize', budget: o.budget, standby: o.standby })
      return
    case 'fleet':
      world.send({ kind: 'setBudget', budget: o.budget, expiresAtMs: world.now + o.forMs })
      return
    case 'mode':
      world.send({ kind: 'mode', mode: o.mode })
      return
    case 'apply': {
      const { op: _, profile, ...change } = o
      const spec = aSpec({ ...specOf(h), ...change })
      spec.profile = { ...spec.profile, env: TEMPLATES[profile] }
      world.send({ kind: 'apply', spec })
      return
    }
    case 'observe':
      world.observeAll(o.delayMs)
      return
    case 'restart':
      world.restart(CORE_VERSION)
      return
    case 'fork':
      world.fork()
      return
    case 'closeHolder': {
      const request = at(o.n)
      if (request) world.closedHolders.add(request.holder.workflowId)
      return
    }
    case 'staleResult':
      staleResult(world, o.n, o.kind)
      return
  }
}

function ask(world: World, asked: Requests, o: Extract<Op, { op: 'request' }>): void {
  // Names that cost more in JSON than they have characters, and that collide where keys are glued carelessly.
  const caller = ['c', 'c\u0000t1', '\u2603"\\'.repeat(9)][o.caller]!
  const workflowId = `wf-${caller}-${o.by}`
  world.closedHolders.delete(workflowId)
  const request = world.aRequest({
    caller,
    workflowId,
    tenant: String((o.caller + o.by) % 2),
    slot: String(o.slot),
    reuseTag: ['', 't1', 't1\u0000'][o.tag]!,
    priority: o.priority,
    timeoutMs: o.timeoutMs,
    replyTo: o.token ? 'token' : 'signal',
    pinMs: o.pinMs,
  })
  asked.push(request)
  world.send(o.answered ? { kind: 'request', request, answered: true } : { kind: 'request', request })
}

function release(
  world: World,
  leaseId: string | undefined,
  how: Extract<Op, { op: 'release' }>['how'],
): void {
  const id = how === 'early' ? world.random.uuid() : leaseId
  if (!id) return
  const lease = world.lease(id)
  if (lease?.kind === 'granted' && (how === 'named' || how === 'wrong'))
    world.release(id, { pod: lease.pod, epoch: how === 'wrong' ? lease.epoch + 1 : lease.epoch })
  else world.release(id, how === 'clean' ? { clean: true } : {})
}

/** No job gets its GPUs on the pod of a lease: its caller's activity says so, or the pod ends by that name. */
function sick(world: World, leaseId: string | undefined, { n, how }: Extract<Op, { op: 'sick' }>): void {
  if (how !== 'told') {
    const pods = [...world.backend.pods.keys()]
    const pod = pods[n % Math.max(1, pods.length)]
    if (pod) world.backend.kill(pod, 'failed', how)
    return
  }
  const lease = leaseId === undefined ? undefined : world.lease(leaseId)
  if (lease?.kind !== 'granted') return
  const { pod, epoch } = lease
  world.release(leaseId!, { pod, epoch, clean: true, retire: true, sick: 'GPU-a is "dirty"' })
}

/** A result that was answered long ago comes again, or one that nobody asked for. */
function staleResult(world: World, n: number, kind: number): void {
  const old: Effect | undefined = world.effects[world.effects.length - 1 - n]
  const id = old && !world.state.effects.has(old.id) ? old.id : 'e0'
  const results = [
    { kind: 'deleted' },
    { kind: 'holderGone' },
    { kind: 'tokenGone' },
    { kind: 'podLost', reason: 'Stale' },
    { kind: 'drained', drained: true, useSeq: 0, idleMs: 0 },
    { kind: 'delivered', useSeq: 99 },
    { kind: 'undone', reason: 'Stale' },
  ] as const
  // Anything due at this moment first, so that what follows can only come of the old result.
  world.advance(0)
  world.step()
  const before = JSON.stringify(snapshot(world.state))
  world.send({ kind: 'result', id, result: results[kind % results.length]! })
  const effects = world.step()
  if (effects.length > 0 || JSON.stringify(snapshot(world.state)) !== before)
    throw new Error(`the second result of ${id} changed something (I8)`)
}

/** The bound that admission counts with must not be exceeded by a real snapshot. */
function checkSize(world: World): void {
  const { spec, ...rest } = snapshot(world.state)
  const bytes = Buffer.byteLength(JSON.stringify(rest))
  const bound = stateBytes(world.state)
  if (bytes > bound) throw new Error(`a snapshot of ${bytes} bytes was estimated at ${bound}`)
}

/** Everybody lets go, nothing is broken any more, time passes: what is left now is a leak. */
export function settleDown(world: World): string[] {
  world.handling = () => ({})
  world.backend.startMs = () => 100
  world.backend.broken = null
  world.send({ kind: 'mode', mode: 'running' }, { kind: 'resize', budget: null, standby: null })
  const { spec } = world.state
  // A broken template is mended by another one.
  const profile = 'BROKEN' in spec.profile.env ? { ...spec.profile, env: TEMPLATES.other } : spec.profile
  world.send({ kind: 'apply', spec: { ...spec, profile, podLifetimeMs: 43_200_000 } })
  for (const effect of world.effects) if (effect.kind === 'deliver') world.release(effect.grant.leaseId)
  for (const leaseId of world.state.leases.keys()) world.release(leaseId)
  for (let i = 0; i < 20; i++) {
    world.advance(60_000)
    world.observeAll()
    for (const leaseId of world.state.leases.keys()) world.release(leaseId)
  }
  world.advance(60_000)
  const { state } = world
  const left: string[] = []
  for (const id of state.leases.keys()) left.push(`lease ${id}`)
  for (const effect of state.effects.values()) left.push(`effect ${effect.kind} ${effect.id}`)
  for (const pod of state.pods.values())
    if (pod.kind !== 'standby') left.push(`pod ${pod.pod} is ${pod.kind}`)
  const rule = seatSetRule(state.spec.profile)
  const seats = state.fleet ? Math.min(state.spec.budget, state.spec.guarantee) : state.spec.budget
  const hasSeats = !rule || state.coreVersion < 3 || seats >= rule.seats
  const standby = hasSeats ? Math.min(state.spec.standby, state.spec.maxPods) : 0
  // Without a pod to try it on a template stays unproven.
  if (state.rollout && standby > 0) left.push('a rollout')
  if (state.pods.size !== standby) left.push(`${state.pods.size} pods, the target is ${standby}`)
  for (const pod of world.backend.pods.keys()) if (!state.pods.has(pod)) left.push(`orphan ${pod}`)
  if (state.tombstones.size > 0) left.push(`${state.tombstones.size} tombstones`)
  if (state.earlyTokens.size > 0) left.push(`${state.earlyTokens.size} early tokens`)
  if (
    state.index.slots.size +
      state.index.byHolder.size +
      state.index.claimsByOwner.size +
      state.index.claimsByTenant.size >
    0
  )
    left.push('entries of the index')
  return left
}
