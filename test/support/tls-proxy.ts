/** A server in front of a Temporal server that speaks TLS, asks for client certificates, and remembers the headers of all calls. */
import { once } from 'node:events'
import * as http2 from 'node:http2'
import type { AddressInfo } from 'node:net'
import type { TLSSocket } from 'node:tls'
import type { Identity } from './certificates.js'

export interface Call {
  /** e.g. /temporal.api.workflowservice.v1.WorkflowService/GetSystemInfo */
  path: string
  headers: http2.IncomingHttpHeaders
  /** the common name of the certificate that the client showed */
  client: string
}

export interface TlsProxy {
  /** host:port */
  address: string
  calls: Call[]
  close(): Promise<void>
}

export interface TlsProxyOptions {
  /** host:port of the Temporal server, which speaks without TLS */
  target: string
  server: Identity
  /** PEM of the CA of the clients */
  clientCa: string
  /** the only API key that is let in; default any or none */
  apiKey?: string
}

const UNAUTHENTICATED = '16'

export async function startTlsProxy({
  target,
  server,
  clientCa,
  apiKey,
}: TlsProxyOptions): Promise<TlsProxy> {
  const calls: Call[] = []
  const sessions = new Set<http2.Http2Session>()
  const upstream = http2.connect(`http://${target}`)
  upstream.on('error', () => {})
  sessions.add(upstream)
  const listener = http2.createSecureServer({
    ...server,
    ca: clientCa,
    requestCert: true,
    rejectUnauthorized: true,
  })
  listener.on('session', (session) => sessions.add(session))
  listener.on('sessionError', () => {})
  listener.on('stream', (stream: http2.ServerHttp2Stream, headers: http2.IncomingHttpHeaders) => {
    const { subject } = (stream.session!.socket as TLSSocket).getPeerCertificate()
    calls.push({ path: String(headers[':path']), headers, client: String(subject?.CN) })
    stream.on('error', () => {})
    if (apiKey !== undefined && headers.authorization !== `Bearer ${apiKey}`) {
      const refusal = { 'grpc-status': UNAUTHENTICATED, 'grpc-message': 'Request unauthorized.' }
      stream.respond({ ':status': 200, 'content-type': 'application/grpc', ...refusal }, { endStream: true })
      return
    }
    forward(stream, headers, upstream)
  })
  listener.listen(0, '127.0.0.1')
  await once(listener, 'listening')
  return {
    address: `127.0.0.1:${(listener.address() as AddressInfo).port}`,
    calls,
    async close() {
      for (const session of sessions) session.destroy()
      listener.close()
    },
  }
}

/** One call as it is: headers, messages, trailers, and a cancel. */
function forward(
  stream: http2.ServerHttp2Stream,
  headers: http2.IncomingHttpHeaders,
  upstream: http2.ClientHttp2Session,
): void {
  const { ':authority': _, ':scheme': __, ...rest } = headers
  const call = upstream.request(rest)
  let trailers: http2.OutgoingHttpHeaders = {}
  call.on('error', () => stream.destroy())
  stream.on('close', () => call.destroy())
  stream.pipe(call)
  call.on('response', (answer, flags) => {
    if (stream.destroyed) return
    // An answer that is nothing but its status comes without a body.
    const endStream = (flags & http2.constants.NGHTTP2_FLAG_END_STREAM) !== 0
    stream.respond(ours(answer), { endStream, waitForTrailers: !endStream })
    if (!endStream) call.pipe(stream)
  })
  call.on('trailers', (found) => {
    trailers = ours(found)
  })
  stream.on('wantTrailers', () => stream.sendTrailers(trailers))
}

/** Without what node adds for itself. */
function ours(headers: http2.IncomingHttpHeaders): http2.OutgoingHttpHeaders {
  return Object.fromEntries(Object.entries(headers))
}
