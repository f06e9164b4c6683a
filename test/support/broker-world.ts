import type { Effect, EffectResult } from '../../src/broker/effect.js'
import { Heap } from '../../src/broker/heap.js'
import {
  acquired,
  createState,
  nextDeadline,
  type PoolEvent,
  type PoolState,
  restore,
  type Snapshot,
  snapshot,
  step,
} from '../../src/broker/index.js'
import { Monitor, type Violation } from '../../src/broker/invariants.js'
import type { PodOrder } from '../../src/contract/backend.js'
import type { GpuShare } from '../../src/contract/gpu.js'
import type { Grant, LeaseEnd, LeaseRequest } from '../../src/contract/lease.js'
import type { PoolSpec, Profile, ShardOrder } from '../../src/contract/pool.js'
import { Random } from './random.js'
import { SimulatedBackend } from './simulated-backend.js'

/** A pool's spec with what a test wants different. */
export function aSpec(change: Partial<PoolSpec> = {}): PoolSpec {
  const limits = { memoryBytes: null, cpuSeconds: null, openFiles: null, processes: null, fileBytes: null }
  return {
    v: 1,
    name: 'p',
    budget: 4,
    guarantee: 1,
    standby: 0,
    maxPods: 8,
    queueLimit: 100,
    keepAliveMs: 60_000,
    podStartMs: 300_000,
    podLifetimeMs: 12 * 3_600_000,
    shards: 1,
    profile: { backend: 'local', env: {}, startDelay: null, limits, prepare: null },
    ...change,
  }
}

/** A profile whose pods share the GPUs of a node; nothing of it is looked at but its `gpu`. */
export function withSeatSets(gpu: Partial<GpuShare> = {}): Profile {
  const none = { memoryBytes: null, share: null, cores: null, resource: null, scheduler: null, queue: null }
  const share: GpuShare = {
    ...{ provider: 'dra', count: 1, seatSet: 4, colocation: true, isolation: 'none', idle: 'hold' },
    ...{ trust: 'tenant', duty: 0.6, agent: true, ...none, deviceClass: 'gpu.nvidia.com', selector: null },
    ...gpu,
  }
  const surroundings = aSpec().profile
  return {
    ...surroundings,
    ...{ backend: 'kubernetes', namespace: null, image: 'i', template: {}, prePull: false },
    gpu: share,
  }
}

/** What the driver does with one effect. */
export interface Handling {
  /** ms until it is carried out */
  beforeMs: number
  /** and from then until its result arrives */
  afterMs: number
  /** `lost`: the worker dies before it is carried out; `unheard`: after; `twice`: the result comes twice */
  fault: 'none' | 'lost' | 'unheard' | 'twice'
  /** answer in place of what would really happen */
  result?: EffectResult
}

export interface Ask extends Partial<Omit<LeaseRequest, 'holder' | 'v'>> {
  workflowId?: string
  runId?: string
  timeoutMs?: number
}

interface Happening {
  at: number
  order: number
  run: () => void
}

export interface WorldOptions {
  spec?: Partial<PoolSpec>
  seed?: number
  /** compare the index with a rebuilt one after each step */
  checkIndex?: boolean
  /** throw at the first violation; default true */
  strict?: boolean
  /** default: the newest */
  coreVersion?: number
}

const T0 = 1_900_000_000_000

