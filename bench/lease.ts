import { readFileSync } from 'node:fs'
import { cpus, loadavg } from 'node:os'
import type { WorkerOptions } from '@temporalio/worker'
import { ACTIVITY } from '../dist/contract/names.js'
import { shardOfCaller } from '../dist/contract/shards.js'
import { FirepoolPlugin, shortJobActivities } from '../dist/plugin/index.js'
import { heldMemory } from './held.js'
import { machine, quantile, round } from './report.js'
import { signalDelay } from './signal-delay.js'
import { type BenchWorld, createPool, log, run, withBenchWorld } from './world.js'

export interface LeaseOptions {
  /** local activities of each kind */
  short: number
  /** callers that acquire at once, of each kind: a multiple of SHARDS; 0: not measured */
  acquirers: number
  /** leases that each of them takes in one block */
  turns: number
  /** how long signals are sent, at 100 a second */
  signalSeconds: number
  /** leases that are held while the worker's memory is read; 0: not measured */
  held: number
  /** 1: on a server with PostgreSQL, as the tests in test/production have it */
  production: number
}

export const DEFAULTS: LeaseOptions = {
  short: 400,
  acquirers: 12,
  turns: 8,
  signalSeconds: 20,
  held: 1_000,
  production: 0,
}

/** The pool that is compared with a whole one has so many. */
const SHARDS = 4
const ACQUIRE_BLOCKS = 4
/** Four shards of a pool, the server and both workers find room on as many. */
const CORES_WANTED = 8

const BLOCKS = 10

/** When the local activities of the loop that runs now began, ms. */
const began: number[] = []

/**
 * Short jobs on a held lease against bare local activities that do the same work without Firepool (post to an HTTP server
 * that starts /bin/true). What an op took is the time between the starts of two local activities of one loop. Beside it, how
 * many leases on warm pods a pool of 4 shards grants a second, against a whole one.
 */
export async function lease(options: LeaseOptions) {
  return await withBenchWorld(
    async (world) => {
      await createPool(world.client, 'short', { budget: 1, standby: 1, maxPods: 1 })
      log(`short: ${options.short} of each, in alternating blocks`)
      const each = Math.ceil(options.short / BLOCKS)
      const ms: Record<'bare' | 'short', number[]> = { bare: [], short: [] }
      await measured(() => run(world.client, 'localLoop', [2]))
      await measured(() => run(world.client, 'shortLoop', ['short', 'bench', 2]))
      for (let block = 0; block < BLOCKS; block++) {
        ms.bare.push(...(await measured(() => run(world.client, 'localLoop', [each + 1]))))
        ms.short.push(...(await measured(() => run(world.client, 'shortLoop', ['short', 'bench', each + 1]))))
      }
      const acquires = options.acquirers > 0 ? await acquiresPerSecond(world, options) : null
      log(`signals: 100 a second to one pool for ${options.signalSeconds} s`)
      const signals = await signalDelay(world, options.signalSeconds)
      if (options.held > 0) log(`held: memory with ${options.held} leases, and with as many idle workflows`)
      const held = options.held > 0 ? await heldMemory(world, options.held) : null
      const p50 = (kind: keyof typeof ms) => quantile(ms[kind], 0.5)
      return {
        machine: machine(world.server),
        options,
        ratios: {
          shortOverLocalActivityP50: round(p50('short') / p50('bare')),
          ...(acquires ? { shardedAcquireOverSingle: round(acquires.sharded / acquires.single) } : {}),
          ...(held ? { rssHeldOverIdle: held.ratio } : {}),
        },
        ...(acquires ? { acquires: { ...acquires, goal: 2.5, note: coresNote() } } : {}),
        signalDelayMs: signals.actedOnMs,
        signals,
        ...(held ? { held } : {}),
        shortMs: Object.fromEntries(
          Object.entries(ms).map(([kind, all]) => [
            kind,
            { p50: round(quantile(all, 0.5), 2), p90: round(quantile(all, 0.9), 2), n: all.length },
          ]),
        ),
      }
    },
    (dir, bare) => callerOptions(dir, bare),
    options.production === 1,
  )
}

