import type { FirepoolClient } from '../client/index.js'
import { closestWord, FirepoolError, type Problem, shown } from '../contract/index.js'
import { exitCodeOfProblem } from './exit-code.js'
import { type FailureReport, type Reported, splitMessage } from './failure.js'

/** Names in a hint; more are in the list. */
const NAMES_SHOWN = 10

export interface AskedServer {
  address: string
  namespace: string
  /** for messages: why this one */
  because: string
}

/** A pool that is not there, with what is known of those that are: the name may be wrong, or the server. */
export class MissingPoolError extends Error implements Reported {
  override readonly name = 'MissingPoolError'
  constructor(
    private readonly problem: Problem,
    private readonly names: readonly string[] | null,
    private readonly server: AskedServer,
  ) {
    super(problem.message)
  }

  report(): FailureReport {
    const { code, origin, message, details } = this.problem
    const { address, namespace, because } = this.server
    const why = `${splitMessage(message).why} (namespace ${namespace} at ${address}, ${because})`
    const remedy = missingPoolRemedy(String(details?.pool ?? ''), this.names)
    const exitCode = exitCodeOfProblem(this.problem)
    return { code, origin, why, remedy, exitCode, ...(details ? { details } : {}) }
  }
}

/** @param names of the pools that are there; null when they are not known */
export function missingPoolRemedy(pool: string, names: readonly string[] | null): string {
  const create = 'create it with firepool pool apply -f FILE'
  if (names === null) return `${create}, or look at firepool pool list`
  const forgotten = 'a firepool dev without --db-file forgets its pools when it ends'
  if (names.length === 0) return `there is no pool here at all: ${create} (${forgotten})`
  const listed = names.slice(0, NAMES_SHOWN).map((name) => (/^[a-z0-9-]+$/.test(name) ? name : shown(name)))
  const more = names.length > listed.length ? ` and ${names.length - listed.length} more` : ''
  const here = `pools here: ${listed.join(', ')}${more}`
  const meant = closestWord(pool, names)
  return meant
    ? `did you mean '${meant}'? Or ${create} (${here})`
    : `${create}, or use another (${here}; ${forgotten})`
}

/** The error to throw for `error`: the same, unless it says that there is no such pool. */
export async function explainMissingPool(
  error: unknown,
  firepool: Pick<FirepoolClient, 'poolNames'>,
  server: AskedServer,
): Promise<unknown> {
  if (!(error instanceof FirepoolError) || error.problem.code !== 'PoolNotFound') return error
  const names = await firepool.poolNames().catch(() => null)
  return new MissingPoolError(error.problem, names, server)
}
