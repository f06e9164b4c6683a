import { Counter, type Metric } from '../metrics.js'
import type { Asked } from './kube-error.js'

/** Why a request was held back: the API server asked for it (429), or as many as may be are under way. */
export type WaitReason = 'throttled' | 'places'

/** What a worker has asked of its API server, and how long it held itself back. Counts alone. */
export class RequestStats {
  readonly #requests = new Counter()
  readonly #waits = new Counter()
  readonly #waitedSeconds = new Counter()

  /** @param status of HTTP; 0 when no answer came */
  answered({ verb, resource }: Asked, status: number): void {
    this.#requests.add({ verb, resource, code: status === 0 ? 'none' : String(status) })
  }

  waited(reason: WaitReason, ms: number): void {
    this.#waits.add({ reason })
    this.#waitedSeconds.add({ reason }, ms / 1_000)
  }

  metrics(): Metric[] {
    return [
      {
        name: 'firepool_kubernetes_requests_total',
        help: 'Requests to the API server that ended, by verb, resource and HTTP status; none: no answer came.',
        type: 'counter',
        samples: this.#requests.samples(),
      },
      {
        name: 'firepool_kubernetes_request_waits_total',
        help: 'Requests that were held back: throttled by the API server (429), or waiting for one of the places.',
        type: 'counter',
        samples: this.#waits.samples(),
      },
      {
        name: 'firepool_kubernetes_request_wait_seconds_total',
        help: 'For how long they were held back, together.',
        type: 'counter',
        samples: this.#waitedSeconds.samples(),
      },
    ]
  }
}
