import { spawn } from 'node:child_process'
import { mkdtempSync, readdirSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import type { TokenClaims } from '../contract/index.js'
import { compileSources } from '../runner/world.fixture.js'
import {
  createSigner,
  createVerifier,
  generateKeys,
  loadKeys,
  publicKeyOf,
  signToken,
  TOKEN_LIFE_MS,
  verifyToken,
} from './token.js'

const NOW_MS = 1_700_000_000_000
const CLAIMS: TokenClaims = {
  v: 1,
  pod: 'pod-1',
  scope: 'lease',
  epoch: 7,
  leaseId: 'lease-1',
  expiresAtMs: NOW_MS + 1,
}
const USE = { pod: 'pod-1', nowMs: NOW_MS, scopes: ['lease'] as const }
const keys = generateKeys()
const publicKey = publicKeyOf(keys.publicKeyBase64)

function reasonOf(token: string, use: Parameters<typeof verifyToken>[2] = USE): unknown {
  const verified = verifyToken(token, publicKey, use)
  return 'problem' in verified ? verified.problem.details?.reason : 'good'
}

describe('a token', () => {
  test('that is good gives its claims back', () => {
    expect(verifyToken(signToken(CLAIMS, keys), publicKey, USE)).toEqual({ claims: CLAIMS })
  })

  test('is refused when anything of it is changed', () => {
    const token = signToken(CLAIMS, keys)
    const [head, signature] = token.split('.') as [string, string]
    const forged = Buffer.from(JSON.stringify({ ...CLAIMS, epoch: 8 })).toString('base64url')
    expect(reasonOf(`${forged}.${signature}`)).toBe('TokenUnsigned')
    expect(reasonOf(`${head}.${signature.slice(0, -4)}AAAA`)).toBe('TokenUnsigned')
    expect(reasonOf(signToken(CLAIMS, generateKeys()))).toBe('TokenUnsigned')
    for (const garbage of ['', '.', 'a', 'a.b', `${head}.`, `.${signature}`, 'x'.repeat(100_000)])
      expect(reasonOf(garbage)).toBe('TokenUnsigned')
  })

  test('is refused when its claims are signed but are no claims', () => {
    for (const odd of [
      null,
      1,
      [],
      {},
      { ...CLAIMS, v: 2 },
      { ...CLAIMS, scope: 'root' },
      { ...CLAIMS, epoch: 'x' },
    ])
      expect(reasonOf(signToken(odd as TokenClaims, keys))).toBe('TokenUnsigned')
  })

  test('is refused for another pod, after its expiry, and for another scope', () => {
    const token = signToken(CLAIMS, keys)
    expect(reasonOf(token, { ...USE, pod: 'pod-2' })).toBe('TokenForAnotherPod')
    expect(reasonOf(token, { ...USE, nowMs: CLAIMS.expiresAtMs })).toBe('TokenExpired')
    expect(reasonOf(token, { ...USE, scopes: ['broker'] })).toBe('TokenScope')
  })
})

describe('a verifier', () => {
  test('checks pod, expiry and scope of a token that it has seen before', () => {
    const verify = createVerifier(keys.publicKeyBase64, 'pod-1')
    const header = `Bearer ${signToken(CLAIMS, keys)}`
    expect(verify(header, ['lease'], NOW_MS)).toEqual({ claims: CLAIMS })
    expect(verify(header, ['lease'], NOW_MS)).toEqual({ claims: CLAIMS })
    expect(verify(header, ['lease'], CLAIMS.expiresAtMs)).toMatchObject({
      problem: { details: { reason: 'TokenExpired' } },
    })
    expect(verify(header, ['broker'], NOW_MS)).toMatchObject({
      problem: { details: { reason: 'TokenScope' } },
    })
  })

  test('refuses a call without a token', () => {
    const verify = createVerifier(keys.publicKeyBase64, 'pod-1')
    for (const header of [undefined, '', 'Basic abc', 'Bearer'])
      expect(verify(header, ['lease'], NOW_MS)).toMatchObject({
        problem: { code: 'InvalidRequest', details: { reason: 'TokenMissing' } },
      })
  })
})

describe('a signer', () => {
  test('gives the same token until half of its life is over, and another one for each lease', () => {
    let nowMs = NOW_MS
    const sign = createSigner(keys, () => nowMs)
    const first = sign('pod-1', 'lease', 1, 'a')
    nowMs += TOKEN_LIFE_MS / 2 - 1
    expect(sign('pod-1', 'lease', 1, 'a')).toBe(first)
    for (const other of [
      sign('pod-2', 'lease', 1, 'a'),
      sign('pod-1', 'broker', 1, 'a'),
      sign('pod-1', 'lease', 2, 'a'),
      sign('pod-1', 'lease', 1, 'b'),
    ])
      expect(other).not.toBe(first)
    nowMs += 1
    const second = sign('pod-1', 'lease', 1, 'a')
    expect(second).not.toBe(first)
    expect(reasonOf(second, { ...USE, nowMs: nowMs + TOKEN_LIFE_MS - 1 })).toBe('good')
  })
})

describe('the key file', () => {
  let folder: string
  beforeEach(() => {
    folder = mkdtempSync(join(tmpdir(), 'firepool-keys-'))
  })
  afterEach(() => rmSync(folder, { recursive: true, force: true }))

  test('is made once, is private, and is the same for everybody after', () => {
    const made = loadKeys(join(folder, 'deep', 'er'))
    const found = loadKeys(join(folder, 'deep', 'er'))
    expect(found.publicKeyBase64).toBe(made.publicKeyBase64)
    expect(Buffer.from(made.publicKeyBase64, 'base64')).toHaveLength(32)
    const names = readdirSync(join(folder, 'deep', 'er'))
    expect(names).toHaveLength(1)
    expect(statSync(join(folder, 'deep', 'er', names[0]!)).mode & 0o777).toBe(0o600)
  })

  test('that many processes race to make ends as one key', async () => {
    const compiled = await compileSources(['src/token/token.ts'])
    try {
      const script = `
        const { loadKeys } = await import(${JSON.stringify(join(compiled.dir, 'token/token.js'))})
        const { existsSync } = await import('node:fs')
        console.log('ready')
        while (!existsSync(${JSON.stringify(join(folder, 'go'))})) {}
        console.log(loadKeys(${JSON.stringify(join(folder, 'keys'))}).publicKeyBase64)`
      const racers = Array.from({ length: 6 }, () => {
        const child = spawn(process.execPath, ['--input-type=module', '-e', script])
        let output = ''
        child.stdout.on('data', (chunk: Buffer) => {
          output += chunk
        })
        return {
          ready: new Promise<void>((resolve) => child.stdout.once('data', () => resolve())),
          key: new Promise<string>((resolve) => child.on('close', () => resolve(output.trim()))),
        }
      })
      await Promise.all(racers.map((racer) => racer.ready))
      writeFileSync(join(folder, 'go'), '')
      const outputs = new Set(await Promise.all(racers.map((racer) => racer.key)))
      expect([...outputs]).toEqual([`ready\n${loadKeys(join(folder, 'keys')).publicKeyBase64}`])
      expect(readdirSync(join(folder, 'keys'))).toHaveLength(1)
    } finally {
      compiled.remove()
    }
  })

  test('that holds something else is an error that names it, without its content', () => {
    loadKeys(folder)
    const path = join(folder, readdirSync(folder)[0]!)
    writeFileSync(path, 'SECRET-GARBAGE')
    expect(() => loadKeys(folder)).toThrow(path)
    expect(() => loadKeys(folder)).not.toThrow('SECRET-GARBAGE')
  })
})
