import { formatMs } from '../contract/index.js'
import { HURRY_MS, outputWritten } from '../exit.js'
import { Cleanup } from './cleanup.js'
import { type ForcedEnd, forceEnd } from './force.js'
import { loadHumanEval, type Problem, resolvePython } from './humaneval.js'
import { Interrupted, listenForEnd, unlessAborted } from './interruption.js'
import { DEMO_WORKFLOW, sessionWorkflowId } from './names.js'
import { type DemoChoices, type DemoPlan, demoPlan, rlJobs } from './plan.js'
import { isRight, type LoopProgress, loopResult } from './records.js'
import type { DemoResult } from './result.js'
import { type DemoLoop, runSide } from './side.js'
import { Stage } from './stage.js'
import { Progress, type ProgressState, type ProgressStream, renderTable } from './table.js'
import type { AgentLoopInput, RlLoopInput } from './workflows.js'

export interface DemoOptions extends DemoChoices {
  json: boolean
  /** leave everything running until Ctrl-C */
  keep: boolean
}

/** Where the demo writes and what it reads; `process` has all of it. */
export interface DemoStreams {
  stdout: { write(text: string): unknown }
  stderr: ProgressStream
  env: NodeJS.ProcessEnv
  /** calls back when whoever reads the output has gone; then the demo ends as by Ctrl-C */
  onClosed?(then: () => void): void
}

const SIDE_LABEL = { withFirepool: 'with Firepool', freshPod: 'a fresh pod per job' } as const
const RL_LOOP = 'RL loop'
const AGENT_LOOP = 'Agent loop'

/**
 * The whole demo: starts everything, runs both loops on both sides, prints, and undoes all it started.
 * @returns the exit code: 0 when nothing failed and every result was right, 128 + n after a signal, else 1
 * @throws Error with cause and remedy when it could not get to its result; by then all is undone
 */
export async function runDemo(options: DemoOptions, streams: DemoStreams): Promise<number> {
  const cleanup = new Cleanup()
  const force: ForcedEnd = {}
  const progress = new Progress(streams.stderr, () => performance.now())
  const say = (line: string) => {
    progress.finish()
    streams.stderr.write(`${line}\n`)
  }
  const end = listenForEnd(() => {
    say('firepool demo: killed everything')
    void outputWritten(HURRY_MS).then(() => {
      forceEnd(force)
      process.exit(1)
    })
  })
  streams.onClosed?.(() => end.abort(new Interrupted('SIGPIPE')))
  // An error that nobody caught must not leave pods and files behind.
  const crashed = (error: Error) => {
    say(`firepool demo: unexpected: ${error.stack ?? error.message}`)
    if (!cleanup.started) end.abort(error)
  }
  process.on('uncaughtException', crashed)
  const parts = { cleanup, force, progress, say, signal: end.signal }
  let code: number
  let failure: unknown
  try {
    code = await new Demo(options, streams, demoPlan(options), parts).play()
  } catch (error) {
    // What fails under an abort fails because of it, whatever it says.
    const reason: unknown = end.signal.aborted ? end.signal.reason : error
    code = reason instanceof Interrupted ? reason.exitCode : 1
    if (!(reason instanceof Interrupted)) failure = new Error(messageOf(reason), { cause: reason })
  }
  if (end.signal.reason instanceof Interrupted) say('stopping everything (Ctrl-C again kills)')
  for (const left of await cleanup.run()) {
    say(`firepool demo: could not ${left}`)
    code ||= 1
  }
  end.close()
  process.off('uncaughtException', crashed)
  if (failure) throw failure
  return code
}

interface DemoParts {
  cleanup: Cleanup
  force: ForcedEnd
  progress: Progress
  say: (line: string) => void
  signal: AbortSignal
}

class Demo {
  constructor(
    private readonly options: DemoOptions,
    private readonly streams: DemoStreams,
    private readonly plan: DemoPlan,
    private readonly parts: DemoParts,
  ) {}

  async play(): Promise<number> {
    const { say, signal } = this.parts
    this.announce()
    const python = await unlessAborted(signal, resolvePython())
    const stage = await this.openStage()
    const problems = await this.loadProblems(python)
    await stage.startLoops(Array.isArray(problems) ? problems : [])
    signal.throwIfAborted()
    const result = this.emptyResult()
    if (Array.isArray(problems)) result.loops.push(await this.runLoop(stage, this.rlLoop(python)))
    else result.notRun.push({ name: RL_LOOP, reason: problems.reason })
    result.loops.push(await this.runLoop(stage, this.agentLoop(python)))
    this.print(result)
    const right = result.notRun.length === 0 && result.loops.every(isRight)
    if (!right) say(`firepool demo FAILED: ${whatFailed(result)}`)
    await this.farewell(stage)
    return right ? 0 : 1
  }

  private announce(): void {
    const { startDelay, compression, rl, agent, seed } = this.plan
    const { say } = this.parts
    say(
      `Firepool demo, seed ${seed}: an RL loop (${rlJobs(rl)} verifier jobs, ${rl.slots} at once) and an agent loop`,
    )
    say(
      `(${agent.sessions} sessions side by side), each first with Firepool and then with a fresh pod for every job.`,
    )
    say(
      `Pods are processes of this machine. Their cold start is IMITATED: ${formatMs(startDelay.minMs)} to ` +
        `${formatMs(startDelay.maxMs)}, what a GPU pod takes divided by ${compression}; so are the pauses. Jobs are real.`,
    )
  }

