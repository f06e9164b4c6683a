import { parseCallers } from '../token/callers.js'
import type { ClusterTokenSettings } from '../worker.js'
import { usageError } from './failure.js'

/** What a worker in a cluster is told of its token endpoint. */
export interface TokenOptions {
  tokenPort?: string
  tokenCallers?: string
  tokenTls?: string
}

/** Plain HTTP has to be said: a caller's own token goes over it. */
const NO_TLS = 'none'

/**
 * The token endpoint of a worker in a cluster, of the options, else of the environment; undefined when there is to be none.
 * @throws CliError of usage: one that is half said
 */
export function chooseTokens(
  options: TokenOptions,
  env: NodeJS.ProcessEnv,
): ClusterTokenSettings | undefined {
  const said = {
    port: options.tokenPort ?? (env.FIREPOOL_TOKEN_PORT || undefined),
    callers: options.tokenCallers ?? (env.FIREPOOL_TOKEN_CALLERS || undefined),
    tls: options.tokenTls ?? (env.FIREPOOL_TOKEN_TLS || undefined),
  }
  if (said.port === undefined && said.callers === undefined && said.tls === undefined) return undefined
  const { port, callers, tls } = said
  if (port === undefined)
    throw usageError('--token-port is missing', 'give the port on which callers ask for tokens, e.g. 47101')
  const number = Number(port)
  if (!/^\d+$/.test(port) || number < 1 || number > 65_535)
    throw usageError(`--token-port is '${port}'`, 'give a whole number from 1 to 65535')
  if (callers === undefined)
    throw usageError(
      '--token-callers is missing',
      'list the service accounts that may ask, e.g. agents/trainer,eval/* (or FIREPOOL_TOKEN_CALLERS)',
    )
  const parsed = parseCallers(callers)
  if ('wrong' in parsed)
    throw usageError(
      `--token-callers has '${parsed.wrong}'`,
      'give each as namespace/account, or namespace/*',
    )
  if (tls === undefined)
    throw usageError(
      '--token-tls is missing',
      `give a folder with tls.crt and tls.key, or ${NO_TLS} for plain HTTP where the network itself is encrypted`,
    )
  return { port: number, callers: parsed.callers, tlsFolder: tls === NO_TLS ? null : tls }
}
