import { createHash } from 'node:crypto'
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { createServer, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Readable } from 'node:stream'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { LIMIT, type OutputChunk } from '../contract/index.js'
import { createRunnerClient, jobDigest } from './client.js'
import {
  compileSources,
  makeWorld,
  problemOf,
  refusal,
  resultOf,
  startProcess,
  type World,
  type WorldOptions,
} from './world.fixture.js'

let world: World
async function begin(options: WorldOptions = {}): Promise<void> {
  world = await makeWorld(options)
  await world.bind(1)
}
beforeEach(() => begin())
afterEach(() => world.end())

async function bytesOf(stream: Readable): Promise<Buffer> {
  const chunks: Buffer[] = []
  for await (const chunk of stream) chunks.push(chunk as Buffer)
  return Buffer.concat(chunks)
}

const INLINE_BYTES = LIMIT.outputHeadBytes + LIMIT.outputTailBytes

describe('output', () => {
  test('that fits is inline, and no file is written', async () => {
    const { stdout, output } = resultOf(
      await world.run({ command: `head -c ${INLINE_BYTES} /dev/zero | tr '\\0' x` }),
    )
    expect(stdout).toBe('x'.repeat(INLINE_BYTES))
    expect(output.stdout).toEqual({ bytes: INLINE_BYTES, truncated: false })
    expect(readdirSync(world.folders.jobs)).toEqual([])
  })

  test('one byte more is cut to head and tail, with a line that names what is left out, exact in the file', async () => {
    const command = `head -c ${INLINE_BYTES} /dev/zero | tr '\\0' x; printf y`
    const { stdout, output } = resultOf(await world.run({ command }))
    const file = output.stdout.file!
    expect(output.stdout).toEqual({ bytes: INLINE_BYTES + 1, truncated: true, file })
    const head = 'x'.repeat(LIMIT.outputHeadBytes)
    const tail = `${'x'.repeat(LIMIT.outputTailBytes - 1)}y`
    expect(stdout).toBe(
      `${head}\n[firepool: 1 of ${INLINE_BYTES + 1} bytes left out here; all are in ${file}]\n${tail}`,
    )
    expect((await bytesOf(await world.lease(1).getFile(file))).length).toBe(INLINE_BYTES + 1)
  })

  test('of some MiB on both streams at once stands exactly in their files', async () => {
    const script = `
      const crypto = require('crypto')
      for (let n = 0; n < 40; n++) {
        process.stdout.write(crypto.createHash('sha256').update('o' + n).digest('hex').repeat(1600))
        process.stderr.write(crypto.createHash('sha256').update('e' + n).digest('hex').repeat(1600))
      }`
    const { output } = resultOf(await world.run({ command: [process.execPath, '-e', script] }))
    for (const [stream, letter] of [
      ['stdout', 'o'],
      ['stderr', 'e'],
    ] as const) {
      const expected = createHash('sha256')
      for (let n = 0; n < 40; n++)
        expected.update(createHash('sha256').update(`${letter}${n}`).digest('hex').repeat(1600))
      const exact = await bytesOf(await world.lease(1).getFile(output[stream].file!))
      expect(exact.length).toBe(output[stream].bytes)
      expect(createHash('sha256').update(exact).digest('hex')).toBe(expected.digest('hex'))
    }
  })

  test('that is not UTF-8 is replaced in the text and exact in the file', async () => {
    const { stdout, output } = resultOf(await world.run({ command: "printf 'a\\377b'" }))
    expect(stdout).toBe('a\ufffdb')
    expect(output.stdout).toMatchObject({ bytes: 3, truncated: false })
    expect([...(await bytesOf(await world.lease(1).getFile(output.stdout.file!)))]).toEqual([
      0x61, 0xff, 0x62,
    ])
  })

  test('is never cut within a character', async () => {
    const script = `process.stdout.write('x' + '€'.repeat(${INLINE_BYTES}))`
    const { stdout } = resultOf(await world.run({ command: [process.execPath, '-e', script] }))
    expect(stdout).not.toContain('\ufffd')
    expect(stdout.startsWith('x€')).toBe(true)
    expect(stdout.endsWith('€')).toBe(true)
  })

  test('that JSON makes six times as long still fits a payload', async () => {
    const command = `head -c ${INLINE_BYTES} /dev/zero; head -c ${INLINE_BYTES} /dev/zero >&2; mkdir d; for n in 1 2 3 4 5 6 7 8; do head -c 65000 /dev/zero > d/$n; done`
    const collect = Array.from({ length: 1_000 }, (_, n) => `d/${n}${'/'.repeat(600)}${n}`)
    collect.unshift(...Array.from({ length: 8 }, (_, n) => `d/${n + 1}`))
    const outcome = await world.run({ command, collect: collect.slice(0, LIMIT.files) })
    expect(resultOf(outcome).files).toHaveLength(8)
    expect(Buffer.byteLength(JSON.stringify(outcome))).toBeLessThan(1_900_000)
    expect(resultOf(outcome).output.stdout.truncated).toBe(true)
  })

  test('past the bound of its file ends the job with OutputTooLarge', async () => {
    await world.end()
    await begin({ outputLimits: { headBytes: 100, tailBytes: 100, fileBytes: 1_000_000 } })
    const problem = problemOf(await world.run({ command: 'yes' }))
    expect(problem).toMatchObject({
      code: 'OutputTooLarge',
      origin: 'job',
      details: { outputFileBytes: 1_000_000 },
    })
  })

  test('files stay while the lease lasts and go with the next one', async () => {
    const { output } = resultOf(await world.run({ command: "printf '\\377'" }))
    const file = output.stdout.file!
    await world.run({ command: 'true' })
    expect((await bytesOf(await world.lease(1).getFile(file))).length).toBe(1)
    await world.bind(2)
    await expect.poll(() => readdirSync(world.folders.jobs), { timeout: 30_000 }).toEqual([])
  })
})

