import type { SeatSetRule } from '../../contract/seat-set.js'
import { Heap } from '../heap.js'
import type { SetPods } from '../index-of-state.js'
import type { Lease, Pod, PoolState } from '../state.js'
import { budgetInForce, budgetShare, ownBudget } from './budget.js'
import { ruleOf } from './seat-rule.js'
import { isSick } from './sick-sets.js'

/**
 * Where pods of a pool with seat sets go. A set is a claim on some GPUs of one node, so the budget says how many sets there may be; each
 * has callers of one tenant (or of all, where the profile trusts them), as many as its seats serve by turns, and standbys beside.
 */

/** So many sets may have new pods; those that are held by pods without a set are no sets. */
export function setsAllowed(state: PoolState, rule: SeatSetRule, now: number): number {
  return setsOf(state, rule, budgetInForce(state, now).seats)
}

/** Sets from n on are emptied. What an expired fleet budget leaves goes by ordinary keep-alive. */
export function setsKept(state: PoolState, rule: SeatSetRule, now: number): number {
  const expired = state.fleet !== null && now >= state.fleet.expiresAt
  return setsOf(state, rule, expired ? ownBudget(state) : budgetShare(state, now).seats)
}

/**
 * The sets that may have new pods: none that is sick. Where more are kept than the budget allows, those that are in use, then those that
 * have GPUs: a standby that stays in a set is there to be used.
 */
export function setsInForce(state: PoolState, rule: SeatSetRule, now: number): number[] {
  const { sets } = state.index
  const kept = Array.from({ length: setsKept(state, rule, now) }, (_, set) => set).filter(
    (set) => !isSick(state, set, now),
  )
  const allowed = setsAllowed(state, rule, now)
  if (kept.length <= allowed) return kept
  const rank = (set: number) => {
    const pods = sets.get(set)
    if (!pods) return 2
    return pods.callers > 0 ? 0 : 1
  }
  return kept.sort((a, b) => rank(a) - rank(b) || a - b).slice(0, allowed)
}

function setsOf({ index }: PoolState, { seats }: SeatSetRule, budget: number): number {
  return Math.max(0, Math.floor((budget - index.heldAlone) / seats))
}

/** Seats that pods with a caller keep from others: all of a set that has one. */
export function seatsHeld(state: PoolState): number {
  const rule = ruleOf(state)
  if (!rule) return state.index.held
  let sets = 0
  for (const { callers } of state.index.sets.values()) if (callers > 0) sets++
  return sets * rule.seats + state.index.heldAlone
}

/** The same with sets that have standbys alone: their claim keeps the GPUs from other shards. */
export function seatsTaken(state: PoolState): number {
  const rule = ruleOf(state)
  return rule ? state.index.sets.size * rule.seats + state.index.heldAlone : state.index.held
}

/** How many more pods may belong to callers, whoever those are. */
export function placesLeft(state: PoolState, now: number): number {
  const rule = ruleOf(state)
  if (!rule) return Math.max(0, budgetInForce(state, now).seats - state.index.held)
  const places = new Places(state, rule, now)
  const inUse = places.all.reduce((sum, { load }) => sum + (load > 0 ? Math.max(0, rule.pods - load) : 0), 0)
  return inUse + places.unopened * rule.pods
}

export interface SeatPlan {
  /** requests that have a place in a set */
  claims: number
  /** sets with too few pods for them: one entry for each pod that is to be made */
  missing: number[]
  /** of a set: pods without a caller beyond those that are needed there */
  surplus(set: number): number
  /** the set of a pod that is made for nobody yet; null: none may have one now */
  nextStock(): number | null
}

interface Place {
  set: number
  /** whether the set has any pods, so that its claim has GPUs */
  isThere: boolean
  /** pods without a caller, not yet meant for anybody */
  spare: number
  /** pods with a caller, and those that are meant for one */
  load: number
  tenants: ReadonlyMap<string, number>
}

/**
 * The sets that may have new pods. Sets that the budget allows no more, and those that are sick, hold their GPUs until they are empty:
 * so long no other set is opened in their stead.
 */
class Places {
  readonly all: Place[]
  /** sets that may still become somebody's */
  unopened: number
  /** sets that may still get their first pod */
  private unmade: number

  constructor(
    state: PoolState,
    private readonly rule: SeatSetRule,
    now: number,
  ) {
    const { index } = state
    const allowed = setsAllowed(state, rule, now)
    this.all = setsInForce(state, rule, now).map((set) => {
      const pods = index.sets.get(set)
      const { spare, callers: load, tenants } = pods ?? NO_PODS
      return { set, isThere: pods !== undefined, spare, load, tenants }
    })
    let used = 0
    for (const { callers } of index.sets.values()) if (callers > 0) used++
    const free = this.all.filter(({ load }) => load === 0).length
    this.unopened = Math.max(0, Math.min(allowed - used, free))
    this.unmade = Math.max(0, allowed - index.sets.size)
  }

  /** Whether a pod may be there at all. */
  private mayHavePods({ isThere }: Place): boolean {
    return isThere || this.unmade > 0
  }

