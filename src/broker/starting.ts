import type { PoolStatus } from '../contract/pool.js'
import type { PoolState } from './state.js'

type Notes = NonNullable<PoolStatus['starting']>

/** What the pods that start now wait for, most frequent first: a cluster that has no room says so long before podStart is over. */
export function startNotes(state: PoolState): Notes {
  const notes = new Map<string, Notes[number]>()
  for (const name of state.index.byKind.starting) {
    const note = state.pods.get(name)?.note
    if (!note) continue
    const known = notes.get(note.reason)
    if (known) known.pods++
    else notes.set(note.reason, { ...note, pods: 1 })
  }
  return [...notes.values()].sort((a, b) => b.pods - a.pods)
}
