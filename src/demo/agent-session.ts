import type { JobFile, JobResult, JobSpec } from '../contract/job.js'
import { sampler } from './agent-data.js'
import { type Random, random } from './random.js'
import {
  addCurrency,
  apply,
  BASE_RATES,
  BASE_TESTS,
  baseFiles,
  EDIT_SCRIPT,
  jobFiles,
  type Replacement,
  SAMPLE_REPORT,
  SLIPS,
  type Slip,
  undo,
} from './repository.js'

export type StepKind = 'setup' | 'edit' | 'test' | 'search' | 'build' | 'view'

/** What a step's result must contain. */
export interface Expectation {
  exitCode: number
  /** the whole standard output, where it is known */
  stdout?: string
  /** texts that must stand in standard output or standard error */
  contains: string[]
  /** texts that must not */
  lacks: string[]
  /** collected files and their exact content */
  files: JobFile[]
}

/** One tool call of an agent. Plain JSON. */
export interface AgentStep {
  index: number
  kind: StepKind
  what: string
  /** how long the agent thinks before it, as measured; divide by the demo's compression factor */
  pauseMs: number
  /** for a pod that ran the steps before this one */
  job: JobSpec
  /** the same work for a pod that ran nothing: the job brings the repository as the steps before left it */
  freshJob: JobSpec
  expect: Expectation
}

export interface AgentSession {
  id: string
  steps: AgentStep[]
}

export interface SessionOptions {
  seed: string | number
  /** the session's length is drawn from the figures and cut here; default 20 */
  maxSteps?: number
  /** the interpreter in the pod; default python3 */
  python?: string
}

const REPOSITORY = 'repository'
/** Stands beside the repository and says which session's it is and how many edits it has seen. */
const REVISION = 'revision'
/** Exit code and text of a step that finds no repository, or one of another revision. */
const LOST_EXIT = 75
const LOST_TEXT = 'firepool-demo: this work folder does not hold revision'
const STEP_TIMEOUT = '60s'

/** The agent's own git settings: nothing of the machine's, and no editor, pager or signature. */
const ENVIRONMENT = {
  LC_ALL: 'C',
  GIT_CONFIG_GLOBAL: '/dev/null',
  GIT_CONFIG_NOSYSTEM: '1',
  GIT_AUTHOR_NAME: 'agent',
  GIT_AUTHOR_EMAIL: 'agent@example.invalid',
  GIT_COMMITTER_NAME: 'agent',
  GIT_COMMITTER_EMAIL: 'agent@example.invalid',
}

/** git is part of the work where the pod has it; the checks hold without it. */
const GIT_START = `if command -v git >/dev/null; then git -c init.defaultBranch=main init -q && git add -A && git commit -q -m start; fi`
const GIT_COMMIT = `if command -v git >/dev/null; then git commit -q -a -m edit && git status --porcelain; fi`

/** How often an agent does what, in percent, after the set-up. */
const MIX: readonly [StepKind, number][] = [
  ['edit', 30],
  ['test', 30],
  ['search', 20],
  ['view', 10],
  ['build', 10],
]
/** An agent that has seen its tests fail mends the code at once this often, in percent; else it looks around. */
const MEND_PERCENT = 70
/** Every so many edits is a slip. */
const SLIP_EVERY = 3

const NEEDLES = ['RATES', 'def test_', 'import', 'in_euros', 'entry.', 'class ', 'return', 'no such text']

/**
 * A session: sets up a small repository, then edits, tests, searches, builds and views it, with pauses and a length
 * drawn from the measured figures. Every step is a real command that depends on the edits before it. Pure and
 * deterministic by seed.
 */
export function agentSession(options: SessionOptions): AgentSession {
  const { seed, maxSteps = 20, python = 'python3' } = options
  const id = `agent-${String(seed).replaceAll(/[^\w-]/g, '-')}`
  const figures = sampler(seed)
  const count = Math.max(1, Math.min(maxSteps, figures.jobsPerSession()))
  const work = new Work(id, quote(python), random(`steps ${seed}`))
  const steps = [work.setup()]
  while (steps.length < count) steps.push(work.step(steps.length, figures.pauseSeconds() * 1000))
  return { id, steps }
}

/** The job that makes the repository: the session's first step. */
export function setupJob(session: AgentSession): JobSpec {
  return session.steps[0]!.job
}

