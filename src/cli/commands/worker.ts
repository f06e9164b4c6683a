import { join } from 'node:path'
import { Command } from 'commander'
import { serveHealth } from '../../health.js'
import { stateFolder } from '../../state-folder.js'
import type { FirepoolWorker, KubernetesOptions } from '../../worker.js'
import { parseNumber } from '../arguments.js'
import { addServerOptions, chooseServer, connect, type ServerOptions } from '../connection.js'
import { loadDataConverter } from '../data-converter.js'
import { EXIT_HELP } from '../exit-code.js'
import { CliError, usageError } from '../failure.js'
import { takeInterrupts } from '../interrupt.js'
import { makeStateFolder, secretsFolder } from '../state-folder.js'
import { printJson, printNote, printOut } from '../terminal.js'
import { chooseTokens, type TokenOptions } from '../token-settings.js'

const HELP = `
Serves Firepool's task queues against a server that runs already, until SIGTERM or Ctrl-C. Running jobs and pods live
on: the next worker on the same state folder adopts them. Several workers may share a folder.

Examples:
  TEMPORAL_ADDRESS=temporal:7233 firepool worker
  TEMPORAL_PROFILE=prod firepool worker --data-converter ./codec.mjs
  firepool worker --backend kubernetes --kube-namespace agents --keys /etc/firepool/keys --health-port 8080 --log -
  firepool worker --address 127.0.0.1:7233 --namespace agents --dir /var/lib/firepool`

interface WorkerOptions extends ServerOptions, TokenOptions {
  jobSlots?: number
  cachedWorkflows?: number
  json?: boolean
  backend?: string
  keys?: string
  secrets?: string
  kubeconfig?: string
  kubeContext?: string
  kubeNamespace?: string
  healthPort?: number
  log?: string
}

/** `firepool worker` */
export function workerCommand(): Command {
  const command = new Command('worker')
    .description('only the worker, against a server that runs already')
    .option('--job-slots <n>', 'jobs that may run at once under this worker (default: 1000)', parseNumber)
    .option('--cached-workflows <n>', 'workflows kept in memory (default: 2000)', parseNumber)
    .option(
      '--backend <kind>',
      'where the pods are: local or kubernetes (else FIREPOOL_BACKEND; default: local)',
    )
    .option(
      '--keys <folder>',
      "folder of the broker's key, e.g. a mounted Secret (else FIREPOOL_KEYS; default: keys in the state folder)",
    )
    .option('--secrets <folder>', 'of local pods: a file for each secret of jobs (else FIREPOOL_SECRETS)')
    .option(
      '--kubeconfig <file>',
      "of the cluster (else KUBECONFIG, ~/.kube/config, or the pod's service account)",
    )
    .option('--kube-context <name>', 'of the kubeconfig')
    .option(
      '--kube-namespace <names>',
      "namespaces of the pods, with commas (else FIREPOOL_KUBE_NAMESPACE; default: the context's)",
    )
    .option(
      '--token-port <n>',
      "serve tokens of leases to callers' own workers in the cluster, for short jobs (else FIREPOOL_TOKEN_PORT)",
    )
    .option(
      '--token-callers <accounts>',
      'service accounts that may ask: namespace/name or namespace/*, with commas (else FIREPOOL_TOKEN_CALLERS)',
    )
    .option('--token-tls <folder>', 'with tls.crt and tls.key; none is plain HTTP (else FIREPOOL_TOKEN_TLS)')
    .option(
      '--health-port <n>',
      'serve /livez, /readyz and /metrics on this port, for probes and Prometheus',
      parseNumber,
    )
    .option(
      '--log <file>',
      'where its log goes; - is standard error (default: worker.log in the state folder)',
    )
    .option('--json', 'print { v, address, namespace, dir } as one line when it serves')
    .addHelpText('after', HELP)
    .addHelpText('after', EXIT_HELP)
    .action(work)
  return addServerOptions(command)
}

