/** Values below this are counted one by one. */
const EXACT = 2_048
/** Above, each doubling has so many buckets: a quantile is at most 0.1 % too high. */
const PER_OCTAVE = EXACT / 2
const OCTAVES = 20
/** 24 days in ms; what is longer counts as that. */
const MOST = 2 ** 31 - 1

/** Counts of whole numbers from 0 on in a fixed amount of memory (180 kB), and their quantiles. */
export class Histogram {
  count = 0
  max = 0
  private readonly buckets = new Float64Array(EXACT + OCTAVES * PER_OCTAVE)

  /** @param value 0 or more; rounded to a whole number */
  add(value: number): void {
    const whole = Math.min(MOST, Math.max(0, Math.round(value)))
    this.buckets[bucketOf(whole)]!++
    this.count++
    if (whole > this.max) this.max = whole
  }

  /**
   * Nearest-rank percentile: a value that at least `percent` of the values do not exceed.
   * @param percent above 0, at most 100
   * @returns NaN (null in JSON) when there are no values
   */
  percentile(percent: number): number {
    if (this.count === 0) return Number.NaN
    // A product such as 0.9 x 10 must not come out a hair above its whole number.
    let left = Math.max(1, Math.ceil((percent / 100) * this.count - 1e-9))
    for (let bucket = 0; bucket < this.buckets.length; bucket++) {
      left -= this.buckets[bucket]!
      if (left <= 0) return Math.min(this.max, highestIn(bucket))
    }
    return this.max
  }
}

function bucketOf(value: number): number {
  if (value < EXACT) return value
  // So far the value is shifted to the right that it lies in [PER_OCTAVE, EXACT).
  const shift = 21 - Math.clz32(value)
  return EXACT + (shift - 1) * PER_OCTAVE + (value >>> shift) - PER_OCTAVE
}

function highestIn(bucket: number): number {
  if (bucket < EXACT) return bucket
  const shift = Math.floor((bucket - EXACT) / PER_OCTAVE) + 1
  const leading = ((bucket - EXACT) % PER_OCTAVE) + PER_OCTAVE
  return (leading + 1) * 2 ** shift - 1
}
