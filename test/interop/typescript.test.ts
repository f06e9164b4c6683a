/** A user's own project: examples/typescript as it is, with Firepool installed from its package. */
import { execFile } from 'node:child_process'
import { cpSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { homedir, tmpdir } from 'node:os'
import { basename, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { Client, Connection } from '@temporalio/client'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { type Running, startScript } from '../support/cli.js'

const ROOT = fileURLToPath(new URL('../..', import.meta.url))
const EXAMPLE = join(ROOT, 'examples', 'typescript')
const TASK_QUEUE = 'typescript-callers'
/** The newest Temporal SDK that is too old for the peer range. */
const TOO_OLD = '1.23.0'

interface PackageFile {
  dependencies: Record<string, string>
  devDependencies: Record<string, string>
  peerDependencies: Record<string, string>
  peerDependenciesMeta: Record<string, { optional?: boolean }>
}
interface Printed {
  steps: { pod: string; hit: string; exitCode: number; stdout: string }[]
  verdict: { reward: number | null; why: string }
}

let home: string
let project: string
let tarball: string
let env: NodeJS.ProcessEnv
const running: Running[] = []

beforeAll(async () => {
  home = mkdtempSync(join(tmpdir(), 'firepool-project-'))
  project = join(home, 'project')
  // The tests run what was built before them; the package's own build would do it once more.
  const packed = await npm(ROOT, 'pack', '--ignore-scripts', '--json', '--pack-destination', home)
  tarball = join(home, (JSON.parse(packed) as { filename: string }[])[0]!.filename)
  const own = ['node_modules', 'dist', 'package-lock.json']
  cpSync(EXAMPLE, project, { recursive: true, filter: (path) => !own.includes(basename(path)) })
  await npm(project, 'install', '--prefer-offline', tarball)
  const { PATH, HOME, FIREPOOL_CACHE_DIR } = process.env
  env = {
    PATH: `${PATH}:${join(homedir(), 'go', 'bin')}`,
    HOME,
    FIREPOOL_DIR: join(home, 'state'),
    ...(FIREPOOL_CACHE_DIR ? { FIREPOOL_CACHE_DIR } : {}),
  }
})
afterAll(async () => {
  for (const { kill, ended } of running.reverse()) {
    kill('SIGINT')
    await ended
  }
  rmSync(home, { recursive: true, force: true })
})

/** @throws with what npm says */
async function npm(cwd: string, ...args: string[]): Promise<string> {
  const { stdout } = await promisify(execFile)('npm', args, { cwd })
  return stdout
}

function start(file: string, args: string[] = [], more: NodeJS.ProcessEnv = {}): Running {
  const started = startScript(join(project, file), args, { ...env, ...more })
  running.push(started)
  return started
}

const readPackage = (folder: string) =>
  JSON.parse(readFileSync(join(folder, 'package.json'), 'utf8')) as PackageFile

/** What every project with Firepool gets; who has no cluster needs no client of one. */
function peersOf({ peerDependencies, peerDependenciesMeta }: PackageFile): string[] {
  return Object.keys(peerDependencies).filter((name) => peerDependenciesMeta[name]?.optional !== true)
}

test('the library uses the Temporal SDK of the project: there is one copy of each of its packages', () => {
  const files = readdirSync(join(project, 'node_modules'), { recursive: true, encoding: 'utf8' })
  const copies = files.filter((file) => /(^|\/)@temporalio\/[^/]+\/package\.json$/.test(file))
  expect(copies.filter((file) => file.includes('/workflow/'))).toEqual(['@temporalio/workflow/package.json'])
  expect(copies.filter((file) => file.includes('node_modules'))).toEqual([])
})

test('the example has the versions that Firepool is developed with', () => {
  const { devDependencies } = readPackage(ROOT)
  const example = readPackage(EXAMPLE)
  const { firepool: _, ...dependencies } = example.dependencies
  expect(devDependencies).toMatchObject({ ...dependencies, ...example.devDependencies })
  const temporal = Object.entries(devDependencies).filter(([name]) => name.startsWith('@temporalio/'))
  expect(new Set(temporal.map(([, version]) => version)).size).toBe(1)
  expect(peersOf(readPackage(ROOT))).toEqual(temporal.map(([name]) => name))
})

test('it compiles and runs: a held pod, one job in one call, and the pod warm at the second time', async () => {
  await npm(project, 'run', 'build')
  const dev = start('node_modules/.bin/firepool', ['dev', '--json'])
  await dev.until('stdout', '\n')
  const { address } = JSON.parse(dev.stdout()) as { address: string }
  const server = { TEMPORAL_ADDRESS: address }
  await start('dist/worker.js', [], server).until('stdout', `polling ${TASK_QUEUE}`)

  const main = async () => {
    const { code, stdout, stderr } = await start('dist/main.js', [], server).ended
    expect(code, stderr).toBe(0)
    return JSON.parse(stdout.toString()) as Printed
  }
  const first = await main()
  const [{ pod, hit } = { pod: '', hit: '' }] = first.steps
  expect(['standby', 'cold']).toContain(hit)
  expect(first).toEqual({
    steps: [
      { pod, hit, exitCode: 0, stdout: '' },
      { pod, hit, exitCode: 0, stdout: 'hello\n' },
    ],
    verdict: { reward: 1, why: 'exit code 0' },
  })
  const second = await main()
  expect(second.steps).toMatchObject([
    { pod, hit: 'warm' },
    { pod, hit: 'warm' },
  ])

  // A failure that crossed two workflows is known for what it is, and no reward.
  const connection = await Connection.connect({ address })
  const verdict = await new Client({ connection }).workflow.execute('verify', {
    taskQueue: TASK_QUEUE,
    workflowId: 'verify-nowhere',
    args: ['nowhere', '', ''],
  })
  expect(verdict).toEqual({ reward: null, why: 'PoolNotFound' })
  await connection.close()
})

/** What npm would install into a project with these dependencies and Firepool. */
async function resolved(name: string, dependencies: Record<string, string>): Promise<string[]> {
  const folder = join(home, name)
  // A test that is run once more begins anew.
  rmSync(folder, { recursive: true, force: true })
  mkdirSync(folder)
  writeFileSync(join(folder, 'package.json'), JSON.stringify({ private: true, dependencies }))
  await npm(folder, 'install', '--prefer-offline', '--package-lock-only', '--ignore-scripts', tarball)
  const lock = JSON.parse(readFileSync(join(folder, 'package-lock.json'), 'utf8')) as {
    packages: Record<string, unknown>
  }
  return Object.keys(lock.packages).filter((path) => /@(temporalio|kubernetes)\/[^/]+$/.test(path))
}

test('a project without the Temporal SDK gets it', async () => {
  const installed = await resolved('without', {})
  expect(installed).toEqual(
    expect.arrayContaining(peersOf(readPackage(ROOT)).map((peer) => `node_modules/${peer}`)),
  )
  expect(installed).not.toContain('node_modules/@kubernetes/client-node')
  expect(installed.filter((path) => path.lastIndexOf('node_modules') > 0)).toEqual([])
})

test('a project with a Temporal SDK that is too old is told so, and gets no second copy', async () => {
  await expect(resolved('old', { '@temporalio/workflow': TOO_OLD })).rejects.toThrow(
    /peer @temporalio\/workflow@"\^1\.24\.0" from firepool/,
  )
})
