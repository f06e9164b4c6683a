import { execFile } from 'node:child_process'
import { readFile } from 'node:fs/promises'
import { loadavg } from 'node:os'
import { join } from 'node:path'
import { setTimeout as pause } from 'node:timers/promises'
import { promisify } from 'node:util'
import { createFirepoolClient } from '../dist/client/index.js'
import { type Release, SIGNAL } from '../dist/contract/index.js'
import { type Random, random } from '../dist/demo/random.js'
import { createRunnerClient, jobDigest } from '../dist/runner/client.js'
import { createSigner, loadKeys } from '../dist/token/token.js'
import { IMAGE } from '../test/support/container-image.js'
import { waitUntil } from '../test/support/wait.js'
import {
  brokerOverheadMs,
  follow,
  grantMoments,
  holding,
  killedAt,
  msOfEpoch,
  PHASES,
  type Phases,
  phasesOf,
  releasedAt,
  setClock,
  wallMs,
} from './handover-trace.js'
import {
  describeCluster,
  FRESH,
  fileOf,
  PoolView,
  type SeatNode,
  type SeatPod,
  SHARED,
  seatProfile,
  startSeatNode,
} from './handover-world.js'
import { machine, quantile, round } from './report.js'
import { type BenchWorld, createPool, log, withBenchWorld } from './world.js'

const execute = promisify(execFile)

export interface HandoverOptions {
  /** from one pod to the other, on one GPU */
  handovers: number
  /** jobs of a parked pod whose GPU is free */
  retakes: number
  /** handovers by deleting the holder's pod and creating one */
  fresh: number
  /** the imitated cold start of those, ms */
  coldMs: number
  seed: number
}

export const DEFAULTS: HandoverOptions = { handovers: 120, retakes: 200, fresh: 4, coldMs: 25_000, seed: 1 }

/** Of the broker's and the agent's part at p50. */
const OVERHEAD_GOAL_MS = 250
const RETAKE_GOAL_MS = 5
/** So that no sample keeps time with somebody's poll. */
const PAUSE_MS_MAX = 60
/**
 * Between two jobs of a parked pod, beside that: a loop thinks between two jobs, for seconds. By then its pod has given its GPU back, the GPU was measured
 * empty, and the pod has made ready for the next job.
 */
const THINK_MS = 60
/** The two ways in which a pod starts a job, each with a pool: forked from what it has preloaded (the one that has a goal), or a program like any other. */
const RETAKES = {
  preloaded: {
    profile: { image: IMAGE.python, preload: { python: 'python3', imports: ['json'] } },
    command: ['python3', '-c', 'import time; print(time.time())'],
  },
  spawned: { profile: {}, command: ['/bin/sh', '-c', 'echo $EPOCHREALTIME'] },
}
type Way = keyof typeof RETAKES

interface Bench {
  world: BenchWorld
  seats: SeatNode
  random: Random
}

/**
 * A GPU passes from the job of one pod to that of another one, which waits for it: real pods of a real kubelet, a real pool, the real node agent. The order
 * is what the pool hears when a lease is over; from then on nobody but Firepool acts. Beside it: the same by deleting the pod and creating another
 * one, whose cold start is imitated, and how soon a parked pod has its free GPU again.
 */
export async function handover(options: HandoverOptions) {
  let seats!: SeatNode
  return await withBenchWorld(
    async (world) => {
      const bench: Bench = { world, seats, random: random(options.seed) }
      const load = [currentLoad()]
      log(`handover: ${options.handovers}, from one pod to another on one GPU`)
      const phases = await handovers(bench, options.handovers)
      load.push(currentLoad())
      log(`retake: ${options.retakes} jobs of a parked pod whose GPU is free, in each of two ways`)
      const retakes = await retakesOf(bench, options.retakes)
      load.push(currentLoad())
      log(
        `fresh: ${options.fresh} by deleting and creating, with an imitated cold start of ${options.coldMs} ms`,
      )
      const fresh = await freshMs(bench, options)
      load.push(currentLoad())
      const totals = phases.map((each) => brokerOverheadMs(each) + each.exit)
      return {
        machine: machine(world.server),
        cluster: await describeCluster(seats),
        options,
        load: { note: 'load average of one minute: before, and after each part', values: load },
        ratios: { handoverSpeedupP50: round(quantile(fresh, 0.5) / quantile(totals, 0.5), 1) },
        brokerOverheadMsP50: round(quantile(phases.map(brokerOverheadMs), 0.5), 1),
        brokerOverheadMs: { ...spread(phases.map(brokerOverheadMs)), goal: OVERHEAD_GOAL_MS },
        phasesMs: spreads(PHASES, phases),
        handoverMs: spread(totals),
        deleteAndCreateMs: spread(fresh),
        seatRetakeMsP50: round(quantile(retakes.preloaded.map(sumOf), 0.5), 2),
        seatRetakeMs: { ...spread(retakes.preloaded.map(sumOf)), goal: RETAKE_GOAL_MS },
        seatRetakePhasesMs: spreads(RETAKE_PHASES, retakes.preloaded),
        seatRetakeSpawnedMs: spread(retakes.spawned.map(sumOf)),
        seatRetakeSpawnedPhasesMs: spreads(RETAKE_PHASES, retakes.spawned),
      }
    },
    undefined,
    false,
    async (cleanup, signal) => {
      const { backend, ...started } = await startSeatNode(cleanup, signal)
      seats = started
      return backend
    },
  )
}

