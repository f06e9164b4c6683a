import { type SeatSetRule, seatSetRule } from '../../contract/seat-set.js'
import { Heap } from '../heap.js'
import type { SetPods } from '../index-of-state.js'
import type { Lease, Pod, PoolState } from '../state.js'
import { budgetInForce, budgetShare, ownBudget } from './budget.js'

/**
 * Where pods of a pool with seat sets go. A set is a claim on some GPUs of one node, so the budget says how many sets there may be; each
 * has callers of one tenant (or of all, where the profile trusts them), as many as its seats serve by turns, and standbys beside.
 */

/** The rule of the pool's present profile; null for a pool without sets. Version 2 of the core knew none. */
export function ruleOf(state: PoolState): SeatSetRule | null {
  return state.coreVersion < 3 ? null : seatSetRule(state.spec.profile)
}

/** Sets 0 to n-1 may have new pods; those that are held by pods without a set are no sets. */
export function setsAllowed(state: PoolState, rule: SeatSetRule, now: number): number {
  return setsOf(state, rule, budgetInForce(state, now).seats)
}

/** Sets from n on are emptied. What an expired fleet budget leaves goes by ordinary keep-alive. */
export function setsKept(state: PoolState, rule: SeatSetRule, now: number): number {
  const expired = state.fleet !== null && now >= state.fleet.expiresAt
  return setsOf(state, rule, expired ? ownBudget(state) : budgetShare(state, now).seats)
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
  let places = 0
  for (let set = setsAllowed(state, rule, now) - 1; set >= 0; set--)
    places += Math.max(0, rule.pods - (state.index.sets.get(set)?.callers ?? 0))
  return places
}

export interface SeatPlan {
  /** requests that have a place in a set */
  claims: number
  /** sets with too few pods for them: one entry for each pod that is to be made */
  missing: number[]
  /** of a set: pods without a caller beyond those that are needed there */
  surplus(set: number): number
  /** the set of a pod that is made for nobody yet */
  nextStock(): number
}

interface Place {
  set: number
  /** pods without a caller, not yet meant for anybody */
  spare: number
  /** pods with a caller, and those that are meant for one */
  load: number
  tenants: ReadonlyMap<string, number>
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

/** Who needs pods in which set, in a pool that may have at least one. O((requests + tenants x sets) log sets), O(1) when nobody waits. */
export function planSeats(state: PoolState, rule: SeatSetRule, now: number): SeatPlan {
  const need = new Map<number, number>()
  const missing: number[] = []
  let places: Place[] | null = null
  const allPlaces = () => {
    places ??= placesOf(state, setsAllowed(state, rule, now))
    return places
  }
  let claims = 0
  for (const [tenant, waiting] of demand(state, rule)) {
    if (waiting === 0) continue
    const open = heapOf(
      allPlaces().filter((place) => isOpenTo(place, tenant, rule)),
      better,
    )
    for (let n = waiting; n > 0; n--) {
      const place = open.pop()
      if (!place) break
      claims++
      need.set(place.set, (need.get(place.set) ?? 0) + 1)
      place.load++
      place.tenants = place.tenants.size > 0 ? place.tenants : new Map([[tenant, 1]])
      if (place.spare > 0) place.spare--
      else missing.push(place.set)
      if (place.load < rule.pods) open.push(place)
    }
  }
  let stock: Heap<Place> | null = null
  return {
    claims,
    missing,
    surplus: (set) => Math.max(0, (state.index.sets.get(set)?.spare ?? 0) - (need.get(set) ?? 0)),
    nextStock: () => {
      stock ??= heapOf(forStock(allPlaces(), rule), stockBefore)
      const place = stock.pop()!
      place.spare++
      stock.push(place)
      return place.set
    },
  }
}

/** A standby in a set that is full is of use only when somebody there leaves. */
function forStock(places: Place[], { pods }: SeatSetRule): Place[] {
  const withRoom = places.filter(({ load }) => load < pods)
  return withRoom.length > 0 ? withRoom : places
}

function heapOf(places: Place[], before: (a: Place, b: Place) => boolean): Heap<Place> {
  const heap = new Heap(before)
  for (const place of places) heap.push(place)
  return heap
}

const NO_PODS: SetPods = { pods: 0, callers: 0, spare: 0, standby: new Set(), tenants: new Map() }

function placesOf({ index }: PoolState, sets: number): Place[] {
  return Array.from({ length: sets }, (_, set) => {
    const { spare, callers: load, tenants } = index.sets.get(set) ?? NO_PODS
    return { set, spare, load, tenants }
  })
}

/** A set with room whose callers this tenant may join, or that is nobody's yet. */
function isOpenTo(place: Omit<Place, 'spare'>, tenant: string, { pods, shared }: SeatSetRule): boolean {
  const { load, tenants } = place
  return load < pods && (shared || tenants.size === 0 || tenants.has(tenant))
}

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
  const places = placesOf(state, setsAllowed(state, rule, now))
  return places.filter((place) => isOpenTo(place, request.tenant, rule))
}

function standbys({ index }: PoolState, set: number): ReadonlySet<string> {
  return (index.sets.get(set) ?? NO_PODS).standby
}
