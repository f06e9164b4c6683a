import { Command } from 'commander'
import type { RunJobOptions } from '../../client/index.js'
import {
  type Checked,
  checkJob,
  checkWorkPath,
  FirepoolError,
  type JobResult,
  type JobSpec,
  type RunJobInput,
} from '../../contract/index.js'
import { exitWithOutput, HURRY_MS } from '../../exit.js'
import { collect, parseDuration, parseNumber } from '../arguments.js'
import {
  addServerOptions,
  type OpenClient,
  requireWorker,
  type ServerOptions,
  withFirepool,
} from '../connection.js'
import { EXIT, EXIT_HELP_RUN, exitCodeOfJob } from '../exit-code.js'
import { usageError } from '../failure.js'
import { takeInterrupts } from '../interrupt.js'
import { JobConsole } from '../job-console.js'
import { parseEnv, readFiles, readStdin } from '../job-input.js'
import { printable, printJson, printNote } from '../terminal.js'
import { waitNote } from '../wait-note.js'

const HELP = `
The output comes as the job writes it, exactly. What is piped in is the job's standard input. Without --caller each
run has a caller of its own, so that its pod is used by nobody else; with --caller later runs find their pod warm,
with its work folder as they left it. While it waits for a pod, standard error says why. Ctrl-C cancels the job and
waits for its end.

Examples:
  firepool run --pool cpu -- python3 -c 'print(6 * 7)'
  firepool run --pool cpu --shell -- 'ls -l | wc -l'
  firepool run --pool cpu --caller me --file train.py --timeout 2m -- python3 train.py
  tar c src | base64 | firepool run --pool cpu --shell -- 'base64 -d | tar x && ls src'`

interface RunOptions extends ServerOptions {
  pool: string
  caller?: string
  slot?: string
  reuseTag?: string
  tenant?: string
  priority?: number
  timeout?: string | number
  acquireTimeout?: string | number
  env: string[]
  file: string[]
  cwd?: string
  shell?: boolean
  stdin: boolean
  quiet?: boolean
  json?: boolean
}

/** `firepool run` */
export function runCommand(): Command {
  const command = new Command('run')
    .description('run one job on a pod and print its output')
    .usage('--pool <name> [options] -- CMD [ARG...]')
    .argument('<command...>', 'the command and its arguments')
    .requiredOption('-p, --pool <name>', 'pool to run on')
    .option('--caller <key>', 'who reuses the pod; any text of up to 512 bytes (default: this run alone)')
    .option('--slot <key>', "which of the caller's parallel pods (default: 0)")
    .option('--reuse-tag <key>', 'distinguishes environments of one caller')
    .option('--tenant <key>', 'whose share it is (default: default)')
    .option('--priority <n>', '0 (last) to 9 (first) in the queue (default: 5)', parseNumber)
    .option('--timeout <time>', 'time limit of the job (default: 10m)', parseDuration)
    .option('--acquire-timeout <time>', 'how long to wait for a pod (default: 5m)', parseDuration)
    .option('-e, --env <K=V>', 'environment variable; K alone passes ours on (repeatable)', collect, [])
    .option('-F, --file <path[:dest]>', 'file to put into the work folder first (repeatable)', collect, [])
    .option('--cwd <folder>', 'where to run it, relative to the work folder')
    .option('-s, --shell', 'the command is a text for /bin/sh -c')
    .option('--no-stdin', 'leave standard input alone')
    .option('-q, --quiet', 'do not say on standard error why the job waits')
    .option('--json', 'print one object at the end, { v, pool, workflowId, result }, and no output before')
    .addHelpText('after', HELP)
    .addHelpText('after', EXIT_HELP_RUN)
    .passThroughOptions()
    .action(run)
  return addServerOptions(command)
}

