/** docs/cli.md says the exit codes and error codes that the code has. */
import { readFileSync } from 'node:fs'
import { expect, test } from 'vitest'
import { EXIT } from './exit-code.js'
import { CLI_CODES } from './failure.js'

const text = readFileSync(new URL('../../docs/cli.md', import.meta.url), 'utf8')
const section = (title: string) => text.split(`\n## ${title}\n`)[1]!.split('\n## ')[0]!

test('every error code of the command line, with its origin and exit code', () => {
  const rows = [...section('Error codes').matchAll(/^\| `(\w+)` \| (\w+) \| (\d+) \| [^|]+ \|$/gm)]
  const documented = rows.map(([, code, origin, exit]) => [code, { origin, exitCode: Number(exit) }])
  expect(Object.fromEntries(documented)).toEqual(CLI_CODES)
})

test('every exit code', () => {
  const cells = [...section('Exit codes').matchAll(/^\| ([\d, ]+) \|/gm)]
  const documented = cells.flatMap(([, numbers]) => numbers!.split(', ').map(Number))
  expect(documented.sort((a, b) => a - b)).toEqual(Object.values(EXIT).sort((a, b) => a - b))
})
