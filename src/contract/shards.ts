import { isRecord } from './check.js'
import { LIMIT } from './limits.js'
import type { Routes } from './pool.js'

/**
 * A pool of n shards is n pool workflows. Shard 0 is the pool's own, the HEAD: it knows the whole and tells the others
 * their part. Shard k >= 1 is a pool under a name of its own, which no user can take: a pool's name has no dot.
 */
export function shardName(pool: string, shard: number): string {
  return shard === 0 ? pool : `${pool}.${shard}`
}

/** The pool that users know, of the name of one of its shards. */
export function poolOfShard(name: string): string {
  return name.split('.', 1)[0]!
}

/** Shard `shard`'s part of a whole number split over n: the parts differ by one at most, and add up to the whole. */
export function shareOf(whole: number, n: number, shard: number): number {
  return Math.floor(whole / n) + (shard < whole % n ? 1 : 0)
}

/**
 * The shard of a caller, by rendezvous hashing: of all n it is the one with the highest score for this caller. One shard more
 * or less moves only the callers that it takes or had (1/n of them). Only TypeScript computes it: it is no contract.
 */
export function shardOfCaller(caller: string, n: number): number {
  const key = fnv1a(caller)
  let best = 0
  let most = -1
  for (let shard = 0; shard < n; shard++) {
    const score = mixed(key ^ mixed(shard + 1))
    if (score <= most) continue
    most = score
    best = shard
  }
  return best
}

/** FNV-1a, 32 bits, over UTF-16 units. */
function fnv1a(text: string): number {
  let hash = 0x811c9dc5
  for (let i = 0; i < text.length; i++) hash = Math.imul(hash ^ text.charCodeAt(i), 0x01000193)
  return hash
}

/** The finalizer of MurmurHash3: each bit of the input changes each bit of the output with probability 1/2. */
function mixed(value: number): number {
  let h = value
  h = Math.imul(h ^ (h >>> 16), 0x85ebca6b)
  h = Math.imul(h ^ (h >>> 13), 0xc2b2ae35)
  return (h ^ (h >>> 16)) >>> 0
}

/** The head's memo under which it says so; absent in a pool that is whole. */
export const ROUTES_MEMO = 'firepoolShards'
export const WHOLE: Routes = { routes: 1, all: 1 }

/** The routes in a memo. What cannot be read means a whole pool: the head serves everybody, or says where to go. */
export function routesIn(memo: unknown): Routes {
  const said = isRecord(memo) ? memo[ROUTES_MEMO] : undefined
  if (!isRecord(said)) return WHOLE
  const { routes, all } = said
  const fits = (n: unknown): n is number =>
    Number.isInteger(n) && (n as number) >= 1 && (n as number) <= LIMIT.shards
  return fits(routes) && fits(all) && routes <= all ? { routes, all } : WHOLE
}
