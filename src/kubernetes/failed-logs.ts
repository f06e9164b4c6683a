import { KubeError } from './kube-error.js'
import type { Pod } from './objects.js'
import { corePath, type Requests } from './requests.js'

/** The end of the log that goes into a failure's message: enough for a stack trace, little for a history. */
const TAIL_BYTES = 2_048
/** A kubelet that has much to do, or has gone, keeps no failure waiting for longer. */
const READ_MS = 3_000

/** The ends of failed pods' logs, read once for each pod, before it is removed and they are gone. */
export class FailedLogs {
  readonly #requests: Requests
  readonly #onRead: (uid: string) => void
  readonly #read = new Map<string, string | null>()

  /** @param onRead called when the log of a pod was read, or cannot be */
  constructor(requests: Requests, onRead: (uid: string) => void) {
    this.#requests = requests
    this.#onRead = onRead
  }

  /** @returns the end of the log; '' when it cannot be read; undefined while it is being read */
  of(pod: Pod): string | undefined {
    const { uid } = pod.metadata
    const read = this.#read.get(uid)
    if (read !== undefined) return read ?? undefined
    this.#read.set(uid, null)
    void this.#tail(pod).then((text) => {
      if (!this.#read.has(uid)) return
      this.#read.set(uid, text)
      this.#onRead(uid)
    })
    return undefined
  }

  forget(uid: string): void {
    this.#read.delete(uid)
  }

  async #tail({ metadata: { name, namespace = '' } }: Pod): Promise<string> {
    try {
      const text = await this.#requests.text({
        verb: 'get',
        resource: 'pods/log',
        namespace,
        name,
        path: corePath(namespace, 'pods/log', name),
        query: { container: 'runner', tailLines: '100', limitBytes: String(64 * 1024) },
        once: true,
        signal: AbortSignal.timeout(READ_MS),
      })
      return Buffer.from(text).subarray(-TAIL_BYTES).toString('utf8').trim()
    } catch (error) {
      // A failure without its log is better than one that waits for it.
      if (error instanceof KubeError) return ''
      throw error
    }
  }
}
