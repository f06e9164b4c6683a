import type { LeaseNote } from '../contract/index.js'
import { KubeError } from './kube-error.js'
import { ANNOTATION } from './names.js'
import type { Pod } from './objects.js'
import { corePath, type Requests } from './requests.js'

/** Notes on their way to the API server at once: they come with each lease and must not crowd out creates and deletes. */
const CONCURRENCY = 2
/** Pods whose note waits. Older ones are dropped: a note is for people, and the next lease writes another. */
const WAITING_MAX = 1_000

/** Writes on pods whom they serve, the newest lease of each pod only. */
export class Notes {
  readonly #requests: Requests
  readonly #find: (pod: string) => Pod | undefined
  readonly #log: (line: string) => void
  readonly #waiting = new Map<string, LeaseNote>()
  #running = 0
  #logged = false

  constructor(requests: Requests, find: (pod: string) => Pod | undefined, log: (line: string) => void) {
    this.#requests = requests
    this.#find = find
    this.#log = log
  }

  write(pod: string, lease: LeaseNote): void {
    this.#waiting.delete(pod)
    this.#waiting.set(pod, lease)
    if (this.#waiting.size > WAITING_MAX) {
      for (const oldest of this.#waiting.keys()) {
        this.#waiting.delete(oldest)
        break
      }
    }
    if (this.#running < CONCURRENCY) void this.#drain()
  }

  async #drain(): Promise<void> {
    this.#running++
    try {
      for (const [pod, lease] of this.#waiting) {
        this.#waiting.delete(pod)
        await this.#patch(pod, lease)
      }
    } finally {
      this.#running--
    }
  }

  async #patch(name: string, { leaseId, epoch, caller }: LeaseNote): Promise<void> {
    const pod = this.#find(name)
    if (!pod) return
    const { namespace = '', name: object, uid } = pod.metadata
    try {
      await this.#requests.text({
        verb: 'patch',
        resource: 'pods',
        namespace,
        name: object,
        path: corePath(namespace, 'pods', object),
        contentType: 'application/merge-patch+json',
        body: {
          metadata: {
            // Of another pod of that name it would be refused.
            uid,
            annotations: {
              [ANNOTATION.lease]: leaseId,
              [ANNOTATION.epoch]: String(epoch),
              [ANNOTATION.caller]: caller,
            },
          },
        },
      })
    } catch (error) {
      // A missing right is said once; a pod that is on its way out needs no note.
      if (error instanceof KubeError && error.status === 403 && !this.#logged) {
        this.#logged = true
        this.#log(`pods do not show whom they serve: ${error.message}`)
      }
    }
  }
}
