import { expect, test } from 'vitest'
import { checkJob, checkJobFields, checkWorkPath } from './check-job.js'
import { LIMIT, TIMEOUT } from './limits.js'

const said = (job: unknown) => checkJob(job).problem?.message

test('a job with everything passes, and gives its time limit', () => {
  const job = {
    command: ['python3', 'run.py'],
    env: { MODE: 'fast', 'a.b-c': '' },
    secretEnv: { KEY: 'search-key', OTHER: '_v1.2' },
    cwd: 'a/../b/',
    stdin: '',
    files: [{ path: 'a/./run.py', content: 'eA==', encoding: 'base64', mode: 0o755 }],
    collect: ['out/..data', 'a/../b'],
    timeout: '90s',
    device: 'none',
    outputTo: 'http://127.0.0.1:1/x',
  }
  expect(checkJob(job)).toEqual({ value: 90_000 })
  expect(checkJob({ command: 'true' })).toEqual({ value: TIMEOUT.jobMs })
})

test('null is absent for callers of other SDKs, and wrong on the wire to a pod', () => {
  const job = { command: 'true', cwd: null, env: null, timeout: null }
  expect(checkJob(job)).toEqual({ value: TIMEOUT.jobMs })
  for (const field of ['cwd', 'env', 'timeout'])
    expect(checkJobFields({ command: 'true', [field]: null }).problem?.code, field).toBe('InvalidRequest')
})

test.each([
  '..',
  '../x',
  '/etc/passwd',
  'a/../../x',
  'a/../..',
  './../x',
  '//x',
  'x\u0000',
  'x'.repeat(5_000),
])('the path %j is refused wherever a job may name one', (path) => {
  expect(said({ command: 'true', cwd: path })).toMatch(/^job\.cwd /)
  expect(said({ command: 'true', collect: ['ok', path] })).toMatch(/^job\.collect /)
  expect(said({ command: 'true', files: [{ path, content: '' }] })).toMatch(/^job\.files\[\]\.path /)
})

test.each(['', '.', 'a/', 'a/.', 'a/..'])('%j is a folder of the work folder, and no file', (path) => {
  expect(checkWorkPath(path, 'x', 'folder').problem).toBeUndefined()
  expect(checkWorkPath(path, 'x', 'file').problem?.message).toMatch(/^x ".*" names a folder; /)
})

test.each<[string, unknown, RegExp]>([
  ['no job', 'true', /^a job is \{ command, \.\.\. \}, not "true"/],
  ['an unknown field', { command: 'x', comand: 'y' }, /no field "comand"; did you mean 'command'\?/],
  ['no command', {}, /^job\.command must be a text or a list .*not undefined/],
  ['a command that is a number', { command: 5 }, /^job\.command must be .*not 5/],
  ['an empty list', { command: [] }, /not a list of 0/],
  ['a blank command', { command: ' ' }, /^job\.command is empty/],
  ['a word that is no text', { command: ['a', 1] }, /^job\.command must hold texts/],
  ['an env that is a list', { command: 'x', env: [] }, /^job\.env must be an object/],
  ['a variable without a name', { command: 'x', env: { '': '1' } }, /variable named ""/],
  ['a name with =', { command: 'x', env: { 'A=B': '1' } }, /may not be empty nor hold "="/],
  ['a variable of ours', { command: 'x', env: { FIREPOOL_POD: '1' } }, /may not set FIREPOOL_POD/],
  ['a value that is no text', { command: 'x', env: { A: 1 } }, /^job\.env\.A must be a text/],
  ['a stdin that is no text', { command: 'x', stdin: 1 }, /^job\.stdin/],
  ['files that are no list', { command: 'x', files: {} }, /^job\.files must be a list/],
  ['too many paths', { command: 'x', collect: Array(LIMIT.files + 1).fill('a') }, /has 1001 entries/],
  ['a file that is a text', { command: 'x', files: ['a'] }, /^job\.files\[\] must be \{ path/],
  ['a file with an unknown field', { command: 'x', files: [{ path: 'a', content: '', mod: 1 }] }, /'mode'/],
  ['a file without content', { command: 'x', files: [{ path: 'a' }] }, /content of file "a"/],
  ['a wrong encoding', { command: 'x', files: [{ path: 'a', content: '', encoding: 'hex' }] }, /"hex"/],
  ['no base64', { command: 'x', files: [{ path: 'a', content: '-', encoding: 'base64' }] }, /not base64/],
  ['a wrong mode', { command: 'x', files: [{ path: 'a', content: '', mode: 0o4755 }] }, /permission bits/],
  ['a time limit of 0', { command: 'x', timeout: 0 }, /timeout is 0 ms; it must be between/],
  ['a device that is no choice', { command: 'x', device: 'gpu' }, /^job\.device/],
  ['a URL of another kind', { command: 'x', outputTo: 'ftp://x' }, /^job\.outputTo/],
  ['too many bytes', { command: 'x', stdin: 'x'.repeat(LIMIT.jobBytes) }, /at most 1000000 are allowed/],
])('%s is refused', (_, job, message) => {
  expect(checkJob(job).problem).toMatchObject({ code: 'InvalidRequest', origin: 'caller' })
  expect(said(job)).toMatch(message)
})

test.each<[unknown, RegExp]>([
  ['sk-123', /^job\.secretEnv must be an object of names of secrets/],
  [{ KEY: 'sk/123 =' }, /^job\.secretEnv\.KEY must be the name of a secret/],
  [{ KEY: '../etc/passwd' }, /^job\.secretEnv\.KEY must be/],
  [{ KEY: '..data' }, /^job\.secretEnv\.KEY must be/],
  [{ KEY: 7 }, /^job\.secretEnv\.KEY must be/],
  [{ 'A=B': 'x' }, /^job\.secretEnv has a variable named "A=B"/],
  [{ FIREPOOL_POD: 'x' }, /^job\.secretEnv may not set FIREPOOL_POD/],
  [{ MODE: 'x' }, /^job\.env and job\.secretEnv both set "MODE"/],
])('secretEnv %j is refused, and what may be a value is not repeated', (secretEnv, why) => {
  const message = said({ command: 'true', env: { MODE: 'fast' }, secretEnv })
  expect(message).toMatch(why)
  expect(message).not.toMatch(/sk|passwd|\.\.data/)
})

test('what is quoted is cut', () => {
  for (const job of [
    { command: 'x', ['y'.repeat(9_999)]: 1 },
    { command: 'x', cwd: `/${'y'.repeat(3_000)}` },
  ])
    expect(said(job)!.length).toBeLessThan(400)
})
