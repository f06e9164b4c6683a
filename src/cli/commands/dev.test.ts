import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { databaseFile } from './dev.js'

let dir: string
beforeAll(() => {
  dir = mkdtempSync(join(tmpdir(), 'firepool-db-'))
})
afterAll(() => rmSync(dir, { recursive: true, force: true }))

test('a database goes where it is, or into a folder that is there', () => {
  expect(databaseFile(join(dir, 'x.db'))).toBe(join(dir, 'x.db'))
  writeFileSync(join(dir, 'old.db'), '')
  expect(databaseFile(join(dir, 'old.db'))).toBe(join(dir, 'old.db'))
  expect(databaseFile('x.db')).toBe(join(process.cwd(), 'x.db'))
})

test('no folder is made for it', () => {
  expect(() => databaseFile(join(dir, 'no', 'such', 'x.db'))).toThrow(
    /there is no folder .*no\/such; make it first/,
  )
  for (const below of ['x.db', 'y/x.db'])
    expect(() => databaseFile(join(dir, 'old.db', below))).toThrow(/there is no folder/)
  expect(() => databaseFile(dir)).toThrow(/is no regular file/)
  expect(existsSync(join(dir, 'no'))).toBe(false)
})
