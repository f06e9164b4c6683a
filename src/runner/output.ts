import { isUtf8 } from 'node:buffer'
import { createWriteStream, type WriteStream, writeFileSync } from 'node:fs'
import type { Readable } from 'node:stream'
import { finished } from 'node:stream/promises'
import { LIMIT, type Output } from '../contract/index.js'

/** Bounds on one stream of output, bytes. */
export interface OutputLimits {
  headBytes: number
  tailBytes: number
  fileBytes: number
}

export const OUTPUT_LIMITS: OutputLimits = {
  headBytes: LIMIT.outputHeadBytes,
  tailBytes: LIMIT.outputTailBytes,
  fileBytes: LIMIT.outputFileBytes,
}

/** Where the exact bytes go when they are needed. */
export interface OutputPlace {
  /** absolute */
  path: string
  /** as callers know it: relative to the work folder */
  name: string
}

export interface OutputHooks {
  /** a promise holds the pipe until it resolves: a reader that is behind slows the job down instead of losing output */
  onChunk?: ((chunk: Buffer, offset: number) => Promise<void> | null) | undefined
  /** more came than the file may hold; nothing more is kept */
  onTooLarge: () => void
  onDiskError: (error: NodeJS.ErrnoException) => void
}

const EMPTY: Output = { text: '', bytes: 0, truncated: false }

/**
 * One stream of a job's output. Up to head + tail bytes stay in memory; more goes to a file as it comes, and only
 * its head and tail stay. The pipe is held while the disk or a subscriber is behind, so memory is bounded whatever
 * the job writes.
 */
export class OutputCapture {
  bytes = 0
  readonly #stream: Readable
  readonly #place: OutputPlace
  readonly #hooks: OutputHooks
  readonly #limits: OutputLimits
  /** everything while it fits, then the head */
  #kept: Buffer[] = []
  #tail: Buffer[] = []
  #tailBytes = 0
  #spill: WriteStream | null = null
  #ended = false
  #holds = 0