const currentLoad = () => round(loadavg()[0]!, 1)

function spread(ms: number[]) {
  const at = (q: number) => round(quantile(ms, q), 2)
  return { p50: at(0.5), p90: at(0.9), p99: at(0.99), n: ms.length }
}

function spreads<Name extends string>(names: readonly Name[], samples: readonly Record<Name, number>[]) {
  return Object.fromEntries(names.map((name) => [name, spread(samples.map((sample) => sample[name]))]))
}

/** Two callers with a pod each take the GPU from one another. */
async function handovers(bench: Bench, count: number): Promise<Phases[]> {
  const { world, seats, random } = bench
  const names = ['a', 'b']
  await createPool(world.client, 'pair', {
    budget: names.length,
    standby: names.length,
    maxPods: names.length,
    profile: seatProfile('shared'),
  })
  const view = new PoolView(world.client, 'pair', seats)
  const pods: SeatPod[] = []
  for (const caller of names) {
    // The first job of a pod pays for what is loaded then.
    const result = await firepool(bench).runJob({ pool: 'pair', caller, job: { command: 'true' } })
    const place = await view.place(result.pod)
    await execute('mkfifo', ['--mode=666', join(place.work, 'trace')])
    pods.push(place)
  }
  const take = (turn: number) => {
    const trace = follow(join(pods[turn % 2]!.work, 'trace'))
    void startHolding(bench, 'pair', names[turn % 2]!, SHARED)
    return trace
  }
  let held = take(0)
  await held.said
  const samples: Phases[] = []
  for (let turn = 1; turn <= count; turn++) {
    const [from, to] = [pods[(turn + 1) % 2]!, pods[turn % 2]!]
    const next = take(turn)
    await seats.agent.until('the other pod waits for the GPU', ({ waiting }) => waiting === 1)
    const { leaseId, pod, epoch } = await view.lease(names[(turn + 1) % 2]!)
    await pause(random.below(PAUSE_MS_MAX))
    setClock()
    const told = wallMs()
    await view.handle.signal(SIGNAL.release, { v: 1, leaseId, pod, epoch } satisfies Release)
    const [gone, said] = await Promise.all([held.gone, next.said])
    const killed = await waitUntil('the runner has said when it killed the job', async () =>
      killedAt(await readFile(from.logFile, 'utf8'), told),
    )
    const released = await waitUntil('the agent has said when it heard of the release', () =>
      releasedAt(seats.agent.log(), told, from.uid),
    )
    const granted = await waitUntil('the agent has said when it granted', () =>
      grantMoments(seats.agent.log(), told, to.uid),
    )
    samples.push(phasesOf({ told, killed, gone, released, ...granted, ...said }))
    held = next
  }
  await endLease(view, names[count % 2]!)
  await held.gone
  return samples
}

const firepool = ({ world }: Bench) => createFirepoolClient({ client: world.client })

/** One job that holds the device until its lease is ended, which it hears as PodLost. */
async function startHolding(bench: Bench, pool: string, caller: string, gpu: number, command?: string) {
  const job = { command: command ?? holding(bench.seats.agent.device(gpu)), timeout: '1h' }
  await firepool(bench)
    .runJob({ pool, caller, job })
    .catch((error: { problem?: { code: string } }) => {
      if (error.problem?.code !== 'PodLost') throw error
    })
}

async function endLease(view: PoolView, caller: string, more: Partial<Release> = {}): Promise<void> {
  const { leaseId, pod, epoch } = await view.lease(caller)
  await view.handle.signal(SIGNAL.release, { v: 1, leaseId, pod, epoch, ...more } satisfies Release)
}

