import { mkdtempSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { makeFolder } from './make-folder.js'

let dir: string
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'firepool-folder-'))
})
afterEach(() => rmSync(dir, { recursive: true }))

test('makes parents, with the mode, and takes one that is there', () => {
  const deep = join(dir, 'a', 'b', 'c')
  makeFolder(deep, 0o700)
  makeFolder(deep, 0o700)
  expect(statSync(deep).mode & 0o777).toBe(0o700)
})

test('a parent that takes no entries is an error, not an endless loop', () => {
  expect(() => makeFolder('/proc/none/deeper')).toThrow(/ENOENT/)
  writeFileSync(join(dir, 'file'), '')
  expect(() => makeFolder(join(dir, 'file'))).toThrow(/EEXIST/)
  expect(() => makeFolder(join(dir, 'file', 'x'))).toThrow(/ENOTDIR/)
})
