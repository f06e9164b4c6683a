import { readdirSync } from 'node:fs'
import { Agent, request as plainRequest, type RequestOptions } from 'node:http'
import { request as tlsRequest } from 'node:https'
import { join } from 'node:path'
import type { Problem } from '../contract/errors.js'
import type { Grant } from '../contract/lease.js'
import { endpointFolder, type TokenReply, type TokenRequest } from '../token/endpoint.js'
import { TOKEN_LIFE_MS } from '../token/token.js'

/** A token is good for at least half of its life when it comes. */
const KEEP_MS = TOKEN_LIFE_MS / 4
const ANSWER_MS = 1_000
/** leases whose token is remembered */
const CACHE_ENTRIES = 10_000
/** a token and a refusal are both far smaller */
const REPLY_CHARS_MAX = 16_384

/** Gives the token of a held lease. Rejects when no worker of Firepool answers here. */
export type TokenSource = (grant: Pick<Grant, 'pod' | 'epoch' | 'leaseId'>) => Promise<string>

/** Tokens from the endpoints of the workers that serve this state folder, whichever of them answers. */
export function createTokenSource(dir: string, now: () => number = Date.now): TokenSource {
  const agent = new Agent({ keepAlive: true })
  return rememberTokens((lease) => askSockets(dir, agent, lease), now)
}

/** A source that asks once for each lease while its token is young. */
export function rememberTokens(
  ask: (lease: TokenRequest) => Promise<string>,
  now: () => number,
): TokenSource {
  const cache = new Map<string, { token: Promise<string>; until: number }>()
  return ({ pod, epoch, leaseId }) => {
    const key = JSON.stringify([pod, epoch, leaseId])
    const known = cache.get(key)
    if (known && now() < known.until) return known.token
    const token = ask({ v: 1, pod, epoch, leaseId })
    cache.delete(key)
    cache.set(key, { token, until: now() + KEEP_MS })
    token.catch(() => cache.delete(key))
    if (cache.size > CACHE_ENTRIES) cache.delete(cache.keys().next().value!)
    return token
  }
}

async function askSockets(dir: string, agent: Agent, lease: TokenRequest): Promise<string> {
  const folder = endpointFolder(dir)
  for (const socket of socketsIn(folder)) {
    const place = { socketPath: join(folder, socket), path: '/token', agent, timeout: ANSWER_MS }
    const token = await askEndpoint(place, lease).catch(() => null)
    if (token !== null) return token
  }
  throw new Error(
    `no worker of Firepool answers in ${folder}; start firepool dev or firepool worker with the same --dir, or name its folder`,
  )
}

function socketsIn(folder: string): string[] {
  try {
    return readdirSync(folder).filter((name) => name.endsWith('.sock'))
  } catch {
    return []
  }
}

/**
 * Asks one token endpoint, for a token of a lease.
 * @throws Error with the endpoint's own words, or the system's code
 */
export function askEndpoint(place: RequestOptions, lease: TokenRequest): Promise<string> {
  return new Promise((resolve, reject) => {
    const headers = { ...place.headers, 'content-type': 'application/json' }
    const request = place.protocol === 'https:' ? tlsRequest : plainRequest
    const call = request({ ...place, method: 'POST', headers })
    const timer = setTimeout(() => call.destroy(new Error('no answer in time')), place.timeout)
    call.on('close', () => clearTimeout(timer))
    call.on('error', reject)
    call.on('response', (response) => {
      let text = ''
      response.setEncoding('utf8')
      response.on('data', (chunk: string) => {
        text += chunk
        if (text.length > REPLY_CHARS_MAX) call.destroy(new Error('what answers is no token endpoint'))
      })
      response.on('error', reject)
      response.on('end', () => {
        const { token, problem } = replyOf(text)
        if (typeof token === 'string') resolve(token)
        else
          reject(
            new Error(
              `the token endpoint refused (${response.statusCode}): ${problem?.message ?? 'it said no more'}`,
            ),
          )
      })
    })
    call.end(JSON.stringify(lease))
  })
}

function replyOf(text: string): Partial<TokenReply & { problem: Problem }> {
  try {
    return JSON.parse(text) ?? {}
  } catch {
    return {}
  }
}
