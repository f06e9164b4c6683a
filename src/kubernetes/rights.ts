import { type Asked, type KubeError, refusalOf } from './kube-error.js'

/** An API server that starts forbids everything until it has read its roles, in a second or two; a busy one takes longer. */
const UNHEARD_MS = 10_000
/** What was allowed before is hardly taken away, and often not there yet behind a server that was started again. */
const HELD_MS = 60_000

/** Which rights this worker has, as far as the API server's answers tell. No I/O. */
export class Rights {
  readonly #now: () => number
  readonly #unheardMs: number
  /** what was allowed once */
  readonly #held = new Set<string>()
  /** by right, since it was refused without a success between; by `now` */
  readonly #refusedSince = new Map<string, number>()

  /**
   * @param now ms that only grow
   * @param unheardMs for how long a right that was never heard of is waited for
   */
  constructor(now: () => number = () => performance.now(), unheardMs = UNHEARD_MS) {
    this.#now = now
    this.#unheardMs = unheardMs
  }

  /** The API server has let it pass. */
  granted(asked: Asked): void {
    const right = rightOf(asked)
    this.#held.add(right)
    this.#refusedSince.delete(right)
  }

  /** Whether an error is a missing right that has been missing for so short that it may be there in a moment. */
  mayComeBack(error: KubeError): boolean {
    if (refusalOf(error)?.reason !== 'Forbidden') return false
    const right = rightOf(error.asked)
    const now = this.#now()
    const since = this.#refusedSince.get(right) ?? now
    this.#refusedSince.set(right, since)
    return now - since < (this.#held.has(right) ? HELD_MS : this.#unheardMs)
  }
}

function rightOf({ verb, resource, namespace = '' }: Asked): string {
  return `${verb} ${resource} ${namespace}`
}