/** A pool with its driver, its backend and its callers, on a clock that only moves when told. */
export class World {
  now = T0
  state: PoolState
  readonly backend = new SimulatedBackend()
  readonly random: Random
  monitor: Monitor
  readonly violations: Violation[] = []
  /** everything the pool ever ordered */
  readonly effects: Effect[] = []
  /** grants that reached their holder, newest last */
  readonly grants = new Map<string, Grant[]>()
  /** grants that reached the lease workflow, for its page */
  readonly announced = new Map<string, Grant[]>()
  /** lease workflows that somebody terminated */
  readonly goneLeases = new Set<string>()
  /** ends that reached the lease workflow or a token */
  readonly ends = new Map<string, LeaseEnd[]>()
  readonly closedHolders = new Set<string>()
  /** tokens that are still good; a token that is used is gone */
  readonly tokens = new Set<string>()
  handling: (effect: Effect) => Partial<Handling> = () => ({})
  /** what becomes of an order for another shard; there is none by default */
  tellShard: (order: ShardOrder) => EffectResult = () => ({ kind: 'shardGone' })
  /** ms from a change in the backend to the pool's knowledge of it; null: changes are not reported */
  observeMs: number | null = 5
  steps = 0
  /** restored from a snapshot some time ago; has to do what the pool does ever since */
  private twin: PoolState | null = null
  private inbox: PoolEvent[] = []
  private readonly agenda = new Heap<Happening>((a, b) => (a.at !== b.at ? a.at < b.at : a.order < b.order))
  private order = 0
  private life = 0
  private readonly options: WorldOptions
  private readonly templates = new Map<number, string>()

  constructor(options: WorldOptions = {}) {
    this.options = options
    this.random = new Random(options.seed ?? 1)
    this.state = createState(aSpec(options.spec), 'abc123', this.now, options.coreVersion)
    this.monitor = new Monitor(this.state, options.checkIndex ?? true)
    this.at(0, () => this.send({ kind: 'observed', asOfMs: this.now, full: true, pods: this.backend.list() }))
  }

  /** Something that happens later. */
  at(afterMs: number, run: () => void): void {
    this.agenda.push({ at: this.now + afterMs, order: this.order++, run })
  }

  /** Puts events into the pool's inbox; they are taken at the next step. */
  send(...events: PoolEvent[]): void {
    this.inbox.push(...events)
  }

  /** Sends a request and returns its lease id. */
  request(ask: Ask = {}): string {
    const request = this.aRequest(ask)
    this.send({ kind: 'request', request })
    return request.leaseId
  }

  aRequest(ask: Ask = {}): LeaseRequest {
    const { workflowId, runId, timeoutMs, ...rest } = ask
    const leaseId = ask.leaseId ?? this.random.uuid()
    const caller = ask.caller ?? 'ann'
    const holder = workflowId ?? `wf-${caller.slice(0, 40)}-${ask.slot ?? '0'}`
    return {
      v: 1,
      leaseId,
      holder: { workflowId: holder, firstExecutionRunId: `${holder}-first`, runId: runId ?? `${holder}-run` },
      leaseWorkflowId: `lease/p/${caller.slice(0, 40)}/${leaseId}`,
      caller,
      reuseTag: '',
      slot: '0',
      tenant: '',
      priority: 0,
      requestedAtMs: this.now,
      deadlineMs: this.now + (timeoutMs ?? 300_000),
      replyTo: 'signal',
      pinMs: 0,
      ...rest,
    }
  }

  release(
    leaseId: string,
    more: { pod?: string; epoch?: number; clean?: boolean; retire?: boolean; sick?: string } = {},
  ): void {
    this.send({ kind: 'release', release: { v: 1, leaseId, ...more } })
  }

  /** Offers a good token. */
  token(leaseId: string, token: string): void {
    this.tokens.add(token)
    this.send({ kind: 'token', leaseId, token })
  }

  /** One step of the pool with what is in the inbox now. */
  step(): Effect[] {
    const events = this.inbox
    this.inbox = []
    this.steps++
    const { effects } = step(this.state, events, this.now)
    const broken = this.monitor.observe({ events, effects, now: this.now, state: this.state })
    this.violations.push(...broken)
    if (broken.length > 0 && (this.options.strict ?? true))
      throw new Error(
        `broken after step ${this.steps}:\n${broken.map((v) => `${v.id}: ${v.text}`).join('\n')}`,
      )
    this.compareTwin(events, effects)
    this.carryOut(effects)
    for (const event of events) if (event.kind === 'request' && event.answered) this.answer(event.request)
    return effects
  }

  /** What firepool.runOnce does with the answer of its update: it binds the pod itself. */
  private answer({ leaseId, caller, reuseTag }: LeaseRequest): void {
    const answer = acquired(this.state, leaseId)
    if (answer.outcome !== 'granted') return
    const bound = this.backend.bind({ grant: answer.grant, owner: { caller, reuseTag } })
    if (bound.kind === 'delivered') push(this.grants, leaseId, answer.grant)
  }

