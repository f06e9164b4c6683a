import { TIMEOUT } from '../contract/limits.js'
import type { Effect } from './effect.js'
import type { PoolEvent } from './event.js'
import { checkIndex } from './index-check.js'
import { Memory } from './invariant-memory.js'
import { ownerKey, tombstoneKey } from './keys.js'
import { budgetInForce, budgetShare, ownBudget } from './policy/budget.js'
import { isSpent } from './policy/keep-alive.js'
import { standbyTarget } from './policy/replenish.js'
import { isStopped } from './policy/rollout.js'
import { ruleOf } from './policy/seat-rule.js'
import { seatsHeld, seatsTaken, setsAllowed, setsKept } from './policy/seat-sets.js'
import { podsAllowed } from './policy/shares.js'
import { isSick } from './policy/sick-sets.js'
import type { GrantedLease, Pod, PoolState, WaitingLease } from './state.js'

export { checkIndex } from './index-check.js'

/** One step as anybody outside sees it: what went in, what came out, and the state after it. */
export interface Seen {
  events: readonly PoolEvent[]
  effects: readonly Effect[]
  now: number
  state: PoolState
}

export type InvariantId =
  | 'I1'
  | 'I2'
  | 'I3'
  | 'I4'
  | 'I5'
  | 'I6'
  | 'I7'
  | 'I8'
  | 'I9'
  | 'I10'
  | 'I11'
  | 'I12'
  | 'I13'
  | 'I14'

/** Says what is wrong after a step, as sentences. `memory` knows the history up to the step before. */
export type Invariant = (seen: Seen, memory: Memory) => string[]

export interface Violation {
  id: InvariantId | 'F1' | 'index'
  text: string
}

/** The invariants of the design, each a function; `Monitor` runs them all. */
export const INVARIANTS: Record<InvariantId, Invariant> = {
  I1: oneLeasePerEpoch,
  I2: oneOwnerPerPod,
  I3: withinSeatSets,
  I4: withinBudget,
  I5: standbysHoldNothing,
  I6: requestsEnd,
  I7: idlenessEnds,
  I8: effectsCountOnce,
  I9: onlyReadyPodsAreGranted,
  I10: nobodyIsOvertaken,
  I11: (_, memory) => memory.takeDoubleStarts(),
  I12: endedStaysEnded,
  I13: pinsHold,
  I14: rolloutsKeepServing,
}

/**
 * Watches a pool over its life: feed it each step, and it answers with what was broken in that step. What is due is
 * done within a step, so no tolerance is needed here; who looks at a pool between two steps allows for the 10 s of the
 * protocol.
 */
export class Monitor {
  readonly memory = new Memory()

  /**
   * @param state the state before the first step that will be observed: an empty pool, or a restored one
   * @param withIndex also compare the index with one rebuilt, O(n log n) a step
   */
  constructor(
    state: PoolState,
    private readonly withIndex = false,
  ) {
    this.memory.learn({ events: [], effects: [], now: state.lastStepAt, state })
  }

  observe(seen: Seen): Violation[] {
    const broken: Violation[] = []
    for (const id of Object.keys(INVARIANTS) as InvariantId[])
      for (const text of INVARIANTS[id](seen, this.memory)) broken.push({ id, text })
    for (const text of podsWithinBounds(seen, this.memory)) broken.push({ id: 'F1', text })
    if (this.withIndex) for (const text of checkIndex(seen.state)) broken.push({ id: 'index', text })
    this.memory.learn(seen)
    return broken
  }

  /** A runner started a job (for I11); the next `observe` says if it was not the first time. */
  jobStarted(pod: string, jobId: string): void {
    this.memory.jobStarted(pod, jobId)
  }
}

function granted(state: PoolState): GrantedLease[] {
  return [...state.leases.values()].filter((lease) => lease.kind === 'granted')
}

/** Grants made in this step, with the pod as it is now. */
function newGrants({ state }: Seen, memory: Memory): { lease: GrantedLease; pod: Pod }[] {
  return granted(state)
    .filter((lease) => !memory.grants.has(lease.request.leaseId))
    .flatMap((lease) => {
      const pod = state.pods.get(lease.pod)
      return pod ? [{ lease, pod }] : []
    })
}

