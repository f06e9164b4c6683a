import { resolveBinary } from '../../src/server/resolve.js'

/**
 * A vitest `globalSetup`: obtains the Temporal CLI before the first test. On a fresh machine that is a
 * build of minutes, longer than a hook may take.
 */
export default async function setup(): Promise<void> {
  const { description } = await resolveBinary({
    onProgress: ({ message, elapsedSeconds }) => console.error(`${message}: ${elapsedSeconds} s`),
  })
  console.error(`Temporal: ${description}`)
}
