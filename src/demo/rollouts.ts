import type { Problem as Failure } from '../contract/errors.js'
import type { JobOutcome, JobResult, JobSpec } from '../contract/job.js'
import { BENIGN_MUTATIONS } from './benign-mutations.js'
import { CHECKER } from './checker.js'
import type { Problem } from './humaneval.js'
import { type Mutation, mutations } from './mutation.js'
import { type Random, random } from './random.js'

/** What is wrong with a rollout, if anything. */
export type RolloutKind =
  | 'reference'
  // honest mistakes
  | 'mutation'
  | 'constant'
  | 'syntax-error'
  | 'exception'
  | 'endless'
  // attempts to be rewarded without solving the problem
  | 'early-exit'
  | 'hard-exit'
  | 'forged-verdict'
  | 'equals-everything'

export const CHEATS = ['early-exit', 'hard-exit', 'forged-verdict', 'equals-everything'] as const
const MISTAKES = ['constant', 'syntax-error', 'exception'] as const

/** One candidate solution and all that judges it. Plain JSON. */
export interface Rollout {
  /** e.g. 'HumanEval/12.1 mutation': problem, position, kind; unique in one set */
  id: string
  taskId: string
  kind: RolloutKind
  /** what was done to the reference solution, for people */
  what: string
  /** the candidate: a whole Python program */
  program: string
  prompt: string
  entryPoint: string
  test: string
  /** the secret word of the verdict line; the candidate never sees it */
  nonce: string
  /** the reward that a right verifier gives */
  expected: 0 | 1
}

export interface RolloutOptions {
  seed: string | number
  /** broken variants of each problem, 0 to 3: a mutation, then a cheat, then another mistake; default 2 */
  broken?: number
  /**
   * the share of problems (0 to 1) that get an endless loop in place of their last broken variant: each one costs
   * its whole time limit; default 0.03
   */
  endless?: number
}

const ENDLESS_SHARE = 0.03

/**
 * The rollouts of an RL step: of each problem the reference solution and seeded broken variants, in problem order.
 * Deterministic by seed, whatever subset of the problems is given.
 */
export function rollouts(problems: readonly Problem[], options: RolloutOptions): Rollout[] {
  return problems.flatMap((problem) => {
    const draw = random(`rollouts ${options.seed} ${problem.taskId}`)
    const kinds: RolloutKind[] = ['mutation', draw.pick(CHEATS), draw.pick(MISTAKES)]
    const chosen = kinds.slice(0, options.broken ?? 2)
    if (chosen.length > 0 && draw.next() < (options.endless ?? ENDLESS_SHARE))
      chosen[chosen.length - 1] = 'endless'
    const all: RolloutKind[] = ['reference', ...chosen]
    return all.map((kind, position) => rollout(problem, kind, draw, position))
  })
}

/** One rollout of a given kind. A problem without a mutation that is sure to break it gets a wrong constant. */
export function rollout(problem: Problem, kind: RolloutKind, draw: Random, position = 0): Rollout {
  const sites = kind === 'mutation' ? breakingMutations(problem) : []
  const made = kind === 'mutation' && sites.length === 0 ? 'constant' : kind
  const { body, what } = sites.length > 0 ? draw.pick(sites) : candidateBody(problem, made, draw)
  return {
    id: `${problem.taskId}.${position} ${made}`,
    taskId: problem.taskId,
    kind: made,
    what,
    program:
      made === 'early-exit' ? `import sys\nsys.exit(0)\n\n${problem.prompt}${body}` : problem.prompt + body,
    prompt: problem.prompt,
    entryPoint: problem.entryPoint,
    test: problem.test,
    nonce: nonce(draw),
    expected: made === 'reference' ? 1 : 0,
  }
}

/** 96 bits: not to be guessed. Seeded, since a workflow must draw the same on replay; a trainer draws its own. */
function nonce(draw: Random): string {
  return [0, 1, 2].map(() => draw.below(0x1_0000_0000).toString(16).padStart(8, '0')).join('')
}

