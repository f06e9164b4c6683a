import { checkRunInput } from '../contract/check-run.js'
import { FirepoolError } from '../contract/errors.js'
import type { JobOutcome } from '../contract/job.js'
import { TIMEOUT } from '../contract/limits.js'
import { ACTIVITY } from '../contract/names.js'
import type { CancelShort, ShortInput, ShortOutcome } from '../contract/run.js'
import { createRunnerClient, jobDigest, RunnerUnreachable } from '../runner/client.js'
import { stateFolder } from '../state-folder.js'
import { createClusterTokenSource } from './cluster-token-source.js'
import { createTokenSource, type TokenSource } from './token-source.js'

export interface ShortJobOptions {
  /** the state folder of Firepool's worker on this machine; default as in the CLI: FIREPOOL_DIR, else in ~/.local/state */
  dir?: string
  /**
   * In a cluster: the token endpoint of Firepool's workers there, e.g. https://firepool-tokens.firepool.svc, which is asked in place of
   * the state folder; default FIREPOOL_TOKEN_URL
   */
  tokenUrl?: string
  /** file of a service-account token for the audience "firepool"; default FIREPOOL_TOKEN_FILE, else /var/run/secrets/firepool.dev/token */
  tokenFile?: string
  /** file of the CA (PEM) that signed the endpoint's certificate; default FIREPOOL_TOKEN_CA, else the system's */
  tokenCa?: string
}

/**
 * Activities for a caller's OWN worker: with them a job declared `short` runs as a local activity of the caller's
 * workflow, without a hop over the server. Register them beside your own; or use FirepoolPlugin, which does.
 */
export function shortJobActivities(options: ShortJobOptions = {}, env: NodeJS.ProcessEnv = process.env) {
  return createShortActivities(tokenSourceOf(options, env))
}

function tokenSourceOf(
  { dir, tokenUrl, tokenFile, tokenCa }: ShortJobOptions,
  env: NodeJS.ProcessEnv,
): TokenSource {
  // Whoever names a folder means that one, whatever the environment says.
  const url = tokenUrl ?? (dir === undefined ? env.FIREPOOL_TOKEN_URL : undefined)
  if (!url) return createTokenSource(stateFolder(dir))
  return createClusterTokenSource({
    url,
    tokenFile: tokenFile ?? (env.FIREPOOL_TOKEN_FILE || undefined),
    caFile: tokenCa ?? (env.FIREPOOL_TOKEN_CA || undefined),
  })
}

/** @internal */
export function createShortActivities(tokens: TokenSource) {
  return {
    [ACTIVITY.runShort]: (input: ShortInput): Promise<ShortOutcome> => runShort(tokens, input),
    /** Kills a short job whose caller was cancelled while it went on. */
    [ACTIVITY.cancelShort]: async ({ grant, jobId }: CancelShort): Promise<void> => {
      const token = await tokens(grant)
      await createRunnerClient(grant.address, () => token).cancel(jobId)
    },
  }
}

/** Runs a job, or says after 2 s that it goes on. Nothing that goes wrong here is an end: a normal activity attaches. */
async function runShort(tokens: TokenSource, input: ShortInput): Promise<ShortOutcome> {
  // As the normal activity reads it, so that both mean the same job.
  const checked = checkRunInput(input, input.jobId)
  if (checked.problem) return { v: 1, kind: 'refused', problem: checked.problem }
  const { grant, jobId, job } = checked.value
  const goesOn = (posted: boolean, why: string): ShortOutcome => ({ v: 1, kind: 'goesOn', posted, why })
  let token: string
  try {
    token = await tokens(grant)
  } catch (error) {
    return goesOn(false, (error as Error).message)
  }
  const cut = new AbortController()
  const timer = setTimeout(() => cut.abort(), TIMEOUT.shortJobMs)
  try {
    const runner = createRunnerClient(grant.address, () => token)
    const request = { v: 1, jobId, digest: jobDigest(job), epoch: grant.epoch, spec: job } as const
    const outcome: JobOutcome = await runner.jobs(request, { signal: cut.signal })
    return { v: 1, kind: 'ended', outcome }
  } catch (error) {
    if (error instanceof FirepoolError) return { v: 1, kind: 'refused', problem: error.problem }
    if (cut.signal.aborted) return goesOn(true, 'it is not over yet')
    // A worker that was killed may have posted it before us, so that even a refused connection proves nothing.
    return goesOn(true, error instanceof RunnerUnreachable ? error.message : 'the call failed')
  } finally {
    clearTimeout(timer)
  }
}
