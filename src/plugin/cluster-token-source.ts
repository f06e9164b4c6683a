import { readFile } from 'node:fs/promises'
import { type RequestOptions as HttpOptions, Agent as PlainAgent } from 'node:http'
import { Agent as TlsAgent } from 'node:https'
import { askEndpoint, rememberTokens, type TokenSource } from './token-source.js'

/** One question over the cluster's network, which the worker may have to pass on to the API server. */
const ANSWER_MS = 1_500

/** Where a projected volume puts the caller's token, unless it is told otherwise. */
export const TOKEN_FILE = '/var/run/secrets/firepool.dev/token'

export interface ClusterTokenOptions {
  /** of the workers' token endpoint, e.g. https://firepool-tokens.firepool.svc */
  url: string
  /** a service-account token for the audience "firepool", read at each question: the kubelet renews it; default TOKEN_FILE */
  tokenFile?: string | undefined
  /** PEM of who signed the endpoint's certificate, read at each question; default: the system's */
  caFile?: string | undefined
}

/**
 * Tokens from the workers of a cluster, which ask the API server whose the caller's own token is.
 * @throws TypeError when the URL is none
 */
export function createClusterTokenSource(
  { url, tokenFile = TOKEN_FILE, caFile }: ClusterTokenOptions,
  now: () => number = Date.now,
): TokenSource {
  const { protocol, hostname, port, pathname } = new URL(url)
  if (protocol !== 'https:' && protocol !== 'http:')
    throw new TypeError(`the URL of the token endpoint begins with ${protocol}; give https:// or http://`)
  const agent =
    protocol === 'https:' ? new TlsAgent({ keepAlive: true }) : new PlainAgent({ keepAlive: true })
  const place: HttpOptions = {
    protocol,
    // Brackets are of the URL alone.
    hostname: hostname.replace(/^\[|\]$/g, ''),
    port,
    agent,
    timeout: ANSWER_MS,
    path: `${pathname.replace(/\/$/, '')}/token`,
  }
  return rememberTokens(async (lease) => {
    const bearer = (await contentOf(tokenFile, 'the token of this pod')).trim()
    const ca = caFile === undefined ? {} : { ca: await contentOf(caFile, 'the CA of the token endpoint') }
    try {
      return await askEndpoint({ ...place, ...ca, headers: { authorization: `Bearer ${bearer}` } }, lease)
    } catch (error) {
      const { message, code } = error as NodeJS.ErrnoException
      throw new Error(`no token from ${url}: ${code ?? message}`)
    }
  }, now)
}

async function contentOf(file: string, what: string): Promise<string> {
  try {
    return await readFile(file, 'utf8')
  } catch (error) {
    throw new Error(`${what} cannot be read from ${file} (${(error as NodeJS.ErrnoException).code})`)
  }
}
