import { SEAT_VOLUME } from '../../contract/index.js'
import { KubeError } from '../kube-error.js'
import { ANNOTATION } from '../names.js'
import { conditionOf, type KubeObject, type Pod } from '../objects.js'
import type { Requests } from '../requests.js'

/** A kubelet has said by then that it cannot mount a volume, and an image that is pulled for longer is no failure. */
const ASK_AFTER_MS = 5_000
/** What is missing on a node is asked for again after this: somebody may be installing it. */
const AGAIN_MS = 10_000
/** Where events may not be read, nobody grants that from one moment to the next. */
const FORBIDDEN_MS = 300_000
/** A cluster of thousands of nodes is no reason to remember all of them. */
const NODES_MAX = 1_000

interface Asked {
  /** by performance.now() */
  until: number
  /** the kubelet's words; null: it has said nothing of it, or the answer is on its way */
  said: string | null
}

/**
 * Why the node agent's volume cannot be mounted, as kubelets say it: in events alone, a pod's status is silent about it. Asked by node, one
 * question at a time, for pods that have the volume and do not start.
 */
export class SeatMounts {
  readonly #requests: Requests
  readonly #onAnswer: (uid: string) => void
  readonly #byNode = new Map<string, Asked>()
  #isAsking = false
  #silentUntil = 0

  /** @param onAnswer called when something was said of a pod */
  constructor(requests: Requests, onAnswer: (uid: string) => void) {
    this.#requests = requests
    this.#onAnswer = onAnswer
  }

  /** @returns the kubelet's words about the pod's node; undefined while nothing is known to be wrong there */
  of(pod: Pod, serverNowMs: number): string | undefined {
    const { nodeName } = pod.spec
    if (nodeName === undefined || !this.#waits(pod, serverNowMs)) return undefined
    const known = this.#byNode.get(nodeName)
    if (!(known && performance.now() < known.until)) this.#ask(pod, nodeName, known?.said ?? null)
    return this.#byNode.get(nodeName)?.said ?? undefined
  }

  #waits(pod: Pod, serverNowMs: number): boolean {
    const { metadata, status } = pod
    if (metadata.annotations?.[ANNOTATION.seatVolume] === undefined) return false
    // Its sandbox is made when all volumes are there: what was said of them before is over then.
    const isMounted = conditionOf(pod, 'PodReadyToStartContainers')?.status === 'True'
    const ageMs = serverNowMs - Date.parse(metadata.creationTimestamp ?? '')
    return !isMounted && status?.phase === 'Pending' && ageMs > ASK_AFTER_MS
  }

  #ask(pod: Pod, nodeName: string, before: string | null): void {
    const now = performance.now()
    if (this.#isAsking || now < this.#silentUntil) return
    this.#isAsking = true
    const asked: Asked = { until: now + AGAIN_MS, said: before }
    this.#byNode.delete(nodeName)
    this.#byNode.set(nodeName, asked)
    for (const oldest of this.#byNode.keys()) {
      if (this.#byNode.size <= NODES_MAX) break
      this.#byNode.delete(oldest)
    }
    void this.#failedMount(pod)
      .then((said) => {
        asked.said = said
      })
      .catch((error: unknown) => {
        // A start without its reason is better than one that waits for it.
        if (!(error instanceof KubeError)) throw error
        if (error.status === 403) this.#silentUntil = performance.now() + FORBIDDEN_MS
      })
      .finally(() => {
        this.#isAsking = false
        if (asked.said !== before) this.#onAnswer(pod.metadata.uid)
      })
  }

  async #failedMount({ metadata: { namespace = '', uid } }: Pod): Promise<string | null> {
    const { items } = await this.#requests.json<{ items: (KubeObject & { message?: string })[] }>({
      verb: 'list',
      resource: 'events',
      namespace,
      path: `/api/v1/namespaces/${encodeURIComponent(namespace)}/events`,
      query: { fieldSelector: `involvedObject.uid=${uid},reason=FailedMount`, limit: '20' },
      optional: true,
      once: true,
    })
    const said = items.map(({ message = '' }) => message).filter((message) => message.includes(SEAT_VOLUME))
    return said.at(-1) ?? null
  }
}