function oneLeasePerEpoch({ state }: Seen, memory: Memory): string[] {
  const broken: string[] = []
  for (const lease of granted(state)) {
    const { leaseId } = lease.request
    const pod = state.pods.get(lease.pod)
    if (!pod) broken.push(`lease ${leaseId} is on pod ${lease.pod}, which is not there`)
    else if (pod.leaseId !== leaseId || pod.epoch !== lease.epoch)
      broken.push(`lease ${leaseId} holds ${pod.pod}/${lease.epoch}, the pod has ${pod.leaseId}/${pod.epoch}`)
    const first = memory.holders.get(`${lease.pod}/${lease.epoch}`)
    if (first !== undefined && first !== leaseId)
      broken.push(`${lease.pod}/${lease.epoch} went to ${first} and to ${leaseId}`)
    const before = memory.grants.get(leaseId)
    if (before !== undefined && before !== `${lease.pod}/${lease.epoch}`)
      broken.push(`lease ${leaseId} was granted ${before}, now ${lease.pod}/${lease.epoch}`)
  }
  for (const pod of state.pods.values()) {
    if (pod.epoch < (memory.pods.get(pod.pod)?.epoch ?? 0)) broken.push(`the epoch of ${pod.pod} went back`)
    if (pod.leaseId !== null && state.leases.get(pod.leaseId)?.kind !== 'granted')
      broken.push(`pod ${pod.pod} names lease ${pod.leaseId}, which is not granted`)
  }
  return broken
}

function oneOwnerPerPod({ state, effects }: Seen, memory: Memory): string[] {
  const broken: string[] = []
  for (const pod of state.pods.values()) {
    const before = memory.pods.get(pod.pod)?.owner
    if (before && (!pod.owner || ownerKey(pod.owner) !== before))
      broken.push(`pod ${pod.pod} served ${before} and is now ${pod.owner?.caller}'s`)
  }
  for (const lease of granted(state)) {
    const owner = state.pods.get(lease.pod)?.owner
    if (!owner || ownerKey(owner) !== ownerKey(lease.request))
      broken.push(`lease ${lease.request.leaseId} of ${lease.request.caller} is on a pod of ${owner?.caller}`)
  }
  for (const effect of effects) {
    if (effect.kind !== 'deliver') continue
    const owner = state.pods.get(effect.grant.pod)?.owner
    if (owner && ownerKey(owner) !== ownerKey(effect.owner))
      broken.push(`pod ${effect.grant.pod} is bound for ${effect.owner.caller}, it is ${owner.caller}'s`)
  }
  return broken
}

/** Whoever joins a seat set finds a place in it, and nobody of another tenant where those are kept apart. */
function withinSeatSets(seen: Seen, memory: Memory): string[] {
  const { state, now } = seen
  const rule = ruleOf(state)
  if (!rule) return []
  const broken: string[] = []
  const kept = setsKept(state, rule, Math.max(now, state.lastStepAt))
  for (const { lease, pod } of newGrants(seen, memory)) {
    if (pod.epoch !== 1 || pod.set === null) continue
    const others = [...state.pods.values()].filter(
      (other) => other.set === pod.set && other.heldSince >= 0 && other !== pod,
    )
    const what = `lease ${lease.request.leaseId} got a pod in set ${pod.set}`
    if (pod.set >= kept) broken.push(`${what}, and the budget leaves ${kept}`)
    if (others.length >= rule.pods) broken.push(`${what} beside ${others.length} of at most ${rule.pods}`)
    const strangers = others.filter(({ tenant }) => tenant !== pod.tenant)
    if (!rule.shared && strangers.length > 0)
      broken.push(`${what} for tenant ${pod.tenant}, beside tenant ${strangers[0]!.tenant}`)
  }
  return [...broken, ...keepsOffSickSets(seen, memory)]
}

