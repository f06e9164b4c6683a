import { isUtf8 } from 'node:buffer'
import { constants } from 'node:fs'
import { chmod, type FileHandle, mkdir, open, readdir, realpath, rename, rm } from 'node:fs/promises'
import { basename, dirname, join, relative, sep } from 'node:path'
import { FirepoolError, type JobFile, LIMIT, problem } from '../contract/index.js'
import { checkPath } from './validation.js'

/** The folders of a pod, absolute and free of symbolic links. */
export interface PodFolders {
  home: string
  work: string
  jobs: string
  tmp: string
}

/** How a `file` of an Output looks to callers, relative to the work folder. */
const JOBS_PREFIX = '../jobs/'

/**
 * Makes the folders of a pod.
 * @throws when they cannot be made
 */
export async function makeFolders(podDir: string): Promise<PodFolders> {
  await mkdir(podDir, { recursive: true })
  const root = await realpath(podDir)
  const folders = {
    home: join(root, 'home'),
    work: join(root, 'work'),
    jobs: join(root, 'jobs'),
    tmp: join(root, 'tmp'),
  }
  await Promise.all(Object.values(folders).map((path) => mkdir(path, { recursive: true })))
  return folders
}

/** Name of a job's output files in the jobs folder, without their ending. */
export function outputName(epoch: number, incarnation: string, n: number): string {
  return `e${epoch}-${incarnation}-${n}`
}

/** Deletes the output files of leases before this epoch: they were promised while their lease lasts. */
export async function dropOutputFiles(folders: PodFolders, beforeEpoch: number): Promise<void> {
  const names = await readdir(folders.jobs).catch(() => [])
  for (const name of names) {
    const epoch = /^e(\d+)-/.exec(name)?.[1]
    if (epoch !== undefined && Number(epoch) < beforeEpoch)
      await rm(join(folders.jobs, name), { force: true }).catch(() => {})
  }
}

/** Name of an output file for callers, of its name in the jobs folder. */
export function outputFileName(name: string): string {
  return `${JOBS_PREFIX}${name}`
}

/**
 * The real folder of a job's cwd.
 * @throws FirepoolError InvalidRequest when it does not exist or leaves the work folder
 */
export async function workFolder(folders: PodFolders, cwd: string): Promise<string> {
  checkPath(cwd, 'job.cwd', 'folder')
  const real = await realpath(join(folders.work, cwd)).catch((error: NodeJS.ErrnoException) =>
    refuse(
      `job.cwd ${quote(cwd)} cannot be used (${error.code}). Make the folder first, by a job or by job.files.`,
    ),
  )
  return inside(folders.work, real, cwd)
}

/** Writes the files of a job in order. @throws FirepoolError InvalidRequest when one leaves the work folder or cannot be written */
export async function writeJobFiles(folders: PodFolders, files: JobFile[]): Promise<void> {
  for (const file of files) {
    const content = Buffer.from(file.content, file.encoding ?? 'utf8')
    const handle = await openForWrite(folders, file.path, file.mode ?? 0o644)
    try {
      await handle.writeFile(content)
    } catch (error) {
      refuse(`File ${quote(file.path)} could not be written (${(error as NodeJS.ErrnoException).code}).`)
    } finally {
      await handle.close()
    }
  }
}

/** O_NOFOLLOW and the real parent: a link that an earlier job left does not lead a write out of the folder. */
async function openForWrite(folders: PodFolders, path: string, mode: number): Promise<FileHandle> {
  const target = await writeTarget(folders, path)
  const flags =
    constants.O_WRONLY | constants.O_CREAT | constants.O_TRUNC | constants.O_NOFOLLOW | constants.O_NONBLOCK
  try {
    const handle = await open(target, flags, mode)
    await handle.chmod(mode) // an older file keeps its bits otherwise, and the umask would cut them
    return handle
  } catch (error) {
    return refuse(
      `File ${quote(path)} cannot be written (${(error as NodeJS.ErrnoException).code}). Choose a path that is no folder, link or pipe.`,
    )
  }
}

async function writeTarget(folders: PodFolders, path: string): Promise<string> {
  checkPath(path, 'path', 'file')
  const target = join(folders.work, path)
  // The deepest part that exists decides: mkdir must not make folders behind a link.
  let existing = dirname(target)
  let real: string | undefined
  while (real === undefined) {
    real = await realpath(existing).catch(() => undefined)
    if (real === undefined) existing = dirname(existing)
  }
  inside(folders.work, real, path)
  const parent = join(real, relative(existing, dirname(target)))
  try {
    await mkdir(parent, { recursive: true })
  } catch (error) {
    refuse(
      `The folder of ${quote(path)} cannot be made (${(error as NodeJS.ErrnoException).code}). A file of that name may be in its way: use another path, or remove it by a job first.`,
    )
  }
  return join(parent, basename(target))
}

