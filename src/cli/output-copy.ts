import type { JobResult, Output, OutputChunk } from '../contract/index.js'

/** Text that a result holds untruncated has at most this many bytes; so much of a stream is kept to find its place in it. */
const KEPT_BYTES = 128 * 1024

type StreamName = OutputChunk['stream']

export interface OutputSinks {
  /** takes bytes in the order in which they are to appear */
  write(stream: StreamName, bytes: Buffer): void
  /** something to tell the user beside the output */
  note(text: string): void
}

/**
 * The output of one job, copied as it comes and completed from the result: every byte once, in order, also when chunks
 * come twice, overlap or stop coming.
 */
export class OutputCopy {
  readonly #streams: Record<StreamName, StreamCopy>
  #jobId: string | undefined

  constructor(sinks: OutputSinks) {
    this.#streams = { stdout: new StreamCopy('stdout', sinks), stderr: new StreamCopy('stderr', sinks) }
  }

  /** @returns false when it is not a chunk of this job */
  take(chunk: unknown): boolean {
    if (!isChunk(chunk)) return false
    this.#jobId ??= chunk.jobId
    if (chunk.jobId !== this.#jobId) return false
    this.#streams[chunk.stream].take(chunk.offset, Buffer.from(chunk.base64, 'base64'))
    return true
  }

  /**
   * Writes what has not come as a chunk.
   * @returns whether everything was written, exactly; if not, a note has said so
   */
  finish({ stdout, stderr, output }: Pick<JobResult, 'stdout' | 'stderr' | 'output'>): boolean {
    const exact = this.#streams.stdout.finish({ text: stdout, ...output.stdout })
    return this.#streams.stderr.finish({ text: stderr, ...output.stderr }) && exact
  }
}

class StreamCopy {
  #written = 0
  #kept: Buffer[] = []
  /** something is missing: the rest comes from the result */
  #broken = false

  constructor(
    private readonly name: StreamName,
    private readonly sinks: OutputSinks,
  ) {}

  take(offset: number, bytes: Buffer): void {
    if (this.#broken) return
    const known = this.#written - offset
    if (known < 0) this.#broken = true
    else if (known < bytes.length) this.#write(bytes.subarray(known))
  }

  #write(bytes: Buffer): void {
    if (bytes.length === 0) return
    if (this.#written < KEPT_BYTES) this.#kept.push(bytes)
    this.#written += bytes.length
    this.sinks.write(this.name, bytes)
  }

  finish(output: Output): boolean {
    if (this.#written >= output.bytes) return true
    return output.truncated ? this.#finishTruncated(output) : this.#finishWhole(output)
  }

  #finishWhole({ text, file }: Output): boolean {
    const all = Buffer.from(text, 'utf8')
    if (file === undefined) {
      this.#write(all.subarray(this.#written))
      return true
    }
    // The text has replacement characters where bytes were not UTF-8: as many of its bytes are out already as the
    // bytes that were written make when they are decoded.
    const decoded = new TextDecoder('utf-8', { ignoreBOM: true }).decode(Buffer.concat(this.#kept), {
      stream: true,
    })
    this.#write(all.subarray(Buffer.byteLength(decoded)))
    this.sinks.note(
      `bytes of ${this.name} that are not UTF-8 were replaced, because streaming stopped before the end`,
    )
    return false
  }

  /** Of a truncated output the result has the head, a line that says what is missing, and the tail. */
  #finishTruncated({ text, bytes }: Output): boolean {
    const marker = new RegExp(`\\n\\[firepool: \\d+ of ${bytes} bytes left out here; [^\\n]*\\]\\n`).exec(
      text,
    )
    const head = Buffer.from(marker ? text.slice(0, marker.index) : '', 'utf8')
    const tail = Buffer.from(marker ? text.slice(marker.index + marker[0].length) : text, 'utf8')
    if (this.#written < head.length) this.#write(head.subarray(this.#written))
    const missed = bytes - tail.length - this.#written
    if (missed > 0) {
      this.sinks.note(
        `${missed} of ${bytes} bytes of ${this.name} are missing here: streaming stopped before the end`,
      )
    }
    this.#write(tail.subarray(Math.max(0, -missed)))
    return missed <= 0
  }
}

function isChunk(value: unknown): value is OutputChunk {
  const chunk = value as Partial<OutputChunk> | null
  return (
    typeof chunk === 'object' &&
    chunk !== null &&
    chunk.v === 1 &&
    typeof chunk.jobId === 'string' &&
    (chunk.stream === 'stdout' || chunk.stream === 'stderr') &&
    Number.isSafeInteger(chunk.offset) &&
    chunk.offset! >= 0 &&
    typeof chunk.base64 === 'string'
  )
}