/** Callers of each kind take turns on their own warm pods; as many of them belong to each shard. */
async function acquiresPerSecond({ client, serverPid }: BenchWorld, { acquirers, turns }: LeaseOptions) {
  const spec = { budget: acquirers, maxPods: acquirers + 2 * SHARDS }
  await createPool(client, 'single', spec)
  await createPool(client, 'sharded', { ...spec, shards: SHARDS })
  const callers = evenCallers(acquirers)
  const block = async (pool: string, each: number) => {
    const from = performance.now()
    const busy = cpuMs(serverPid)
    await Promise.all(callers.map((caller) => run(client, 'turnLoop', [pool, caller, each])))
    return { wall: performance.now() - from, cpu: cpuMs(serverPid) - busy }
  }
  log(`acquires: ${acquirers} callers take ${turns} leases each, in alternating blocks`)
  const ms = { single: { wall: 0, cpu: 0 }, sharded: { wall: 0, cpu: 0 } }
  for (const kind of ['single', 'sharded'] as const) await block(kind, 2)
  for (let n = 0; n < ACQUIRE_BLOCKS; n++)
    for (const kind of ['single', 'sharded'] as const) {
      const { wall, cpu } = await block(kind, turns)
      ms[kind].wall += wall
      ms[kind].cpu += cpu
    }
  const rate = (kind: keyof typeof ms) =>
    round((acquirers * turns * ACQUIRE_BLOCKS * 1_000) / ms[kind].wall, 1)
  const busy = (kind: keyof typeof ms) => round(ms[kind].cpu / ms[kind].wall, 2)
  return {
    single: rate('single'),
    sharded: rate('sharded'),
    /** of the server and of both workers; the pods beside them */
    busyCores: { single: busy('single'), sharded: busy('sharded') },
  }
}

function evenCallers(count: number): string[] {
  const left = new Array<number>(SHARDS).fill(count / SHARDS)
  const callers: string[] = []
  for (let i = 0; callers.length < count && i < 1_000 * count; i++) {
    const caller = `bench-${i}`
    if (left[shardOfCaller(caller, SHARDS)]!-- > 0) callers.push(caller)
  }
  return callers
}

/** Ticks of CPU in /proc are hundredths of a second. */
const TICK_MS = 10

/** CPU that the server and this process, in which both workers run, have used. */
function cpuMs(serverPid: number): number {
  const { user, system } = process.cpuUsage()
  const stat = readFileSync(`/proc/${serverPid}/stat`, 'utf8')
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
  return (user + system) / 1_000 + (Number(fields[11]) + Number(fields[12])) * TICK_MS
}

/** What the ratio can be taken for, on this machine at this moment. */
function coresNote(): string {
  const cores = cpus().length
  const load = round(loadavg()[0]!, 1)
  const says =
    cores >= CORES_WANTED && load <= cores
      ? 'the goal applies'
      : `no room for ${SHARDS} shards, the goal says nothing`
  return `on ${cores} cores under a load of ${load}: ${says}`
}

async function measured(loop: () => Promise<unknown>): Promise<number[]> {
  began.length = 0
  await loop()
  return began.slice(1).map((at, i) => at - began[i]!)
}

function callerOptions(dir: string, bare: () => Promise<unknown>): Partial<WorkerOptions> {
  const short = shortJobActivities({ dir })[ACTIVITY.runShort]
  const noted =
    <A extends unknown[], R>(activity: (...args: A) => R) =>
    (...args: A): R => {
      began.push(performance.now())
      return activity(...args)
    }
  class NotedPlugin extends FirepoolPlugin {
    override configureWorker(options: WorkerOptions): WorkerOptions {
      const { activities, ...rest } = super.configureWorker(options)
      return { ...rest, activities: { ...activities, [ACTIVITY.runShort]: noted(short) } }
    }
  }
  return { activities: { postBare: noted(bare) }, plugins: [new NotedPlugin({ dir })] }
}
