import { homedir } from 'node:os'
import { join, resolve } from 'node:path'

/**
 * Where Firepool keeps what is slow to obtain (the Temporal CLI, a Python environment for tests):
 * `FIREPOOL_CACHE_DIR`, else `$XDG_CACHE_HOME/firepool`, else `~/.cache/firepool`. An absolute path;
 * the folder may not exist yet.
 */
export function cacheFolder(env: NodeJS.ProcessEnv = process.env): string {
  if (env.FIREPOOL_CACHE_DIR) return resolve(env.FIREPOOL_CACHE_DIR)
  // The XDG specification: a relative path is invalid and to be ignored.
  if (env.XDG_CACHE_HOME?.startsWith('/')) return join(env.XDG_CACHE_HOME, 'firepool')
  return join(env.HOME || homedir(), '.cache', 'firepool')
}
