import { execFile } from 'node:child_process'
import { createHash } from 'node:crypto'
import { mkdir, readdir } from 'node:fs/promises'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { built } from './built.js'
import { writeNodeLayer, writeProgramLayer, writePythonLayer } from './container-image.js'
import { obtainNodePrograms } from './control-plane-parts.js'

const run = promisify(execFile)

/** Debian's packages; unpacked in the cache folder, nothing is installed. */
const PACKAGES = ['containerd', 'runc', 'containernetworking-plugins', 'busybox-static']

/** Programs of a real node, and layers of its containers. */
export interface RealNodeParts {
  kubelet: string
  fakeGpu: string
  /** also the first process of the node: it reaps */
  pause: string
  containerd: string
  ctr: string
  runc: string
  /** a folder */
  networkPlugins: string
  layers: { pause: string; node: string }
}

/**
 * Finds kubelet, containerd and runc in the cache folder, or puts them there.
 * @throws Error with what could not be had and how to get it
 */
export async function obtainRealNodeParts(): Promise<RealNodeParts> {
  await run('ip', ['-V']).catch(() => {
    throw new Error('`ip` is not installed. On Debian: apt-get install iproute2 (or run .ci/run)')
  })
  const { kubelet, 'fake-gpu': fakeGpu, pause } = await obtainNodePrograms()
  const packages = await built(`node-packages-${process.arch}`, 'with apt-get download', async (folder) => {
    await download(folder)
    const made = join(folder, 'made')
    await mkdir(made)
    const files = (await readdir(folder)).filter((name) => name.endsWith('.deb'))
    for (const file of files) await run('dpkg-deb', ['-x', join(folder, file), made])
    return made
  })
  const busybox = join(packages, 'bin/busybox')
  const digest = createHash('sha256')
    .update(`${process.version} ${process.execPath}`)
    .digest('hex')
    .slice(0, 8)
  const layers = await built(`node-layers-${process.arch}-${digest}`, 'from this machine', async (folder) => {
    const made = join(folder, 'made')
    await mkdir(made)
    await writeNodeLayer(busybox, join(made, 'node.tar'))
    await writeProgramLayer(pause, 'pause', join(made, 'pause.tar'))
    return made
  })
  return {
    kubelet,
    fakeGpu,
    pause,
    containerd: join(packages, 'usr/bin/containerd'),
    ctr: join(packages, 'usr/bin/ctr'),
    runc: await firstOf(packages, ['usr/sbin/runc', 'usr/bin/runc']),
    networkPlugins: join(packages, 'usr/lib/cni'),
    layers: { pause: join(layers, 'pause.tar'), node: join(layers, 'node.tar') },
  }
}

/** The layer of images with Python, in the cache folder. */
export async function obtainPythonLayer(): Promise<string> {
  const { stdout } = await run('python3', ['-c', 'import sys; print(sys.version, sys.executable)'])
  const digest = createHash('sha256').update(stdout).digest('hex').slice(0, 8)
  return built(`python-layer-${process.arch}-${digest}`, 'from this machine', async (folder) => {
    const layer = join(folder, 'python.tar')
    await writePythonLayer(layer)
    return layer
  })
}

async function download(folder: string): Promise<void> {
  // As root apt would otherwise become a user who may not write here.
  const get = () =>
    run('apt-get', ['download', '-q', '-o', 'APT::Sandbox::User=root', ...PACKAGES], { cwd: folder })
  try {
    await get()
  } catch {
    // A fresh machine knows of no packages, and an old one of some that are no longer there.
    await run('apt-get', ['update', '-q'])
    await get()
  }
}

async function firstOf(folder: string, names: readonly string[]): Promise<string> {
  for (const name of names) {
    const found = await readdir(join(folder, name, '..')).catch(() => [] as string[])
    if (found.includes(name.split('/').at(-1)!)) return join(folder, name)
  }
  throw new Error(`${folder} has none of ${names.join(', ')}`)
}
