import { LABEL } from '../names.js'
import { CLAIM } from './dra.js'
import type { ClaimedPod } from './seen-pod.js'

/** Claims that are remembered: more than a worker has sets, as nobody says that one of an earlier template is not used any more. */
const PLACES_MAX = 10_000

interface Place {
  node: string
  /** UUIDs in order; empty: the pods have not said */
  gpus: readonly string[]
}

/**
 * Where seat sets are. A claim gives its GPUs back when the last pod of its set ends, and may have others for the next one, on another node:
 * no pod keeps the set where it is, so that it moved is accepted, and said.
 */
export class SetPlaces {
  readonly #places = new Map<string, Place>()

  /**
   * A pod of a set is ready.
   * @param gpus UUIDs that it sees; empty: it has not said
   * @returns that its set is elsewhere than it was when one of its pods was seen last; null: it is not, or nobody knows where it was
   */
  seen({ metadata, spec }: ClaimedPod, gpus: readonly string[]): string | null {
    const { labels = {}, namespace } = metadata
    const set = labels[LABEL.seatSet]
    const claim = spec.resourceClaims?.find(({ name }) => name === CLAIM)?.resourceClaimName
    if (set === undefined || claim === undefined || spec.nodeName === undefined) return null
    const key = `${namespace}/${claim}`
    const before = this.#places.get(key)
    const node = spec.nodeName
    const isSilent = gpus.length === 0 && before?.node === node
    const now = { node, gpus: isSilent ? before.gpus : [...gpus].sort() }
    // Anew at the end: the one that was seen longest ago is forgotten first.
    this.#places.delete(key)
    this.#places.set(key, now)
    for (const oldest of this.#places.keys()) {
      if (this.#places.size <= PLACES_MAX) break
      this.#places.delete(oldest)
    }
    if (before === undefined || !differs(before, now)) return null
    return `seat set ${set} of pool ${labels[LABEL.pool]} has moved: from ${named(before)} to ${named(now)}`
  }
}

function differs(before: Place, now: Place): boolean {
  return before.node !== now.node || (before.gpus.length > 0 && before.gpus.join() !== now.gpus.join())
}

function named({ node, gpus }: Place): string {
  return gpus.length === 0 ? `node ${node}` : `node ${node} (${gpus.join(', ')})`
}
