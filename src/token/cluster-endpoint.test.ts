import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest'
import { createAuthority, type Identity } from '../../test/support/certificates.js'
import { createClusterTokenSource } from '../plugin/cluster-token-source.js'
import { isAllowed, parseCallers } from './callers.js'
import { type ClusterTokenOptions, type ClusterTokens, serveClusterTokens } from './cluster-endpoint.js'
import { createSigner, generateKeys, publicKeyOf, verifyToken } from './token.js'

const LEASE = { pod: 'p', epoch: 3, leaseId: 'l' }
const TRAINER = 'system:serviceaccount:agents:trainer'
const keys = generateKeys()

/** Shaped as an account's token; the API server, which is played here, alone would look at the signature. */
function jwt(sub: string, { aud = ['firepool'] as unknown, mark = 'canary' } = {}): string {
  const part = (value: object) => Buffer.from(JSON.stringify(value)).toString('base64url')
  return `${part({ alg: 'RS256' })}.${part({ sub, aud })}.${mark}`
}

let dir: string
let endpoint: ClusterTokens
let reviewed: string[]
let lines: string[]
/** whom the API server takes a token for */
let users: Map<string, string>
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'firepool-cluster-tokens-'))
  reviewed = []
  lines = []
  users = new Map()
})
afterEach(async () => {
  vi.useRealTimers()
  await endpoint?.close()
  rmSync(dir, { recursive: true })
})

async function serve(change: Partial<ClusterTokenOptions> = {}): Promise<void> {
  const parsed = parseCallers('agents/trainer, eval/*')
  endpoint = await serveClusterTokens({
    port: 0,
    callers: 'callers' in parsed ? parsed.callers : [],
    tlsFolder: null,
    userOf: async (token) => {
      reviewed.push(token)
      return users.get(token) ?? null
    },
    signer: createSigner(keys),
    log: (line) => lines.push(line),
    ...change,
  })
}

const url = (protocol = 'http') => `${protocol}://127.0.0.1:${endpoint.port}`

async function ask(token: string | null, body: object = { v: 1, ...LEASE }): Promise<[number, string]> {
  const headers: Record<string, string> = token === null ? {} : { authorization: `Bearer ${token}` }
  const answer = await fetch(`${url()}/token`, { method: 'POST', headers, body: JSON.stringify(body) })
  return [answer.status, await answer.text()]
}

function tokenFile(token: string): string {
  const file = join(dir, 'token')
  writeFileSync(file, token)
  return file
}

function certificate({ cert, key }: Identity): string {
  writeFileSync(join(dir, 'tls.crt'), cert)
  writeFileSync(join(dir, 'tls.key'), key)
  return dir
}

describe('the token endpoint of a cluster', () => {
  test('signs for a lease, for whom the API server knows and the operator allows', async () => {
    await serve()
    const token = jwt(TRAINER)
    users.set(token, TRAINER)
    const [status, text] = await ask(token)
    expect(status).toBe(200)
    const key = publicKeyOf(keys.publicKeyBase64)
    const use = { pod: 'p', nowMs: Date.now() } as const
    const signed = JSON.parse(text).token
    expect(verifyToken(signed, key, { ...use, scopes: ['lease'] })).toMatchObject({ claims: LEASE })
    expect(verifyToken(signed, key, { ...use, scopes: ['broker'] })).toHaveProperty('problem')
    // Who was vouched for is not asked about each time.
    expect((await ask(token, { v: 1, ...LEASE, leaseId: 'other' }))[0]).toBe(200)
    expect(reviewed).toEqual([token])
    expect((await ask(token, { v: 2 }))[0]).toBe(400)
  })

  test('refuses all others, and asks the API server only about who might be allowed', async () => {
    await serve()
    const refused = async (token: string | null) => {
      const [status, text] = await ask(token)
      return [status, JSON.parse(text).problem.details.reason]
    }
    expect(await refused(null)).toEqual([401, 'CallerUnknown'])
    expect(await refused('nonsense')).toEqual([401, 'CallerUnknown'])
    // For the API server itself: whoever got hold of it could do more than ask for tokens.
    expect(await refused(jwt(TRAINER, { aud: ['https://kubernetes.default.svc'] }))).toEqual([
      401,
      'CallerUnknown',
    ])
    expect(await refused(jwt('system:serviceaccount:agents:other'))).toEqual([403, 'CallerNotAllowed'])
    expect(await refused(jwt('system:serviceaccount:agents:trainer:x'))).toEqual([403, 'CallerNotAllowed'])
    expect(reviewed).toEqual([])
    // What it says of itself counts for nothing.
    expect(await refused(jwt(TRAINER, { mark: 'forged' }))).toEqual([401, 'CallerUnknown'])
    const mixed = jwt(TRAINER, { mark: 'mixed' })
    users.set(mixed, 'system:serviceaccount:agents:other')
    expect(await refused(mixed)).toEqual([403, 'CallerNotAllowed'])
  })

  test('says once that the API server cannot be asked, and no token is in a line, an answer or an error', async () => {
    let why = 'this worker may not create tokenreviews'
    await serve({ userOf: () => Promise.reject(new Error(why)) })
    const token = jwt(TRAINER, { mark: 'secretsignature' })
    const said: string[] = []
    for (let n = 0; n < 2; n++) {
      const [status, text] = await ask(token)
      expect(status).toBe(503)
      said.push(text)
    }
    expect(lines).toEqual([`who asks for tokens cannot be looked up: ${why}`])
    why = 'no answer'
    const source = createClusterTokenSource({ url: url(), tokenFile: tokenFile(token) })
    said.push((await source(LEASE).catch((error: Error) => error.message)) as string)
    const [, refusal] = await ask(jwt('system:serviceaccount:a:b', { mark: 'secretsignature' }))
    said.push(refusal, ...lines)
    expect(said.join('\n')).not.toMatch(/secretsignature|eyJ/)
    expect(lines).toHaveLength(2)
  })

  test('a port that is taken, and a folder without a certificate, are said with a remedy', async () => {
    await serve()
    await expect(serve({ port: endpoint.port })).rejects.toThrow(/of --token-port is taken; choose another/)
    await expect(serve({ tlsFolder: dir })).rejects.toThrow(/tls.crt of --token-tls .* \(ENOENT\); mount/)
    writeFileSync(join(dir, 'tls.crt'), 'x')
    writeFileSync(join(dir, 'tls.key'), 'secret')
    await expect(serve({ tlsFolder: dir })).rejects.toThrow(/are no certificate with its key; renew/)
    await expect(serve({ tlsFolder: dir })).rejects.not.toThrow(/secret/)
  })
})

