import type { JobResult } from '../contract/index.js'
import { DescriptorWriter } from './descriptor-writer.js'
import { OutputCopy } from './output-copy.js'
import { listenForOutput, type OutputListener } from './output-listener.js'
import { printNote } from './terminal.js'

const DESCRIPTOR = { stdout: 1, stderr: 2 } as const

/** Output that our reader has not taken yet; past this the runner is held back (and drops us when it must wait long). */
const QUEUE_BYTES_MAX = 64 * 1024 * 1024

/** The output of a job on our own standard output and standard error, as it comes. */
export class JobConsole {
  readonly #listener: OutputListener
  readonly #copy: OutputCopy
  readonly #writer: DescriptorWriter
  readonly #lost: () => boolean

  private constructor(
    listener: OutputListener,
    copy: OutputCopy,
    writer: DescriptorWriter,
    lost: () => boolean,
  ) {
    this.#listener = listener
    this.#copy = copy
    this.#writer = writer
    this.#lost = lost
  }

  /** @param onReaderGone called when nobody reads our output any more; a full disk is no reader that has gone */
  static async open(onReaderGone: () => void): Promise<JobConsole> {
    let lost = false
    const writer = new DescriptorWriter((descriptor, error) => {
      if (error.code === 'EPIPE') return onReaderGone()
      lost = true
      const name = descriptor === DESCRIPTOR.stdout ? 'standard output' : 'standard error'
      printNote(`firepool: ${name} takes no more (${error.message}): the rest of it is lost, the job goes on`)
    })
    const copy = new OutputCopy({
      write: (stream, bytes) => writer.write(DESCRIPTOR[stream], bytes),
      note: (text) => writer.write(DESCRIPTOR.stderr, Buffer.from(`firepool: ${text}\n`)),
    })
    const listener = await listenForOutput(async (chunk) => {
      const taken = copy.take(chunk)
      if (writer.queuedBytes > QUEUE_BYTES_MAX) await writer.flush()
      return taken
    })
    return new JobConsole(listener, copy, writer, () => lost)
  }

  /** for JobSpec.outputTo */
  get url(): string {
    return this.#listener.url
  }

  /**
   * Writes what did not come live, and everything that is still to be written.
   * @returns whether the output is complete and exact
   */
  async finish(result: JobResult): Promise<boolean> {
    await this.#listener.close()
    const exact = this.#copy.finish(result)
    await this.#writer.flush()
    return exact && !this.#lost()
  }

  async close(): Promise<void> {
    await this.#listener.close()
    await this.#writer.flush()
  }
}
