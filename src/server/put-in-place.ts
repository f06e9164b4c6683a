import { mkdtemp, readdir, rename, rm, stat } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { makeFolder } from '../make-folder.js'

const FOLDER_PREFIX = '.obtain-'
/** Longer than anything that is made here may take: an older folder has no owner. */
const ABANDONED_MS = 90 * 60_000

/**
 * Makes a file or a folder beside `target` and moves it there by one rename: whoever finds the target finds all of it,
 * and a maker that fails or is killed leaves nothing under that name.
 * @param produce makes it in a folder of its own, and says where; what else is in that folder is removed
 */
export async function putInPlace(
  target: string,
  produce: (folder: string) => Promise<string>,
): Promise<void> {
  const parent = dirname(target)
  makeFolder(parent)
  await removeAbandoned(parent)
  // The same file system as the target, or the rename would not be atomic.
  const folder = await mkdtemp(join(parent, FOLDER_PREFIX))
  try {
    await rename(await produce(folder), target)
  } finally {
    await rm(folder, { recursive: true, force: true })
  }
}

/** What is killed leaves its folder. */
async function removeAbandoned(parent: string): Promise<void> {
  for (const name of await readdir(parent)) {
    if (!name.startsWith(FOLDER_PREFIX)) continue
    const path = join(parent, name)
    const modified = await stat(path).catch(() => undefined)
    if (modified === undefined || Date.now() - modified.mtimeMs < ABANDONED_MS) continue
    await rm(path, { recursive: true, force: true })
  }
}