async function work(options: WorkerOptions): Promise<void> {
  const { jobSlots, cachedWorkflows, healthPort } = options
  checkCount('--job-slots', jobSlots, 1)
  // Two is the least with which the SDK works.
  checkCount('--cached-workflows', cachedWorkflows, 2)
  checkCount('--health-port', healthPort, 1, 65_535)
  const backend = chooseBackend(options)
  const keysDir = options.keys ?? process.env.FIREPOOL_KEYS
  const secretsDir = backend === 'local' ? secretsFolder(options.secrets) : undefined
  const { address, namespace, connection, because } = chooseServer(options)
  const dataConverter = await loadDataConverter(options.dataConverter)
  const dir = makeStateFolder(stateFolder(options.dir))
  const interrupt = takeInterrupts(() => process.exit(130))
  let worker: FirepoolWorker | undefined
  // Before the server is asked: a kubelet wants an answer from the beginning.
  if (healthPort !== undefined) await openHealth(healthPort, () => worker)
  // Asked first for a clear error; the worker makes connections of its own.
  await (await connect({ address, connection, because })).close()
  const { installRuntime } = await import('../temporal-runtime.js')
  const { startFirepoolWorker } = await import('../../worker.js')
  worker = await startFirepoolWorker({
    address,
    namespace,
    ...connection,
    dir,
    ...(dataConverter ? { dataConverter } : {}),
    backend,
    ...(keysDir ? { keysDir } : {}),
    ...(secretsDir === undefined ? {} : { secretsDir }),
    log: installRuntime(options.log ?? join(dir, 'worker.log')),
    ...(jobSlots === undefined ? {} : { jobSlots }),
    ...(cachedWorkflows === undefined ? {} : { cachedWorkflows }),
  })
  if (worker.searchAttributes) printNote(`note: ${worker.searchAttributes}`)
  if (options.json) printJson({ v: 1, address, namespace, dir })
  else
    printOut(
      `worker serves namespace ${namespace} at ${address} (${because})${podsOf(worker.backend)}; state in ${dir}`,
    )
  const stop = () => {
    printNote('stopping; running jobs and pods live on for the next worker')
    worker?.shutdown().catch(() => undefined)
  }
  if (interrupt.signal.aborted) stop()
  interrupt.signal.addEventListener('abort', stop)
  await worker.done
}

/** @throws CliError of usage: what is of a cluster would be ignored in silence beside local pods */
export function chooseBackend(
  options: Pick<
    WorkerOptions,
    'backend' | 'secrets' | 'kubeconfig' | 'kubeContext' | 'kubeNamespace' | keyof TokenOptions
  >,
  env: NodeJS.ProcessEnv = process.env,
): 'local' | KubernetesOptions {
  const kind = options.backend ?? (env.FIREPOOL_BACKEND || 'local')
  const { kubeconfig, kubeContext: context, kubeNamespace } = options
  if (kind === 'kubernetes') {
    if (options.secrets !== undefined)
      throw usageError(
        '--secrets is of local pods',
        "leave it out, and mount a Secret by the pool's template",
      )
    const names = kubeNamespace ?? env.FIREPOOL_KUBE_NAMESPACE ?? ''
    const namespaces = names.split(',').flatMap((name) => name.trim() || [])
    const tokens = chooseTokens(options, env)
    return {
      kind,
      namespaces,
      ...(tokens === undefined ? {} : { tokens }),
      ...(kubeconfig === undefined ? {} : { kubeconfig }),
      ...(context === undefined ? {} : { context }),
    }
  }
  if (kind !== 'local') throw usageError(`--backend is '${kind}'`, 'give local or kubernetes')
  const [foreign] = Object.entries({
    '--kubeconfig': kubeconfig,
    '--kube-context': context,
    '--kube-namespace': kubeNamespace,
    '--token-port': options.tokenPort,
    '--token-callers': options.tokenCallers,
    '--token-tls': options.tokenTls,
  }).filter(([, value]) => value !== undefined)
  if (foreign)
    throw usageError(`${foreign[0]} is of pods in a cluster`, 'add --backend kubernetes, or leave it out')
  return 'local'
}

function podsOf(backend: FirepoolWorker['backend']): string {
  return 'namespaces' in backend ? `, pods in Kubernetes' namespace ${backend.namespaces.join(', ')}` : ''
}

async function openHealth(port: number, worker: () => FirepoolWorker | undefined): Promise<void> {
  try {
    await serveHealth(
      port,
      () => worker()?.notReady() ?? ['it is starting'],
      () => worker()?.metrics() ?? [],
    )
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException
    const why = code === 'EADDRINUSE' ? 'is taken' : `cannot be used: ${message}`
    throw new CliError(
      'PortTaken',
      `port ${port} of --health-port ${why}`,
      'choose another one, or stop who has it',
    )
  }
}

function checkCount(name: string, value: number | undefined, least: number, most = 1_000_000): void {
  if (value === undefined || (Number.isInteger(value) && value >= least && value <= most)) return
  throw usageError(`${name} is ${value}`, `give a whole number from ${least} to ${most}`)
}
