import { execFile } from 'node:child_process'
import { createHash } from 'node:crypto'
import { constants } from 'node:fs'
import { access, mkdir, readdir, readFile, rename, stat, symlink } from 'node:fs/promises'
import { delimiter, join, resolve } from 'node:path'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { cacheFolder } from '../../src/server/cache-folder.js'
import { goBuild } from '../../src/server/go-install.js'
import { built } from './built.js'

const run = promisify(execFile)

/** The module of our one program: its go.mod says which Kubernetes, etcd and kwok it is made of. */
const MODULE = fileURLToPath(new URL('../control-plane/go', import.meta.url))
/** What the linker writes into Kubernetes' own builds: clients and kubelets compare it. */
const KUBERNETES_VERSION = 'v1.36.3'
const VERSION_LIMIT_MS = 20_000

/** Names of what a control plane with kwok's nodes is made of. */
const PROGRAMS = ['etcd', 'kube-apiserver', 'kube-controller-manager', 'kube-scheduler', 'kwok'] as const
/** Names of what a real node needs beside containerd and runc. */
const NODE_PROGRAMS = ['kubelet', 'fake-gpu', 'pause'] as const

export type ControlPlaneProgram = (typeof PROGRAMS)[number]
export type NodeProgram = (typeof NODE_PROGRAMS)[number]

/** Paths of the programs of a cluster. */
export interface ControlPlaneParts extends Record<ControlPlaneProgram, string> {
  /** one sentence: where they are from */
  description: string
}

/**
 * Finds the programs of a control plane, or builds them in Firepool's cache folder from their public Go modules: about 7 minutes on
 * two cores, once.
 * @throws Error with what failed and what to do
 */
export async function obtainControlPlaneParts(env = process.env): Promise<ControlPlaneParts> {
  const found = await findControlPlaneParts(env)
  if (found) return found
  const folder = await buildPrograms()
  return { ...(await inFolder(folder, PROGRAMS)), description: `${folder} (built)` }
}

/**
 * Finds what is there already: the folder that `FIREPOOL_CONTROL_PLANE` names, then the PATH if it has all of the programs in
 * versions that will do, then the cache folder.
 * @throws Error when the folder that is named misses a program
 */
export async function findControlPlaneParts(env = process.env): Promise<ControlPlaneParts | undefined> {
  const named = env.FIREPOOL_CONTROL_PLANE
  if (named) return { ...(await inFolder(named, PROGRAMS)), description: `FIREPOOL_CONTROL_PLANE (${named})` }
  const onPath = await fromPath(env)
  if (onPath) return { ...onPath, description: 'the programs on PATH' }
  const cached = join(cacheFolder(env), await nameOfPrograms())
  const isThere = await stat(cached).then(Boolean, () => false)
  return isThere ? { ...(await inFolder(cached, PROGRAMS)), description: cached } : undefined
}

/**
 * The programs of a real node: of the same folder, never from PATH, where nobody has a fake GPU.
 * @throws Error with what failed and what to do
 */
export async function obtainNodePrograms(env = process.env): Promise<Record<NodeProgram, string>> {
  return inFolder(env.FIREPOOL_CONTROL_PLANE || (await buildPrograms()), NODE_PROGRAMS)
}

async function inFolder<Name extends string>(
  folder: string,
  names: readonly Name[],
): Promise<Record<Name, string>> {
  const found = await Promise.all(names.map(async (name) => [name, await executable(folder, name)] as const))
  const missing = found.filter(([, path]) => path === undefined).map(([name]) => name)
  if (missing.length > 0) {
    throw new Error(
      `${folder} has no program ${missing.join(', ')}. FIREPOOL_CONTROL_PLANE names a folder with ` +
        `${[...PROGRAMS, ...NODE_PROGRAMS].join(', ')}; without it they are built with Go.`,
    )
  }
  return Object.fromEntries(found) as Record<Name, string>
}

async function executable(folder: string, name: string): Promise<string | undefined> {
  const path = resolve(folder, name)
  return access(path, constants.X_OK).then(
    () => path,
    () => undefined,
  )
}

/** All of them, or none: parts of several installations were never tried together. */
async function fromPath(env: NodeJS.ProcessEnv): Promise<Record<ControlPlaneProgram, string> | undefined> {
  const folders = (env.PATH ?? '').split(delimiter).filter((folder) => folder.startsWith('/'))
  const found: Partial<Record<ControlPlaneProgram, string>> = {}
  for (const name of PROGRAMS) {
    const paths = await Promise.all(folders.map((folder) => executable(folder, name)))
    const first = paths.find((path) => path !== undefined)
    if (first === undefined) return undefined
    found[name] = first
  }
  const programs = found as Record<ControlPlaneProgram, string>
  const minor = KUBERNETES_VERSION.split('.').slice(0, 2).join('.')
  // An etcd 3.4 (Debian's) has no progress notices for the API server, whose watches then lag by many seconds.
  const wanted = { 'kube-apiserver': `Kubernetes ${minor}.`, etcd: 'etcd Version: 3.6.' } as const
  for (const [name, version] of Object.entries(wanted)) {
    const said = await run(programs[name as ControlPlaneProgram], ['--version'], {
      timeout: VERSION_LIMIT_MS,
    }).catch(() => ({ stdout: '' }))
    if (!said.stdout.startsWith(version)) return undefined
  }
  return programs
}

function linkerFlags(): string {
  const [major, minor] = KUBERNETES_VERSION.slice(1).split('.')
  const facts = { gitVersion: KUBERNETES_VERSION, gitMajor: major, gitMinor: minor }
  const settings = Object.entries(facts).map(([n, v]) => `-X k8s.io/component-base/version.${n}=${v}`)
  return ['-s', '-w', ...settings].join(' ')
}

/** @returns a folder with our program under each of its names, and the pause of a real node's pods */
async function buildPrograms(): Promise<string> {
  const ldflags = linkerFlags()
  return built(await nameOfPrograms(), 'with go build, about 7 minutes on two cores', async (folder) => {
    await goBuild(['.', './pause'], { env: process.env, folder, module: MODULE, ldflags })
    const made = join(folder, 'made')
    await mkdir(made)
    for (const file of ['control-plane', 'pause']) await rename(join(folder, file), join(made, file))
    for (const program of [...PROGRAMS, 'kubelet', 'fake-gpu'])
      await symlink('control-plane', join(made, program))
    return made
  })
}

/** Other sources are another program: an old one is never taken for it. */
async function nameOfPrograms(): Promise<string> {
  const digest = createHash('sha256').update(`${process.arch} ${linkerFlags()}\n`)
  const names = await readdir(MODULE, { recursive: true })
  for (const name of names.filter((n) => /\.(go|mod|sum)$/.test(n)).sort()) {
    digest.update(`${name}\n`).update(await readFile(join(MODULE, name)))
  }
  return `control-plane-${digest.digest('hex').slice(0, 12)}`
}