  constructor(
    stream: Readable,
    place: OutputPlace,
    hooks: OutputHooks,
    limits: OutputLimits = OUTPUT_LIMITS,
  ) {
    this.#stream = stream
    this.#place = place
    this.#hooks = hooks
    this.#limits = limits
    stream.on('data', (chunk: Buffer) => this.#take(chunk))
    stream.resume() // it may have been paused until somebody listens
    stream.on('error', () => {}) // a pipe that breaks has ended; 'close' follows
  }

  /** The pipe may have more, but the disk or the subscriber is behind. */
  get isHeld(): boolean {
    return this.#holds > 0
  }

  #hold(): void {
    if (++this.#holds === 1) this.#stream.pause()
  }

  #letGo(): void {
    if (--this.#holds === 0) this.#stream.resume()
  }

  #take(chunk: Buffer): void {
    if (this.#ended) return
    const offset = this.bytes
    this.bytes += chunk.length
    const behind = this.#hooks.onChunk?.(chunk, offset)
    if (behind) {
      this.#hold()
      behind.then(() => this.#letGo())
    }
    if (this.#spill !== null) this.#append(chunk)
    else if (this.bytes <= this.#limits.headBytes + this.#limits.tailBytes) this.#kept.push(chunk)
    else this.#startSpill(chunk)
    if (this.bytes > this.#limits.fileBytes) {
      this.#ended = true
      this.#hooks.onTooLarge()
    }
  }

  #startSpill(chunk: Buffer): void {
    const soFar = Buffer.concat([...this.#kept, chunk])
    const spill = createWriteStream(this.#place.path, { flags: 'w', mode: 0o600 })
    spill.on('error', (error) => {
      this.#ended = true
      this.#stream.resume() // to its end, so that the job can be seen to close it
      this.#hooks.onDiskError(error)
    })
    this.#spill = spill
    this.#kept = [Buffer.from(soFar.subarray(0, this.#limits.headBytes))]
    this.#append(soFar)
  }

  #append(chunk: Buffer): void {
    if (this.#spill?.write(chunk) === false) {
      this.#hold()
      this.#spill.once('drain', () => this.#letGo())
    }
    this.#tail.push(chunk)
    this.#tailBytes += chunk.length
    while (this.#tailBytes - this.#tail[0]!.length >= this.#limits.tailBytes)
      this.#tailBytes -= this.#tail.shift()!.length
  }

  /** The last bytes as text, for messages. */
  lastText(bytes: number): string {
    const all = Buffer.concat(this.#spill === null ? this.#kept : this.#tail)
    return startText(all.subarray(Math.max(0, all.length - bytes)))
  }

  /** The stream is over. Resolves when the file, if one was needed, holds every byte. */
  finish(): Output | Promise<Output> {
    if (this.bytes === 0) return EMPTY
    if (this.#spill !== null) return this.#finishSpill(this.#spill)
    const all = this.#kept.length === 1 ? this.#kept[0]! : Buffer.concat(this.#kept)
    const text = all.toString('utf8')
    if (isUtf8(all) && jsonBytes(text) <= this.#jsonBytesMax())
      return { text, bytes: this.bytes, truncated: false }
    const file = this.#place.name
    try {
      writeFileSync(this.#place.path, all, { mode: 0o600 })
    } catch (error) {
      this.#hooks.onDiskError(error as NodeJS.ErrnoException)
    }
    if (jsonBytes(text) <= this.#jsonBytesMax()) return { text, bytes: this.bytes, truncated: false, file }
    return { text: this.#cutText(all, all), bytes: this.bytes, truncated: true, file }
  }

  async #finishSpill(spill: WriteStream): Promise<Output> {
    spill.end()
    await finished(spill).catch(() => {}) // the hook has told it
    const text = this.#cutText(this.#kept[0]!, Buffer.concat(this.#tail))
    return { text, bytes: this.bytes, truncated: true, file: this.#place.name }
  }

  /** Escapes can make JSON six times as long as the text: a result must fit a Temporal payload all the same. */
  #jsonBytesMax(): number {
    return 2 * (this.#limits.headBytes + this.#limits.tailBytes) + 1_024
  }

  #cutText(headFrom: Buffer, tailFrom: Buffer): string {
    let { headBytes, tailBytes } = this.#limits
    for (;;) {
      const head = endText(headFrom.subarray(0, headBytes))
      const tail = startText(tailFrom.subarray(Math.max(0, tailFrom.length - tailBytes)))
      const dropped = this.bytes - Math.min(headBytes, headFrom.length) - Math.min(tailBytes, tailFrom.length)
      const text = `${head}\n[firepool: ${dropped} of ${this.bytes} bytes left out here; all are in ${this.#place.name}]\n${tail}`
      if (jsonBytes(text) <= this.#jsonBytesMax()) return text
      headBytes >>= 1
      tailBytes >>= 1
    }
  }
}

/** Bytes of a text as a JSON string. */
export function jsonBytes(text: string): number {
  return Buffer.byteLength(JSON.stringify(text))
}

/** Text that ends at a cut: without the character that the cut split. */
function endText(bytes: Buffer): string {
  let end = bytes.length
  for (let back = 1; back <= 3 && back <= bytes.length; back++) {
    const byte = bytes[bytes.length - back]!
    if ((byte & 0xc0) === 0x80) continue
    const length = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc0 ? 2 : 1
    if (length > back) end = bytes.length - back
    break
  }
  return bytes.toString('utf8', 0, end)
}

/** Text that begins at a cut: without the rest of the character that the cut split. */
function startText(bytes: Buffer): string {
  let start = 0
  while (start < 3 && start < bytes.length && (bytes[start]! & 0xc0) === 0x80) start++
  return bytes.toString('utf8', start)
}
