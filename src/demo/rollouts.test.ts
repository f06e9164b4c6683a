import { mkdtemp, readFile, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { problem as failure, ORIGIN_OF } from '../contract/errors.js'
import type { JobOutcome, JobResult } from '../contract/job.js'
import { runBare } from './bare-job.js'
import { loadHumanEval, type Problem, resolvePython } from './humaneval.js'
import { mutations } from './mutation.js'
import { random } from './random.js'
import {
  breakingMutations,
  CHEATS,
  type Rollout,
  rewardOf,
  rollout,
  rollouts,
  scoreOf,
  verifierJob,
  WRONG_CONSTANTS,
} from './rollouts.js'

/** Everything instead of a sample: every kind, constant and mutation of every problem; about two minutes. */
const ALL = process.env.FIREPOOL_DEMO_ALL === '1'
/** Two at once: the machine is shared with other tests. */
const AT_ONCE = 2
const SEED = 7

let problems: Problem[]
let python: string
let root: string

beforeAll(async () => {
  problems = await loadHumanEval()
  python = await resolvePython()
  root = await mkdtemp(join(tmpdir(), 'firepool-rollouts-'))
}, 150_000)
afterAll(() => rm(root, { recursive: true, force: true }))

async function judge(judged: Rollout, timeout = '20s'): Promise<JobOutcome> {
  const folder = await mkdtemp(join(root, 'pod-'))
  const outcome = await runBare(verifierJob(judged, { python, timeout }), folder)
  await rm(folder, { recursive: true, force: true })
  return outcome
}

/** Runs all and returns those whose reward is not the expected one, with the reason. */
async function wrongOnes(list: Rollout[]): Promise<string[]> {
  const queue = [...list]
  const wrong: string[] = []
  const work = async () => {
    for (let next = queue.shift(); next; next = queue.shift()) {
      const score = scoreOf(next, await judge(next, next.kind === 'endless' ? '1s' : '20s'))
      const right = score.kind === 'reward' && score.reward === next.expected
      if (!right) wrong.push(`${next.id} (${next.what}): ${JSON.stringify(score)}`)
    }
  }
  await Promise.all(Array.from({ length: AT_ONCE }, work))
  return wrong
}

function problemOf(taskId: string): Problem {
  return problems.find((p) => p.taskId === taskId)!
}

/** A rollout of problem 0 with a program of its own. */
function withProgram(body: string, before = ''): Rollout {
  const base = rollout(problemOf('HumanEval/0'), 'constant', random(SEED))
  return { ...base, program: before + base.prompt + body }
}

test('the same seed gives the same rollouts, whatever else is in the set', () => {
  const all = rollouts(problems, { seed: SEED, broken: 3 })
  expect(rollouts(problems, { seed: SEED, broken: 3 })).toEqual(all)
  expect(rollouts(problems, { seed: SEED + 1, broken: 3 })).not.toEqual(all)
  expect(rollouts([problems[100]!], { seed: SEED, broken: 3 })).toEqual(
    all.filter((r) => r.taskId === 'HumanEval/100'),
  )
  expect(new Set(all.map((r) => r.id)).size).toBe(all.length)
  expect(new Set(all.map((r) => r.nonce)).size).toBe(all.length)
})

test('each problem has one reference and the asked number of broken variants', () => {
  for (const broken of [0, 1, 2, 3]) {
    const set = rollouts(problems, { seed: SEED, broken })
    expect(set.length).toBe(problems.length * (1 + broken))
    expect(set.filter((r) => r.expected === 1).length).toBe(problems.length)
    expect(set.every((r) => (r.kind === 'reference') === (r.expected === 1))).toBe(true)
  }
  const kinds = rollouts(problems, { seed: SEED, broken: 3 }).map((r) => r.kind)
  for (const kind of ['mutation', 'constant', 'syntax-error', 'exception', 'endless', ...CHEATS]) {
    expect(kinds).toContain(kind)
  }
  expect(kinds.filter((kind) => kind === 'endless').length).toBeLessThan(15)
})

test('all references pass', async () => {
  const references = rollouts(problems, { seed: SEED, broken: 0 })
  expect(references.length).toBe(164)
  expect(await wrongOnes(references)).toEqual([])
}, 180_000)

test('broken variants fail', async () => {
  const broken = rollouts(problems, { seed: SEED, broken: 3 }).filter((r) => r.expected === 0)
  const sample = broken.filter((r) => Number(r.taskId.split('/')[1]) % 4 === SEED % 4)
  expect(await wrongOnes(ALL ? broken : sample)).toEqual([])
}, 300_000)

test.runIf(ALL)(
  'every constant, cheat and mutation of every problem fails',
  async () => {
    const list = problems.flatMap((p) => {
      const base = rollout(p, 'constant', random(SEED))
      const constants = WRONG_CONSTANTS.map((value) => ({
        ...base,
        what: value,
        program: `${p.prompt}    return ${value}\n`,
      }))
      const mutated = breakingMutations(p).map((m) => ({ ...base, what: m.what, program: p.prompt + m.body }))
      const kinds = ([...CHEATS, 'syntax-error', 'exception'] as const).map((kind) =>
        rollout(p, kind, random(SEED)),
      )
      return [...constants, ...mutated, ...kinds]
    })
    expect(await wrongOnes(list)).toEqual([])
  },
  600_000,
)

test('an endless loop is the job its own failure: reward 0', async () => {
  const endless = rollout(problemOf('HumanEval/0'), 'endless', random(SEED))
  const outcome = await judge(endless, '500ms')
  expect(outcome).toMatchObject({ kind: 'problem', problem: { code: 'JobTimeout' } })
  expect(scoreOf(endless, outcome)).toMatchObject({ kind: 'reward', reward: 0 })
})

test('cheats get no reward', async () => {
  const p = problemOf('HumanEval/0')
  for (const kind of CHEATS) {
    const cheat = rollout(p, kind, random(SEED))
    const outcome = await judge(cheat)
    expect(scoreOf(cheat, outcome), kind).toMatchObject({ kind: 'reward', reward: 0 })
  }
})

test('a candidate finds neither the nonce nor the tests where it runs', async () => {
  const base = withProgram('    return None\n')
  // Backwards and in parts, so that the spy's own source and variables are not what it finds.
  const spy = `import gc, os, sys
found = sys.stdin.read() + ascii(dict(os.environ)) + open('check.py').read()
frame = sys._getframe()
while frame:
    found += ascii(frame.f_locals) + ascii(frame.f_globals)
    frame = frame.f_back
found += ascii([o for o in gc.get_objects() if isinstance(o, (dict, list, tuple))])
backwards = '${[...base.nonce].reverse().join('')}'
print('SPY', len(found) > 10000, backwards[::-1] in found, ''.join(['def ', 'check(']) in found)
`
  const spying = { ...base, program: `${spy}${base.program}` }
  const outcome = await judge(spying)
  if (outcome.kind !== 'result') throw new Error(outcome.problem.message)
  expect(outcome.result.stderr).toContain('SPY True False False')
  expect(outcome.result.stdout.trim().split('\n')).toHaveLength(1)
  expect(rewardOf(spying, outcome.result)).toBe(0)
})

test('a candidate that kills the checker or floods its answers gets no reward', async () => {
  // Only ever the checker: a parent with another name is left alone.
  const guard = `import os\nassert b'check.py' in open('/proc/%d/cmdline' % os.getppid(), 'rb').read()\n`
  const killer = withProgram('    return None\n', `${guard}os.kill(os.getppid(), 9)\n`)
  const killed = await judge(killer)
  expect(scoreOf(killer, killed)).toMatchObject({ kind: 'reward', reward: 0 })

  const flood = withProgram(
    '    return None\n',
    `import os\nfor fd in range(3, 12):\n    try:\n        os.write(fd, b'= True\\n' * 1000)\n    except OSError:\n        pass\n`,
  )
  expect(scoreOf(flood, await judge(flood))).toMatchObject({ kind: 'reward', reward: 0 })
})

test('what a right candidate prints does not cost it its reward', async () => {
  const p = problemOf('HumanEval/0')
  const noisy = {
    ...withProgram(p.canonicalSolution, `print('firepool-verdict 00 fail 0 no')\n`),
    expected: 1 as const,
  }
  expect(scoreOf(noisy, await judge(noisy))).toMatchObject({ kind: 'reward', reward: 1 })
})

test('infrastructure is never a reward', async () => {
  const reference = rollout(problemOf('HumanEval/0'), 'reference', random(SEED))
  for (const code of Object.keys(ORIGIN_OF) as (keyof typeof ORIGIN_OF)[]) {
    const score = scoreOf(reference, { kind: 'problem', problem: failure(code, 'for a test') })
    expect(score.kind, code).toBe(ORIGIN_OF[code] === 'job' ? 'reward' : 'unscored')
    if (score.kind === 'reward') expect(score.reward).toBe(0)
  }
  const missing = { ...verifierJob(reference, { python }), files: [] }
  const outcome = await runBare(missing, await mkdtemp(join(root, 'pod-')))
  expect(scoreOf(reference, outcome).kind).toBe('unscored')
  expect(() => rewardOf(reference, (outcome as { result: JobResult }).result)).toThrow(/did not run/)
})

test("a verdict for another rollout's nonce is no verdict", async () => {
  const [one, two] = rollouts([problemOf('HumanEval/0'), problemOf('HumanEval/1')], { seed: SEED, broken: 0 })
  const outcome = await judge(one!)
  expect(scoreOf(one!, outcome)).toMatchObject({ kind: 'reward', reward: 1 })
  expect(scoreOf(two!, outcome).kind).toBe('unscored')
})

test('mutations change one place each and leave strings and comments alone', () => {
  const body = `    # 1 < 2\n    if n <= 10 and s == "a < 1":\n        return x + 1 # + 1\n`
  expect(mutations(body).map((m) => m.what)).toEqual([
    'line 2: <= becomes <',
    'line 2: 10 becomes 11',
    'line 2: and becomes or',
    'line 2: == becomes !=',
    'line 3: + becomes -',
    'line 3: 1 becomes 2',
  ])
  for (const m of mutations(body)) expect(m.body).not.toBe(body)
})

test('a workflow may import the rollouts: no Node module among what they load', async () => {
  const queue = ['rollouts', 'agent-session']
  const seen = new Set<string>()
  for (let name = queue.shift(); name; name = queue.shift()) {
    if (seen.has(name)) continue
    seen.add(name)
    const source = await readFile(new URL(`./${name}.ts`, import.meta.url), 'utf8')
    const imports = source.matchAll(/^import (?!type )[^;]*? from '([^']+)'/gm)
    for (const [, from] of imports) {
      expect(from, name).not.toMatch(/^node:/)
      if (from?.startsWith('./')) queue.push(from.slice(2).replace('.js', ''))
    }
  }
  expect(seen).toContain('checker')
})
