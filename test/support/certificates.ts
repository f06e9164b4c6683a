/** Certificates of a CA of our own, made here: the tests need no program for it. */
import { createHash, generateKeyPairSync, type KeyObject, randomBytes, sign } from 'node:crypto'
import { isIPv4 } from 'node:net'

export interface Identity {
  /** PEM */
  cert: string
  key: string
}

export interface Authority extends Identity {
  /** a certificate for a server on 127.0.0.1 and localhost, or for a client */
  issue(name: string, more?: MoreOfCertificate): Identity
}

export interface MoreOfCertificate {
  notAfter?: Date
  /** in the subject, where Kubernetes looks for groups */
  organization?: string
  /** a server's other names and IPv4 addresses */
  hosts?: readonly string[]
}

const DAY_MS = 24 * 60 * 60_000

/** A new CA. */
export function createAuthority(name: string): Authority {
  const ca = newKey()
  const cert = certificate({
    subject: name,
    issuer: name,
    subjectKey: ca.publicKey,
    issuerKey: ca,
    isCa: true,
  })
  return {
    cert,
    key: pemOf(ca.privateKey),
    issue(subject, more = {}) {
      const own = newKey()
      const issued = { subject, issuer: name, subjectKey: own.publicKey, issuerKey: ca, isCa: false }
      return { cert: certificate({ ...issued, more }), key: pemOf(own.privateKey) }
    },
  }
}

interface KeyPair {
  publicKey: KeyObject
  privateKey: KeyObject
}

const newKey = (): KeyPair => generateKeyPairSync('ec', { namedCurve: 'P-256' })
const pemOf = (key: KeyObject) => key.export({ type: 'pkcs8', format: 'pem' }).toString()

interface Wanted {
  subject: string
  issuer: string
  subjectKey: KeyObject
  issuerKey: KeyPair
  isCa: boolean
  more?: MoreOfCertificate
}

/** RFC 5280, as much of it as TLS libraries ask for. @returns PEM */
function certificate({ subject, issuer, subjectKey, issuerKey, isCa, more = {} }: Wanted): string {
  const { notAfter, organization, hosts = [] } = more
  const signature = sequence(objectId('1.2.840.10045.4.3.2'))
  const now = Date.now()
  const validity = sequence(time(new Date(now - DAY_MS)), time(notAfter ?? new Date(now + DAY_MS)))
  const constraints = isCa ? sequence(Buffer.from([0x01, 0x01, 0xff])) : sequence()
  const keyUsage = isCa ? [0x03, 0x02, 0x01, 0x06] : [0x03, 0x02, 0x07, 0x80]
  const names = sequence(...['localhost', '127.0.0.1', ...hosts].map(alternativeName))
  const extensions = sequence(
    extension('2.5.29.19', constraints, true),
    extension('2.5.29.15', Buffer.from(keyUsage), true),
    extension('2.5.29.14', tagged(0x04, idOf(subjectKey))),
    extension('2.5.29.35', sequence(tagged(0x80, idOf(issuerKey.publicKey)))),
    ...(isCa ? [] : [extension('2.5.29.17', names)]),
  )
  const body = sequence(
    tagged(0xa0, integer(Buffer.from([2]))),
    integer(Buffer.concat([Buffer.from([1]), randomBytes(8)])),
    signature,
    distinguishedName(issuer),
    validity,
    distinguishedName(subject, organization),
    subjectKey.export({ type: 'spki', format: 'der' }),
    tagged(0xa3, extensions),
  )
  const signed = sign('sha256', body, issuerKey.privateKey)
  const der = sequence(body, signature, tagged(0x03, Buffer.concat([Buffer.from([0]), signed])))
  const lines = der
    .toString('base64')
    .match(/.{1,64}/g)!
    .join('\n')
  return `-----BEGIN CERTIFICATE-----\n${lines}\n-----END CERTIFICATE-----\n`
}

const idOf = (key: KeyObject) =>
  createHash('sha1')
    .update(key.export({ type: 'spki', format: 'der' }))
    .digest()

function tagged(tag: number, content: Buffer): Buffer {
  const { length } = content
  if (length < 0x80) return Buffer.concat([Buffer.from([tag, length]), content])
  const bytes = length < 0x100 ? [length] : [length >> 8, length & 0xff]
  return Buffer.concat([Buffer.from([tag, 0x80 | bytes.length, ...bytes]), content])
}

const sequence = (...parts: Buffer[]) => tagged(0x30, Buffer.concat(parts))
const integer = (bytes: Buffer) => tagged(0x02, bytes)

function extension(id: string, value: Buffer, critical = false): Buffer {
  const flag = critical ? [Buffer.from([0x01, 0x01, 0xff])] : []
  return sequence(objectId(id), ...flag, tagged(0x04, value))
}

function alternativeName(host: string): Buffer {
  return isIPv4(host)
    ? tagged(0x87, Buffer.from(host.split('.').map(Number)))
    : tagged(0x82, Buffer.from(host))
}

function distinguishedName(name: string, organization?: string): Buffer {
  const part = (id: string, text: string) =>
    tagged(0x31, sequence(objectId(id), tagged(0x0c, Buffer.from(text))))
  return sequence(...(organization ? [part('2.5.4.10', organization)] : []), part('2.5.4.3', name))
}

function objectId(text: string): Buffer {
  const [first = 0, second = 0, ...rest] = text.split('.').map(Number)
  const bytes = [40 * first + second]
  for (const part of rest) {
    const digits = [part & 0x7f]
    for (let left = part >> 7; left > 0; left >>= 7) digits.unshift(0x80 | (left & 0x7f))
    bytes.push(...digits)
  }
  return tagged(0x06, Buffer.from(bytes))
}

/** UTCTime: two digits of the year */
function time(date: Date): Buffer {
  return tagged(0x17, Buffer.from(`${date.toISOString().slice(2, 19).replace(/[-:T]/g, '')}Z`))
}
