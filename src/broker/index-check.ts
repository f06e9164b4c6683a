import type { Deadline, Index } from './index-of-state.js'
import { restore, snapshot } from './snapshot.js'
import type { PoolState } from './state.js'
import { isLive } from './step.js'

/**
 * Compares the index that `step` keeps with one rebuilt from pods and leases. O(n log n), for tests and checkers.
 * @returns what differs, as sentences; empty when all is well
 */
export function checkIndex(state: PoolState): string[] {
  const have = state.index
  const want = restore(snapshot(state)).state.index
  const wrong: string[] = []
  const same = (name: string, a: unknown, b: unknown) => {
    const [is, should] = [JSON.stringify(a), JSON.stringify(b)]
    if (is !== should) wrong.push(`index.${name} is ${is}, the state says ${should}`)
  }
  for (const kind of Object.keys(want.byKind) as (keyof Index['byKind'])[])
    same(`byKind.${kind}`, [...have.byKind[kind]], [...want.byKind[kind]])
  for (const count of ['held', 'heldAlone', 'heldLeaving', 'waiting'] as const)
    same(count, have[count], want[count])
  for (const size of ['leaseBytes', 'podBytes', 'effectBytes', 'earlyBytes'] as const)
    same(size, have[size], want[size])
  for (const sets of ['idleByOwner', 'idleBySlot', 'claimsByOwner'] as const)
    same(sets, sorted(have[sets], setRow), sorted(want[sets], setRow))
  const generations = ({ generations: of }: Index) =>
    [...of]
      .map(([n, { pods, starting, standby }]) => JSON.stringify([n, pods, [...starting], [...standby]]))
      .sort()
  same('generations', generations(have), generations(want))
  const sets = ({ sets: of }: Index) =>
    [...of]
      .map(([set, { standby, tenants, ...counts }]) =>
        JSON.stringify([set, counts, [...standby].sort(), sorted(tenants, String)]),
      )
      .sort()
  same('sets', sets(have), sets(want))
  same('claimsByTenant', sorted(have.claimsByTenant, String), sorted(want.claimsByTenant, String))
  same('claims', [...have.claims], [...want.claims])
  same('byHolder', sorted(have.byHolder, String), sorted(want.byHolder, String))
  const slots = (index: Index) => sorted(index.slots, (s) => `${s.claim} ${s.waiting}`)
  same('slots', slots(have), slots(want))
  wrong.push(...missingInQueues(state, want), ...missingDeadlines(state, want))
  return wrong
}

/** Heaps may hold outdated entries, but none that counts may be missing. */
function missingInQueues(state: PoolState, want: Index): string[] {
  const wrong: string[] = []
  const ids = (heap: { all(): readonly { leaseId: string }[] } | undefined) =>
    new Set(heap?.all().map((entry) => entry.leaseId))
  const queued = ids(state.index.queue)
  for (const id of ids(want.queue)) if (!queued.has(id)) wrong.push(`claim ${id} is not in the queue`)
  for (const [key, slot] of want.slots) {
    const waiters = ids(state.index.slots.get(key)?.waiters)
    for (const id of ids(slot.waiters)) if (!waiters.has(id)) wrong.push(`${id} is not in line for its slot`)
  }
  return wrong
}

/** What is to come must be planned. What is past was acted on, or will be in the step that comes at once. */
function missingDeadlines(state: PoolState, want: Index): string[] {
  const key = (d: Deadline) => `${d.at} ${d.kind} ${d.id}`
  const planned = new Set(state.index.deadlines.all().map(key))
  return want.deadlines
    .all()
    .filter((d) => d.at > state.lastStepAt && d.id !== 'restored' && isLive(state, d) && !planned.has(key(d)))
    .map((d) => `deadline ${key(d)} is not planned`)
}

const setRow = (set: Set<string>) => JSON.stringify([...set])

function sorted<V>(map: Map<string, V>, row: (value: V) => string): string[] {
  return [...map].map(([key, value]) => `${key} -> ${row(value)}`).sort()
}
