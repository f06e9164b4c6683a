import { readFileSync } from 'node:fs'
import type { Client } from '@temporalio/client'
import { poolWorkflowId, WORKFLOW } from '../dist/contract/index.js'
import { machine, quantile, round } from './report.js'
import { type BenchWorld, createPool, log, run, withBenchWorld } from './world.js'

export interface WarmPathOptions {
  /** serial ops of each kind */
  serial: number
  /** ops of each of the callers, in each round */
  perCaller: number
  callers: number
  rounds: number
  leases: number
}

export const DEFAULTS: WarmPathOptions = { serial: 200, perCaller: 60, callers: 20, rounds: 4, leases: 160 }

export async function warmPath(options: WarmPathOptions) {
  return await withBenchWorld(async (world) => ({
    machine: machine(world.server),
    options,
    ...(await measure(world, options)),
  }))
}

async function measure(bench: BenchWorld, options: WarmPathOptions) {
  const { client } = bench
  log('events of warm jobs in the history of their pool')
  const events = await eventsPerWarmJob(client, 100)
  await createPool(client, 'warm', { budget: options.callers + 4, standby: options.callers })
  log(`serial: ${options.serial} of each of a, b, c, d, in alternating blocks`)
  const serial = await serialOps(bench, options.serial)
  log(`throughput: ${options.callers} callers, a and b alternating, ${options.rounds} rounds`)
  const throughput = await throughputOps(client, options)
  log(`acquire: ${options.leases} new callers on one pool, against bare child starts`)
  const acquire = await acquireOps(bench, options)
  const p50 = (kind: keyof typeof serial.ms) => quantile(serial.ms[kind], 0.5)
  return {
    ratios: {
      warmOverActivityP50: round(p50('b') / p50('a')),
      warmOverActivityThroughput: round(throughput.b / throughput.a),
      runJobOverChildP50: round(p50('d') / p50('c')),
      acquireOverChildStarts: round(acquire.leasesPerSecond / acquire.startsPerSecond),
    },
    poolEventsPerWarmJob: events,
    cpuMsPerOp: { ...serial.cpu, acquire: acquire.cpu.acquire, start: acquire.cpu.start },
    serialMs: Object.fromEntries(
      Object.entries(serial.ms).map(([kind, ms]) => [
        kind,
        {
          p50: round(quantile(ms, 0.5), 2),
          p90: round(quantile(ms, 0.9), 2),
          p99: round(quantile(ms, 0.99), 2),
          n: ms.length,
        },
      ]),
    ),
    jobsPerSecond: { a: round(throughput.a, 1), b: round(throughput.b, 1) },
    acquire: {
      leasesPerSecond: round(acquire.leasesPerSecond, 1),
      startsPerSecond: round(acquire.startsPerSecond, 1),
    },
  }
}

const BLOCKS = 10

type Kind = 'a' | 'b' | 'c' | 'd'

async function serialOps({ client, serverPid }: BenchWorld, ops: number) {
  const cpu: Record<Kind, CpuMs> = { a: zero(), b: zero(), c: zero(), d: zero() }
  const ms: Record<Kind, number[]> = { a: [], b: [], c: [], d: [] }
  const each = Math.ceil(ops / BLOCKS)
  // A first job of each kind warms caches, connections and the pods of b's and d's callers.
  await run(client, 'runJobLoop', ['warm', 'bench-d', 2])
  await run(client, 'warmLoop', ['warm', 'bench-0', 2])
  await run(client, 'childLoop', [2])
  for (let block = 0; block < BLOCKS; block++) {
    for (const kind of ['a', 'b', 'c', 'd'] as const) {
      const from = cpuMs(serverPid)
      const handle = await runSerial(client, kind, each)
      addCpu(cpu[kind], from, cpuMs(serverPid), each * BLOCKS)
      ms[kind].push(...(await opTimes(handle)))
    }
  }
  return { ms, cpu }
}

/**
 * Events in a pool's history between the first and the last of many warm jobs on one held lease. maxPods keeps the pool
 * from making another standby meanwhile, so that what is counted belongs to the lease.
 */
async function eventsPerWarmJob(client: Client, jobs: number): Promise<number> {
  await createPool(client, 'quiet', { budget: 1, standby: 1, maxPods: 1 })
  const loop = await (await run(client, 'warmLoop', ['quiet', 'bench-quiet', jobs])).fetchHistory()
  const completed = (loop.events ?? []).filter((event) => event.activityTaskCompletedEventAttributes)
  const [first, last] = [eventMs(completed[0]!), eventMs(completed.at(-1)!)]
  const pool = await client.workflow.getHandle(poolWorkflowId('quiet')).fetchHistory()
  const during = (pool.events ?? []).filter((event) => eventMs(event) > first && eventMs(event) < last)
  if (during.length > 0)
    log(`events in the pool's history meanwhile: ${during.map((e) => e.eventType).join(', ')}`)
  return round(during.length / (completed.length - 1))
}

function runSerial(client: Client, kind: Kind, jobs: number, caller = 0) {
  switch (kind) {
    case 'a':
      return run(client, 'activityLoop', [jobs])
    case 'b':
      return run(client, 'warmLoop', ['warm', `bench-${caller}`, jobs])
    case 'c':
      return run(client, 'childLoop', [jobs])
    case 'd':
      return run(client, 'runJobLoop', ['warm', 'bench-d', jobs])
  }
}

