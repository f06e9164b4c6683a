import { cpus, loadavg } from 'node:os'
import { setTimeout as pause } from 'node:timers/promises'
import { ServiceError } from '@temporalio/client'
import { createFirepoolClient, type FirepoolClient, FirepoolUnavailableError } from '../dist/client/index.js'
import { LIMIT } from '../dist/contract/limits.js'
import { shardName } from '../dist/contract/shards.js'
import { endOfAuditLog, readAuditLog } from '../test/support/audit-log.js'
import { PLAYED_BY, WORKER_ACCOUNT } from '../test/support/control-plane-objects.js'
import type { Bounds } from './options.js'
import { PodCount } from './pod-count.js'
import { type CpuUse, cpuBetween, memoryMb, readCpu } from './process-use.js'
import { machine, quantile, round } from './report.js'
import { type Asked, ScaleLoad } from './scale-load.js'
import { openScaleWorld, type ScaleWorld } from './scale-world.js'
import { log, withCleanup } from './world.js'

export interface ScaleOptions {
  /** of the pool that grants: as many as it ever has */
  pods: number
  /** requests that come in one moment */
  burst: number
  /** requests a second of the open loop, and for how long */
  rate: number
  seconds: number
  /** s: who has no pod so long after the last request has not been served */
  patience: number
  /** of 100 requests of the open loop so many are of new callers: each of them takes a standby for good */
  fresh: number
  /** workflows that ask for all callers */
  crowds: number
  /** pods that the worker watches at the end, those of the first pool included */
  watched: number
  shards: number
  /** how long a lease is held, and how long its pod stays with its caller afterwards */
  holdMs: number
  keepAliveMs: number
  /** of the times of the open loop's requests; 0: a new one */
  seed: number
  /** 1: a CPU profile of the worker is kept in a folder that is named */
  profile: number
}

export const DEFAULTS: ScaleOptions = {
  pods: 1_000,
  burst: 300,
  rate: 75,
  seconds: 60,
  patience: 120,
  fresh: 20,
  crowds: 16,
  watched: 5_000,
  shards: 2,
  holdMs: 1_000,
  keepAliveMs: 20_000,
  seed: 0,
  profile: 0,
}

export const BOUNDS: Bounds<ScaleOptions> = {
  pods: { min: 1, max: LIMIT.pods, why: 'a pool has no more' },
  burst: { min: 0, max: LIMIT.pods, why: 'a pool has no more pods that it could give' },
  rate: { min: 1, max: 1_000, why: 'one process sends all of them' },
  seconds: { min: 0, max: 600, why: 'the server keeps all histories in memory' },
  patience: { min: 0, max: 600, why: 'a benchmark has an end' },
  fresh: { min: 0, max: 100, why: 'it is a percentage' },
  watched: {
    min: 0,
    max: 20_000,
    why: 'each stand-in of a runner listens on an address with a file of its own',
  },
  shards: { min: 1, max: LIMIT.shards, why: 'a pool has no more' },
  holdMs: { min: 0, max: 60_000, why: 'longer than a phase no lease would end' },
  keepAliveMs: { min: 0, max: 600_000, why: 'longer than a phase no pod would be replaced' },
  seed: { min: 0, max: 2 ** 31, why: 'it is of 32 bits' },
  profile: { min: 0, max: 1, why: 'it is yes or no' },
}

/** What a peer's gate allows from request to ready, ms; ours are a third of it while there is a standby. */
const PEER_MS = { p50: 300, p90: 300, p99: 500 }
export const GOALS = {
  grantMs: { p50: 100, p90: 100, p99: 167 },
  apiRequestsPerLease: 2,
  podsOverDesiredMax: 0,
  rssMb: 600,
}

const POOL = 'scale'
const STAND_INS =
  "pods are played by kwok and take no machine; their runners are stand-ins: one process that answers for all of them, with the real runner's tokens and fence"
/** A pool fills at a hundred pods a time; on a busy machine that takes minutes. What is only watched is then as many as there are. */
const FILL_LIMIT_MS = 600_000
const LOOK_MS = 500
const PROGRESS_MS = 10_000
/** Memory is read this often for so long once everything is there: a collection of garbage is no peak of the load. */
const REST_MS = 10_000

/**
 * Leases on 1,000 pods of a real control plane, and the memory of a worker that watches 5,000: see docs/kubernetes.md. Each part has a
 * limit of time, however much is asked of the machine.
 */
