import {
  acquired,
  createState,
  type Effect,
  nextDeadline,
  type PoolEvent,
  type PoolState,
  roomForRequests,
  seatsHeld,
  step,
} from '../broker/index.js'
import type { PoolSpec } from '../contract/pool.js'
import type { Clock } from './clock.js'
import type { Holders } from './holders.js'
import type { Inspector } from './inspector.js'
import type { Measures } from './measures.js'

/** The driver of the production core: what the pool workflow is there. It decides nothing. */
export class SimulatedPool {
  readonly state: PoolState
  /** when the pool wants to be woken, ms since the epoch; Infinity: never */
  alarmAt: number
  private inbox: PoolEvent[] = []
  private countedAt: number
  private held = 0

  constructor(
    private readonly clock: Clock,
    spec: PoolSpec,
    private readonly holders: Holders,
    private readonly inspector: Inspector,
    private readonly measures: Measures,
    private readonly carryOut: (effect: Effect) => void,
  ) {
    this.state = createState(spec, 'simulator', clock.now)
    this.alarmAt = clock.now
    this.countedAt = clock.now
  }

  /** Handlers only enqueue; the pool acts on all that came in one moment at once, as in a workflow task. */
  send(event: PoolEvent): void {
    this.inbox.push(event)
  }

  /** Seats that pods with a caller keep from others now. */
  get seatsHeld(): number {
    return this.held
  }

  /** Acts when there is mail, or a deadline has come. */
  act(): void {
    const { clock, state, inspector } = this
    if (this.alarmAt > clock.now && !this.hasWork) return
    const events = this.takeInbox()
    this.count()
    inspector.before(state)
    const { effects } = step(state, events, clock.now)
    inspector.after({ events, effects, now: clock.now, state })
    this.held = seatsHeld(state)
    this.alarmAt = nextDeadline(state) ?? Number.POSITIVE_INFINITY
    for (const effect of effects) this.carryOut(effect)
    for (const event of events)
      if (event.kind === 'request' && event.answered) this.answer(event.request.leaseId)
  }

  private get hasWork(): boolean {
    const { inbox, state } = this
    return inbox.length > 0 && (inbox.some(({ kind }) => kind !== 'request') || roomForRequests(state) > 0)
  }

  /** All that came; of the requests no more than there is room to refuse, as the pool workflow does. */
  private takeInbox(): PoolEvent[] {
    let room = roomForRequests(this.state)
    const came = this.inbox
    this.inbox = []
    if (room >= came.length) return came
    return came.filter((event) => {
      if (event.kind !== 'request' || room-- > 0) return true
      this.inbox.push(event)
      return false
    })
  }

  /** Adds up what was held since the last time. */
  count(): void {
    const ms = this.clock.now - this.countedAt
    this.countedAt = this.clock.now
    this.measures.heldMs += ms * this.held
    this.measures.podMs += ms * this.state.pods.size
  }

  private answer(leaseId: string): void {
    this.holders.get(leaseId)?.answered(acquired(this.state, leaseId))
  }
}
