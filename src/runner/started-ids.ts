/**
 * Which job ids have ever started, for the whole life of a runner. Ids of the form `{sandbox}/{n}` are kept as
 * ranges of n for each sandbox, so a sandbox that counts its calls costs one entry however many jobs it runs.
 */
export class StartedIds {
  /** per sandbox: sorted, disjoint, closed ranges [from, to, from, to, ...] */
  readonly #ranges = new Map<string, number[]>()
  readonly #others = new Set<string>()
  #entries = 0

  /** How many ranges and single ids are held: what a bound on memory counts. */
  get entries(): number {
    return this.#entries
  }

  has(jobId: string): boolean {
    const [sandbox, n] = split(jobId)
    if (n === undefined) return this.#others.has(jobId)
    const ranges = this.#ranges.get(sandbox)
    if (ranges === undefined) return false
    const at = rangeAt(ranges, n)
    return at < ranges.length && ranges[at]! <= n
  }

  /** Remembers an id. Adding it again changes nothing. */
  add(jobId: string): void {
    const [sandbox, n] = split(jobId)
    if (n === undefined) {
      if (!this.#others.has(jobId)) this.#entries++
      this.#others.add(jobId)
      return
    }
    const ranges = this.#ranges.get(sandbox)
    if (ranges === undefined) {
      this.#ranges.set(sandbox, [n, n])
      this.#entries++
      return
    }
    const at = rangeAt(ranges, n)
    if (at < ranges.length && ranges[at]! <= n) return
    const joinsBelow = at > 0 && ranges[at - 1] === n - 1
    const joinsAbove = at < ranges.length && ranges[at] === n + 1
    if (joinsBelow && joinsAbove) {
      ranges.splice(at - 1, 2)
      this.#entries--
    } else if (joinsBelow) ranges[at - 1] = n
    else if (joinsAbove) ranges[at] = n
    else {
      ranges.splice(at, 0, n, n)
      this.#entries++
    }
  }
}

/** Index of the `from` of the first range that ends at n or later; ranges.length when none does. */
function rangeAt(ranges: number[], n: number): number {
  let low = 0
  let high = ranges.length / 2
  while (low < high) {
    const middle = (low + high) >> 1
    if (ranges[2 * middle + 1]! < n) low = middle + 1
    else high = middle
  }
  return 2 * low
}

/** (sandbox, n) of `{sandbox}/{n}`, n undefined for every other form; '01' is another id than '1'. */
function split(jobId: string): [string, number | undefined] {
  const slash = jobId.lastIndexOf('/')
  if (slash < 0) return [jobId, undefined]
  const text = jobId.slice(slash + 1)
  const n = Number(text)
  return Number.isSafeInteger(n) && n >= 0 && String(n) === text
    ? [jobId.slice(0, slash), n]
    : [jobId, undefined]
}
