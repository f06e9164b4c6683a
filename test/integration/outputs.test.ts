/** Outputs that Temporal would refuse as a result: the job runs once, its result is cut, its bytes are all there. */
import { createHash } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { LIMIT } from '../../dist/contract/index.js'
import { holderOf, marker } from '../support/holder.js'
import { peakKiB, runnerOf } from '../support/runner-memory.js'
import { makeWorld, type World } from '../support/world.js'

let world: World
beforeAll(async () => {
  world = await makeWorld()
})
afterAll(() => world?.close())

/**
 * How much more memory than for a small output a runner may take for a large one: buffers that wait to be collected, whatever the output's
 * size. 59 to 77 MiB in eight runs on two cores.
 */
const MORE_KIB = 96 * 1024

/** The numbers from 1 in lines, so many bytes of them: every place of it looks different. */
function numbers(bytes: number): Buffer {
  const lines: string[] = []
  for (let n = 1, size = 0; size < bytes; n++) {
    lines.push(`${n}\n`)
    size += lines[lines.length - 1]!.length
  }
  return Buffer.from(lines.join('')).subarray(0, bytes)
}

test.each([
  // What one Temporal payload may not be, and what the server does not even take as a message.
  ['2.2 MB', 2_200_000],
  ['5 MB', 5_000_000],
])(
  '%s on both streams: one start, head and tail, all bytes in the files, bounded memory',
  async (_, bytes) => {
    const name = `outputs-${bytes}`
    await world.pool(name, { standby: 2 })
    const starts = join(world.dir, marker())
    const command = (size: number) =>
      `echo ${size} >> ${starts}; seq ${size} | head -c ${size}; seq ${size} | head -c ${size} | rev >&2`

    const small = await holderOf(world, name, { caller: 'small' })
    await small.job(command(1_000))
    const less = await small.nth(1)
    expect(less.result.output.stdout).toEqual({ bytes: 1_000, truncated: false })

    const large = await holderOf(world, name, { caller: 'large' })
    await large.job(command(bytes))
    const { pod, result } = await large.nth(1)
    expect(readFileSync(starts, 'utf8')).toBe(`1000\n${bytes}\n`)
    expect(pod).not.toBe(less.pod)

    const out = numbers(bytes)
    const err = Buffer.from(
      out
        .toString()
        .split('\n')
        .map((line) => [...line].reverse().join(''))
        .join('\n'),
    )
    const sums: string[] = []
    for (const [stream, exact] of [
      ['stdout', out],
      ['stderr', err],
    ] as const) {
      const { file, ...about } = result.output[stream]
      expect(about).toEqual({ bytes, truncated: true })
      const text = result[stream]
      expect(text.length).toBeLessThan(LIMIT.outputHeadBytes + LIMIT.outputTailBytes + 1_000)
      expect(text.startsWith(exact.subarray(0, LIMIT.outputHeadBytes).toString())).toBe(true)
      expect(text.endsWith(exact.subarray(-LIMIT.outputTailBytes).toString())).toBe(true)
      expect(text).toContain(`of ${bytes} bytes left out here; all are in ${file}`)
      sums.push(`${createHash('sha256').update(exact).digest('hex')}  ${file}\n`)
    }
    // While the lease lasts its next job finds them.
    await large.job(['sha256sum', result.output.stdout.file!, result.output.stderr.file!])
    const again = await large.nth(2)
    expect(again.pod).toBe(pod)
    expect(again.result.stdout).toBe(sums.join(''))

    expect(peakKiB(runnerOf(pod)) - peakKiB(runnerOf(less.pod))).toBeLessThan(MORE_KIB)
    for (const holder of [small, large]) await holder.finish()
  },
)

test('256 MiB take the runner no more memory than that', async () => {
  const bytes = 256 * 1024 ** 2
  expect(bytes / 1024).toBeGreaterThan(2 * MORE_KIB)
  await world.pool('outputs-large', { standby: 2 })
  const small = await holderOf(world, 'outputs-large', { caller: 'small' })
  await small.job('seq 1000')
  const less = await small.nth(1)
  const large = await holderOf(world, 'outputs-large', { caller: 'large' })
  await large.job(`seq ${bytes} | head -c ${bytes}`)
  const { pod, result } = await large.nth(1)
  const { file, ...about } = result.output.stdout
  expect(about).toEqual({ bytes, truncated: true })
  expect(peakKiB(runnerOf(pod)) - peakKiB(runnerOf(less.pod))).toBeLessThan(MORE_KIB)
  await large.job(`seq ${bytes} | head -c ${bytes} | cmp - ${file}`)
  expect((await large.nth(2)).result).toMatchObject({ pod, exitCode: 0 })
  for (const holder of [small, large]) await holder.finish()
})
