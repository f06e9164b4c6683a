import { inflateRawSync } from 'node:zlib'

const END_OF_DIRECTORY = 0x06054b50
const DIRECTORY_ENTRY = 0x02014b50
const LOCAL_HEADER = 0x04034b50
/** The end record's fixed part plus the longest comment that may follow it. */
const END_SEARCH_BYTES = 22 + 0xffff

/**
 * One file out of a zip archive (a wheel is one), in memory: nothing is unpacked to disk.
 * Reads stored and deflated entries (PKWARE APPNOTE 4.3); no zip64, no encryption.
 * @throws Error that names the fault when the archive or the entry cannot be read
 */
export function readZipEntry(archive: Buffer, name: string): Buffer {
  let end = archive.length - 22
  const stop = Math.max(0, archive.length - END_SEARCH_BYTES)
  while (end >= stop && archive.readUInt32LE(end) !== END_OF_DIRECTORY) end--
  if (end < stop) throw new Error('not a zip archive: it has no end-of-directory record')

  const entries = archive.readUInt16LE(end + 10)
  let at = archive.readUInt32LE(end + 16)
  for (let i = 0; i < entries; i++) {
    if (archive.readUInt32LE(at) !== DIRECTORY_ENTRY)
      throw new Error('damaged zip archive: bad directory entry')
    const method = archive.readUInt16LE(at + 10)
    const packedBytes = archive.readUInt32LE(at + 20)
    const nameBytes = archive.readUInt16LE(at + 28)
    const header = archive.readUInt32LE(at + 42)
    if (archive.toString('utf8', at + 46, at + 46 + nameBytes) === name) {
      return unpack(archive, header, packedBytes, method, name)
    }
    at += 46 + nameBytes + archive.readUInt16LE(at + 30) + archive.readUInt16LE(at + 32)
  }
  throw new Error(`the zip archive has no ${name}`)
}

function unpack(archive: Buffer, header: number, bytes: number, method: number, name: string): Buffer {
  if (archive.readUInt32LE(header) !== LOCAL_HEADER) throw new Error(`damaged zip archive at ${name}`)
  // The local header has its own lengths: its extra field may differ from the directory's.
  const start = header + 30 + archive.readUInt16LE(header + 26) + archive.readUInt16LE(header + 28)
  const packed = archive.subarray(start, start + bytes)
  if (method === 0) return Buffer.from(packed)
  if (method === 8) return inflateRawSync(packed)
  throw new Error(`${name} is packed with method ${method}; only stored (0) and deflated (8) are read`)
}
