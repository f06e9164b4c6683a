import { createHash } from 'node:crypto'
import { readFileSync } from 'node:fs'
import {
  createServer as createPlainServer,
  type IncomingMessage,
  type RequestListener,
  type Server,
} from 'node:http'
import { createServer as createTlsServer, type Server as TlsServer } from 'node:https'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { createSecureContext } from 'node:tls'
import { problem } from '../contract/index.js'
import { TOKEN_AUDIENCE } from '../contract/names.js'
import { KubernetesSettingsError } from '../kubernetes/settings-error.js'
import { Counter, type Metric } from '../metrics.js'
import { type Caller, claimedUser, isAllowed } from './callers.js'
import { type Admission, type Refusal, tokenHandler } from './endpoint.js'
import type { Signer } from './token.js'

/** Who was vouched for is not asked about again for this long: so long an account that was deleted may still get tokens. */
const VOUCHED_MS = 60_000
const VOUCHED_MAX = 1_000
/** A certificate is renewed days before its end; a mounted Secret follows within minutes. */
const CERTIFICATE_LOOK_MS = 60_000
/** A request is a few hundred bytes: who takes longer holds a connection for nothing. */
const REQUEST_MS = 10_000
const CONNECTIONS_MAX = 1_000
/** Of an account's token; a JWT with many audiences is still far below. */
const BEARER_CHARS_MAX = 16_384

export interface ClusterTokenOptions {
  /** 0 is a free one */
  port: number
  callers: readonly Caller[]
  /** a folder with tls.crt and tls.key, read again as they change; null is plain HTTP */
  tlsFolder: string | null
  /** The user whom the API server takes a token for, null for none; rejects when it cannot be asked. */
  userOf: (token: string) => Promise<string | null>
  signer: Signer
  log?: (line: string) => void
}

export interface ClusterTokens {
  readonly port: number
  metrics(): Metric[]
  close(): Promise<void>
}

/**
 * The token endpoint for callers' own workers in a cluster: POST /token with the caller's service-account token as bearer. The API server says
 * whose it is, the operator's list who may ask; what is signed is good for a lease alone, and its id has to be known.
 * @throws KubernetesSettingsError when the port is taken or there is no certificate
 */
export async function serveClusterTokens(options: ClusterTokenOptions): Promise<ClusterTokens> {
  const { port, tlsFolder, signer, log = () => {} } = options
  const answers = new Counter()
  const answer = tokenHandler(signer, admissionOf(options))
  const handler: RequestListener = (req, res) => {
    res.on('finish', () => answers.add({ code: String(res.statusCode) }))
    answer(req, res)
  }
  const limits = { headersTimeout: REQUEST_MS, requestTimeout: REQUEST_MS }
  let look: NodeJS.Timeout | undefined
  let server: Server
  if (tlsFolder === null) server = createPlainServer(limits, handler)
  else {
    const certificate = readCertificate(tlsFolder)
    const secure = createTlsServer({ ...limits, ...certificate }, handler)
    look = setInterval(renewal(secure, tlsFolder, certificate, log), CERTIFICATE_LOOK_MS)
    look.unref()
    server = secure
  }
  server.maxConnections = CONNECTIONS_MAX
  await new Promise<void>((resolve, reject) => {
    server.once('error', ({ code, message }: NodeJS.ErrnoException) => {
      const why = code === 'EADDRINUSE' ? 'is taken' : `cannot be used: ${message}`
      reject(new KubernetesSettingsError(`port ${port} of --token-port ${why}`, 'choose another one'))
    })
    server.listen(port, resolve)
  })
  server.unref()
  return {
    port: (server.address() as AddressInfo).port,
    metrics: () => [
      {
        name: 'firepool_token_requests_total',
        help: 'Answers of the token endpoint, by HTTP status.',
        type: 'counter',
        samples: answers.samples(),
      },
    ],
    close() {
      clearInterval(look)
      return new Promise((resolve) => {
        server.close(() => resolve())
        server.closeAllConnections()
      })
    },
  }
}

