import { loadavg } from 'node:os'
import { setTimeout as pause } from 'node:timers/promises'
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
/** A pool fills at a hundred pods a time; on a busy machine that takes minutes. */
const FILL_LIMIT_MS = 600_000
/** Requests that are still open so long after the last one have not been served. */
const SERVE_LIMIT_MS = 120_000
const LOOK_MS = 500
/** Memory is read this often for so long once everything is there: a collection of garbage is no peak of the load. */
const REST_MS = 10_000

/** Leases on 1,000 pods of a real control plane, and the memory of a worker that watches 5,000: see docs/kubernetes.md. */
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
  const firepool = createFirepoolClient({ client })
  const names = Array.from({ length: shards }, (_, shard) => shardName(POOL, shard))
  const count = await PodCount.open(cluster.api, cluster.namespace, names)
  try {
    const fill = await phase(world, `fill: a pool of ${pods} pods`, async () => {
      await firepool.applyPool(poolFile(POOL, pods, { shards, keepAliveMs }))
      await standbys(firepool, world, POOL, pods)
    })
    await load.begin(client, crowds)
    const bursts = await phase(world, `burst: ${burst} requests at once`, () =>
      load.burst(burst, SERVE_LIMIT_MS),
    )
    const loops = await phase(world, `open loop: ${rate} requests a second for ${seconds} s`, () =>
      load.openLoop({ perSecond: rate, seconds, freshPercent: fresh }, SERVE_LIMIT_MS),
    )
    const podsMost = count.most
    const others = await phase(world, `watched: ${watched} pods in all`, () =>
      watchMore(firepool, world, watched - pods),
    )
    const rss = await memoryAtRest(world)
    if (count.problem) throw new Error(count.problem)
    const leases = [...bursts.result, ...loops.result].filter(
      ({ grantedAtMs }) => grantedAtMs !== undefined,
    ).length
    const requests = sum(bursts.requests, loops.requests)
    return {
      shards,
      grantMs: { burst: grantMs(bursts.result), openLoop: grantMs(loops.result) },
      apiRequestsPerLease: round(total(requests) / leases, 2),
      podsOverDesiredMax: podsMost - pods,
      rssMb: rss.most,
      phases: {
        fill: { ...report(fill), podsPerSecond: round((pods * 1_000) / fill.ms, 1) },
        burst: { ...report(bursts), ...served(bursts) },
        openLoop: { ...report(loops), ...served(loops), podsCreated: count.created },
        watched: { ...report(others), pods: Math.max(watched, pods) },
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

async function standbys(
  firepool: FirepoolClient,
  { signal }: ScaleWorld,
  pool: string,
  count: number,
): Promise<void> {
  const until = Date.now() + FILL_LIMIT_MS
  let said = 0
  for (;;) {
    const status = await firepool.describePool(pool).catch((error: Error) => {
      // A machine that is busy with filling the pool may be too busy to tell of it.
      if (error instanceof FirepoolUnavailableError && Date.now() < until) return null
      throw error
    })
    if (status === null) continue
    const { standby, breaker } = status
    if (standby.ready >= count) return
    if (breaker.last) throw new Error(`pods of ${pool} do not start: ${breaker.last.message}`)
    if (Date.now() > until)
      throw new Error(
        `pool ${pool} has ${standby.ready} of ${count} standbys after ${FILL_LIMIT_MS / 60_000} minutes`,
      )
    if (standby.ready >= said + Math.max(50, count / 4)) {
      said = standby.ready
      log(`  ${said} of ${count} are ready`)
    }
    await pause(LOOK_MS, undefined, { signal })
  }
}

/** Pools beside the first one until there are so many pods more. */
async function watchMore(firepool: FirepoolClient, world: ScaleWorld, more: number): Promise<void> {
  const each = Array.from({ length: Math.ceil(Math.max(0, more) / POOL_PODS) }, (_, n) =>
    Math.min(POOL_PODS, more - n * POOL_PODS),
  )
  await Promise.all(
    each.map(async (pods, n) => {
      await firepool.applyPool(poolFile(`watched-${n}`, pods, {}))
      await standbys(firepool, world, `watched-${n}`, pods)
    }),
  )
}

/** A pool of its own for so many of the pods that are only watched. */
const POOL_PODS = 1_000

interface Phase<T> {
  result: T
  ms: number
  cpu: CpuUse
  /** the worker's, by verb and resource; watches aside */
  requests: Record<string, number>
  rssMb: number
}

/** Does it, and says what it took of whom. */
async function phase<T>(world: ScaleWorld, what: string, work: () => Promise<T>): Promise<Phase<T>> {
  log(what)
  const { cluster, workerPid } = world
  const fromByte = await endOfAuditLog(cluster.auditLogPath)
  const before = readCpu(world.pids())
  const from = performance.now()
  const result = await work()
  const ms = performance.now() - from
  const cpu = cpuBetween(before, readCpu(world.pids()))
  const { requests } = await readAuditLog(cluster.auditLogPath, fromByte)
  const user = `system:serviceaccount:${cluster.namespace}:${WORKER_ACCOUNT}`
  const counts: Record<string, number> = {}
  for (const { verb, resource, ...request } of requests) {
    if (request.user !== user || verb === 'watch') continue
    counts[`${verb} ${resource}`] = (counts[`${verb} ${resource}`] ?? 0) + 1
  }
  log(`  ${round(ms / 1_000, 1)} s; busy cores: ${shownCores(cpu.cores)}; load ${round(loadavg()[0]!, 1)}`)
  return { result, ms, cpu, requests: counts, rssMb: memoryMb(workerPid).rss }
}

function report({ ms, cpu, requests, rssMb }: Phase<unknown>) {
  return { seconds: round(ms / 1_000, 1), busyCores: cpu.cores, apiRequests: requests, rssMb }
}

/** Of those that were granted, from the moment when they were due. */
function grantMs(asked: readonly Asked[]) {
  const granted = asked.filter((a): a is Asked & { grantedAtMs: number } => a.grantedAtMs !== undefined)
  return percentiles(granted.map(({ dueAtMs, grantedAtMs }) => grantedAtMs - dueAtMs))
}

function percentiles(ms: readonly number[]) {
  const at = (q: number) => round(quantile([...ms], q), 0)
  return { p50: at(0.5), p90: at(0.9), p99: at(0.99) }
}

/** By how the pool served them, and where the time went. */
function served({ result: asked, cpu }: Phase<Asked[]>) {
  const granted = asked.filter(({ grantedAtMs }) => grantedAtMs !== undefined)
  const of = (hit: string) => granted.filter((a) => a.hit === hit)
  return {
    requests: asked.length,
    unserved: asked.length - granted.length,
    byHit: Object.fromEntries(
      ['standby', 'warm', 'cold']
        .filter((hit) => of(hit).length > 0)
        .map((hit) => [hit, { n: of(hit).length, ...grantMs(of(hit)) }]),
    ),
    /** unlike times it does not grow with what else the machine does */
    cpuMsPerLease: Object.fromEntries(
      Object.entries(cpu.ms).map(([name, ms]) => [name, round(ms / granted.length, 1)]),
    ),
    parts: {
      /** until the caller's own workflow has begun, which any caller has to */
      callerStartMs: percentiles(granted.map((a) => a.askedAtMs! - a.dueAtMs)),
      /** from its request to its grant, as the caller's workflow sees it */
      askedToGrantedMs: percentiles(granted.map((a) => a.grantedAtMs! - a.askedAtMs!)),
      /** of that, until the pool's workflow had decided */
      inPoolMs: percentiles(granted.map((a) => a.inPoolMs!)),
    },
  }
}

async function memoryAtRest({ workerPid, signal }: ScaleWorld): Promise<{ most: number }> {
  let most = 0
  for (const until = Date.now() + REST_MS; Date.now() < until; ) {
    most = Math.max(most, memoryMb(workerPid).rss)
    await pause(LOOK_MS, undefined, { signal })
  }
  return { most }
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
  const shown = ({ p50, p90, p99 }: { p50: number; p90: number; p99: number }) => `${p50} / ${p90} / ${p99}`
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
    ['API requests per lease', `${result.apiRequestsPerLease}`, `${goals.apiRequestsPerLease}`],
    ['pods over desired, most', `${result.podsOverDesiredMax}`, `${goals.podsOverDesiredMax}`],
    [`worker's memory with ${phases.watched.pods} pods, MB`, `${result.rssMb}`, `${goals.rssMb}`],
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
    '',
    result.note,
    `a peer's gate: ${shown(PEER_MS)} ms`,
    `${result.shards} shards, seed ${result.seed}; ${m.cores} cores (${m.cpu}), Node ${m.node}, Kubernetes ${m.kubernetes}, ${m.server}`,
    `load average ${loadAverage.before.join(' ')} before, ${loadAverage.after.join(' ')} after`,
    '',
  ].join('\n')
}
