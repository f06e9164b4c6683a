import { mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { FirepoolError, LIMIT } from '../contract/index.js'
import { Secrets } from './secrets.js'

const VALUE = 'a value that stands in no message'
let folder: string
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'firepool-secrets-'))
  writeFileSync(join(folder, 'token'), `${VALUE}\n`)
  // As a mounted Secret has it.
  mkdirSync(join(folder, '..data'))
  writeFileSync(join(folder, '..data', 'mounted'), VALUE)
  symlinkSync(join('..data', 'mounted'), join(folder, 'mounted'))
  writeFileSync(join(folder, 'binary'), Buffer.from([0x61, 0xff, 0x62]))
  writeFileSync(join(folder, 'nul'), `${VALUE}\0`)
  writeFileSync(join(folder, 'huge'), VALUE.padEnd(LIMIT.secretBytes + 1))
  mkdirSync(join(folder, 'folder'))
  writeFileSync(join(folder, 'other'), VALUE)
})
afterAll(() => rmSync(folder, { recursive: true, force: true }))

const ALLOWED = ['token', 'mounted', 'binary', 'nul', 'huge', 'folder', 'gone']

test('are read from files under their names, and lose the line break at their end', () => {
  const secrets = new Secrets(folder, ALLOWED)
  expect(secrets.environment({ A: 'token', B: 'mounted' })).toEqual({ A: VALUE, B: VALUE })
  expect(secrets.environment()).toEqual({})
})

test('are read anew for each job', () => {
  const secrets = new Secrets(folder, ['turns'])
  for (const value of ['one', 'two']) {
    writeFileSync(join(folder, 'turns'), value)
    expect(secrets.environment({ A: 'turns' })).toEqual({ A: value })
  }
})

test.each([
  ['SecretNotAllowed', 'other'],
  ['SecretMissing', 'gone'],
  ['SecretMissing', 'folder'],
  ['SecretUnusable', 'binary'],
  ['SecretUnusable', 'nul'],
  ['SecretUnusable', 'huge'],
])('%s names the secret, and nothing of its value or its folder: %s', (reason, name) => {
  let thrown: unknown
  try {
    new Secrets(folder, ALLOWED).environment({ A: name })
  } catch (error) {
    thrown = error
  }
  expect(thrown).toBeInstanceOf(FirepoolError)
  const { problem } = thrown as FirepoolError
  expect(problem).toMatchObject({ code: 'InvalidRequest', details: { reason, secret: name } })
  expect(problem.message).toContain(`secret '${name}'`)
  for (const hidden of [VALUE, folder]) expect(JSON.stringify(problem)).not.toContain(hidden)
})

test('a pod without a folder says so', () => {
  expect(() => new Secrets(undefined, ['token']).environment({ A: 'token' })).toThrow(
    /has no folder of secrets/,
  )
})