interface Certificate {
  cert: string
  key: string
}

function readCertificate(folder: string): Certificate {
  const read = (name: string) => {
    try {
      return readFileSync(join(folder, name), 'utf8')
    } catch (error) {
      throw new KubernetesSettingsError(
        `${name} of --token-tls ${folder} cannot be read (${(error as NodeJS.ErrnoException).code})`,
        'mount a Secret of type kubernetes.io/tls there, or say --token-tls none for plain HTTP',
      )
    }
  }
  const certificate = { cert: read('tls.crt'), key: read('tls.key') }
  try {
    createSecureContext(certificate)
  } catch {
    throw new KubernetesSettingsError(
      `tls.crt and tls.key of --token-tls ${folder} are no certificate with its key`,
      'renew the Secret',
    )
  }
  return certificate
}

/** A Secret that is renewed serves new connections; one that is damaged changes nothing. */
function renewal(
  server: TlsServer,
  folder: string,
  first: Certificate,
  log: (line: string) => void,
): () => void {
  let known = first
  let told = ''
  return () => {
    try {
      const now = readCertificate(folder)
      if (now.cert === known.cert && now.key === known.key) return
      server.setSecureContext(now)
      known = now
      told = ''
    } catch (error) {
      const { message } = error as Error
      if (message !== told) log(`the token endpoint keeps its certificate: ${message}`)
      told = message
    }
  }
}

function admissionOf({ callers, userOf, log = () => {} }: ClusterTokenOptions): Admission {
  const vouched = new Map<string, { user: string; until: number }>()
  let told = ''
  const known = async (token: string): Promise<string | null> => {
    const key = createHash('sha256').update(token).digest('base64')
    const before = vouched.get(key)
    if (before && performance.now() < before.until) return before.user
    vouched.delete(key)
    const user = await userOf(token)
    if (user === null) return null
    vouched.set(key, { user, until: performance.now() + VOUCHED_MS })
    if (vouched.size > VOUCHED_MAX) vouched.delete(vouched.keys().next().value!)
    return user
  }
  return async (req) => {
    const token = bearerOf(req)
    const claimed = token === null ? null : claimedUser(token, TOKEN_AUDIENCE)
    if (token === null || claimed === null) return UNKNOWN
    // Before the API server is asked: nobody can flood it with what would be refused anyway.
    if (!isAllowed(callers, claimed)) return notAllowed(claimed)
    try {
      const user = await known(token)
      told = ''
      if (user === null) return UNKNOWN
      return isAllowed(callers, user) ? null : notAllowed(user)
    } catch (error) {
      const { message } = error as Error
      if (message !== told) log(`who asks for tokens cannot be looked up: ${message}`)
      told = message
      return UNSURE
    }
  }
}

function bearerOf({ headers: { authorization = '' } }: IncomingMessage): string | null {
  const [, token = ''] = /^bearer (\S+)$/i.exec(authorization.slice(0, BEARER_CHARS_MAX)) ?? []
  return token === '' ? null : token
}

const UNKNOWN: Refusal = {
  status: 401,
  problem: problem(
    'InvalidRequest',
    `The API server does not know this caller. Send a service-account token for the audience "${TOKEN_AUDIENCE}", as a projected volume has it, as bearer.`,
    { reason: 'CallerUnknown' },
  ),
}

const UNSURE: Refusal = {
  status: 503,
  problem: problem(
    'PodLost',
    'Who asks cannot be looked up at the API server now. Run the job as a normal one, and ask again later.',
    { reason: 'CallerUnsure' },
  ),
}

function notAllowed(user: string): Refusal {
  return {
    status: 403,
    problem: problem(
      'InvalidRequest',
      `${user.slice(0, 400)} may not have tokens. List it as namespace/account in --token-callers of Firepool's worker.`,
      { reason: 'CallerNotAllowed' },
    ),
  }
}
