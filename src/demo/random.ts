/**
 * The demo's own random numbers: the same seed gives the same jobs on every machine and in every language that
 * ports these few lines. Not for secrets. Pure, so it may be used inside a workflow.
 */
export interface Random {
  /** uniform in [0, 1), 32 bits of resolution */
  next(): number
  /** uniform integer in [0, bound); bound is an integer >= 1 */
  below(bound: number): number
  /** one element of a list that is not empty */
  pick<T>(list: readonly T[]): T
}

/**
 * xoshiro128** (Blackman and Vigna, 2018), its four words filled by splitmix32 from the seed.
 * @param seed any text or number; `random('rollouts 7')` and `random('pauses 7')` are independent streams
 */
export function random(seed: string | number): Random {
  let mix = hash(String(seed))
  const word = () => {
    mix = (mix + 0x9e3779b9) | 0
    let z = Math.imul(mix ^ (mix >>> 16), 0x21f0aaad)
    z = Math.imul(z ^ (z >>> 15), 0x735a2d97)
    return (z ^ (z >>> 15)) >>> 0
  }
  let [a, b, c, d] = [word(), word(), word(), word()]
  const next = () => {
    const result = Math.imul(rotate(Math.imul(b, 5), 7), 9) >>> 0
    const shifted = b << 9
    c ^= a
    d ^= b
    b ^= c
    a ^= d
    c ^= shifted
    d = rotate(d, 11)
    return result / 0x1_0000_0000
  }
  const below = (bound: number) => {
    if (!Number.isInteger(bound) || bound < 1)
      throw new RangeError(`below needs an integer >= 1, got ${bound}`)
    return Math.floor(next() * bound)
  }
  return {
    next,
    below,
    pick: (list) => {
      const chosen = list[below(list.length)]
      // below() has refused the empty list; this only tells the compiler.
      return chosen as (typeof list)[number]
    },
  }
}

function rotate(x: number, bits: number): number {
  return (x << bits) | (x >>> (32 - bits))
}

/** FNV-1a over the UTF-16 code units: seeds are short texts, not adversaries. */
function hash(text: string): number {
  let h = 0x811c9dc5
  for (let i = 0; i < text.length; i++) h = Math.imul(h ^ text.charCodeAt(i), 0x01000193)
  return h >>> 0
}