/** A set that is sick gets no pods and no callers, and whatever nobody holds there goes. */
function keepsOffSickSets(seen: Seen, memory: Memory): string[] {
  const { state, effects, now } = seen
  if (state.sick.size === 0 || mayBeLate(seen, memory)) return []
  const at = Math.max(now, state.lastStepAt)
  const isOnSick = ({ set }: { set: number | null }) => set !== null && isSick(state, set, at)
  const granted = newGrants(seen, memory).filter(({ pod }) => isOnSick(pod))
  const stay = [...state.pods.values()].filter(
    (pod) => ['starting', 'standby', 'idle'].includes(pod.kind) && isOnSick(pod),
  )
  const made = effects.filter(
    (e) => e.kind === 'create' && e.attempt === 1 && isOnSick({ set: e.order.seatSet?.index ?? null }),
  )
  return [
    ...granted.map(
      ({ lease, pod }) => `lease ${lease.request.leaseId} got a pod in set ${pod.set}, which is sick`,
    ),
    ...stay.map((pod) => `pod ${pod.pod} is ${pod.kind} in set ${pod.set}, which is sick`),
    ...made.map(({ id }) => `effect ${id} makes a pod in a set that is sick`),
  ]
}

function withinBudget({ state, now }: Seen, memory: Memory): string[] {
  const pods = [...state.pods.values()]
  const at = Math.max(now, state.lastStepAt)
  const rule = ruleOf(state)
  if (rule) {
    const kept = setsKept(state, rule, at)
    const isOver = ({ set }: Pod) => set !== null && set >= kept
    const stays = pods.some((pod) => pod.kind === 'idle' && !pod.reserved && isOver(pod))
    const { seats } = budgetInForce(state, at)
    const [held, taken] = [seatsHeld(state), seatsTaken(state)]
    const more = (held > seats && held > memory.seats) || (taken > seats && taken > memory.taken)
    return [
      ...(stays ? [`idle pods of seat sets beyond ${kept} do not go`] : []),
      ...(more ? [`${held} seats are held, ${taken} taken, and more than before`] : []),
    ]
  }
  const held = pods.filter((pod) => pod.heldSince >= 0).length
  const { seats } = budgetInForce(state, at)
  const broken: string[] = []
  if (held > seats && held > memory.held)
    broken.push(`${held} seats are held of ${seats}, and more than before`)
  if (
    held > seats &&
    newGrants({ state, now, events: [], effects: [] }, memory).some((g) => g.pod.epoch === 1)
  )
    broken.push(`a pod got its first caller although ${held} seats are held of ${seats}`)
  const leaving = pods.filter(
    (pod) => pod.heldSince >= 0 && ['deleting', 'draining'].includes(pod.kind),
  ).length
  const expired = state.fleet !== null && at >= state.fleet.expiresAt
  const cap = expired ? ownBudget(state) : budgetShare(state, at).seats
  if (held - leaving > cap && pods.some((pod) => pod.kind === 'idle' && !pod.reserved))
    broken.push(`${held - leaving} seats are held of ${cap}, and idle pods do not go`)
  return broken
}

/** A pinned lease is never recalled, nor asked before its time; what it leaves is for its slot alone. */
function pinsHold({ state, now, effects }: Seen, memory: Memory): string[] {
  const at = Math.max(now, state.lastStepAt)
  const broken: string[] = []
  for (const effect of effects) {
    if (effect.kind === 'notify' && effect.end.end === 'recalled' && memory.pinned.has(effect.end.leaseId))
      broken.push(`pinned lease ${effect.end.leaseId} was recalled`)
    if (effect.kind !== 'drain' || effect.attempt > 1) continue
    const { leaseId } = state.pods.get(effect.pod)!
    const lease = leaseId === null ? undefined : state.leases.get(leaseId)
    const before = memory.pods.get(effect.pod)
    const unfetched =
      lease?.kind === 'granted' && lease.delivery === 'needsToken' && lease.request.deadlineMs <= at
    if (lease && lease.request.pinMs > 0 && !unfetched && before && before.keepAliveAt > at)
      broken.push(`pinned lease ${leaseId} was asked before its time`)
  }
  for (const lease of granted(state)) {
    const before = memory.pods.get(lease.pod)
    if (before?.reserved && before.keepAliveAt > at && before.slot !== lease.request.slot)
      broken.push(`pod ${lease.pod} was kept for slot ${before.slot} and serves ${lease.request.slot}`)
  }
  for (const pod of state.pods.values())
    if (pod.reserved && pod.kind !== 'idle') broken.push(`pod ${pod.pod} is ${pod.kind} and reserved`)
  return broken
}

