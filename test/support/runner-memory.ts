import { readFileSync } from 'node:fs'
import { processWith } from './world.js'

/** The pid of a pod's runner. */
export function runnerOf(pod: string): number {
  const pids = processWith(`FIREPOOL_POD=${pod}\u0000`).filter((pid) =>
    readFileSync(`/proc/${pid}/cmdline`, 'latin1').includes('runner/main.js'),
  )
  if (pids.length !== 1) throw new Error(`pod ${pod} has ${pids.length} runners`)
  return pids[0]!
}

/** The most memory that a process has had so far. */
export function peakKiB(pid: number): number {
  return Number(/VmHWM:\s+(\d+)/.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))![1])
}