describe('a subscriber to the output', () => {
  let server: Server
  let chunks: OutputChunk[]
  let status = 200
  let answers = true
  let slow = false
  beforeEach(async () => {
    chunks = []
    status = 200
    answers = true
    slow = false
    server = createServer(async (req, res) => {
      chunks.push(JSON.parse((await bytesOf(req)).toString('utf8')))
      if (slow) await new Promise((resolve) => setTimeout(resolve, 20))
      if (answers) res.writeHead(status).end()
    })
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  })
  afterEach(() => {
    server.closeAllConnections()
    server.close()
  })
  const url = () => `http://127.0.0.1:${(server.address() as AddressInfo).port}/out`

  test('gets every byte in order, before the job is answered', async () => {
    const command = 'for n in 1 2 3 4 5; do head -c 100000 /dev/zero | tr "\\0" $n; echo e$n >&2; done'
    const { output } = resultOf(await world.run({ command, outputTo: url() }, { jobId: 's/1' }))
    for (const stream of ['stdout', 'stderr'] as const) {
      let offset = 0
      for (const chunk of chunks.filter((one) => one.stream === stream)) {
        expect(chunk).toMatchObject({ v: 1, jobId: 's/1', offset })
        offset += Buffer.from(chunk.base64, 'base64').length
      }
      expect(offset).toBe(output[stream].bytes)
    }
  })

  test('that is slower than the job slows it down, and gets every byte', async () => {
    slow = true
    const { output } = resultOf(await world.run({ command: 'head -c 20000000 /dev/zero', outputTo: url() }))
    const got = chunks.reduce((sum, chunk) => sum + Buffer.from(chunk.base64, 'base64').length, 0)
    expect(got).toBe(output.stdout.bytes)
  })

  test('that fails is dropped, and the job goes on', async () => {
    status = 500
    const command = 'echo a; sleep 0.3; echo b; sleep 0.3; echo c'
    expect(resultOf(await world.run({ command, outputTo: url() })).stdout).toBe('a\nb\nc\n')
    expect(chunks).toHaveLength(1)
    expect(world.logged.join('\n')).toContain('answered 500')
    expect(resultOf(await world.run({ command: 'echo x', outputTo: 'http://127.0.0.1:1/' })).stdout).toBe(
      'x\n',
    )
  })

  test('that never answers is dropped, and the result comes', async () => {
    answers = false
    const result = resultOf(await world.run({ command: 'head -c 20000000 /dev/zero', outputTo: url() }))
    expect(result.output.stdout.bytes).toBe(20_000_000)
    expect(chunks).toHaveLength(1)
  })
})

test('1 GiB of output costs the runner a bounded amount of memory', async () => {
  const compiled = await compileSources(['src/runner/main.ts'])
  const podDir = mkdtempSync(join(tmpdir(), 'firepool-pod-'))
  const runner = startProcess(compiled.dir, podDir)
  try {
    const { address, incarnation } = await runner.ready()
    const pod = 'pod-of-main-test'
    const broker = createRunnerClient(address, () => runner.sign(pod, 'broker', 0, ''))
    await broker.bind({ v: 1, epoch: 1, leaseId: 'l', ownerHash: 'o', incarnation })
    const lease = createRunnerClient(address, () => runner.sign(pod, 'lease', 1, 'l'))
    const peakKiB = () =>
      Number(/VmHWM:\s+(\d+)/.exec(readFileSync(`/proc/${runner.pid}/status`, 'utf8'))![1])
    const before = peakKiB()
    const spec = { command: 'head -c 1073741824 /dev/zero' }
    const outcome = await lease.jobs({ v: 1, jobId: 's/1', digest: jobDigest(spec), epoch: 1, spec })
    const { output } = resultOf(outcome)
    expect(output.stdout.bytes).toBe(1024 ** 3)
    console.log(`1 GiB of output: the runner's peak grew by ${Math.round((peakKiB() - before) / 1024)} MiB`)
    expect((peakKiB() - before) / 1024).toBeLessThan(200)
    expect((await refusal(lease.getFile('../jobs/none'))).code).toBe('InvalidRequest')
    expect(existsSync(join(podDir, 'work', output.stdout.file!))).toBe(true)
  } finally {
    runner.kill('SIGTERM')
    await runner.exit
    rmSync(podDir, { recursive: true, force: true })
    compiled.remove()
  }
}, 240_000)
