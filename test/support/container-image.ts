import { execFile } from 'node:child_process'
import { createHash } from 'node:crypto'
import { createReadStream } from 'node:fs'
import { cp, mkdir, mkdtemp, readdir, realpath, rm, symlink, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { basename, dirname, join } from 'node:path'
import { pipeline } from 'node:stream/promises'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'

const run = promisify(execFile)
const DIST = fileURLToPath(new URL('../../dist', import.meta.url))

/** Images of the containers of a real node, made of files of this machine and without Docker. */
export const IMAGE = {
  pause: 'firepool.test/pause:1',
  node: 'firepool.test/node:1',
  /** that one, with Python */
  python: 'firepool.test/python:1',
  /** of the same layers, and otherwise what deploy/kubernetes/images/cpu.Dockerfile says */
  runner: 'firepool.test/runner:1',
} as const

/** Where the image has Firepool, as the one that deploy/docker/Dockerfile makes: its runner is dist/runner/main.js below. */
export const IMAGE_FIREPOOL = '/opt/firepool/node_modules/firepool'

interface ImageFiles {
  name: string
  /** files of the layers, from below */
  layers: readonly string[]
  command: readonly string[]
  /** NAME=value, beside the PATH */
  env?: readonly string[]
  user?: string
}

/** Writes an image as `docker save` would, for `ctr images import`. @param target a tar file */
export async function writeImage(
  { name, layers, command, env = [], user = '' }: ImageFiles,
  target: string,
): Promise<void> {
  const folder = await mkdtemp(join(dirname(target), 'image-'))
  const digests = await Promise.all(layers.map(digestOf))
  const names = layers.map((_, i) => `layer-${i}.tar`)
  for (const [i, layer] of layers.entries()) await symlink(layer, join(folder, names[i]!))
  const config = {
    architecture: { x64: 'amd64', arm64: 'arm64' }[process.arch as string] ?? process.arch,
    os: 'linux',
    config: { Env: ['PATH=/usr/local/bin:/usr/bin:/bin', ...env], Cmd: command, User: user },
    rootfs: { type: 'layers', diff_ids: digests.map((digest) => `sha256:${digest}`) },
    history: layers.map(() => ({ created: '1970-01-01T00:00:00Z' })),
  }
  await writeFile(join(folder, 'config.json'), JSON.stringify(config))
  await writeFile(
    join(folder, 'manifest.json'),
    JSON.stringify([{ Config: 'config.json', RepoTags: [name], Layers: names }]),
  )
  await run('tar', ['-C', folder, '--dereference', '-cf', target, 'manifest.json', 'config.json', ...names])
  await rm(folder, { recursive: true })
}

async function digestOf(file: string): Promise<string> {
  const hash = createHash('sha256')
  await pipeline(createReadStream(file), hash)
  return hash.digest('hex')
}

/** A layer of the files of a folder, owned by root. */
export async function writeLayer(root: string, target: string): Promise<void> {
  const reproducible = ['--sort=name', '--mtime=@0', '--owner=0', '--group=0', '--numeric-owner']
  await run('tar', [...reproducible, '-C', root, '-cf', target, '.'])
}

/** A layer with one static program at the root. */
export async function writeProgramLayer(program: string, name: string, target: string): Promise<void> {
  await inFolder(async (root) => {
    await cp(await realpath(program), join(root, name))
    await writeLayer(root, target)
  })
}

/** A layer with Node, the libraries that it needs, and busybox for everything else: a small Linux. */
export async function writeNodeLayer(busybox: string, target: string): Promise<void> {
  await inFolder(async (root) => {
    for (const folder of ['bin', 'usr/local/bin', 'etc', 'tmp', 'proc', 'dev', 'sys', 'home/firepool']) {
      await mkdir(join(root, folder), { recursive: true })
    }
    const node = await realpath(process.execPath)
    await cp(node, join(root, 'usr/local/bin/node'))
    await copyLibrariesOf(node, root)
    await cp(busybox, join(root, 'bin/busybox'))
    const { stdout } = await run(busybox, ['--list'])
    for (const applet of stdout.split('\n').filter((name) => name !== '' && name !== 'busybox')) {
      await symlink('busybox', join(root, 'bin', applet))
    }
    // Jobs are given env by its usual path.
    await mkdir(join(root, 'usr/bin'), { recursive: true })
    await symlink('/bin/env', join(root, 'usr/bin/env'))
    await writeFile(
      join(root, 'etc/passwd'),
      'root:x:0:0::/:/bin/sh\nfirepool:x:1000:1000::/home/firepool:/bin/sh\n',
    )
    await writeFile(join(root, 'etc/group'), 'root:x:0:\nfirepool:x:1000:\n')
    await run('chmod', ['1777', join(root, 'tmp')])
    await run('chmod', ['0777', join(root, 'home/firepool')])
    await writeLayer(root, target)
  })
}

/** of a standard library, what no job of a test imports: most of its bytes */
const LEFT_OUT = /^(test|idlelib|lib2to3|tkinter|turtledemo|ensurepip|site-packages|dist-packages|config-.*)$/

/** A layer with this machine's Python and its standard library. */
export async function writePythonLayer(target: string): Promise<void> {
  await inFolder(async (root) => {
    const find =
      'import os, sys, sysconfig; print(os.path.realpath(sys.executable), sysconfig.get_path("stdlib"))'
    const [python, library] = (await run('python3', ['-c', find])).stdout.trim().split(' ') as [
      string,
      string,
    ]
    // Below one prefix, by which an interpreter finds its library.
    const place = join(root, 'usr/local/lib', basename(library))
    await cp(python, join(root, 'usr/local/bin/python3'))
    await cp(library, place, { recursive: true, filter: (path) => !LEFT_OUT.test(basename(path)) })
    await copyLibrariesOf(python, root)
    const extensions = join(place, 'lib-dynload')
    for (const name of await readdir(extensions)) await copyLibrariesOf(join(extensions, name), root)
    await writeLayer(root, target)
  })
}

async function copyLibrariesOf(program: string, root: string): Promise<void> {
  for (const library of await librariesOf(program)) {
    await mkdir(join(root, dirname(library)), { recursive: true })
    await cp(await realpath(library), join(root, library))
  }
}

/** A layer with the built Firepool as it is now. */
export async function writeFirepoolLayer(target: string): Promise<void> {
  await inFolder(async (root) => {
    const place = join(root, IMAGE_FIREPOOL)
    await mkdir(place, { recursive: true })
    await cp(DIST, join(place, 'dist'), { recursive: true })
    await writeFile(join(place, 'package.json'), '{ "type": "module" }\n')
    await writeLayer(root, target)
  })
}

/** Paths of the shared libraries of a program, the loader included. */
async function librariesOf(program: string): Promise<string[]> {
  const { stdout } = await run('ldd', [program])
  return [...stdout.matchAll(/(?:=> )?(\/\S+) \(0x/g)].map((match) => match[1]!)
}

async function inFolder(act: (folder: string) => Promise<void>): Promise<void> {
  const folder = await mkdtemp(join(tmpdir(), 'firepool-image-'))
  try {
    // What is in an image may be read by every user of a container.
    await run('chmod', ['0755', folder])
    await act(folder)
  } finally {
    await rm(folder, { recursive: true, force: true })
  }
}
