import { execFileSync } from 'node:child_process'
import { mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Readable } from 'node:stream'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { collectText, parseEnv, readFiles } from './job-input.js'

let dir: string
beforeAll(() => {
  dir = mkdtempSync(join(tmpdir(), 'firepool-input-'))
})
afterAll(() => rmSync(dir, { recursive: true, force: true }))

test('environment variables, given or passed on', () => {
  expect(parseEnv(['A=1', 'B=x=y', 'C', 'D='], { C: 'own' })).toEqual({ A: '1', B: 'x=y', C: 'own', D: '' })
  expect(() => parseEnv(['=1'])).toThrow(/no name/)
  expect(() => parseEnv(['NOT_SET'], {})).toThrow(/not set here/)
})

test.each(['A B=1', 'A-B=1', '1A=1', 'Ä=1', 'A.B', 'A\nB=1', `${'x'.repeat(9_999)} =1`])(
  'an environment variable that no shell accepts: %j',
  (pair) => {
    const refusal = /--env has a name that no shell accepts: ".{1,90}; a name has letters, digits and _/
    expect(() => parseEnv([pair], { 'A.B': '1' })).toThrow(refusal)
  },
)

test.each(['../x', '/x', 'a/../../x', '.', 'a/'])('a destination that no pod would take: %s', (dest) => {
  const file = join(dir, 'sent')
  writeFileSync(file, '')
  expect(() => readFiles([`${file}:${dest}`])).toThrow(
    /InvalidRequest: the destination of --file ".*sent", "/,
  )
})

test('files keep their mode; bytes that are no text go as base64; a colon names the destination', () => {
  writeFileSync(join(dir, 'a.sh'), 'echo ü', { mode: 0o755 })
  writeFileSync(join(dir, 'b:c'), Buffer.from([0xff, 0x00]), { mode: 0o600 })
  expect(readFiles([join(dir, 'a.sh'), `${join(dir, 'a.sh')}:bin/run`, join(dir, 'b:c')])).toEqual([
    { path: 'a.sh', content: 'echo ü', mode: 0o755 },
    { path: 'bin/run', content: 'echo ü', mode: 0o755 },
    { path: 'b:c', content: '/wA=', encoding: 'base64', mode: 0o600 },
  ])
})

test('files that cannot be sent', () => {
  writeFileSync(join(dir, 'large'), Buffer.alloc(3 * 1024 * 1024))
  expect(() => readFiles([join(dir, 'large')])).toThrow(/3145728 bytes.*at most 1000000/)
  expect(() => readFiles([join(dir, 'none')])).toThrow(/no such file/)
  expect(() => readFiles([dir])).toThrow(/folder/)
  expect(() => readFiles([`${join(dir, 'a.sh')}:`])).toThrow(/behind the colon/)
  expect(() => readFiles([`${join(dir, 'a.sh', 'below')}:x`])).toThrow(/--file .* cannot be read: ENOTDIR/)
})

test('what is no regular file is refused at once: it may have no end, or nobody who writes it', () => {
  const pipe = join(dir, 'pipe')
  execFileSync('mkfifo', [pipe])
  expect(() => readFiles([pipe])).toThrow(/--file .*pipe cannot be read: it is a pipe; give PATH/)
  expect(() => readFiles(['/dev/zero'])).toThrow(/it is a device/)
  symlinkSync('/dev/zero', join(dir, 'link'))
  expect(() => readFiles([join(dir, 'link')])).toThrow(/it is a device/)
})

test('files that say they are empty are read up to the bound; all of them together count', () => {
  expect(readFiles(['/proc/self/stat'])[0]!.content).toMatch(/^\d+ /)
  writeFileSync(join(dir, 'half'), Buffer.alloc(600_000, 'x'))
  expect(() => readFiles([join(dir, 'half'), join(dir, 'half')])).toThrow(
    /with .*half the job has 1200000 bytes or more/,
  )
})

test('standard input', async () => {
  expect(await collectText(Readable.from([Buffer.from('a'), Buffer.from('ü')]))).toBe('aü')
  await expect(collectText(Readable.from([Buffer.from([0xff])]))).rejects.toThrow(/not UTF-8/)
  const endless = Readable.from(
    (function* () {
      for (;;) yield Buffer.alloc(65_536, 'x')
    })(),
  )
  await expect(collectText(endless)).rejects.toThrow(/at most 1000000/)
})
