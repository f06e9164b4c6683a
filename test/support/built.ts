import { stat } from 'node:fs/promises'
import { join } from 'node:path'
import { cacheFolder } from '../../src/server/cache-folder.js'
import { withProcessLock } from '../../src/server/process-lock.js'
import { putInPlace } from '../../src/server/put-in-place.js'

const PROGRESS_EVERY_MS = 15_000

/**
 * The path of `name` in Firepool's cache folder, where `make` has put it in this or an earlier process; processes that are started
 * together make it once.
 * @param how for whoever waits and for the error: "with go install"
 * @param make makes a file or a folder in the folder given, and says where it is
 */
export async function built(
  name: string,
  how: string,
  make: (folder: string) => Promise<string>,
): Promise<string> {
  const target = join(cacheFolder(), name)
  const exists = () => stat(target).then(Boolean, () => false)
  if (await exists()) return target
  const startedMs = performance.now()
  const tell = (message: string) => () => {
    const elapsedSeconds = Math.floor((performance.now() - startedMs) / 1_000)
    reportProgress({ message, elapsedSeconds })
  }
  const onWait = seldom(PROGRESS_EVERY_MS, tell(`waiting for another process that is making ${name}`))
  const makeIt = async () => {
    if (await exists()) return target
    const report = tell(`making ${name} ${how} (once)`)
    report()
    const timer = setInterval(report, PROGRESS_EVERY_MS)
    try {
      await putInPlace(target, make)
    } catch (error) {
      throw new Error(`${name} could not be made ${how}: ${(error as Error).message}`)
    } finally {
      clearInterval(timer)
    }
    return target
  }
  return withProcessLock(target, makeIt, { onWait })
}

/** For whoever sits before a terminal in which nothing happens. */
export function reportProgress({
  message,
  elapsedSeconds,
}: {
  message: string
  elapsedSeconds: number
}): void {
  console.error(`${message}: ${elapsedSeconds} s`)
}

/** Turns a call made often into one made every `periodMs`. */
function seldom(periodMs: number, act: () => void): () => void {
  let nextMs = 0
  return () => {
    const nowMs = performance.now()
    if (nowMs < nextMs) return
    nextMs = nowMs + periodMs
    act()
  }
}