export async function kubernetesScale(options: ScaleOptions) {
  const seed = options.seed || Date.now() % 1_000_000
  const most = Math.max(options.pods, options.watched)
  return withCleanup(
    (ends) => {
      const load = new ScaleLoad(POOL, options.holdMs, seed, ends.signal)
      return openScaleWorld(ends, { pods: most, load, profiled: options.profile === 1 })
    },
    async (world) => {
      const loadBefore = loadavg()
      const versions = await versionsOf(world)
      const measured = await measure(world, options)
      return {
        machine: { ...machine(world.server), ...versions } as Record<string, string | number>,
        note: STAND_INS,
        options,
        seed,
        loadAverage: { before: loadBefore.map((l) => round(l, 1)), after: loadavg().map((l) => round(l, 1)) },
        goals: GOALS,
        ...measured,
      }
    },
  )
}

export type ScaleResult = Awaited<ReturnType<typeof kubernetesScale>>

async function versionsOf({ cluster }: ScaleWorld) {
  const { gitVersion } = await cluster.api.get('/version')
  return { kubernetes: gitVersion as string }
}

async function measure(world: ScaleWorld, options: ScaleOptions) {
  const { client, cluster, load, workerPid } = world
  const { pods, burst, rate, seconds, fresh, crowds, watched, shards, keepAliveMs } = options
  const patienceMs = options.patience * 1_000
  const firepool = createFirepoolClient({ client })
  const names = Array.from({ length: shards }, (_, shard) => shardName(POOL, shard))
  const count = await PodCount.open(cluster.api, cluster.namespace, names)
  try {
    const fill = await phase(world, `fill: a pool of ${pods} pods`, async () => {
      await firepool.applyPool(poolFile(POOL, pods, { shards, keepAliveMs }))
      const ready = await standbys(firepool, world, POOL, pods)
      if (ready < pods)
        throw new Error(
          `pool ${POOL} has ${ready} of ${pods} standbys after ${FILL_LIMIT_MS / 60_000} minutes; ask for fewer --pods`,
        )
    })
    // Before the load: what a machine that is asked for too much has left to do disturbs nothing that comes later.
    const others = await phase(world, `watched: ${watched} pods in all`, () =>
      watchMore(firepool, world, watched - pods),
    )
    const rss = await memoryAtRest(world)
    await load.begin(client, crowds)
    const bursts = await phase(world, `burst: ${burst} requests at once`, () => load.burst(burst, patienceMs))
    const loops = await phase(world, `open loop: ${rate} requests a second for ${seconds} s`, () =>
      load.openLoop({ perSecond: rate, seconds, freshPercent: fresh }, patienceMs),
    )
    const rssAfterLeases = await memoryAtRest(world)
    if (count.problem) throw new Error(count.problem)
    const leases = granted([...bursts.result, ...loops.result]).length
    const requests = sum(bursts.requests, loops.requests)
    return {
      shards,
      grantMs: { burst: grantMs(bursts), openLoop: grantMs(loops) },
      apiRequestsPerLease: leases === 0 ? null : round(total(requests) / leases, 2),
      podsOverDesiredMax: count.most - pods,
      rssMb: rss,
      rssAfterLeasesMb: rssAfterLeases,
      phases: {
        fill: { ...report(fill), podsPerSecond: round((pods * 1_000) / fill.ms, 1) },
        watched: { ...report(others), pods: pods + others.result },
        burst: { ...report(bursts), ...served(bursts) },
        openLoop: { ...report(loops), ...served(loops), podsCreated: count.created },
      },
      rssPeakMb: memoryMb(workerPid).peak,
    }
  } finally {
    count.stop()
  }
}

function poolFile(name: string, pods: number, more: object) {
  return {
    name,
    budget: pods,
    standby: pods,
    maxPods: pods,
    podStartMs: 30 * 60_000,
    profile: {
      backend: 'kubernetes' as const,
      image: 'registry.test/stand-in:1',
      template: { spec: { nodeSelector: { [PLAYED_BY.label]: PLAYED_BY.kwok } } },
    },
    ...more,
  }
}

/** Waits until there are so many, or for FILL_LIMIT_MS. @returns how many there are */
async function standbys(
  firepool: FirepoolClient,
  { signal }: ScaleWorld,
  pool: string,
  count: number,
): Promise<number> {
  const until = Date.now() + FILL_LIMIT_MS
  let ready = 0
  let saidAt = Date.now()
  while (ready < count && Date.now() < until) {
    const status = await firepool.describePool(pool).catch((error: Error) => {
      // A machine that is busy with filling the pool may be too busy to tell of it.
      if (error instanceof FirepoolUnavailableError || error instanceof ServiceError) return null
      throw error
    })
    ready = status?.standby.ready ?? ready
    const failure = status?.breaker.last
    if (failure) throw new Error(`pods of ${pool} do not start: ${failure.message}`)
    if (Date.now() >= saidAt + PROGRESS_MS) {
      saidAt = Date.now()
      log(`  ${pool}: ${ready} of ${count} are ready`)
    }
    if (ready < count) await pause(LOOK_MS, undefined, { signal })
  }
  return ready
}

