import * as crypto from 'node:crypto'
import { chmodSync, linkSync, readFileSync, unlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { type Problem, problem, type TokenClaims } from '../contract/index.js'
import { makeFolder } from '../make-folder.js'

/** How long a token is good for, ms. Renewed at half of it, so two clocks may differ by half of it as well. */
export const TOKEN_LIFE_MS = 5 * 60_000

const PRIVATE_KEY_FILE = 'broker-key.pem'
/** tokens remembered by a signer or a verifier; a pod hears from one lease and one broker at a time */
const CACHE_ENTRIES = 1_000
const TOKEN_CHARS_MAX = 4_096

/** The broker's key pair. Only `publicKeyBase64` may leave the broker's worker. */
export interface BrokerKeys {
  privateKey: crypto.KeyObject
  /** the raw 32 bytes of the public key, base64 */
  publicKeyBase64: string
}

/** Claims of a good token, or why it is refused. */
export type Verified = { claims: TokenClaims } | { problem: Problem }

/** What a token must be good for. */
export interface TokenUse {
  pod: string
  /** ms since the epoch, of the verifier's clock */
  nowMs: number
  scopes: readonly TokenClaims['scope'][]
}

/** A new key pair, in memory only. */
export function generateKeys(): BrokerKeys {
  return keysOf(crypto.generateKeyPairSync('ed25519').privateKey)
}

/**
 * The key pair of a folder; made when the folder has none. Any number of processes may do so at once:
 * the key file appears whole by a hard link, which only the first one gets, and everybody reads that one.
 * @throws when the folder cannot be written or the file holds no Ed25519 private key
 */
export function loadKeys(folder: string): BrokerKeys {
  const path = join(folder, PRIVATE_KEY_FILE)
  const found = readKey(path)
  if (found) return found
  makeFolder(folder, 0o700)
  const fresh = generateKeys().privateKey.export({ type: 'pkcs8', format: 'pem' })
  const draft = `${path}.${process.pid}.${crypto.randomBytes(6).toString('hex')}`
  writeFileSync(draft, fresh, { mode: 0o600, flag: 'wx', flush: true })
  try {
    chmodSync(draft, 0o600) // whatever the umask says
    linkSync(draft, path)
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error
  } finally {
    unlinkSync(draft)
  }
  const won = readKey(path)
  if (!won)
    throw new Error(`the broker's key ${path} vanished while it was made; is something cleaning the folder?`)
  return won
}

function readKey(path: string): BrokerKeys | undefined {
  let pem: string
  try {
    pem = readFileSync(path, 'utf8')
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined
    throw error
  }
  try {
    const key = crypto.createPrivateKey(pem)
    if (key.asymmetricKeyType === 'ed25519') return keysOf(key)
  } catch {
    // told below, without anything of the file's content
  }
  throw new Error(`${path} holds no Ed25519 private key; restore it, or delete it and restart all pods`)
}

function keysOf(privateKey: crypto.KeyObject): BrokerKeys {
  const { x } = crypto.createPublicKey(privateKey).export({ format: 'jwk' })
  if (x === undefined) throw new Error('an Ed25519 key without a public part')
  return { privateKey, publicKeyBase64: Buffer.from(x, 'base64url').toString('base64') }
}

/**
 * The public key of its raw 32 bytes in base64.
 * @throws when it is not such a key
 */
export function publicKeyOf(publicKeyBase64: string): crypto.KeyObject {
  const raw = Buffer.from(publicKeyBase64, 'base64')
  if (raw.length !== 32)
    throw new Error('the broker key must be the base64 of a raw 32-byte Ed25519 public key')
  return crypto.createPublicKey({
    key: { kty: 'OKP', crv: 'Ed25519', x: raw.toString('base64url') },
    format: 'jwk',
  })
}

/** A token: base64url(claims as JSON) + '.' + base64url(signature over the first part). */
export function signToken(claims: TokenClaims, keys: BrokerKeys): string {
  const head = Buffer.from(JSON.stringify(claims)).toString('base64url')
  return `${head}.${crypto.sign(null, Buffer.from(head), keys.privateKey).toString('base64url')}`
}

/** Checks signature, shape, pod, expiry and scope of a token, in this order. Never throws. */
export function verifyToken(token: string, key: crypto.KeyObject, use: TokenUse): Verified {
  const claims = signedClaims(token, key)
  if (claims === undefined) return { problem: TOKEN_PROBLEM.unsigned }
  const refused = claimsProblem(claims, use)
  return refused ? { problem: refused } : { claims }
}

const TOKEN_PROBLEM = {
  missing: problem(
    'InvalidRequest',
    'The call carries no token. Send `authorization: Bearer <token>` with a token that the broker signed for this pod.',
    { reason: 'TokenMissing' },
  ),
  unsigned: problem(
    'InvalidRequest',
    'The token is not one that this broker signed. Ask the broker that created this pod for a token.',
    { reason: 'TokenUnsigned' },
  ),
  pod: problem('InvalidRequest', 'The token is for another pod. Ask the broker for a token for this pod.', {
    reason: 'TokenForAnotherPod',
  }),
  expired: problem(
    'InvalidRequest',
    'The token has expired. Ask the broker for a new one, and check that the clocks of both machines agree.',
    { reason: 'TokenExpired' },
  ),
  scope: problem(
    'InvalidRequest',
    "The token's scope does not allow this call. Jobs need the token of a lease, pod control the broker's.",
    { reason: 'TokenScope' },
  ),
} as const

/** The claims of a token whose signature is good, or undefined. */
function signedClaims(token: string, key: crypto.KeyObject): TokenClaims | undefined {
  const dot = token.indexOf('.')
  if (dot <= 0 || token.length > TOKEN_CHARS_MAX) return undefined
  const head = token.slice(0, dot)
  const signature = Buffer.from(token.slice(dot + 1), 'base64url')
  try {
    if (!crypto.verify(null, Buffer.from(head), key, signature)) return undefined
    const claims = JSON.parse(Buffer.from(head, 'base64url').toString('utf8')) as TokenClaims
    return isClaims(claims) ? claims : undefined
  } catch {
    return undefined
  }
}

function isClaims(value: TokenClaims): boolean {
  return (
    typeof value === 'object' &&
    value !== null &&
    value.v === 1 &&
    typeof value.pod === 'string' &&
    (value.scope === 'broker' || value.scope === 'lease') &&
    Number.isSafeInteger(value.epoch) &&
    typeof value.leaseId === 'string' &&
    (value.tenant === undefined || typeof value.tenant === 'string') &&
    typeof value.expiresAtMs === 'number'
  )
}

function claimsProblem(claims: TokenClaims, use: TokenUse): Problem | undefined {
  if (claims.pod !== use.pod) return TOKEN_PROBLEM.pod
  if (!(use.nowMs < claims.expiresAtMs)) return TOKEN_PROBLEM.expired
  if (!use.scopes.includes(claims.scope)) return TOKEN_PROBLEM.scope
  return undefined
}

/** Checks the authorization header of one pod's calls. */
export type Verifier = (
  header: string | undefined,
  scopes: readonly TokenClaims['scope'][],
  nowMs: number,
) => Verified

/**
 * A verifier for one pod that remembers which tokens had a good signature: an Ed25519 check costs about
 * as much as everything else the runner does for a warm job. Pod, expiry and scope are checked every time.
 * @throws when the key is not a raw 32-byte key in base64
 */
export function createVerifier(publicKeyBase64: string, pod: string): Verifier {
  const key = publicKeyOf(publicKeyBase64)
  const known = new Map<string, TokenClaims>()
  return (header, scopes, nowMs) => {
    if (header === undefined || !/^bearer /i.test(header)) return { problem: TOKEN_PROBLEM.missing }
    const token = header.slice('bearer '.length)
    let claims = known.get(token)
    if (claims === undefined) {
      claims = signedClaims(token, key)
      if (claims === undefined) return { problem: TOKEN_PROBLEM.unsigned }
      remember(known, token, claims)
    }
    const refused = claimsProblem(claims, { pod, nowMs, scopes })
    return refused ? { problem: refused } : { claims }
  }
}

/** Gives a token for (pod, scope, epoch, leaseId, tenant) that is good for at least half of TOKEN_LIFE_MS. */
export type Signer = (
  pod: string,
  scope: TokenClaims['scope'],
  epoch: number,
  leaseId: string,
  tenant?: string,
) => string

/**
 * A signer that hands the same token out until half of its life is over.
 * @param nowMs the wall clock, ms since the epoch
 */
export function createSigner(keys: BrokerKeys, nowMs: () => number = Date.now): Signer {
  const cache = new Map<string, { token: string; renewAtMs: number }>()
  return (pod, scope, epoch, leaseId, tenant) => {
    const key = JSON.stringify([pod, scope, epoch, leaseId, tenant])
    const now = nowMs()
    const cached = cache.get(key)
    if (cached !== undefined && now < cached.renewAtMs) return cached.token
    const token = signToken(
      { v: 1, pod, scope, epoch, leaseId, ...(tenant ? { tenant } : {}), expiresAtMs: now + TOKEN_LIFE_MS },
      keys,
    )
    cache.delete(key) // to the young end
    remember(cache, key, { token, renewAtMs: now + TOKEN_LIFE_MS / 2 })
    return token
  }
}

function remember<Value>(cache: Map<string, Value>, key: string, value: Value): void {
  cache.set(key, value)
  if (cache.size <= CACHE_ENTRIES) return
  for (const oldest of cache.keys()) {
    cache.delete(oldest)
    return
  }
}