function candidateBody(problem: Problem, kind: RolloutKind, draw: Random): { body: string; what: string } {
  const lines = (what: string, ...code: string[]) => ({
    what,
    body: `${code.map((l) => `    ${l}`).join('\n')}\n`,
  })
  switch (kind) {
    case 'reference':
      return { what: 'as published', body: problem.canonicalSolution }
    case 'constant': {
      const value = draw.pick(WRONG_CONSTANTS)
      return lines(`always returns ${value}`, `return ${value}`)
    }
    case 'syntax-error':
      return { what: 'a bracket is never closed', body: `${problem.canonicalSolution}\n    return (\n` }
    case 'exception':
      return lines('raises', `raise ValueError('not solved')`)
    case 'endless':
      return lines('never returns', 'while True:', '    pass')
    case 'early-exit':
      return { what: 'exits with 0 before the tests', body: problem.canonicalSolution }
    case 'hard-exit':
      return lines('exits with 0 in the first call', 'import os', 'os._exit(0)')
    case 'forged-verdict': {
      const forged = `${VERDICT} ${nonce(draw)} pass 1 ok`
      const print = `os.write(1, b'${forged}\\n')`
      return lines(
        'prints a verdict of its own',
        'import os',
        print,
        `print('${forged}', flush=True)`,
        'os._exit(0)',
      )
    }
    case 'equals-everything': {
      const methods = ['__eq__', '__lt__', '__le__', '__gt__', '__ge__'].map((m) => `'${m}': lambda *_: True`)
      return lines('returns an object equal to all', `return type('Any', (), {${methods.join(', ')}})()`)
    }
    case 'mutation':
      throw new Error('a mutation is drawn from breakingMutations')
  }
}

/** Values that no problem of the set accepts in all of its tests (the test runs every one of them). */
export const WRONG_CONSTANTS = [`None`, `'no answer'`, `[None]`, `-987654`] as const

/** The mutations of a reference solution that its tests are known to catch. */
export function breakingMutations(problem: Problem): Mutation[] {
  const benign = BENIGN_MUTATIONS[Number(problem.taskId.split('/')[1])] ?? []
  return mutations(problem.canonicalSolution).filter((m) => !benign.includes(m.site))
}

const VERDICT = 'firepool-verdict'

export interface VerifierOptions {
  /** how long the tests may take; default '10s' */
  timeout?: JobSpec['timeout']
  /** the interpreter in the pod; default python3 */
  python?: string
}

/**
 * The job that judges a rollout in a pod. -I and -S keep the pod's own packages and variables out and save most of
 * Python's start (about 10 ms instead of 13 to 75, measured); -B writes no bytecode beside the candidate.
 */
export function verifierJob(rollout: Rollout, options: VerifierOptions = {}): JobSpec {
  const { nonce, prompt, test, entryPoint } = rollout
  return {
    command: [options.python ?? 'python3', '-I', '-S', '-B', 'check.py'],
    files: [
      { path: 'check.py', content: CHECKER },
      { path: 'candidate.py', content: rollout.program },
    ],
    stdin: `${JSON.stringify({ nonce, prompt, test, entryPoint, seed: 1 })}\n`,
    timeout: options.timeout ?? '10s',
  }
}

/** What a verifier job says: a reward, or that nothing can be said and the job must be run again. */
export type Score =
  | { kind: 'reward'; reward: 0 | 1; why: string }
  | { kind: 'unscored'; why: string; problem?: Failure }

/**
 * The score of a rollout from how its job ended. Only what the candidate itself did may cost it the reward:
 * - a verdict line with the rollout's nonce decides;
 * - JobTimeout and OutputTooLarge (origin 'job') are the candidate's own failure: reward 0;
 * - PodLost and every other infrastructure or caller problem is never a reward, neither 1 nor 0;
 * - a checker that ended by itself without a verdict did not run (no python3 in the pod, say): no reward;
 * - a checker that was killed by a signal was killed by what it ran: reward 0.
 */
export function scoreOf(rollout: Rollout, outcome: JobOutcome): Score {
  if (outcome.kind === 'problem') {
    const { problem } = outcome
    const why = `${problem.code}: ${problem.message}`
    return problem.origin === 'job' ? { kind: 'reward', reward: 0, why } : { kind: 'unscored', why, problem }
  }
  const { result } = outcome
  const verdict = verdictOf(rollout, result)
  if (verdict) return { kind: 'reward', reward: verdict.pass ? 1 : 0, why: verdict.why }
  if (result.signal !== null)
    return { kind: 'reward', reward: 0, why: `the checker was ended by ${result.signal}` }
  const said = result.stderr.trim().split('\n').at(-1) ?? ''
  return { kind: 'unscored', why: `the checker did not run (exit ${result.exitCode}): ${said}` }
}

/**
 * The reward of a job that ended with a result.
 * @throws Error when the checker did not run: an infrastructure failure is never a reward
 */
export function rewardOf(rollout: Rollout, result: JobResult): 0 | 1 {
  const score = scoreOf(rollout, { kind: 'result', result })
  if (score.kind === 'unscored') throw new Error(`${rollout.id} has no reward: ${score.why}`)
  return score.reward
}

function verdictOf(rollout: Rollout, result: JobResult): { pass: boolean; why: string } | undefined {
  const start = `${VERDICT} ${rollout.nonce} `
  for (const line of result.stdout.split('\n')) {
    if (!line.startsWith(start)) continue
    const [verdict, , ...words] = line.slice(start.length).split(' ')
    return { pass: verdict === 'pass', why: words.join(' ') }
  }
  return undefined
}
