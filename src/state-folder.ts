import { homedir } from 'node:os'
import { join, resolve } from 'node:path'

/**
 * Where `firepool dev` and `firepool worker` keep what must outlive them (the broker's key, the pods' registry, logs) and
 * where other processes find them: `given`, else `FIREPOOL_DIR`, else `$XDG_STATE_HOME/firepool`, else
 * `~/.local/state/firepool`. An absolute path; the folder may not exist yet.
 */
export function stateFolder(given: string | undefined, env: NodeJS.ProcessEnv = process.env): string {
  const named = given || env.FIREPOOL_DIR
  if (named) return resolve(named)
  // The XDG specification: a relative path is invalid and to be ignored.
  if (env.XDG_STATE_HOME?.startsWith('/')) return join(env.XDG_STATE_HOME, 'firepool')
  return join(env.HOME || homedir(), '.local', 'state', 'firepool')
}