/** Pools beside the first one until there are so many pods more. @returns how many there are */
async function watchMore(firepool: FirepoolClient, world: ScaleWorld, more: number): Promise<number> {
  const each = Array.from({ length: Math.ceil(Math.max(0, more) / POOL_PODS) }, (_, n) =>
    Math.min(POOL_PODS, more - n * POOL_PODS),
  )
  const ready = each.map(async (pods, n) => {
    await firepool.applyPool(poolFile(`watched-${n}`, pods, {}))
    return standbys(firepool, world, `watched-${n}`, pods)
  })
  return (await Promise.all(ready)).reduce((a, b) => a + b, 0)
}

/** A pool of its own for so many of the pods that are only watched. */
const POOL_PODS = 1_000

interface Phase<T> {
  result: T
  ms: number
  /** ms since the epoch */
  endedAtMs: number
  cpu: CpuUse
  /** the worker's, by verb and resource; watches aside */
  requests: Record<string, number>
  rssMb: number
}

/** Does it, and says what it took of whom. */
async function phase<T>(world: ScaleWorld, what: string, work: () => Promise<T>): Promise<Phase<T>> {
  log(what)
  const { cluster, workerPid, load } = world
  const fromByte = await endOfAuditLog(cluster.auditLogPath)
  const before = readCpu(world.pids())
  const from = performance.now()
  const said = setInterval(() => load.isAsking && log(`  ${load.progress()}`), PROGRESS_MS)
  const result = await work().finally(() => clearInterval(said))
  const ms = performance.now() - from
  const endedAtMs = Date.now()
  const cpu = cpuBetween(before, readCpu(world.pids()))
  const { requests } = await readAuditLog(cluster.auditLogPath, fromByte)
  const user = `system:serviceaccount:${cluster.namespace}:${WORKER_ACCOUNT}`
  const counts: Record<string, number> = {}
  for (const { verb, resource, ...request } of requests) {
    if (request.user !== user || verb === 'watch') continue
    counts[`${verb} ${resource}`] = (counts[`${verb} ${resource}`] ?? 0) + 1
  }
  log(`  ${round(ms / 1_000, 1)} s; busy cores: ${shownCores(cpu.cores)}; load ${round(loadavg()[0]!, 1)}`)
  return { result, ms, endedAtMs, cpu, requests: counts, rssMb: memoryMb(workerPid).rss }
}

function report({ ms, cpu, requests, rssMb }: Phase<unknown>) {
  return { seconds: round(ms / 1_000, 1), busyCores: cpu.cores, apiRequests: requests, rssMb }
}

type Granted = Asked & Required<Pick<Asked, 'grantedAtMs' | 'askedAtMs' | 'inPoolMs'>>

function granted(asked: readonly Asked[]): Granted[] {
  return asked.filter((a): a is Granted => a.grantedAtMs !== undefined)
}

/** From the moment when a request was due; who got no pod has waited until the end at least, and is not left out. */
function grantMs({ result, endedAtMs }: Phase<Asked[]>) {
  return percentiles(result.map(({ dueAtMs, grantedAtMs = endedAtMs }) => grantedAtMs - dueAtMs))
}

/** null: of none */
function percentiles(ms: readonly number[]) {
  if (ms.length === 0) return null
  const at = (q: number) => round(quantile([...ms], q), 0)
  return { p50: at(0.5), p90: at(0.9), p99: at(0.99) }
}

/** By how the pool served them, and where the time went. */
function served(phase: Phase<Asked[]>) {
  const { result: asked, ms, cpu } = phase
  const got = granted(asked)
  const of = (hit: string) => got.filter((a) => a.hit === hit)
  /** unlike times it does not grow with what else the machine does */
  const cpuMsPerLease = Object.fromEntries(
    Object.entries(cpu.ms).map(([name, used]) => [name, round(used / got.length, 1)]),
  )
  const { others = 0 } = cpu.cores
  const coresLeft = Math.max(0, cpus().length - others)
  return {
    requests: asked.length,
    unserved: asked.length - got.length,
    unservedBy: counted(
      asked.flatMap((a) => (a.grantedAtMs === undefined ? (a.failed ?? 'StillWaits') : [])),
    ),
    byHit: Object.fromEntries(
      ['standby', 'warm', 'cold']
        .filter((hit) => of(hit).length > 0)
        .map((hit) => [
          hit,
          { n: of(hit).length, ...percentiles(of(hit).map((a) => a.grantedAtMs - a.dueAtMs))! },
        ]),
    ),
    leasesPerSecond: round((got.length * 1_000) / ms, 1),
    cpuMsPerLease,
    /** what the cores that others left do at this cost, should nothing else be scarce */
    leasesPerSecondMost: round((coresLeft * 1_000) / total(cpuMsPerLease), 1),
    parts: {
      /** until the caller's own workflow has begun, which any caller has to */
      callerStartMs: percentiles(got.map((a) => a.askedAtMs - a.dueAtMs)),
      /** from its request to its grant, as the caller's workflow sees it */
      askedToGrantedMs: percentiles(got.map((a) => a.grantedAtMs - a.askedAtMs)),
      /** of that, until the pool's workflow had decided */
      inPoolMs: percentiles(got.map((a) => a.inPoolMs)),
    },
  }
}