  private async openStage(): Promise<Stage> {
    const { say, cleanup, force, signal } = this.parts
    const stage = await Stage.open({
      cleanup,
      force,
      signal,
      env: this.streams.env,
      onServerProgress: ({ message, elapsedSeconds }) =>
        say(`  ${message}${elapsedSeconds > 0 ? ` (${elapsedSeconds} s)` : ''}`),
    })
    say(`Temporal server: ${stage.server.description}`)
    say(`Pods are started by ${stage.podsBy}.`)
    if (stage.server.uiUrl)
      say(`Temporal UI: ${stage.server.uiUrl} (look at the loops and pools while they run)`)
    return stage
  }

  /** The RL loop needs HumanEval; without it the agent loop still runs, and the demo fails in the end, with the reason. */
  private async loadProblems(python: string): Promise<Problem[] | { reason: string }> {
    const { say, signal } = this.parts
    const note = setTimeout(() => say('  fetching HumanEval (164 programming problems) with pip'), 500)
    try {
      return await loadHumanEval({ python, signal })
    } catch (error) {
      signal.throwIfAborted()
      const reason = messageOf(error)
      say(`The ${RL_LOOP} cannot run: ${reason}`)
      return { reason }
    } finally {
      clearTimeout(note)
    }
  }

  private rlLoop(python: string): DemoLoop {
    const { rl, seed } = this.plan
    return {
      name: RL_LOOP,
      key: 'rl',
      workflow: DEMO_WORKFLOW.rlLoop,
      concurrency: rl.slots,
      input: (pool, side) => ({ v: 1, pool, side, seed, python, plan: rl }) satisfies RlLoopInput,
      progressIds: (workflowId) => [workflowId],
    }
  }

  private agentLoop(python: string): DemoLoop {
    const { agent, seed, compression } = this.plan
    const { sessions, maxSteps } = agent
    return {
      name: AGENT_LOOP,
      key: 'agent',
      workflow: DEMO_WORKFLOW.agentLoop,
      concurrency: sessions,
      input: (pool, side) =>
        ({ v: 1, pool, side, seed, python, sessions, maxSteps, compression }) satisfies AgentLoopInput,
      progressIds: (workflowId) =>
        Array.from({ length: sessions }, (_, session) => sessionWorkflowId(workflowId, session)),
    }
  }

  private async runLoop(stage: Stage, loop: DemoLoop) {
    const side = async (which: keyof typeof SIDE_LABEL) => {
      let over = false
      const show = (progress: LoopProgress) => {
        // The last line stays; the pool is looked at further until its last pod is gone.
        if (!over) this.parts.progress.update(progressState(loop.name, SIDE_LABEL[which], progress))
        over = progress.done >= progress.total
      }
      const run = await runSide(stage, loop, which, this.plan, show)
      this.parts.progress.finish()
      return run
    }
    return loopResult(loop.name, await side('withFirepool'), await side('freshPod'))
  }

  private emptyResult(): DemoResult {
    const { seed, startDelay, compression } = this.plan
    return { v: 1, seed, startDelay, compression, loops: [], notRun: [] }
  }

  private print(result: DemoResult): void {
    this.parts.progress.finish()
    if (this.options.json) this.streams.stdout.write(`${JSON.stringify(result)}\n`)
    else this.streams.stdout.write(`\n${renderTable(result)}\n`)
  }

  /** Says where the workflows are, and with --keep waits for Ctrl-C. */
  private async farewell(stage: Stage): Promise<void> {
    const { say, signal } = this.parts
    const { uiUrl, address, namespace } = stage.server
    const where = uiUrl ? `${uiUrl}/namespaces/${namespace}/workflows` : `the UI of the server at ${address}`
    if (!this.options.keep) {
      if (uiUrl)
        say(`The Temporal UI (${where}) ends with the demo; --keep leaves it open with all workflows in it.`)
      else say(`The workflows stay in ${where}; the demo's pools are being deleted.`)
      return
    }
    say(`Temporal UI: ${where}`)
    say(`Everything is left running until Ctrl-C. For other commands: TEMPORAL_ADDRESS=${address}`)
    await unlessAborted(signal, untilFailed(stage.signal)).catch((error: unknown) => {
      if (!(error instanceof Interrupted)) throw error
    })
  }
}

/** Never ends in order: it waits for the end of the stage, and keeps the process alive meanwhile. */
function untilFailed(signal: AbortSignal): Promise<never> {
  return new Promise((_, reject) => {
    const alive = setInterval(() => undefined, 60_000)
    const end = () => {
      clearInterval(alive)
      reject(signal.reason)
    }
    if (signal.aborted) end()
    else signal.addEventListener('abort', end, { once: true })
  })
}

function progressState(loop: string, side: ProgressState['side'], progress: LoopProgress): ProgressState {
  const { done, total, failures, hits } = progress
  return { loop, side, done, total, failures, ...hits }
}

/** e.g. 'the RL loop has not run; Agent loop: 2 failures, 70 of 72 results right' */
export function whatFailed({ loops, notRun }: DemoResult): string {
  const bad = loops.filter((loop) => !isRight(loop))
  return [
    ...notRun.map(({ name }) => `the ${name} has not run`),
    ...bad.map(
      ({ name, failures, rewards, complaints }) =>
        `${name}: ${failures} failures, ${rewards.right} of ${rewards.expected} results right (${complaints[0] ?? 'no results'})`,
    ),
  ].join('; ')
}

/** The message of an error with those of its causes that say more (a failed workflow hides why in them). */
function messageOf(error: unknown): string {
  const messages: string[] = []
  for (let cause: unknown = error; cause instanceof Error && messages.length < 5; cause = cause.cause) {
    if (!messages.includes(cause.message)) messages.push(cause.message)
  }
  return messages.join(': ') || String(error)
}
