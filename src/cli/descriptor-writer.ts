import { write } from 'node:fs'
import { setTimeout as pause } from 'node:timers/promises'

/** A pipe that another program made non-blocking is full: look again after this. */
const FULL_PAUSE_MS = 5

interface Piece {
  descriptor: number
  bytes: Buffer
}

/**
 * Writes bytes to file descriptors, all in the order in which they were given, outside of the event loop: process.stdout
 * blocks it on a pipe whose reader is slow, and then nothing else would be heard, not even Ctrl-C.
 */
export class DescriptorWriter {
  #queue: Piece[] = []
  #queuedBytes = 0
  #writing: Promise<void> | null = null
  #closed = new Set<number>()

  /** @param onClosed called once for a descriptor that takes nothing more: its reader has gone, its disk is full */
  constructor(private readonly onClosed: (descriptor: number, error: NodeJS.ErrnoException) => void) {}

  get queuedBytes(): number {
    return this.#queuedBytes
  }

  write(descriptor: number, bytes: Buffer): void {
    if (this.#closed.has(descriptor) || bytes.length === 0) return
    this.#queue.push({ descriptor, bytes })
    this.#queuedBytes += bytes.length
    this.#writing ??= this.#drain().finally(() => {
      this.#writing = null
    })
  }

  /** Resolves when everything that can be written is written. */
  async flush(): Promise<void> {
    while (this.#writing) await this.#writing
  }

  async #drain(): Promise<void> {
    for (let piece = this.#queue.shift(); piece !== undefined; piece = this.#queue.shift()) {
      const { descriptor, bytes } = piece
      for (let at = 0; at < bytes.length && !this.#closed.has(descriptor); )
        at += await this.#writeSome(descriptor, bytes.subarray(at))
      this.#queuedBytes -= bytes.length
    }
  }

  async #writeSome(descriptor: number, bytes: Buffer): Promise<number> {
    try {
      return await new Promise<number>((resolve, reject) => {
        write(descriptor, bytes, (error, written) => (error ? reject(error) : resolve(written)))
      })
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'EAGAIN') {
        await pause(FULL_PAUSE_MS)
        return 0
      }
      this.#closed.add(descriptor)
      this.onClosed(descriptor, error as NodeJS.ErrnoException)
      return bytes.length
    }
  }
}