/** @returns what is wrong with a step's result, or null when it is as it must be */
export function checkStep(step: AgentStep, result: JobResult): string | null {
  const { exitCode, stdout, contains, lacks, files } = step.expect
  if (result.exitCode !== exitCode) {
    const end = result.exitCode ?? result.signal
    return `exit ${end} instead of ${exitCode}: ${result.stderr.trim().split('\n').at(-1)}`
  }
  if (stdout !== undefined && result.stdout !== stdout) {
    return `standard output is ${JSON.stringify(result.stdout)}, not ${JSON.stringify(stdout)}`
  }
  const said = `${result.stdout}\n${result.stderr}`
  for (const text of contains) if (!said.includes(text)) return `the output lacks ${JSON.stringify(text)}`
  for (const text of lacks) if (said.includes(text)) return `the output has ${JSON.stringify(text)}`
  for (const file of files) {
    const content = result.files.find((f) => f.path === file.path)?.content
    if (content === undefined) return `${file.path} was not collected`
    if (content !== file.content) return `${file.path} has another content than the edit makes`
  }
  return null
}

/** True when the pod did not hold the repository (it is another pod than before): run the step's freshJob. */
export function repositoryLost(result: JobResult): boolean {
  return result.exitCode === LOST_EXIT && result.stderr.includes(LOST_TEXT)
}

/** The repository as the session's steps leave it, and the next step from it. */
class Work {
  private readonly files = baseFiles()
  private revision = 0
  private currencies = 0
  private slip: Slip | null = null
  private seenFailing = false

  constructor(
    private readonly id: string,
    private readonly python: string,
    private readonly draw: Random,
  ) {}

  setup(): AgentStep {
    const job: JobSpec = {
      command: `cd ${REPOSITORY} && ${GIT_START} && ls`,
      env: ENVIRONMENT,
      files: this.restore(),
      timeout: STEP_TIMEOUT,
    }
    const stdout = 'README.md\nsample.txt\nsrc\ntests\n'
    const what = 'set up the repository'
    return { index: 0, kind: 'setup', what, pauseMs: 0, job, freshJob: job, expect: expectation({ stdout }) }
  }

  step(index: number, pauseMs: number): AgentStep {
    const kind = this.choose()
    const freshFiles = this.restore()
    const made = this.make(kind)
    const job: JobSpec = {
      command: made.command,
      env: ENVIRONMENT,
      timeout: STEP_TIMEOUT,
      ...(made.files ? { files: made.files } : {}),
      ...(made.stdin === undefined ? {} : { stdin: made.stdin }),
      ...(made.expect.files.length > 0 ? { collect: made.expect.files.map((f) => f.path) } : {}),
    }
    const freshJob: JobSpec = {
      ...job,
      command: `(cd ${REPOSITORY} && ${GIT_START}) && ${made.command}`,
      files: [...freshFiles, ...(made.files ?? [])],
    }
    return { index, kind, what: made.what, pauseMs: Math.round(pauseMs), job, freshJob, expect: made.expect }
  }

  private choose(): StepKind {
    if (this.slip && this.seenFailing && this.draw.below(100) < MEND_PERCENT) return 'edit'
    let at = this.draw.below(100)
    for (const [kind, percent] of MIX) {
      if (at < percent) return kind
      at -= percent
    }
    return 'test'
  }

  private make(kind: StepKind): Made {
    switch (kind) {
      case 'edit':
        return this.edit()
      case 'search':
        return this.search()
      case 'build':
        return this.build()
      case 'view':
        return this.view()
      default:
        return this.test()
    }
  }

  private edit(): Made {
    const { what, changes } = this.nextChange()
    const guard = this.guard()
    apply(this.files, changes)
    this.revision++
    const files = [...new Set(changes.map((c) => c.path))].map((path) => ({
      path: `${REPOSITORY}/${path}`,
      content: this.files.get(path) ?? '',
    }))
    const run = `${this.python} -I -S -B ../edit.py && ${GIT_COMMIT} && printf %s '${this.stamp()}' > ../${REVISION}`
    return {
      what,
      command: `${guard} && ${run}`,
      files: [{ path: 'edit.py', content: EDIT_SCRIPT }],
      stdin: JSON.stringify(changes),
      expect: expectation({ stdout: `edited ${files.length} files\n`, files }),
    }
  }

