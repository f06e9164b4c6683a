import { closeSync, constants, fstatSync, openSync, readSync, type Stats } from 'node:fs'

const PIECE_BYTES = 65_536
/** A pipe that another program made non-blocking has nothing yet: look again after this. */
const EMPTY_PAUSE_MS = 10

/**
 * All of what a descriptor gives, which may be a pipe or a device without an end.
 * @returns null as soon as there is more than `bytesMax`
 */
export function readUpTo(descriptor: number, bytesMax: number): Buffer | null {
  const pieces: Buffer[] = []
  for (let bytes = 0; bytes <= bytesMax; ) {
    const piece = Buffer.allocUnsafe(Math.min(PIECE_BYTES, bytesMax + 1 - bytes))
    const read = readSome(descriptor, piece)
    if (read === 0) return Buffer.concat(pieces)
    pieces.push(piece.subarray(0, read))
    bytes += read
  }
  return null
}

function readSome(descriptor: number, piece: Buffer): number {
  for (;;) {
    try {
      return readSync(descriptor, piece)
    } catch (error) {
      const { code } = error as NodeJS.ErrnoException
      if (code === 'EOF') return 0
      if (code !== 'EAGAIN') throw error
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, EMPTY_PAUSE_MS)
    }
  }
}

/**
 * A regular file, opened without waiting for anybody: a pipe would wait for its writer.
 * @throws Error with what it is instead, or the system's error
 */
export function withRegularFile<T>(path: string, read: (descriptor: number, stats: Stats) => T): T {
  const descriptor = openSync(path, constants.O_RDONLY | constants.O_NONBLOCK)
  try {
    const stats = fstatSync(descriptor)
    if (!stats.isFile()) throw new NotRegularError(kindOf(stats))
    return read(descriptor, stats)
  } finally {
    closeSync(descriptor)
  }
}

/** Its message completes 'it is ...'. */
export class NotRegularError extends Error {
  override readonly name = 'NotRegularError'
}

function kindOf(stats: Stats): string {
  if (stats.isDirectory()) return 'a folder'
  if (stats.isFIFO()) return 'a pipe'
  return stats.isSocket() ? 'a socket' : 'a device'
}
