import { execFile } from 'node:child_process'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { expect, test } from 'vitest'

const EXIT = fileURLToPath(new URL('./exit.ts', import.meta.url))
const BYTES = 1_000_000

/** A process that prints much and ends with 7, in a pipeline of a real shell; `code` goes to standard error. */
async function pipedInto(reader: string, stream = 'stdout'): Promise<string[]> {
  const script = `import { exitWithOutput } from ${JSON.stringify(EXIT)}
    for (const s of [process.stdout, process.stderr]) s.on('error', () => {})
    process.${stream}.write('x'.repeat(${BYTES}))
    await exitWithOutput(7)`
  const node = `"$0" --import tsx --input-type module -e "$1" ${stream === 'stderr' ? '2>&1 >/dev/null' : ''}`
  const pipeline = `{ ${node}; echo "code $?" >&3; } 3>&2 | ${reader}`
  const { stdout, stderr } = await promisify(execFile)('sh', ['-c', pipeline, process.execPath, script])
  return [stdout.trim(), stderr.trim()]
}

test.each(['stdout', 'stderr'])('all of %s reaches a reader that is slow', async (stream) => {
  expect(await pipedInto('{ sleep 1; wc -c; }', stream)).toEqual([String(BYTES), 'code 7'])
})

test('a reader that goes away is not waited for', async () => {
  expect(await pipedInto('{ head -c 3; sleep 0.5; }')).toEqual(['xxx', 'code 7'])
})
