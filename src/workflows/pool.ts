import {
  CancellationScope,
  condition,
  continueAsNew,
  defineQuery,
  defineSignal,
  defineUpdate,
  patched,
  setCurrentDetails,
  setHandler,
  uuid4,
  workflowInfo,
} from '@temporalio/workflow'
import {
  acquired,
  CORE_VERSION,
  createState,
  expectShards,
  isFinished,
  nextDeadline,
  OLDEST_CORE_VERSION,
  type PoolEvent,
  type PoolState,
  podsPage,
  queuePage,
  restore,
  roomForRequests,
  routesOf,
  type Snapshot,
  shardReport,
  snapshot,
  statusOf,
  step,
} from '../broker/index.js'
import { checkLeaseRequest, isRecord } from '../contract/check.js'
import { checkShardOrder, readShardSpec } from '../contract/check-shard.js'
import { checkPoolSpec, readPoolSpec } from '../contract/check-spec.js'
import { livePool, type Problem, problem } from '../contract/errors.js'
import type { Acquired } from '../contract/lease.js'
import { LIMIT } from '../contract/limits.js'
import { poolWorkflowId, QUERY, SIGNAL, UPDATE } from '../contract/names.js'
import type { PageRequest, PoolInput, PoolStatus, ShardReport } from '../contract/pool.js'
import { poolOfShard } from '../contract/shards.js'
import { Alarm } from './alarm.js'
import { continuation } from './continuation.js'
import { checkArgument, checkInput } from './decoded.js'
import { failureOf } from './failure.js'
import { forgetPool } from './forget-pool.js'
import { takeSignals } from './intake.js'
import { callLane } from './lane-activities.js'
import { Lanes } from './lanes.js'
import { Mirror } from './mirror.js'
import { READERS, readSignal, readUpdate } from './pool-inputs.js'
import { watchBackend } from './pool-observation.js'
import { deadlineSummary, poolPage } from './pool-page.js'

const UID_CHARS = 6
/** What operators and the fleet say, to the pool as a whole: signals, and updates of the same names. */
const OPERATORS: readonly string[] = [
  SIGNAL.setBudget,
  SIGNAL.resize,
  SIGNAL.apply,
  SIGNAL.pause,
  SIGNAL.resume,
  SIGNAL.drain,
]
/** Drawing the page costs O(pods + leases): a large pool's page is drawn at most this often. */
const PAGE_MS = 1_000
const PAGE_ALWAYS_BELOW = 100

/** `report`: what a shard has counted. */
interface PoolEnd {
  v: 1
  pool: string
  end: 'deleted'
  report?: ShardReport
}

/**
 * The workflow `firepool.pool`: one entity that owns whose pod is whose. A thin driver: signals and results go into
 * the inbox, `step` decides, effects go out in batches by activities that are never awaited here.
 * @returns when the pool was deleted and its last pod is gone
 */
export async function pool(input: PoolInput): Promise<PoolEnd> {
  const { cancelRequested } = CancellationScope.current()
  // Its callers and pods depend on it: a cancel is no order to leave them.
  return await CancellationScope.nonCancellable(async () => {
    const entity = new PoolEntity(input)
    cancelRequested.catch(() => entity.wasCancelled())
    await entity.live()
    // Local pods leave nothing, and the histories of their pools have no such activity.
    if (entity.state.spec.profile.backend === 'kubernetes') await forgetPool(entity.state.spec.name)
    const { state } = entity
    return {
      v: 1,
      pool: state.spec.name,
      end: 'deleted',
      ...(state.shard ? { report: shardReport(state) } : {}),
    }
  })
}

/**
 * A run keeps the version of the core that it began with; one that begins under this code begins with the newest. What was
 * carried over by this code says so itself, without an event for it.
 */
function coreVersionOf(carried: Snapshot | undefined): number {
  if (carried?.coreVersion === CORE_VERSION) return CORE_VERSION
  if (patched('firepool-sick-sets')) return CORE_VERSION
  if (patched('firepool-seat-sets')) return 3
  return patched('firepool-rollout') ? 2 : (carried?.coreVersion ?? OLDEST_CORE_VERSION)
}