/** An open file and its size, for streaming. The caller closes it. */
export interface OpenFile {
  handle: FileHandle
  bytes: number
  mode: number
}

/**
 * Opens a file of the work folder, or an output file, for reading.
 * @throws FirepoolError InvalidRequest when there is no such regular file
 */
export async function openForRead(folders: PodFolders, path: string): Promise<OpenFile> {
  const isOutput = /^\.\.\/jobs\/[A-Za-z0-9.-]+$/.test(path) && !path.endsWith('..')
  if (!isOutput) checkPath(path, 'path', 'file')
  const root = isOutput ? folders.jobs : folders.work
  const real = await realpath(join(folders.work, path)).catch((error: NodeJS.ErrnoException) =>
    refuse(error.code === 'ENOENT' ? `There is no file ${quote(path)} in the pod.` : unreadable(path, error)),
  )
  inside(root, real, path)
  let handle: FileHandle
  try {
    // Non-blocking: opening a named pipe would wait for its writer.
    handle = await open(real, constants.O_RDONLY | constants.O_NONBLOCK)
  } catch (error) {
    return refuse(unreadable(path, error as NodeJS.ErrnoException))
  }
  const stat = await handle.stat()
  if (!stat.isFile()) {
    await handle.close()
    return refuse(`${quote(path)} is not a regular file. Name a file; pack a folder into an archive first.`)
  }
  return { handle, bytes: stat.size, mode: stat.mode & 0o777 }
}

/** A file on its way in: it appears under its name whole, or not at all. */
export interface Upload {
  handle: FileHandle
  /** puts it in place */
  commit(): Promise<void>
  /** forgets it */
  abort(): Promise<void>
}

/** @throws FirepoolError InvalidRequest when the path leaves the work folder */
export async function openUpload(folders: PodFolders, path: string, draftName: string): Promise<Upload> {
  const target = await writeTarget(folders, path)
  const draft = join(folders.jobs, draftName)
  const handle = await open(draft, 'wx', 0o644)
  return {
    handle,
    async commit() {
      await handle.close()
      await chmod(draft, 0o644)
      try {
        await rename(draft, target)
      } catch (error) {
        await rm(draft, { force: true })
        refuse(`File ${quote(path)} cannot be put in place (${(error as NodeJS.ErrnoException).code}).`)
      }
    },
    async abort() {
      await handle.close().catch(() => {})
      await rm(draft, { force: true })
    },
  }
}

/** Files collected after a job. */
export interface Collected {
  files: JobFile[]
  missing: { path: string; reason: string }[]
}

/** Reads the files that a job's caller wants back, in order, as long as they fit LIMIT.collectBytes all together. */
export async function collectFiles(folders: PodFolders, paths: string[]): Promise<Collected> {
  const collected: Collected = { files: [], missing: [] }
  let leftBytes: number = LIMIT.collectBytes
  for (const path of paths) {
    try {
      const file = await openForRead(folders, path)
      try {
        if (file.bytes > leftBytes) {
          const reason = `too large: ${file.bytes} bytes, and ${leftBytes} of ${LIMIT.collectBytes} are left. Collect it by itself, pack it, or split it and collect the parts by later jobs of this lease.`
          collected.missing.push({ path, reason })
          continue
        }
        const content = Buffer.alloc(file.bytes)
        const { bytesRead } = await file.handle.read(content, 0, file.bytes, 0)
        leftBytes -= bytesRead
        collected.files.push(jobFile(path, content.subarray(0, bytesRead), file.mode))
      } finally {
        await file.handle.close()
      }
    } catch (error) {
      collected.missing.push({ path, reason: reasonOf(error) })
    }
  }
  return collected
}

/** base64 where the bytes are no text, or where escapes would make their JSON longer than base64. */
function jobFile(path: string, content: Buffer, mode: number): JobFile {
  if (isUtf8(content)) {
    const text = content.toString('utf8')
    if (Buffer.byteLength(JSON.stringify(text)) <= content.length * (4 / 3) + 64)
      return { path, content: text, mode }
  }
  return { path, content: content.toString('base64'), encoding: 'base64', mode }
}

function reasonOf(error: unknown): string {
  if (error instanceof FirepoolError) return error.problem.message
  return String((error as NodeJS.ErrnoException).code ?? error)
}

function inside(root: string, real: string, path: string): string {
  if (real === root || real.startsWith(root + sep)) return real
  return refuse(`${quote(path)} leads out of the work folder by a symbolic link. Use a path inside of it.`)
}

function unreadable(path: string, error: NodeJS.ErrnoException): string {
  return `File ${quote(path)} cannot be read (${error.code}).`
}

function quote(path: string): string {
  return JSON.stringify(path.slice(0, 200))
}

function refuse(message: string): never {
  throw new FirepoolError(problem('InvalidRequest', message))
}
