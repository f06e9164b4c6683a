import { readdirSync } from 'node:fs'
import { Agent, request } from 'node:http'
import { join } from 'node:path'
import type { Grant } from '../contract/lease.js'
import { endpointFolder, type TokenReply, type TokenRequest } from '../token/endpoint.js'
import { TOKEN_LIFE_MS } from '../token/token.js'

/** A token is good for at least half of its life when it comes. */
const KEEP_MS = TOKEN_LIFE_MS / 4
const ANSWER_MS = 1_000
/** leases whose token is remembered */
const CACHE_ENTRIES = 10_000

/** Gives the token of a held lease. Rejects when no worker of Firepool answers here. */
export type TokenSource = (grant: Pick<Grant, 'pod' | 'epoch' | 'leaseId'>) => Promise<string>

/** Tokens from the endpoints of the workers that serve this state folder, whichever of them answers. */
export function createTokenSource(dir: string, now: () => number = Date.now): TokenSource {
  const agent = new Agent({ keepAlive: true })
  const cache = new Map<string, { token: Promise<string>; until: number }>()
  return ({ pod, epoch, leaseId }) => {
    const key = JSON.stringify([pod, epoch, leaseId])
    const known = cache.get(key)
    if (known && now() < known.until) return known.token
    const token = ask(dir, agent, { v: 1, pod, epoch, leaseId })
    cache.delete(key)
    cache.set(key, { token, until: now() + KEEP_MS })
    token.catch(() => cache.delete(key))
    if (cache.size > CACHE_ENTRIES) cache.delete(cache.keys().next().value!)
    return token
  }
}

async function ask(dir: string, agent: Agent, lease: TokenRequest): Promise<string> {
  const folder = endpointFolder(dir)
  for (const socket of socketsIn(folder)) {
    const token = await post(join(folder, socket), agent, lease).catch(() => null)
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

function post(socketPath: string, agent: Agent, lease: TokenRequest): Promise<string> {
  return new Promise((resolve, reject) => {
    const headers = { 'content-type': 'application/json' }
    const call = request({ socketPath, path: '/token', method: 'POST', agent, headers, timeout: ANSWER_MS })
    call.on('timeout', () => call.destroy(new Error('no answer in time')))
    call.on('error', reject)
    call.on('response', (response) => {
      let text = ''
      response.setEncoding('utf8')
      response.on('data', (chunk: string) => {
        text += chunk
      })
      response.on('error', reject)
      response.on('end', () => {
        try {
          const { token } = JSON.parse(text) as Partial<TokenReply>
          if (typeof token === 'string') resolve(token)
          else reject(new Error(`the token endpoint refused (${response.statusCode})`))
        } catch (error) {
          reject(error)
        }
      })
    })
    call.end(JSON.stringify(lease))
  })
}