/** Two workflows of one pool would each end the pods of the other, as pods that nobody knows. */
function notItsId(pool: string, id: string): Problem {
  return problem(
    'InvalidRequest',
    `this workflow is ${workflowInfo().workflowId}, and that of pool ${pool} is ${id}; start it under this id, or by firepool pool apply`,
  )
}

class PoolEntity {
  readonly state: PoolState
  private readonly inbox: PoolEvent[] = []
  private readonly alarm = new Alarm()
  private readonly lanes: Lanes
  private readonly mirror = new Mirror()
  private signals = 0
  private updates = 0
  private upgradeAsked = false
  private pageAt = 0
  /** an update acted by itself: the main loop has an alarm to set and a page to show */
  private acted = false
  /** the history's length in the workflow task that answered the last update */
  private answeredAt = -1

  constructor(private readonly input: PoolInput) {
    checkInput(input, 'the input of this pool')
    // What a pool was given once must replay, also when an earlier release let more pass.
    const old = workflowInfo().unsafe.isReplaying || (isRecord(input) && input.carried !== undefined)
    const order = isRecord(input) && input.order !== undefined ? input.order : null
    const isShard = order !== null || (isRecord(input) && isRecord(input.carried) && 'shard' in input.carried)
    const read = isShard ? readShardSpec : old ? readPoolSpec : checkPoolSpec
    const spec = read(isRecord(input) ? input.spec : undefined)
    if (spec.problem) throw failureOf(spec.problem)
    const id = poolWorkflowId(spec.value.name)
    if (!old && workflowInfo().workflowId !== id) throw failureOf(notItsId(spec.value.name, id))
    const { carried, lastShard = 0 } = input
    const version = coreVersionOf(carried as Snapshot | undefined)
    const restored = carried === undefined ? null : restore(carried as Snapshot, version)
    this.state = restored?.state ?? createState(spec.value, uuid4().slice(0, UID_CHARS), Date.now(), version)
    this.lanes = new Lanes(
      (lane, effects) => callLane(this.state.spec.name, lane, effects),
      (id, result) => this.inbox.push({ kind: 'result', id, result }),
    )
    if (!restored && !order) expectShards(this.state, Math.min(lastShard, LIMIT.shards - 1))
    if (order && !restored) {
      const checked = checkShardOrder(order, this.state.spec.name)
      if (checked.problem) throw failureOf(checked.problem)
      this.inbox.push({ kind: 'shard', order: checked.value })
    }
    this.listen()
    if (restored) this.lanes.push(restored.effects)
    watchBackend(
      this.state.spec.name,
      (event) => this.inbox.push(event),
      () => isFinished(this.state),
    )
    this.mirror.readFeatures()
  }

  /** Counted and named in its status, as everything that cannot be acted on. */
  wasCancelled(): void {
    const reason = `a pool does not end by it; delete it with firepool pool delete ${this.state.spec.name}`
    this.inbox.push({ kind: 'poison', name: 'cancel', reason })
  }

  /** The main loop. Handlers only enqueue; the pool acts at its own pace. */
  async live(): Promise<void> {
    for (let first = true; ; first = false) {
      if (!first)
        await condition(
          () =>
            this.hasWork ||
            this.alarm.ringing ||
            this.acted ||
            (this.upgradeAsked && this.lanes.idle && !this.answering),
        )
      this.alarm.takeRing()
      const happened = this.hasWork || this.acted
      this.acted = false
      const now = Date.now()
      const { effects } = step(this.state, this.takeInbox(), now)
      this.lanes.push(effects)
      const next = nextDeadline(this.state)
      if (next !== null) this.alarm.at(next, deadlineSummary(this.state))
      this.show(now, happened)
      if (isFinished(this.state) && this.lanes.idle && this.mayClose(now)) return
      await this.continueWhenDue(now)
    }
  }

  private get hasWork(): boolean {
    return (
      this.inbox.some(({ kind }) => kind !== 'request') ||
      (this.inbox.length > 0 && roomForRequests(this.state) > 0)
    )
  }