  private nextChange(): { what: string; changes: Replacement[] } {
    if (this.slip) {
      const changes = [undo(this.slip.change)]
      this.slip = null
      this.seenFailing = false
      return { what: `mend ${changes[0]!.path}`, changes }
    }
    if (this.draw.below(SLIP_EVERY) === 0) {
      this.slip = this.draw.pick(SLIPS)
      return { what: `edit ${this.slip.change.path}, with a slip`, changes: [this.slip.change] }
    }
    const name = `C${String(++this.currencies).padStart(2, '0')}`
    return { what: `add currency ${name}`, changes: addCurrency(name, 1 + this.draw.below(5000)) }
  }

  private test(): Made {
    const run = `${this.python} -I -S -B -m unittest discover -s tests -t .`
    const failing = this.slip?.failing ?? []
    this.seenFailing = failing.length > 0
    const ran = `Ran ${BASE_TESTS + this.currencies} tests in`
    const expect =
      failing.length === 0
        ? expectation({ contains: [ran, '\nOK\n'], lacks: ['FAIL', 'ERROR'] })
        : expectation({
            exitCode: 1,
            contains: [
              ran,
              `FAILED (failures=${failing.length})`,
              ...failing.map((name) => `FAIL: ${name} `),
            ],
            lacks: ['ERROR'],
          })
    return { what: 'run the tests', command: `${this.guard()} && ${run}`, expect }
  }

  private search(): Made {
    const needle = this.draw.pick(NEEDLES)
    const found: string[] = []
    for (const [path, text] of this.files) {
      if (!path.endsWith('.py')) continue
      text.split('\n').forEach((line, i) => {
        if (line.includes(needle)) found.push(`${path}:${i + 1}:${line}\n`)
      })
    }
    // sort: grep walks a folder in the file system's own order.
    const run = `grep -rnF --include='*.py' -- '${needle}' src tests | sort`
    const stdout = found.sort().join('')
    return {
      what: `search for '${needle}'`,
      command: `${this.guard()} && ${run}`,
      expect: expectation({ stdout }),
    }
  }

  private build(): Made {
    const python = `${this.python} -I -S -B`
    // Checked by hash: an edit in the same second that keeps the size would leave the bytecode in force.
    const compile = `${python} -m compileall -q -f --invalidation-mode checked-hash src`
    const pack = `mkdir -p dist && ${python} -m zipapp src -m tally.main:main -o dist/tally.pyz`
    const lines = this.slip?.report ?? SAMPLE_REPORT
    const stdout = `${lines.join('\n')}\n${BASE_RATES + this.currencies} currencies known\n`
    const command = `${this.guard()} && ${compile} && ${pack} && ${python} dist/tally.pyz sample.txt`
    return { what: 'build and try the build', command, expect: expectation({ stdout }) }
  }

  private view(): Made {
    const path = this.draw.pick(
      [...this.files.keys()].filter((p) => p.endsWith('.py') && !p.includes('__init__')),
    )
    const text = this.files.get(path) ?? ''
    const from = 1 + this.draw.below(10)
    const to = from + 14
    // The last element is the empty text after the last line's end.
    const lines = text
      .split('\n')
      .slice(0, -1)
      .slice(from - 1, to)
    const stdout = lines.map((line) => `${line}\n`).join('')
    const command = `${this.guard()} && sed -n '${from},${to}p' ${path}`
    return { what: `view ${path}`, command, expect: expectation({ stdout }) }
  }

  /** Goes into the repository, or fails with LOST_EXIT when it is not there as this step needs it. */
  private guard(): string {
    const holds = `[ "$(cat ${REVISION} 2>/dev/null)" = '${this.stamp()}' ]`
    return `{ ${holds} || { echo "${LOST_TEXT} ${this.stamp()}" >&2; exit ${LOST_EXIT}; }; } && cd ${REPOSITORY}`
  }

  private stamp(): string {
    return `${this.id}.${this.revision}`
  }

  /** The repository as it is now, as files of a job. */
  private restore(): JobFile[] {
    return [...jobFiles(this.files, REPOSITORY), { path: REVISION, content: this.stamp() }]
  }
}

interface Made {
  what: string
  command: string
  files?: JobFile[]
  stdin?: string
  expect: Expectation
}

function expectation(parts: Partial<Expectation>): Expectation {
  return { exitCode: 0, contains: [], lacks: [], files: [], ...parts }
}

/** A word for /bin/sh. */
function quote(word: string): string {
  return /^[\w./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`
}