  /** A set with room whose callers this tenant may join, or one that is nobody's and may become his. */
  isOpenTo(place: Place, tenant: string): boolean {
    const { load, tenants } = place
    if (load === 0) return this.unopened > 0 && this.mayHavePods(place)
    return load < this.rule.pods && (this.rule.shared || tenants.has(tenant))
  }

  openTo(tenant: string): Place[] {
    return this.all.filter((place) => this.isOpenTo(place, tenant))
  }

  /** One more pod of this tenant's. @returns whether it has to be made */
  take(place: Place, tenant: string): boolean {
    if (place.load++ === 0) {
      this.unopened--
      place.tenants = new Map([[tenant, 1]])
    }
    this.make(place)
    if (place.spare === 0) return true
    place.spare--
    return false
  }

  /** There will be a pod. */
  private make(place: Place): void {
    if (!place.isThere) this.unmade--
    place.isThere = true
  }

  /** One more for nobody. A standby in a set that is full is of use only when somebody there leaves. */
  *stock(): Generator<number> {
    const withRoom = this.all.filter(({ load }) => load < this.rule.pods)
    const heap = heapOf(withRoom.length > 0 ? withRoom : this.all, stockBefore)
    for (let place = heap.pop(); place; place = heap.pop()) {
      if (!this.mayHavePods(place)) continue
      this.make(place)
      place.spare++
      heap.push(place)
      yield place.set
    }
  }
}

/** A pod that is there before one that has to start; a set that is the tenant's before one that it would take; few before many. */
function better(a: Place, b: Place): boolean {
  if (a.spare > 0 !== b.spare > 0) return a.spare > 0
  if (a.load > 0 !== b.load > 0) return a.load > 0
  return a.load !== b.load ? a.load < b.load : a.set < b.set
}

/** Each set that is in use has one to spare before another set is opened, and before any has two. */
function stockBefore(a: Place, b: Place): boolean {
  if (a.spare !== b.spare) return a.spare < b.spare
  if (a.load > 0 !== b.load > 0) return a.load > 0
  return a.load !== b.load ? a.load < b.load : a.set < b.set
}

/** Who needs pods in which set. O((requests + tenants x sets) log sets), O(1) when nobody waits. */
export function planSeats(state: PoolState, rule: SeatSetRule, now: number): SeatPlan {
  const need = new Map<number, number>()
  const missing: number[] = []
  let claims = 0
  let known: Places | null = null
  const places = () => {
    known ??= new Places(state, rule, now)
    return known
  }
  for (const [tenant, waiting] of demand(state, rule)) {
    if (waiting === 0) continue
    const open = heapOf(places().openTo(tenant), better)
    let left = waiting
    for (let place = open.pop(); place && left > 0; place = open.pop()) {
      // Others have been opened meanwhile.
      if (!places().isOpenTo(place, tenant)) continue
      if (places().take(place, tenant)) missing.push(place.set)
      need.set(place.set, (need.get(place.set) ?? 0) + 1)
      claims++
      left--
      open.push(place)
    }
  }
  let stock: Generator<number> | null = null
  return {
    claims,
    missing,
    surplus: (set) => Math.max(0, (state.index.sets.get(set)?.spare ?? 0) - (need.get(set) ?? 0)),
    nextStock: () => {
      stock ??= places().stock()
      return stock.next().value ?? null
    },
  }
}

function heapOf(places: Place[], before: (a: Place, b: Place) => boolean): Heap<Place> {
  const heap = new Heap(before)
  for (const place of places) heap.push(place)
  return heap
}

const NO_PODS: SetPods = { pods: 0, callers: 0, spare: 0, standby: new Set(), tenants: new Map() }

/** How many wait, by tenant; in a pool that mixes them they are one. */
function demand({ index }: PoolState, { shared }: SeatSetRule): Iterable<[string, number]> {
  return shared ? [['', index.claims.size]] : index.claimsByTenant
}

/** Whether another pod may become this request's, as far as the budget goes. */
export function isPlaceFor(state: PoolState, lease: Lease, now: number): boolean {
  const rule = ruleOf(state)
  if (!rule) return state.index.held < budgetInForce(state, now).seats
  return openSets(state, rule, lease, now).length > 0
}

/** The standby for a request, by the order of `better`; of those in one set the newest template's, then the one ready longest. */
export function standbyInSet(state: PoolState, rule: SeatSetRule, lease: Lease, now: number): Pod | null {
  const withStandby = openSets(state, rule, lease, now).filter(({ set }) => standbys(state, set).size > 0)
  const best = heapOf(withStandby, better).peek()
  if (!best) return null
  const names = standbys(state, best.set)
  const isNewest = (name: string) => state.pods.get(name)!.generation === state.generation
  const name = [...names].find(isNewest) ?? names.values().next().value
  return state.pods.get(name!)!
}

function openSets(state: PoolState, rule: SeatSetRule, { request }: Lease, now: number): Place[] {
  return new Places(state, rule, now).openTo(request.tenant)
}

function standbys({ index }: PoolState, set: number): ReadonlySet<string> {
  return (index.sets.get(set) ?? NO_PODS).standby
}
