import { SEARCH_ATTRIBUTE } from '../contract/names.js'

/** Looked at again after this, in the background: an operator may add them or take them away. */
const LOOK_MS = 30_000
/** Other parts of the server believe for a few seconds what was so before an attribute was added. */
const SETTLED_MS = 10_000

/**
 * Whether this namespace has Firepool's search attributes, as leases need to know it in the moment when they ask for a pod: so what
 * was seen last is said at once. One that is not registered would fail each workflow task that sets it.
 */
export class KnownAttributes {
  private lookedAt = Number.NEGATIVE_INFINITY
  /** since when all of them have been seen; null: some are missing, or nobody knows */
  private seenAt: number | null = null
  private looking = false

  /** @param read names those that there are; @param now a monotonic clock, ms */
  constructor(
    private readonly read: () => Promise<readonly string[]>,
    private readonly now = () => performance.now(),
  ) {
    void this.look()
  }

  get maySet(): boolean {
    const now = this.now()
    if (now >= this.lookedAt + LOOK_MS) void this.look()
    return this.seenAt !== null && now >= this.seenAt + SETTLED_MS
  }

  private async look(): Promise<void> {
    if (this.looking) return
    this.looking = true
    this.lookedAt = this.now()
    const there = await this.read().catch((): string[] => [])
    const all = Object.keys(SEARCH_ATTRIBUTE).every((name) => there.includes(name))
    this.seenAt = all ? (this.seenAt ?? this.now()) : null
    this.looking = false
  }
}
