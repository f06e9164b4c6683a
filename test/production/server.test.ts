import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { chmod } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterEach, beforeEach, expect, inject, test } from 'vitest'
import { startScript } from '../support/cli.js'
import { startProductionServer } from '../support/production-server.js'
import { waitUntil } from '../support/wait.js'

/** The server of these tests itself: nothing of it may outlive them. */

const HOLD = fileURLToPath(new URL('../support/hold-production-server.ts', import.meta.url))

let folder: string
let before: string | undefined
beforeEach(async () => {
  folder = mkdtempSync(join(tmpdir(), 'firepool-production-test-'))
  // PostgreSQL runs as another user when we are root.
  await chmod(folder, 0o755)
  before = process.env.TMPDIR
  process.env.TMPDIR = folder
})
afterEach(() => {
  if (before === undefined) delete process.env.TMPDIR
  else process.env.TMPDIR = before
  rmSync(folder, { recursive: true, force: true })
})

/** Folders of servers; others may use the temporary folder as well. */
const serverFolders = () => readdirSync(folder).filter((name) => name.startsWith('firepool-production-'))

/** Processes and their children, and theirs. */
function family(pids: number[]): number[] {
  const parents = new Map<number, number>()
  for (const name of readdirSync('/proc')) {
    const stat = /^\d+$/.test(name) ? statOf(Number(name)) : undefined
    if (stat) parents.set(Number(name), Number(stat[1]))
  }
  const found = new Set(pids)
  for (let size = 0; size < found.size; ) {
    size = found.size
    for (const [pid, parent] of parents) if (found.has(parent)) found.add(pid)
  }
  return [...found]
}

/** state, parent, ... */
function statOf(pid: number): string[] | undefined {
  try {
    const text = readFileSync(`/proc/${pid}/stat`, 'latin1')
    return text.slice(text.lastIndexOf(')') + 2).split(' ')
  } catch {
    return undefined
  }
}

const runs = (pid: number) => !['Z', 'X', undefined].includes(statOf(pid)?.[0])

test('when who started it is killed, its processes and files go', async () => {
  const { parts } = inject('production')
  const holder = startScript(HOLD, [JSON.stringify(parts)], { ...process.env, NODE_OPTIONS: '--import tsx' })
  await holder.until('stdout', '\n')
  const { pids } = JSON.parse(holder.stdout()) as { pids: { postgres: number; temporal: number } }
  const all = family(Object.values(pids))
  // A server on a database that has connections.
  expect(all.length).toBeGreaterThan(5)
  expect(all.every(runs)).toBe(true)
  expect(serverFolders().length).toBe(1)
  holder.kill('SIGKILL')
  await waitUntil('all of its processes are gone', () => !all.some(runs))
  await waitUntil('its files are gone', () => serverFolders().length === 0)
})

test('when it is stopped, its processes and files go', async () => {
  const { parts } = inject('production')
  const server = await startProductionServer(parts)
  const all = family(Object.values(server.pids))
  await server.stop()
  expect(all.filter(runs)).toEqual([])
  expect(serverFolders()).toEqual([])
})

test('a start that fails says why and leaves nothing', async () => {
  const { parts } = inject('production')
  const broken = { ...parts, temporal: join(folder, 'nothing') }
  await expect(startProductionServer(broken)).rejects.toThrow(/set-up-schema.sh failed.*temporal-sql-tool/s)
  expect(serverFolders()).toEqual([])
})