function standbysHoldNothing({ state }: Seen): string[] {
  const broken: string[] = []
  for (const pod of state.pods.values()) {
    if (pod.kind !== 'standby' && pod.kind !== 'starting') continue
    if (pod.heldSince >= 0 || pod.owner !== null || pod.leaseId !== null || pod.epoch !== 0)
      broken.push(`pod ${pod.pod} is ${pod.kind} and holds a seat or a caller`)
  }
  return broken
}

/** After a long gap a full inbox goes before anything expires: only such a step may leave a deadline behind. */
function mayBeLate({ events, now }: Seen, memory: Memory): boolean {
  return events.length > 0 && now - memory.lastStepAt > TIMEOUT.clockGapMs
}

function requestsEnd(seen: Seen, memory: Memory): string[] {
  const { state, events, effects, now } = seen
  const broken: string[] = []
  const told = new Set(effects.flatMap((e) => (e.kind === 'notify' ? [e.end.leaseId] : [])))
  for (const event of events) {
    if (event.kind !== 'request') continue
    const { leaseId } = event.request
    const known = state.leases.has(leaseId) || state.tombstones.has(tombstoneKey(leaseId))
    // One that comes long after its deadline is refused, and not remembered.
    if (!known && !told.has(leaseId)) broken.push(`request ${leaseId} came and left no trace`)
  }
  const inFlight = [...state.effects.values()]
  const sending = new Set(inFlight.flatMap((e) => (e.kind === 'deliver' ? [e.grant.leaseId] : [])))
  const late = mayBeLate(seen, memory)
  for (const lease of state.leases.values()) {
    const { leaseId, deadlineMs } = lease.request
    if (lease.kind === 'granted') {
      if (lease.delivery === 'sending' && !sending.has(leaseId)) broken.push(`nobody sends grant ${leaseId}`)
      const draining = state.pods.get(lease.pod)?.kind === 'draining'
      if (lease.delivery === 'needsToken' && deadlineMs <= now && !late && !draining)
        broken.push(`grant ${leaseId} was not fetched in time and stays`)
    } else if (deadlineMs <= now && !late) {
      broken.push(`request ${leaseId} waits past its deadline`)
    }
  }
  // Whoever left the queue without a grant is told, unless it was the one who said so.
  const released = new Set(events.flatMap((e) => (e.kind === 'release' ? [e.release.leaseId] : [])))
  for (const leaseId of memory.waiting)
    if (!state.leases.has(leaseId) && !released.has(leaseId) && !told.has(leaseId))
      broken.push(`request ${leaseId} ended and nobody was told`)
  return broken
}

function idlenessEnds(seen: Seen, memory: Memory): string[] {
  const { state, now } = seen
  const broken: string[] = []
  const under = new Set<string>()
  for (const e of state.effects.values()) {
    if (e.kind === 'create') under.add(`starting ${e.order.pod}`).add(`deleting ${e.order.pod}`)
    if (e.kind === 'delete') under.add(`deleting ${e.pod}`)
    if (e.kind === 'drain') under.add(`draining ${e.pod}`)
    if (e.kind === 'deliver') under.add(`promoting ${e.grant.pod}`)
  }
  for (const pod of state.pods.values()) {
    if (pod.kind === 'leased' || pod.kind === 'idle') {
      if (pod.keepAliveAt <= 0) broken.push(`pod ${pod.pod} is ${pod.kind} without a keep-alive`)
      else if (pod.keepAliveAt <= now && !mayBeLate(seen, memory))
        broken.push(`pod ${pod.pod} is ${pod.kind} past its keep-alive`)
      continue
    }
    const waitsForBackend = pod.kind === 'standby' || (pod.kind === 'starting' && pod.ackedAt >= 0)
    if (!waitsForBackend && !under.has(`${pod.kind} ${pod.pod}`))
      broken.push(`pod ${pod.pod} is ${pod.kind} and nothing is under way`)
  }
  return broken
}