async function run(words: string[], options: RunOptions): Promise<void> {
  const job = await jobOf(words, options)
  accepted(checkJob(job))
  const input: RunJobInput = { v: 1, pool: options.pool, ...acquireOf(options), job }
  process.exitCode = await withFirepool(options, (open) =>
    options.json ? runJson(open, input, options) : runLive(open, input, options),
  )
}

async function jobOf(words: string[], options: RunOptions): Promise<JobSpec> {
  if (words[0]?.trim() === '')
    throw usageError('the command is empty', 'write it after --, such as -- echo hello')
  const job: JobSpec = { command: options.shell ? words.join(' ') : words }
  const env = parseEnv(options.env)
  if (Object.keys(env).length > 0) job.env = env
  const files = readFiles(options.file)
  if (files.length > 0) job.files = files
  if (options.cwd !== undefined) job.cwd = accepted(checkWorkPath(options.cwd, '--cwd', 'folder'))
  if (options.timeout !== undefined) job.timeout = options.timeout
  const stdin = options.stdin ? await readStdin() : undefined
  if (stdin !== undefined) job.stdin = stdin
  return job
}

/** What no pod would take is refused before one is asked for. @throws FirepoolError */
function accepted<T>({ value, problem: wrong }: Checked<T>): T {
  if (wrong) throw new FirepoolError(wrong)
  return value as T
}

function acquireOf(options: RunOptions): Partial<RunJobInput> {
  const { caller, slot, reuseTag, tenant, priority, acquireTimeout } = options
  const given = { caller, slot, reuseTag, tenant, priority, acquireTimeout }
  return Object.fromEntries(Object.entries(given).filter(([, value]) => value !== undefined))
}

async function runJson(open: OpenClient, input: RunJobInput, { quiet }: RunOptions): Promise<number> {
  let workflowId = ''
  const interrupt = interrupts()
  try {
    const onStarted = (id: string) => {
      workflowId = id
    }
    const result = await start(open, input, { signal: interrupt.signal, onStarted, ...waitNotes(quiet) })
    printJson({ v: 1, pool: input.pool, workflowId, result })
    return exitCodeOfJob(result)
  } finally {
    interrupt.release()
  }
}

async function runLive(open: OpenClient, input: RunJobInput, { quiet }: RunOptions): Promise<number> {
  const interrupt = interrupts()
  const gone = new AbortController()
  const output = await JobConsole.open(() => gone.abort())
  try {
    const job = { ...input.job, outputTo: output.url }
    const signal = AbortSignal.any([interrupt.signal, gone.signal])
    const result = await start(open, { ...input, job }, { signal, ...waitNotes(quiet) })
    const exact = await output.finish(result)
    if (gone.signal.aborted) return EXIT.pipeClosed
    const exitCode = exitCodeOfJob(result)
    return exitCode === EXIT.ok && !exact ? EXIT.outputIncomplete : exitCode
  } catch (error) {
    await output.close()
    if (gone.signal.aborted) return EXIT.pipeClosed
    throw error
  } finally {
    await output.close()
    interrupt.release()
  }
}

async function start(
  open: OpenClient,
  input: RunJobInput,
  options: RunJobOptions & { signal: AbortSignal },
): Promise<JobResult> {
  await requireWorker(open)
  return open.firepool.runJob(input, options)
}

/** Says on standard error why the job waits, also with --json: that is for standard output. */
function waitNotes(quiet = false): Pick<RunJobOptions, 'onWaiting'> {
  if (quiet) return {}
  return { onWaiting: (waiting) => printNote(printable(`firepool: ${waitNote(waiting, Date.now())}`)) }
}

/** The first Ctrl-C cancels, the second one does not wait for the job's end. */
function interrupts() {
  const interrupt = takeInterrupts(() => {
    printNote('not waiting for the end of the job; its cancellation is under way')
    void exitWithOutput(EXIT.cancelled, HURRY_MS)
  })
  interrupt.signal.addEventListener('abort', () =>
    printNote('cancelling the job; Ctrl-C again does not wait for it'),
  )
  return interrupt
}
