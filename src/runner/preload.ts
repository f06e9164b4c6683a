import type { JobSpec, Preload } from '../contract/index.js'

/** Which jobs may be forked from a preloaded interpreter: decided by their text alone. */

/** Whether a job is a call of the interpreter that a process forked from it can answer; `why` when its environment is in the way. */
export type Forkable = { kind: 'no' } | { kind: 'yes'; argv: string[] } | { kind: 'unless'; why: string }

/**
 * What an interpreter and the libraries of the preload read when they start: a forked process has started already. The counts of threads
 * are set anew in each child.
 */
const READ_AT_START =
  /^(PATH|HOME|LANG|LANGUAGE|LC_\w+|PYTHON\w*|LD_\w+|GLIBC_TUNABLES|MALLOC_\w+|(OMP|GOMP|KMP|MKL|OPENBLAS)_\w+)$/
const SET_ANEW = new Set(['OMP_NUM_THREADS', 'MKL_NUM_THREADS', 'OPENBLAS_NUM_THREADS'])

/** @param env of every job of the pod, which the interpreter was started with */
export function forkable(preload: Preload, spec: JobSpec, env: Record<string, string>): Forkable {
  const { command } = spec
  if (typeof command === 'string' || !isCall(preload.python, command)) return { kind: 'no' }
  const other = Object.entries(spec.env ?? {}).find(
    ([name, value]) => READ_AT_START.test(name) && !SET_ANEW.has(name) && env[name] !== value,
  )
  if (other !== undefined)
    return { kind: 'unless', why: `its env sets ${other[0]}, which is read when an interpreter starts` }
  return { kind: 'yes', argv: command }
}

/** `python FILE.py`, `python -c CODE` or `python -m MODULE`, with arguments; options of the interpreter itself need a new one. */
function isCall(python: string, [first, what, next]: string[]): boolean {
  if (first !== python || what === undefined) return false
  if (what === '-c' || what === '-m') return next !== undefined
  return !what.startsWith('-') && what.endsWith('.py')
}