/** What taking a free GPU is made of: the request's way to the agent, its decision on disk and its answer, the start of the job. */
const RETAKE_PHASES = ['request', 'grant', 'fork'] as const
type Retake = Record<(typeof RETAKE_PHASES)[number], number>
const sumOf = ({ request, grant, fork }: Retake) => request + grant + fork

/** From the request to the runner to the first instruction of the job, which has taken the GPU by then; both ways take turns. */
async function retakesOf(bench: Bench, count: number): Promise<Record<Way, Retake[]>> {
  const ways = Object.keys(RETAKES) as Way[]
  const samples: Record<Way, Retake[]> = { preloaded: [], spawned: [] }
  const parked = new Map<Way, Parked>()
  for (const way of ways) parked.set(way, await park(bench, way))
  for (let n = 0; n <= count; n++) {
    for (const way of ways) {
      const sample = await parked.get(way)!.retake(n)
      // The first one opens the connection.
      if (n > 0) samples[way].push(sample)
    }
  }
  for (const { holder } of parked.values()) await holder.terminate()
  return samples
}

type Parked = Awaited<ReturnType<typeof park>>

/** A pod that a caller has, between two of its jobs. */
async function park({ world, seats, random }: Bench, way: Way) {
  const { profile, command } = RETAKES[way]
  const sizes = { budget: 1, standby: 1, maxPods: 1 }
  await createPool(world.client, way, { ...sizes, profile: seatProfile('shared', profile) })
  const view = new PoolView(world.client, way, seats)
  const holder = await world.client.workflow.start('holdLease', {
    workflowId: `hold-lease-${way}`,
    taskQueue: 'bench',
    args: [way, 'a'],
  })
  const { leaseId, pod, epoch } = await view.lease('a')
  const sign = createSigner(loadKeys(join(world.dir, 'keys')))
  const { uid } = await view.place(pod)
  const runner = createRunnerClient(await view.address(pod), sign(pod, 'lease', epoch, leaseId))
  const spec = { command }
  async function retake(n: number): Promise<Retake> {
    await seats.agent.until('the GPU is free', ({ gpus }) => gpus[SHARED]!.phase === 'free')
    await pause(THINK_MS + random.below(PAUSE_MS_MAX))
    const job = { v: 1, jobId: `retake/${n}`, digest: jobDigest(spec) } as const
    setClock()
    const asked = wallMs()
    const outcome = await runner.jobs({ ...job, epoch, spec })
    await runner.ack(job)
    if (outcome.kind !== 'result') throw new Error(outcome.problem.message)
    const { stdout, preload } = outcome.result
    if (preload?.forked === false) throw new Error(`a job was not forked: ${preload.why}`)
    const began = msOfEpoch(stdout)
    const { decided, answered } = await waitUntil('the agent has said when it granted', () =>
      grantMoments(seats.agent.log(), asked, uid),
    )
    return { request: decided - asked, grant: answered - decided, fork: began - answered }
  }
  return { holder, retake }
}

/** From the order to the next job's open device, when the holder's pod is deleted and another one is created. */
async function freshMs(bench: Bench, { fresh, coldMs }: HandoverOptions): Promise<number[]> {
  const { world, seats } = bench
  const startDelay = { minMs: coldMs, maxMs: coldMs }
  await createPool(world.client, 'fresh', {
    budget: 1,
    standby: 1,
    maxPods: 1,
    profile: seatProfile('fresh', { startDelay }),
  })
  const view = new PoolView(world.client, 'fresh', seats)
  const command = `exec 3<${seats.agent.device(FRESH)}; echo $EPOCHREALTIME > opened; exec sleep 3600`
  const opened = async (caller: string) => {
    const { pod } = await view.lease(caller)
    const { work } = await view.place(pod)
    return msOfEpoch(await fileOf(join(work, 'opened')))
  }
  void startHolding(bench, 'fresh', 'c-0', FRESH, command)
  await opened('c-0')
  const ms: number[] = []
  for (let n = 1; n <= fresh; n++) {
    void startHolding(bench, 'fresh', `c-${n}`, FRESH, command)
    await waitUntil('the next caller waits', async () => (await view.status()).queue.capacity === 1)
    setClock()
    const told = wallMs()
    // Not kept warm for anybody: no keep-alive is waited for.
    await endLease(view, `c-${n - 1}`, { retire: true })
    ms.push((await opened(`c-${n}`)) - told)
  }
  await endLease(view, `c-${fresh}`, { retire: true })
  return ms
}