function effectsCountOnce({ state, effects }: Seen, memory: Memory): string[] {
  const broken: string[] = []
  const issued = new Set<string>()
  for (const effect of effects) {
    if (issued.has(effect.id)) broken.push(`effect ${effect.id} was issued twice in one step`)
    issued.add(effect.id)
    if (effect.attempt === 1 && memory.issued.has(effect.id))
      broken.push(`effect id ${effect.id} was used again`)
    if (effect.attempt > 1 && !state.effects.has(effect.id))
      broken.push(`closed effect ${effect.id} was retried`)
    if (effect.kind === 'create' && effect.attempt === 1 && memory.pods.has(effect.order.pod))
      broken.push(`pod ${effect.order.pod} was ordered twice`)
  }
  const subjects = new Set<string>()
  for (const effect of state.effects.values()) {
    if (memory.closed.has(effect.id)) broken.push(`effect ${effect.id} was answered and is in flight again`)
    if (effect.kind !== 'drain' && effect.kind !== 'delete') continue
    const subject = `${effect.kind} ${effect.pod}`
    if (subjects.has(subject)) broken.push(`two effects at once: ${subject}`)
    subjects.add(subject)
  }
  return broken
}

function onlyReadyPodsAreGranted(seen: Seen, memory: Memory): string[] {
  const { state, events, now } = seen
  const broken: string[] = []
  const bad = new Set<string>()
  for (const event of events)
    if (event.kind === 'observed')
      for (const pod of event.pods) if (pod.phase === 'failed' || pod.phase === 'gone') bad.add(pod.pod)
  const late = mayBeLate(seen, memory)
  for (const { lease, pod } of newGrants(seen, memory)) {
    const what = `lease ${lease.request.leaseId} got pod ${pod.pod}`
    if (pod.address === '') broken.push(`${what}, which is not Ready`)
    // A grant that was the answer of its step needs no delivery: its pod is leased at once.
    const expected = lease.delivery === 'delivered' ? 'leased' : 'promoting'
    if (pod.kind !== expected) broken.push(`${what}, which is ${pod.kind}`)
    if (bad.has(pod.pod)) broken.push(`${what}, which was seen failed or gone`)
    if (isSpent(state, pod, now) && !late) broken.push(`${what}, which is too old`)
    if (pod.generation !== state.generation && state.rollout === null)
      broken.push(`${what}, which is of a generation that is not allowed any more`)
    if (memory.pods.get(pod.pod)?.kind === 'deleting') broken.push(`${what}, which was being deleted`)
    if (memory.pods.get(pod.pod)?.draining && pod.kind !== 'draining' && !answered(seen, pod.pod, memory))
      broken.push(`${what}, which may have drained`)
    if (state.mode !== 'running') broken.push(`${what} although the pool is ${state.mode}`)
  }
  return broken
}

/** Whether the drain of this pod got its answer in this step. */
function answered({ events }: Seen, pod: string, memory: Memory): boolean {
  return events.some((event) => event.kind === 'result' && memory.drains.get(event.id) === pod)
}

/** No standby goes to a request while one that comes before it in the queue goes on waiting. */
function nobodyIsOvertaken(seen: Seen, memory: Memory): string[] {
  const broken: string[] = []
  const waiting = [...seen.state.leases.values()].flatMap((lease) =>
    lease.kind === 'waiting' && lease.claims ? [lease] : [],
  )
  for (const { lease, pod } of newGrants(seen, memory)) {
    if (pod.epoch !== 1) continue
    const { leaseId, priority } = lease.request
    for (const other of waiting) {
      const p = other.request.priority
      const isBefore = p > priority || (p === priority && other.arrival < lease.arrival)
      if (isBefore && couldHave(seen, pod, other))
        broken.push(`${leaseId} was served from the stock before ${other.request.leaseId}`)
    }
  }
  return broken
}

/** Whether a request might have had this pod, which another one got: not where its set is another tenant's. */
function couldHave({ state }: Seen, pod: Pod, { request }: WaitingLease): boolean {
  const rule = ruleOf(state)
  if (!rule || rule.shared || pod.set === null || pod.tenant === request.tenant) return true
  const { callers } = state.index.sets.get(pod.set)!
  return callers === 1
}

/**
 * A new template takes no pod that serves before another one stands in its place, and pods of one generation are all made
 * of one template: the newest, or the last one that worked while the newest does not.
 */