function counted(names: readonly string[]): Record<string, number> {
  return sum(...names.map((name) => ({ [name]: 1 })))
}

/** The most, MB: what a collection of garbage has not taken yet counts. */
async function memoryAtRest({ workerPid, signal }: ScaleWorld): Promise<number> {
  let most = 0
  for (const until = Date.now() + REST_MS; Date.now() < until; ) {
    most = Math.max(most, memoryMb(workerPid).rss)
    await pause(LOOK_MS, undefined, { signal })
  }
  return most
}

function sum(...all: Record<string, number>[]): Record<string, number> {
  const result: Record<string, number> = {}
  for (const counts of all)
    for (const [key, n] of Object.entries(counts)) result[key] = (result[key] ?? 0) + n
  return result
}

const total = (counts: Record<string, number>) => Object.values(counts).reduce((a, b) => a + b, 0)

function shownCores(cores: Record<string, number>): string {
  return Object.entries(cores)
    .filter(([, busy]) => busy >= 0.01)
    .map(([name, busy]) => `${name} ${busy}`)
    .join(', ')
}

/** The result for people. */
export function table(result: ScaleResult): string {
  const { phases, goals } = result
  const shown = (ms: { p50: number; p90: number; p99: number } | null) =>
    ms === null ? '-' : `${ms.p50} / ${ms.p90} / ${ms.p99}`
  const rows = [
    ['', 'measured', 'goal'],
    ['burst: grant p50 / p90 / p99, ms', shown(result.grantMs.burst), shown(goals.grantMs)],
    ['open loop: grant p50 / p90 / p99, ms', shown(result.grantMs.openLoop), shown(goals.grantMs)],
    ...Object.entries(phases.openLoop.byHit).map(([hit, by]) => [
      `  of it, ${hit} hits`,
      shown(by),
      `n = ${by.n}`,
    ]),
    ['  as its caller sees it, from its request on', shown(phases.openLoop.parts.askedToGrantedMs), ''],
    ['unserved requests', `${phases.burst.unserved + phases.openLoop.unserved}`, '0'],
    ['API requests per lease', `${result.apiRequestsPerLease ?? '-'}`, `${goals.apiRequestsPerLease}`],
    ['pods over desired, most', `${result.podsOverDesiredMax}`, `${goals.podsOverDesiredMax}`],
    [`worker's memory with ${phases.watched.pods} pods, MB`, `${result.rssMb}`, `${goals.rssMb}`],
    ['  after all leases', `${result.rssAfterLeasesMb}`, ''],
  ]
  const width = (column: number) => Math.max(...rows.map((row) => row[column]!.length))
  const lines = rows.map((row) =>
    row
      .map((cell, i) => cell.padEnd(width(i)))
      .join('  ')
      .trimEnd(),
  )
  const busy = Object.entries(phases).map(
    ([name, { seconds, busyCores }]) => `${name}: ${seconds} s; busy cores: ${shownCores(busyCores)}`,
  )
  const { machine: m, loadAverage } = result
  return [
    ...lines,
    '',
    ...busy,
    ...Object.entries({ burst: phases.burst, 'open loop': phases.openLoop }).flatMap(([name, by]) =>
      by.requests === by.unserved ? [] : [limitOf(name, by)],
    ),
    '',
    result.note,
    `a peer's gate: ${shown(PEER_MS)} ms`,
    `${result.shards} shards, seed ${result.seed}; ${m.cores} cores (${m.cpu}), Node ${m.node}, Kubernetes ${m.kubernetes}, ${m.server}`,
    `load average ${loadAverage.before.join(' ')} before, ${loadAverage.after.join(' ')} after`,
    '',
  ].join('\n')
}

/** What kept a phase from serving more. */
function limitOf(name: string, by: ReturnType<typeof served>): string {
  const parts = Object.entries(by.cpuMsPerLease).filter(([, ms]) => ms >= 0.5)
  const shares = parts.map(([part, ms]) => `${part} ${ms}`).join(', ')
  const lost = Object.entries(by.unservedBy).map(([why, n]) => `${n} ${why}`)
  const unserved = lost.length === 0 ? '' : `; unserved: ${lost.join(', ')}`
  return `${name}: ${by.leasesPerSecond} leases a second; one costs ${round(total(by.cpuMsPerLease), 0)} ms of CPU (${shares}): at that the cores that others left do ${by.leasesPerSecondMost} a second${unserved}`
}
