import { mkdtemp } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { Client, Connection } from '@temporalio/client'
import { NativeConnection } from '@temporalio/worker'
import { startDevServer } from '../dist/server/dev-server.js'
import { loadKeys } from '../dist/token/token.js'
import type { ControlPlane } from '../test/support/control-plane.js'
import { Keeper, type Part } from '../test/support/keeper.js'
import { startCluster, workerRuntime } from '../test/support/kubernetes-world.js'
import { waitUntil } from '../test/support/wait.js'
import type { Pids } from './process-use.js'
import type { ScaleLoad } from './scale-load.js'
import { type Ends, log, startWorker } from './world.js'

/** Pods that a fake node takes (its capacity is 1,000): some room is left for those on their way out. */
const PODS_PER_NODE = 900
/** Connections that are open, and addresses that kwok has not got back yet. */
const ADDRESSES_MORE = 1.2

const path = (relative: string) => fileURLToPath(new URL(relative, import.meta.url))

/** A real cluster without machines, a real Temporal server, Firepool's worker as a process of its own. */
export interface ScaleWorld {
  client: Client
  load: ScaleLoad
  cluster: ControlPlane
  /** of the Temporal server, for people */
  server: string
  workerPid: number
  /** all that takes part; `load` is this process */
  pids(): Pids
  signal: AbortSignal
}

/** @param options `pods`: the most that there will be; `profiled`: the worker writes a CPU profile when it ends */
export async function openScaleWorld(
  ends: Ends,
  { pods, load, profiled }: { pods: number; load: ScaleLoad; profiled: boolean },
): Promise<ScaleWorld> {
  const { cleanup, force, signal } = ends
  const keeper = await Keeper.open('firepool-bench-')
  cleanup.add('stop the worker and the stand-ins', () => keeper.close())
  force.dir = keeper.folder
  const dir = join(keeper.folder, 'firepool')
  const { publicKeyBase64 } = loadKeys(join(dir, 'keys'))
  const standIns = keeper.start(
    process.execPath,
    [
      '--import',
      'tsx',
      path('./runner-stand-in.ts'),
      publicKeyBase64,
      String(Math.ceil(pods * ADDRESSES_MORE)),
    ],
    { name: 'runner-stand-ins', env: process.env, cwd: path('..') },
  )
  const [podCidr] = await says(standIns, /^127\.\S+$/m, signal)
  log(
    `cluster: etcd, API server, controllers, scheduler and kwok, with ${Math.ceil(pods / PODS_PER_NODE) + 1} nodes`,
  )
  const cluster = await startCluster({
    nodes: Math.ceil(pods / PODS_PER_NODE) + 1,
    gpusPerNode: 0,
    podCidr: podCidr!,
  })
  cleanup.add('stop the cluster', () => cluster.stop())
  signal.throwIfAborted()
  const server = await startDevServer({ logFile: join(keeper.folder, 'server.log'), signal })
  force.serverPid = server.pid
  cleanup.add('stop the Temporal server', () => server.stop())
  const { address, namespace } = server
  const profile = profiled ? await mkdtemp(join(tmpdir(), 'firepool-profile-')) : null
  if (profile !== null) log(`the worker's CPU profile will be in ${profile}`)
  const node = profile === null ? [] : ['--cpu-prof', `--cpu-prof-dir=${profile}`]
  const command = [...node, ...workerArguments({ address, namespace, dir, cluster })]
  const worker = keeper.start(process.execPath, command, {
    name: 'worker',
    // As it is deployed, unless whoever measures says otherwise.
    env: { ...workerRuntime(), ...process.env },
  })
  cleanup.add('stop the worker', async () => {
    if (profile === null) return worker.stop()
    // Who is killed writes no profile.
    worker.signal('SIGTERM')
    await worker.exited
  })
  await says(worker, /^worker serves/m, signal)
  const connection = await NativeConnection.connect({ address })
  cleanup.add('close the connection', () => connection.close())
  await startWorker(ends, {
    connection,
    namespace,
    taskQueue: 'bench',
    workflowsPath: path('./workflows.ts'),
    sinks: load.sinks,
    maxCachedWorkflows: 2_000,
  })
  signal.throwIfAborted()
  const client = new Client({ connection: await Connection.connect({ address }), namespace })
  const pids = () =>
    new Map([
      ...[...cluster.keeper.running()].map(([name, pid]) => [name.replace(/-\d+$/, ''), pid] as const),
      ['temporal', server.pid] as const,
      ['worker', worker.pid] as const,
      ['runner-stand-ins', standIns.pid] as const,
      ['load', process.pid] as const,
    ])
  return { client, load, cluster, server: server.description, workerPid: worker.pid, pids, signal }
}

interface WorkerPlace {
  address: string
  namespace: string
  dir: string
  cluster: ControlPlane
}

/** As a user starts it. */
function workerArguments({ address, namespace, dir, cluster }: WorkerPlace): string[] {
  return [
    ...[path('../dist/cli/main.js'), 'worker', '--log', '-'],
    ...['--address', address, '--namespace', namespace, '--dir', dir],
    ...['--backend', 'kubernetes', '--kubeconfig', cluster.workerKubeconfigPath],
    ...['--kube-namespace', cluster.namespace],
  ]
}

/** What a process prints when it is ready. */
async function says(part: Part, line: RegExp, signal: AbortSignal): Promise<RegExpExecArray> {
  return waitUntil(`${line} is printed`, () => {
    signal.throwIfAborted()
    if (part.hasExited()) throw new Error(`it ended; it printed ${part.log().slice(-2_000)}`)
    return line.exec(part.log())
  })
}