function rolloutsKeepServing(seen: Seen, memory: Memory): string[] {
  const { state, effects } = seen
  const broken: string[] = []
  for (const effect of effects) {
    if (effect.kind !== 'create') continue
    const { pod, generation, profile } = effect.order
    const known = memory.templates.get(generation)
    const given = JSON.stringify(profile)
    const wanted = state.pods.get(pod)?.kind === 'starting'
    // One that is given up already was deleted before it was made.
    if (wanted && known !== undefined && known !== given)
      broken.push(`pod ${pod} of generation ${generation} is made of another template than others`)
    if (effect.attempt === 1 && generation !== state.generation && !isStopped(state))
      broken.push(`pod ${pod} is made of an earlier template although the newest starts`)
  }
  if (state.coreVersion === 1) return broken
  const template = state.rollout?.template
  if (memory.proven && !state.proven && !template) broken.push('no template is left of which pods did start')
  const failed = effects.some((e) => e.kind === 'notify' && e.end.problem?.code === 'PodStartFailed')
  // What a step refused before it took another template is not that one's fault.
  const isSame = !seen.events.some(({ kind }) => kind === 'apply' || kind === 'shard')
  if (failed && isSame && template?.breaker.openUntil === null)
    broken.push(
      'a request failed because the newest template does not start, and nothing is wrong with the one before',
    )
  if (state.mode === 'running') broken.push(...standbysTaken(seen, memory))
  return broken
}

function standbysTaken(seen: Seen, memory: Memory): string[] {
  const { state, now } = seen
  const broken: string[] = []
  const earlier = [...state.pods.values()].filter((pod) => pod.generation !== state.generation)
  if (state.rollout === null && earlier.some((pod) => pod.kind === 'standby' || pod.kind === 'starting'))
    broken.push('a standby of an earlier template is there, and no rollout')
  const rule = ruleOf(state)
  const at = Math.max(now, state.lastStepAt)
  const kept = rule ? setsKept(state, rule, at) : 0
  const taken = earlier.filter(
    (pod) =>
      pod.kind === 'deleting' &&
      memory.pods.get(pod.pod)?.kind === 'standby' &&
      !isSpent(state, pod, now) &&
      !(rule && pod.set !== null && pod.set >= kept) &&
      !wasHarmed(seen, pod.pod),
  )
  // Where the budget is less than a seat set there are no standbys.
  const hasSeats = !rule || setsAllowed(state, rule, at) > 0
  if (taken.length === 0 || !hasSeats || mayHaveShed(seen)) return broken
  const { byKind } = state.index
  const room = podsAllowed(state)
  const others = state.pods.size - byKind.standby.size - byKind.starting.size - byKind.deleting.size
  // Where there is no room for another pod, one makes it.
  const makesRoom = state.pods.size >= room ? 1 : 0
  const least = Math.min(standbyTarget(state), Math.max(0, room - others)) - makesRoom
  // Whoever came after they were taken was served from those that were left.
  const served = newGrants(seen, memory).filter(({ pod }) => pod.epoch === 1).length
  if (byKind.standby.size + served < least)
    broken.push(
      `${taken.length} standbys of earlier templates were taken, ${byKind.standby.size} of ${least} are left`,
    )
  return broken
}

/** Whether fewer standbys were wanted in the midst of this step than at its end. */
function mayHaveShed({ events }: Seen): boolean {
  const wishes = events.filter(({ kind }) => kind === 'apply' || kind === 'resize')
  return wishes.length > 1 || events.some(({ kind }) => kind === 'mode' || kind === 'shard')
}

function wasHarmed({ events }: Seen, pod: string): boolean {
  return events.some((e) => e.kind === 'observed' && (e.full || e.pods.some((seen) => seen.pod === pod)))
}

function endedStaysEnded({ state, effects }: Seen, memory: Memory): string[] {
  const broken: string[] = []
  for (const leaseId of state.leases.keys())
    if (memory.ended.has(leaseId))
      broken.push(`lease ${leaseId} had ended and is ${state.leases.get(leaseId)?.kind}`)
  for (const effect of effects)
    if (effect.kind === 'deliver' && memory.ended.has(effect.grant.leaseId))
      broken.push(`a grant of ${effect.grant.leaseId} is sent, which is over`)
  return broken
}

/** Pods on their way, in use and on their way out, all together (F1). A lowered bound only stops growth. */
function podsWithinBounds({ state }: Seen, memory: Memory): string[] {
  const { size } = state.pods
  const maxPods = podsAllowed(state)
  return size > maxPods && size > memory.pods.size ? [`${size} pods of at most ${maxPods}`] : []
}
