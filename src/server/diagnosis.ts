import { once } from 'node:events'
import { connect as connectTcp, type Socket } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { connect as connectTls } from 'node:tls'
import type { ConnectionSettings } from './connection.js'
import type { TlsSettings } from './tls.js'

const LIMIT_MS = 3_000
/** With TLS 1.3 a server says only after the handshake that it does not take our certificate. */
const ALERT_MS = 300

const CAUSES: readonly (readonly [pattern: RegExp, cause: string])[] = [
  [/ECONNREFUSED/, 'connection refused'],
  [/ENOTFOUND|EAI_AGAIN/, 'there is no such host'],
  [/EHOSTUNREACH|ENETUNREACH/, 'the host cannot be reached'],
  [/WRONG_VERSION_NUMBER|PACKET_LENGTH_TOO_LONG/, 'it does not speak TLS'],
  [/CERTIFICATE_REQUIRED|HANDSHAKE_FAILURE/, 'it asks for a client certificate, or refuses ours'],
  [/ALERT/, 'it refuses our client certificate'],
  [/ERR_TLS_CERT_ALTNAME_INVALID/, 'its certificate is for another name (set server_name)'],
  [/CERT_HAS_EXPIRED/, 'its certificate has expired'],
  [
    /SELF_SIGNED|UNABLE_TO|DEPTH_ZERO|CERT_UNTRUSTED|ISSUER/,
    'its certificate is of a CA that we do not know',
  ],
  [/ECONNRESET|EPIPE|ended/, 'it closes the connection'],
]

/**
 * Why no connection could be made, in a few words: the SDKs only say that the deadline passed.
 * @returns undefined when a connection can be made: whatever answers there is no Temporal server, or too slow
 */
export async function whyUnreachable(
  address: string,
  { tls }: ConnectionSettings,
): Promise<string | undefined> {
  if (address.includes('://')) return 'an address is host:port, without http://'
  const { host, port } = splitAddress(address)
  const socket = tls ? openTls(host, port, tls) : connectTcp({ host, port })
  const limit = AbortSignal.timeout(LIMIT_MS)
  try {
    await once(socket, tls ? 'secureConnect' : 'connect', { signal: limit })
    if (!tls) return undefined
    await Promise.race([once(socket, 'end').then(() => Promise.reject(new Error('ended'))), sleep(ALERT_MS)])
    return undefined
  } catch (error) {
    if (limit.aborted) return 'no answer in time'
    return causeOf(error as NodeJS.ErrnoException)
  } finally {
    // What comes after we have looked away is nobody's business.
    socket.on('error', () => {})
    socket.destroy()
  }
}

function openTls(host: string, port: number, tls: TlsSettings): Socket {
  const { serverNameOverride, serverRootCACertificate, clientCertPair } = typeof tls === 'object' ? tls : {}
  const name = serverNameOverride ?? host
  return connectTls({
    host,
    port,
    ALPNProtocols: ['h2'],
    // An address is no name for SNI; the certificate is checked against `host` then.
    ...(/^[\d.]+$|:/.test(name) ? {} : { servername: name }),
    ...(serverRootCACertificate ? { ca: Buffer.from(serverRootCACertificate) } : {}),
    ...(clientCertPair
      ? { cert: Buffer.from(clientCertPair.crt), key: Buffer.from(clientCertPair.key) }
      : {}),
  })
}

function causeOf({ code, message }: NodeJS.ErrnoException): string {
  const text = `${code ?? ''} ${message}`
  return (
    CAUSES.find(([pattern]) => pattern.test(text))?.[1] ?? (message.split('\n')[0] as string).slice(0, 100)
  )
}

function splitAddress(address: string): { host: string; port: number } {
  const match = /^(?:\[([^\]]+)\]|([^:]+))(?::(\d+))?$/.exec(address)
  return { host: match?.[1] ?? match?.[2] ?? address, port: Number(match?.[3] ?? 7233) }
}
