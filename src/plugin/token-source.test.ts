import { mkdtempSync, readdirSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { request } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { endpointFolder, serveTokens } from '../token/endpoint.js'
import { createSigner, generateKeys, publicKeyOf, verifyToken } from '../token/token.js'
import { createTokenSource } from './token-source.js'

const LEASE = { pod: 'p', epoch: 3, leaseId: 'l' }

let dir: string
let stop: (() => Promise<void>)[]
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'firepool-tokens-'))
  stop = []
})
afterEach(async () => {
  for (const end of stop) await end()
  rmSync(dir, { recursive: true })
})

function post(body: string, path = '/token'): Promise<{ status: number; text: string }> {
  const socketPath = join(endpointFolder(dir), `${process.pid}.sock`)
  return new Promise((resolve, reject) => {
    const call = request({ socketPath, path, method: 'POST' }, (response) => {
      let text = ''
      response.on('data', (chunk) => {
        text += chunk
      })
      response.on('end', () => resolve({ status: response.statusCode!, text }))
    })
    call.on('error', reject)
    call.end(body)
  })
}

describe('the token endpoint', () => {
  test('signs for a lease, and for nothing more than a lease', async () => {
    const keys = generateKeys()
    stop.push(await serveTokens(dir, createSigner(keys)))
    const token = await createTokenSource(dir)(LEASE)
    const key = publicKeyOf(keys.publicKeyBase64)
    const use = { pod: 'p', nowMs: Date.now() } as const
    expect(verifyToken(token, key, { ...use, scopes: ['lease'] })).toMatchObject({
      claims: { ...LEASE, scope: 'lease' },
    })
    expect(verifyToken(token, key, { ...use, scopes: ['broker'] })).toHaveProperty('problem')
  })

  test('is open to its own user alone, and leaves nothing behind', async () => {
    const end = await serveTokens(dir, createSigner(generateKeys()))
    expect(statSync(endpointFolder(dir)).mode & 0o077).toBe(0)
    await end()
    expect(readdirSync(endpointFolder(dir))).toEqual([])
  })

  test('refuses what is no request for a token, and goes on', async () => {
    stop.push(await serveTokens(dir, createSigner(generateKeys())))
    for (const bad of [
      '',
      '{',
      '[]',
      'null',
      '{"v":2,"pod":"p","epoch":1,"leaseId":"l"}',
      '{"v":1,"pod":"p","epoch":1.5,"leaseId":"l"}',
    ]) {
      const { status, text } = await post(bad)
      expect(status, bad).toBe(400)
      expect(text).not.toContain('"token"')
    }
    expect((await post('{}', '/other')).status).toBe(400)
    await expect(post('x'.repeat(100_000))).rejects.toThrow()
    expect(await createTokenSource(dir)(LEASE)).toContain('.')
  })

  test('is found when another worker of the same folder was killed, and clears up after it', async () => {
    stop.push(await serveTokens(dir, createSigner(generateKeys())))
    const abandoned = join(endpointFolder(dir), '999999999.sock')
    writeFileSync(abandoned, '')
    expect(await createTokenSource(dir)(LEASE)).toContain('.')
    await stop.pop()!()
    stop.push(await serveTokens(dir, createSigner(generateKeys())))
    expect(readdirSync(endpointFolder(dir))).toEqual([`${process.pid}.sock`])
  })

  test('says so when the folder is too deep for a socket', async () => {
    await expect(serveTokens(join(dir, 'x'.repeat(100)), createSigner(generateKeys()))).rejects.toThrow(
      /use a shorter folder/,
    )
  })
})

describe('the source of tokens', () => {
  test('asks once for each lease while its token is young', async () => {
    let signed = 0
    const signer = createSigner(generateKeys())
    stop.push(
      await serveTokens(dir, (...args) => {
        signed++
        return signer(...args)
      }),
    )
    let now = 0
    const source = createTokenSource(dir, () => now)
    await Promise.all(Array.from({ length: 5 }, () => source(LEASE)))
    expect(signed).toBe(1)
    await source({ ...LEASE, epoch: 4 })
    expect(signed).toBe(2)
    now += 10 * 60_000
    await source(LEASE)
    expect(signed).toBe(3)
  })

  test('names the folder when nobody answers, and asks again the next time', async () => {
    const source = createTokenSource(dir)
    await expect(source(LEASE)).rejects.toThrow(endpointFolder(dir))
    stop.push(await serveTokens(dir, createSigner(generateKeys())))
    expect(await source(LEASE)).toContain('.')
  })
})