describe('over TLS', () => {
  test('a caller takes the certificate of its CA alone; one that is renewed is served, a damaged one is not', async () => {
    vi.useFakeTimers({ toFake: ['setInterval'] })
    const [before, after] = [createAuthority('before'), createAuthority('after')]
    await serve({ tlsFolder: certificate(before.issue('endpoint')) })
    const token = jwt(TRAINER)
    users.set(token, TRAINER)
    const caFile = join(dir, 'ca.crt')
    const ask = (ca: string, leaseId: string) => {
      writeFileSync(caFile, ca)
      const source = createClusterTokenSource({ url: url('https'), tokenFile: tokenFile(token), caFile })
      return source({ ...LEASE, leaseId })
    }
    expect(await ask(before.cert, 'a')).toContain('.')
    await expect(ask(after.cert, 'b')).rejects.toThrow(/no token from https:.*: [A-Z_]+$/)
    certificate(after.issue('endpoint'))
    vi.advanceTimersByTime(60_000)
    expect(await ask(after.cert, 'c')).toContain('.')
    writeFileSync(join(dir, 'tls.crt'), 'damaged')
    vi.advanceTimersByTime(120_000)
    expect(await ask(after.cert, 'd')).toContain('.')
    expect(lines).toHaveLength(1)
    expect(lines[0]).toMatch(/^the token endpoint keeps its certificate: /)
  })
})

describe("the source of a caller's worker in a cluster", () => {
  test('reads its own token at each question, as the kubelet renews it', async () => {
    await serve()
    const [first, second] = [jwt(TRAINER, { mark: '1' }), jwt(TRAINER, { mark: '2' })]
    for (const token of [first, second]) users.set(token, TRAINER)
    let now = 0
    const source = createClusterTokenSource({ url: url(), tokenFile: tokenFile(first) }, () => now)
    await Promise.all([source(LEASE), source(LEASE)])
    tokenFile(second)
    await source(LEASE)
    expect(reviewed).toEqual([first])
    now += 10 * 60_000
    await source(LEASE)
    expect(reviewed).toEqual([first, second])
  })

  test('says why it has none, and asks again the next time', async () => {
    await serve()
    const file = join(dir, 'later')
    const source = createClusterTokenSource({ url: url(), tokenFile: file })
    await expect(source(LEASE)).rejects.toThrow(
      /the token of this pod cannot be read from .*later \(ENOENT\)/,
    )
    const token = jwt(TRAINER)
    writeFileSync(file, `${token}\n`)
    await expect(source(LEASE)).rejects.toThrow(/no token from http:.*refused \(401\).*does not know/)
    users.set(token, TRAINER)
    expect(await source(LEASE)).toContain('.')
    expect(() => createClusterTokenSource({ url: 'file:///x' })).toThrow(/give https/)
  })
})

test('callers are accounts, or all of a namespace', () => {
  const parsed = parseCallers('agents/trainer, eval/*')
  const callers = 'callers' in parsed ? parsed.callers : []
  const allowed = (name: string) => isAllowed(callers, `system:serviceaccount:${name}`)
  expect(['agents:trainer', 'eval:a', 'eval:b'].map(allowed)).toEqual([true, true, true])
  expect(['agents:trainers', 'agents:', 'evals:a', 'default:trainer'].map(allowed)).toEqual(
    Array(4).fill(false),
  )
  expect(isAllowed(callers, 'admin')).toBe(false)
  for (const wrong of ['', 'agents', 'a/b/c', '*/x', 'A/b', 'a/b,'])
    expect(parseCallers(wrong), wrong).toHaveProperty('wrong')
})