type Handle = Awaited<ReturnType<typeof run>>

interface TimedEvent {
  eventTime?: { seconds?: unknown; nanos?: number | null } | null
}

/** When an event was written, ms since the epoch with its fraction, by the server's clock. */
function eventMs(event: TimedEvent): number {
  return Number(event.eventTime?.seconds ?? 0) * 1_000 + (event.eventTime?.nanos ?? 0) / 1e6
}

/** Milliseconds from the schedule of each activity or child of a serial loop to its completion, by the server's clock. */
async function opTimes(handle: Handle): Promise<number[]> {
  const { events } = await handle.fetchHistory()
  const scheduled = new Map<string, number>()
  const times: number[] = []
  let first = handle.workflowId.startsWith('warmLoop')
  for (const event of events ?? []) {
    const {
      activityTaskScheduledEventAttributes: a,
      startChildWorkflowExecutionInitiatedEventAttributes: c,
    } = event
    if (a) scheduled.set(String(event.eventId), eventMs(event))
    // The lease of b is a child as well; its time is the acquire, not a job.
    else if (c && c.workflowType?.name !== WORKFLOW.lease)
      scheduled.set(String(event.eventId), eventMs(event))
    const done =
      event.activityTaskCompletedEventAttributes?.scheduledEventId ??
      event.childWorkflowExecutionCompletedEventAttributes?.initiatedEventId
    const from = done === undefined || done === null ? undefined : scheduled.get(String(done))
    if (from === undefined) continue
    if (first) first = false
    else times.push(eventMs(event) - from)
  }
  return times
}

/**
 * Jobs a second while all callers are at work: from the moment when the last caller has its first result to the moment
 * when the first caller has its last. Starts, acquires and releases lie outside of it, on both sides alike.
 */
async function throughputOps(client: Client, { callers, perCaller, rounds }: WarmPathOptions) {
  const jobs = { a: 0, b: 0 }
  const ms = { a: 0, b: 0 }
  for (let round = 0; round < rounds; round++) {
    for (const kind of ['a', 'b'] as const) {
      const handles = await Promise.all(
        Array.from({ length: callers }, (_, caller) => runSerial(client, kind, perCaller, caller)),
      )
      const done = await Promise.all(handles.map(completions))
      const from = Math.max(...done.map((times) => times[0]!))
      const to = Math.min(...done.map((times) => times.at(-1)!))
      jobs[kind] += done.flat().filter((at) => at > from && at <= to).length
      ms[kind] += to - from
    }
  }
  return { a: (jobs.a / ms.a) * 1_000, b: (jobs.b / ms.b) * 1_000 }
}

/** When each activity of a loop was completed, ms since the epoch, in order. */
async function completions(handle: Handle): Promise<number[]> {
  const { events } = await handle.fetchHistory()
  return (events ?? []).filter((event) => event.activityTaskCompletedEventAttributes).map(eventMs)
}

async function timed(work: () => Promise<unknown>): Promise<number> {
  const from = performance.now()
  await work()
  return performance.now() - from
}

/** Leases a second of one pool entity with standbys ready, against starts of empty children; as many callers each. */
async function acquireOps({ client, serverPid }: BenchWorld, { callers, leases }: WarmPathOptions) {
  // maxPods keeps the pool from replacing what is granted while it is measured: starting pods costs the cores that are measured.
  await createPool(client, 'acquire', { budget: leases, standby: leases, maxPods: leases })
  const each = Math.floor(leases / callers)
  const crowd = (workflow: string, args: unknown[]) =>
    timed(() => Promise.all(Array.from({ length: callers }, () => run(client, workflow, args))))
  await crowd('startLoop', [2])
  const count = each * callers
  const cpu = { start: zero(), acquire: zero() }
  const cpu0 = cpuMs(serverPid)
  const before = await crowd('startLoop', [each])
  const cpu1 = cpuMs(serverPid)
  const acquire = await crowd('acquireLoop', ['acquire', each])
  const cpu2 = cpuMs(serverPid)
  const after = await crowd('startLoop', [each])
  addCpu(cpu.start, cpu0, cpu1, count)
  addCpu(cpu.acquire, cpu1, cpu2, count)
  return {
    cpu,
    leasesPerSecond: (count / acquire) * 1_000,
    startsPerSecond: ((2 * count) / (before + after)) * 1_000,
  }
}

/** CPU time, ms: of this process (workers of both sides) and of the server. Unlike wall time it does not grow with the machine's other load. */
interface CpuMs {
  workers: number
  server: number
}

const zero = (): CpuMs => ({ workers: 0, server: 0 })

/** utime + stime of /proc/PID/stat, in ticks of 10 ms. */
function cpuMs(serverPid: number): CpuMs {
  const { user, system } = process.cpuUsage()
  const stat = readFileSync(`/proc/${serverPid}/stat`, 'utf8')
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
  return { workers: (user + system) / 1_000, server: (Number(fields[11]) + Number(fields[12])) * 10 }
}

function addCpu(sum: CpuMs, from: CpuMs, to: CpuMs, ops: number): void {
  sum.workers = round(sum.workers + (to.workers - from.workers) / ops, 2)
  sum.server = round(sum.server + (to.server - from.server) / ops, 2)
}
