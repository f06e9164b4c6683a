import { rmSync, symlinkSync } from 'node:fs'
import { delimiter, join } from 'node:path'
import { makeFolder } from '../../src/make-folder.js'
import { cacheFolder } from '../../src/server/cache-folder.js'
import { resolveBinary } from '../../src/server/resolve.js'

/**
 * A vitest `globalSetup`: obtains the Temporal CLI before the first test, and puts it on the PATH under its own name. On a
 * fresh machine it is built in minutes, longer than a hook may take; and some tests have a home or a cache of their own, where it
 * would be built once more.
 */
export default async function setup(): Promise<void> {
  const { path, description } = await resolveBinary({
    onProgress: ({ message, elapsedSeconds }) => console.error(`${message}: ${elapsedSeconds} s`),
  })
  const bin = join(cacheFolder(), `bin-of-tests-${process.pid}`)
  // Once for each project of a run, all in one process.
  if (!path.startsWith(bin)) {
    makeFolder(bin)
    symlinkSync(path, join(bin, 'temporal'))
    process.on('exit', () => rmSync(bin, { recursive: true, force: true }))
    process.env.PATH = [bin, process.env.PATH].join(delimiter)
  }
  console.error(`Temporal: ${description}`)
}