  /** From now on a copy that went through a snapshot takes the same steps, and must do the same. */
  fork(): void {
    this.twin = restore(saved(this.state)).state
  }

  private compareTwin(events: PoolEvent[], effects: Effect[]): void {
    if (!this.twin) return
    const copy = step(this.twin, JSON.parse(JSON.stringify(events)) as PoolEvent[], this.now)
    const differs = firstDifference(
      { effects, state: saved(this.state) },
      { effects: copy.effects, state: saved(this.twin) },
    )
    if (differs) throw new Error(`after a restore the pool behaves differently: ${differs}`)
  }

  /** Lets time pass: everything due happens, and the pool is stepped when it has mail or wants to be woken. */
  advance(ms: number): void {
    const until = this.now + ms
    this.noticeChanges()
    for (;;) {
      if (this.inbox.length > 0) this.step()
      const times = [this.agenda.peek()?.at, nextDeadline(this.state), this.backend.nextChange()]
      const next = Math.min(...times.map((t) => t ?? Number.POSITIVE_INFINITY))
      if (next > until && this.inbox.length === 0) break
      this.now = Math.max(this.now, Math.min(next, until))
      this.backend.tick(this.now)
      this.noticeChanges()
      while ((this.agenda.peek()?.at ?? Number.POSITIVE_INFINITY) <= this.now) this.agenda.pop()!.run()
      const deadline = nextDeadline(this.state)
      if (this.inbox.length > 0 || (deadline !== null && deadline <= this.now)) this.step()
      if (this.steps > 50_000) throw new Error('the pool does not come to rest')
    }
    this.now = until
  }

  /** The clock jumps: nothing of the world happens in between. */
  jump(ms: number): void {
    this.now += ms
  }

  /** Reports all pods that there are; `delayMs` after it was ordered. */
  observeAll(delayMs = 0): void {
    const asOfMs = this.now
    const pods = this.backend.list()
    this.at(delayMs, () => this.send({ kind: 'observed', asOfMs, full: true, pods }))
  }

  /** Continue-as-new: the pool goes through JSON, and the driver carries out again what was in flight. */
  restart(coreVersion = this.state.coreVersion): void {
    // A copy of an earlier version would go on as such.
    if (coreVersion !== this.state.coreVersion) this.twin = null
    const { state, effects } = restore(saved(this.state), coreVersion)
    this.state = state
    this.life++
    this.carryOut(effects)
  }

  pods(kind?: string): string[] {
    return [...this.state.pods.values()]
      .filter((p) => kind === undefined || p.kind === kind)
      .map((p) => p.pod)
  }

  lease(leaseId: string) {
    return this.state.leases.get(leaseId)
  }

  granted(leaseId: string): Grant {
    const grant = this.grants.get(leaseId)?.at(-1)
    if (!grant) throw new Error(`no grant of ${leaseId} arrived`)
    return grant
  }

  end(leaseId: string): LeaseEnd {
    const end = this.ends.get(leaseId)?.[0]
    if (!end) throw new Error(`lease ${leaseId} did not end, or nobody was told`)
    return end
  }

  effectsOf<K extends Effect['kind']>(kind: K): Extract<Effect, { kind: K }>[] {
    return this.effects.filter((e): e is Extract<Effect, { kind: K }> => e.kind === kind)
  }

  /** A job on a granted lease. */
  job(leaseId: string, forMs: number): 'started' | 'LeaseRevoked' | 'PodLost' {
    const grant = this.granted(leaseId)
    return this.backend.use(grant.pod, grant.epoch, this.now, forMs)
  }

  private noticeChanges(): void {
    if (this.observeMs === null) return
    const pods = this.backend.changes()
    if (pods.length === 0) return
    const asOfMs = this.now
    this.at(this.observeMs, () => this.send({ kind: 'observed', asOfMs, full: false, pods }))
  }

