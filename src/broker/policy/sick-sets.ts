import type { PoolState } from '../state.js'

/** Whether a seat set has no new pods now: no job got its GPUs there. */
export function isSick({ sick }: PoolState, set: number, now: number): boolean {
  return (sick.get(set)?.until ?? 0) > now
}

/** Sets that are, in order. */
export function sickSets(state: PoolState, now: number): number[] {
  return [...state.sick.keys()].filter((set) => isSick(state, set, now)).sort((a, b) => a - b)
}
