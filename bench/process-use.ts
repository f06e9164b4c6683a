import { readFileSync } from 'node:fs'
import { round } from './report.js'

/** Ticks of CPU in /proc are hundredths of a second. */
const TICK_MS = 10

/** Processes that are measured, by what they are to a reader. */
export type Pids = ReadonlyMap<string, number>

/** CPU used so far, ms. */
export interface CpuReading {
  atMs: number
  ours: ReadonlyMap<string, number>
  /** by all processes of the machine */
  machine: number
}

/** CPU that was used between two readings. */
export interface CpuUse {
  /** cores that each was busy on, the busiest first; `others`: what else the machine did */
  cores: Record<string, number>
  ms: Record<string, number>
}

export function readCpu(pids: Pids): CpuReading {
  const ours = new Map([...pids].map(([name, pid]) => [name, cpuOf(pid)]))
  return { atMs: performance.now(), ours, machine: cpuOfMachine() }
}

export function cpuBetween(from: CpuReading, to: CpuReading): CpuUse {
  const ms = new Map([...to.ours].map(([name, used]) => [name, used - (from.ours.get(name) ?? 0)]))
  const all = [...ms.values()].reduce((a, b) => a + b, 0)
  const sorted = [...ms].sort((a, b) => b[1] - a[1])
  const busy = [...sorted, ['others', Math.max(0, to.machine - from.machine - all)] as const]
  const wallMs = to.atMs - from.atMs
  return {
    cores: Object.fromEntries(busy.map(([name, used]) => [name, round(used / wallMs, 2)])),
    ms: Object.fromEntries(sorted),
  }
}

/** Of one that has ended: nothing. */
function cpuOf(pid: number): number {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'utf8')
    const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
    return (Number(fields[11]) + Number(fields[12])) * TICK_MS
  } catch {
    return 0
  }
}

function cpuOfMachine(): number {
  const [user, nice, system, , , irq, softirq] = /^cpu +(.*)$/m
    .exec(readFileSync('/proc/stat', 'utf8'))![1]!
    .split(' ')
    .map(Number)
  return (user! + nice! + system! + irq! + softirq!) * TICK_MS
}

/** Memory that a process has now, and the most that it has had, MB (10^6 bytes). */
export function memoryMb(pid: number): { rss: number; peak: number } {
  const status = readFileSync(`/proc/${pid}/status`, 'utf8')
  const of = (name: string) =>
    Math.round((Number(new RegExp(`${name}:\\s+(\\d+)`).exec(status)?.[1]) * 1_024) / 1e6)
  return { rss: of('VmRSS'), peak: of('VmHWM') }
}