  /** What came; of the requests no more than there is room to refuse. The others wait until those have heard of it. */
  private takeInbox(): PoolEvent[] {
    let room = roomForRequests(this.state)
    const later: PoolEvent[] = []
    const now = this.inbox.splice(0).filter((event) => {
      if (event.kind !== 'request' || room-- > 0) return true
      later.push(event)
      return false
    })
    this.inbox.push(...later)
    return now
  }

  /** Whether an update is answered in this very workflow task. */
  private get answering(): boolean {
    return workflowInfo().historyLength === this.answeredAt
  }

  /**
   * A run that ends in the task that answers an update may lose the answer: the server refuses the whole task when an
   * event came meanwhile, and tells the client that its update failed. The end waits for a task of its own.
   */
  private mayClose(now: number): boolean {
    if (!this.answering) return true
    this.alarm.at(now + 1, 'end this run once the update is answered')
    return false
  }

  /** Continues as new when it is time and nothing is on its way; when it must, it stops issuing effects and goes anyway. */
  private async continueWhenDue(now: number): Promise<void> {
    const { signals, updates } = this
    const progress = { signals, updates, events: workflowInfo().historyLength }
    const time = continuation(progress, this.input.continueAfter)
    if (time === 'goOn' && !this.upgradeAsked) return
    // Who is refused must hear of it, and as long as some wait for that nothing is held back.
    if (this.inbox.length > 0) {
      this.lanes.goOn()
      return
    }
    const must = time === 'must'
    // An upgrade does not wait for a pool under load to have nothing to do: what is not under way yet is carried over.
    if (must || time === 'forced' || this.upgradeAsked) this.lanes.stop()
    if (!(this.lanes.idle || must) || !this.mayClose(now)) return
    const carried = snapshot(this.state)
    const next: PoolInput = { v: 1, spec: this.state.spec, carried }
    if (this.input.continueAfter) next.continueAfter = this.input.continueAfter
    // Callers are routed by the memo, also before the next run's first task.
    if (this.state.shards.size > 0) await this.mirror.continueAsNew(next)
    await continueAsNew<typeof pool>(next)
  }

  private show(now: number, happened: boolean): void {
    const rows = this.state.pods.size + this.state.leases.size
    if (rows < PAGE_ALWAYS_BELOW || now >= this.pageAt + PAGE_MS) {
      setCurrentDetails(poolPage(this.state, now))
      this.pageAt = now
    }
    this.mirror.route(routesOf(this.state))
    const again = this.mirror.show(() => statusOf(this.state, now), now, happened)
    if (again !== null) this.alarm.at(again, 'mirror the state into memo and search attributes')
  }

  private listen(): void {
    for (const name of Object.keys(READERS)) {
      setHandler(defineSignal<[unknown]>(name), (payload) => this.signalled(name, payload))
    }
    takeSignals((name, payload) => {
      if (!Object.hasOwn(READERS, name)) return false
      this.signalled(name, payload)
      return true
    })
    for (const name of OPERATORS) this.updateTwin(name)
    setHandler(defineUpdate<PoolStatus, []>(UPDATE.upgrade), () => {
      this.upgradeAsked = true
      this.act()
      return this.status()
    })
    this.listenForAcquire()
    this.listenForDelete()
    this.listenForOrders()
    setHandler(defineQuery<PoolStatus>(QUERY.status), () => this.status())
    setHandler(defineQuery(QUERY.pods), (page?: PageRequest) =>
      podsPage(this.state, isRecord(page) ? page : {}),
    )
    setHandler(defineQuery(QUERY.queue), (page?: PageRequest) =>
      queuePage(this.state, isRecord(page) ? page : {}, Date.now()),
    )
  }

  private signalled(name: string, payload: unknown): void {
    this.signals++
    const refusal = OPERATORS.includes(name) ? this.notTheHead() : null
    if (refusal !== null && patched('firepool-head-alone'))
      this.inbox.push({ kind: 'poison', name, reason: refusal })
    else this.inbox.push(...readSignal(name, payload, Date.now()))
  }

  /** Why an operator's word is not for this workflow; null when it is. */
  private notTheHead(): string | null {
    const { name } = this.state.spec
    const whole = poolOfShard(name)
    return whole === name
      ? null
      : `${name} is a shard of pool ${whole}, which tells it what it is; send this to workflow ${poolWorkflowId(whole)}`
  }

