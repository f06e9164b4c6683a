import * as http from 'node:http'
import type { OutputChunk } from '../contract/index.js'

/** what may wait for a subscriber; beyond it the job's pipe is held until half of it is gone */
const BUFFER_BYTES_MAX = 1024 * 1024
/** a job is held up this long at most; then the subscriber is too slow and is dropped */
const BEHIND_MS_MAX = 10_000
/** bytes in one POST */
const POST_BYTES_MAX = 256 * 1024
/** one POST, from connect to its answer */
const POST_MS_MAX = 10_000
/** after the job the rest may take this long; then the result goes without it */
const FLUSH_MS_MAX = 10_000

interface Piece {
  stream: OutputChunk['stream']
  offset: number
  chunks: Buffer[]
  bytes: number
}

/**
 * Sends a job's output to the URL that its caller named, one POST after the other. A subscriber that is slow slows the
 * job down; one that fails, answers with anything but 2xx or stays behind is dropped for the rest of the job.
 */
export class OutputSubscriber {
  readonly #url: URL
  readonly #jobId: string
  readonly #onDropped: (reason: string) => void
  readonly #agent: http.Agent | undefined
  #waiting: Piece[] = []
  #waitingBytes = 0
  #sending = false
  #dropped = false
  #onIdle: (() => void) | null = null
  #behind: { caughtUp: Promise<void>; catchUp: () => void } | null = null

  constructor(url: string, jobId: string, onDropped: (reason: string) => void) {
    this.#url = new URL(url)
    this.#jobId = jobId
    this.#onDropped = onDropped
    this.#agent =
      this.#url.protocol === 'http:' ? new http.Agent({ keepAlive: true, maxSockets: 1 }) : undefined
  }

  /** @returns null, or what to wait for before more is pushed */
  push(stream: OutputChunk['stream'], chunk: Buffer, offset: number): Promise<void> | null {
    if (this.#dropped) return null
    const last = this.#waiting.at(-1)
    if (last !== undefined && last.stream === stream && last.bytes + chunk.length <= POST_BYTES_MAX) {
      last.chunks.push(chunk)
      last.bytes += chunk.length
    } else this.#waiting.push({ stream, offset, chunks: [chunk], bytes: chunk.length })
    this.#waitingBytes += chunk.length
    if (!this.#sending) void this.#send()
    if (this.#waitingBytes > BUFFER_BYTES_MAX && !this.#dropped) return this.#fallBehind()
    return null
  }

  #fallBehind(): Promise<void> {
    if (this.#behind === null) {
      let resolve = () => {}
      const caughtUp = new Promise<void>((done) => {
        resolve = done
      })
      const timer = setTimeout(() => this.#drop(`stayed ${this.#waitingBytes} bytes behind`), BEHIND_MS_MAX)
      const catchUp = () => {
        clearTimeout(timer)
        this.#behind = null
        resolve()
      }
      this.#behind = { caughtUp, catchUp }
    }
    return this.#behind.caughtUp
  }

  /** Resolves when everything was sent, the subscriber was dropped or the time for it is over. */
  async end(): Promise<void> {
    if (this.#sending) {
      await new Promise<void>((resolve) => {
        const timer = setTimeout(() => this.#drop('did not take the rest in time'), FLUSH_MS_MAX)
        this.#onIdle = () => {
          clearTimeout(timer)
          resolve()
        }
      })
    }
    this.#agent?.destroy()
  }

  async #send(): Promise<void> {
    this.#sending = true
    try {
      for (let piece = this.#waiting.shift(); piece !== undefined; piece = this.#waiting.shift()) {
        this.#waitingBytes -= piece.bytes
        await this.#post(piece)
        if (this.#dropped) break
        if (this.#waitingBytes <= BUFFER_BYTES_MAX / 2) this.#behind?.catchUp()
      }
    } catch (error) {
      this.#drop(error instanceof Error ? error.message : String(error))
    }
    this.#sending = false
    this.#onIdle?.()
  }

  async #post(piece: Piece): Promise<void> {
    const chunk: OutputChunk = {
      v: 1,
      jobId: this.#jobId,
      stream: piece.stream,
      offset: piece.offset,
      base64: Buffer.concat(piece.chunks).toString('base64'),
    }
    const body = JSON.stringify(chunk)
    const { request } = this.#url.protocol === 'https:' ? await import('node:https') : http
    await new Promise<void>((resolve, reject) => {
      const call = request(
        this.#url,
        {
          method: 'POST',
          agent: this.#agent,
          headers: { 'content-type': 'application/json', 'content-length': Buffer.byteLength(body) },
          signal: AbortSignal.timeout(POST_MS_MAX),
        },
        (response) => {
          response.resume()
          response.on('error', reject)
          const status = response.statusCode ?? 0
          if (status >= 200 && status < 300) response.on('end', resolve)
          else reject(new Error(`answered ${status}`))
        },
      )
      call.on('error', reject)
      call.end(body)
    })
  }

  #drop(reason: string): void {
    if (this.#dropped) return
    this.#dropped = true
    this.#waiting = []
    this.#waitingBytes = 0
    this.#onDropped(reason)
    this.#behind?.catchUp()
    this.#agent?.destroy()
    this.#onIdle?.()
  }
}