  private carryOut(effects: Effect[]): void {
    for (const effect of effects) {
      this.effects.push(effect)
      const { life } = this
      const how = { beforeMs: 5, afterMs: 5, fault: 'none', ...this.handling(effect) } as Handling
      this.at(how.beforeMs, () => {
        const result: EffectResult =
          how.fault === 'lost'
            ? { kind: 'undone', reason: 'worker lost' }
            : (how.result ?? this.execute(effect))
        const heard: EffectResult = how.fault === 'unheard' ? { kind: 'undone', reason: 'timeout' } : result
        const times = how.fault === 'twice' ? 2 : 1
        for (let i = 0; i < times; i++)
          this.at(how.afterMs * (1 + 3 * i), () => {
            // The answers of an earlier run of the pool die with it: its activities are carried out again.
            if (life === this.life) this.send({ kind: 'result', id: effect.id, result: heard })
          })
      })
    }
  }

  private execute(effect: Effect): EffectResult {
    const { backend } = this
    switch (effect.kind) {
      case 'create':
        this.checkTemplate(effect.order)
        return backend.create(effect.order, this.now)
      case 'delete':
        return backend.remove(effect.pod)
      case 'drain':
        return backend.drain(effect, this.now)
      case 'revoke':
        return backend.revoke(effect.pod, effect.epoch, this.now)
      case 'deliver':
        return this.deliver(effect)
      case 'announce':
        if (this.goneLeases.has(effect.leaseWorkflowId)) return { kind: 'holderGone' }
        push(this.announced, effect.grant.leaseId, effect.grant)
        return { kind: 'announced' }
      case 'notify':
        if (effect.token !== null) this.tokens.delete(effect.token)
        push(this.ends, effect.end.leaseId, effect.end)
        return { kind: 'notified' }
      case 'describe':
        return {
          kind: 'described',
          closed: effect.leases
            .filter((l) => this.closedHolders.has(l.holder.workflowId))
            .map((l) => l.leaseId),
        }
      case 'shard':
        return this.tellShard(effect.order)
    }
  }

  /** One generation is made of one template, also after continue-as-new: orders are carried over without it. */
  private checkTemplate({ pod, generation, profile }: PodOrder): void {
    // One that is given up is deleted as soon as it is there.
    if (this.state.pods.get(pod)?.kind !== 'starting') return
    const given = JSON.stringify(profile)
    const known = this.templates.get(generation)
    if (known !== undefined && known !== given)
      throw new Error(`pod ${pod} of generation ${generation} is made of ${given}, others of ${known}`)
    this.templates.set(generation, given)
  }

  private deliver(effect: Extract<Effect, { kind: 'deliver' }>): EffectResult {
    const bound = this.backend.bind(effect)
    if (bound.kind !== 'delivered') return bound
    if (effect.replyTo === 'signal') {
      if (this.closedHolders.has(effect.holder.workflowId)) return { kind: 'holderGone' }
    } else if (effect.token !== null) {
      if (!this.tokens.delete(effect.token)) return { kind: 'tokenGone' }
    } else {
      return bound
    }
    push(this.grants, effect.grant.leaseId, effect.grant)
    return bound
  }
}

/** A snapshot as the server keeps it. */
function saved(state: PoolState): Snapshot {
  return JSON.parse(JSON.stringify(snapshot(state))) as Snapshot
}

/** Where two values differ first, or null. */
function firstDifference(a: unknown, b: unknown, path = ''): string | null {
  if (JSON.stringify(a) === JSON.stringify(b)) return null
  if (typeof a !== 'object' || typeof b !== 'object' || !a || !b)
    return `${path} is ${JSON.stringify(a)} and ${JSON.stringify(b)}`
  for (const key of new Set([...Object.keys(a), ...Object.keys(b)])) {
    const [left, right] = [(a as Record<string, unknown>)[key], (b as Record<string, unknown>)[key]]
    const found = firstDifference(left, right, `${path}.${key}`)
    if (found) return found
  }
  return `${path}: the order of keys`
}

export function makeWorld(options: WorldOptions = {}): World {
  const world = new World(options)
  world.advance(0)
  return world
}

function push<V>(map: Map<string, V[]>, key: string, value: V): void {
  const list = map.get(key)
  if (list) list.push(value)
  else map.set(key, [value])
}