  /** The update of the same name as a signal: refuses bad input with a typed failure, and answers with what is in force. */
  private updateTwin(name: string): void {
    setHandler(
      defineUpdate<PoolStatus, [unknown]>(name),
      (payload) => {
        const checked = readUpdate(name, payload, Date.now())
        if (checked.problem) throw failureOf(checked.problem)
        // Applied at once, so that the answer shows it; the effects of it wait for the main loop.
        this.act(checked.value)
        return this.status()
      },
      {
        validator: (payload) => {
          const checked = readUpdate(name, payload, Date.now())
          if (checked.problem) throw failureOf(checked.problem)
          const refusal = this.refuse(name, payload)
          if (refusal !== null) throw failureOf(problem('InvalidRequest', refusal))
        },
      },
    )
  }

  /** Why good input cannot be acted on now, or null. */
  private refuse(name: string, payload: unknown): string | null {
    const { spec, mode } = this.state
    const notTheHead = this.notTheHead()
    if (notTheHead !== null) return notTheHead
    if (mode === 'deleting')
      return `pool ${spec.name} is being deleted; wait for its end, then create it anew`
    if (name !== SIGNAL.apply || !isRecord(payload)) return null
    if (payload.name !== spec.name)
      return `this is pool ${spec.name}; a pool cannot be renamed, create another`
    return checkPoolSpec(payload).problem?.message ?? null
  }

  /** A request whose grant is the answer: for firepool.runOnce, which binds the pod itself. */
  private listenForAcquire(): void {
    const read = (payload: unknown) => {
      checkArgument(payload, UPDATE.acquire)
      const checked = checkLeaseRequest(payload, Date.now())
      if (checked.problem) throw failureOf(checked.problem)
      return checked.value
    }
    setHandler(
      defineUpdate<Acquired, [unknown]>(UPDATE.acquire),
      (payload) => {
        this.updates++
        const request = read(payload)
        this.act({ kind: 'request', request, answered: true })
        return acquired(this.state, request.leaseId)
      },
      { validator: (payload) => void read(payload) },
    )
  }

  private listenForDelete(): void {
    setHandler(
      defineUpdate<PoolStatus, [{ v: 1; force?: boolean }]>(UPDATE.delete),
      () => {
        this.act({ kind: 'mode', mode: 'deleting' })
        return this.status()
      },
      {
        validator: (payload) => {
          const refusal = this.notTheHead()
          if (refusal !== null) throw failureOf(problem('InvalidRequest', refusal))
          let { leases } = this.status()
          let waiting = this.state.leases.size - leases
          // As they said last; the client asks all of them before.
          for (const { report } of this.state.shards.values()) {
            leases += report?.leases ?? 0
            waiting += report?.waiting ?? 0
          }
          const live = livePool(this.state.spec.name, leases, waiting)
          if (live && !(isRecord(payload) && payload.force === true)) throw failureOf(live)
        },
      },
    )
  }

  /** From the head of the pool of which this is a shard. */
  private listenForOrders(): void {
    const read = (payload: unknown) => {
      checkArgument(payload, UPDATE.shard)
      const checked = checkShardOrder(payload, this.state.spec.name)
      if (checked.problem) throw failureOf(checked.problem)
      return checked.value
    }
    setHandler(
      defineUpdate<ShardReport, [unknown]>(UPDATE.shard),
      (payload) => {
        this.updates++
        this.act({ kind: 'shard', order: read(payload) })
        return shardReport(this.state)
      },
      { validator: (payload) => void read(payload) },
    )
  }

  private act(...asked: PoolEvent[]): void {
    const { effects } = step(this.state, [...this.takeInbox(), ...asked], Date.now())
    // Handlers run in the scope of the whole workflow, in which nothing can be issued once it was cancelled.
    if (CancellationScope.current().consideredCancelled)
      void CancellationScope.nonCancellable(async () => this.lanes.push(effects))
    else this.lanes.push(effects)
    this.acted = true
    this.answeredAt = workflowInfo().historyLength
  }

  private status(): PoolStatus {
    const { refusal } = this.mirror
    return { ...statusOf(this.state, Date.now()), ...(refusal === null ? {} : { searchAttributes: refusal }) }
  }
}
