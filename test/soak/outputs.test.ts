/** An output of 1 GiB, through everything: what takes too long and too much disk for every commit. */
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { LIMIT } from '../../dist/contract/index.js'
import { holderOf, marker } from '../support/holder.js'
import { peakKiB, runnerOf } from '../support/runner-memory.js'
import { makeWorld } from '../support/world.js'

const BYTES = 1024 ** 3
/** More than for a small output; what is read from a pipe stands in buffers until they are collected. */
const MORE_KIB = 200 * 1024

test('1 GiB of output: one start, head and tail, all bytes in the file, bounded memory', async () => {
  const world = await makeWorld()
  try {
    await world.pool('gibibyte', { standby: 2 })
    const starts = join(world.dir, marker())
    const small = await holderOf(world, 'gibibyte', { caller: 'small' })
    await small.job('seq 1000')
    const less = await small.nth(1)

    const large = await holderOf(world, 'gibibyte', { caller: 'large' })
    const numbers = `seq 200000000 | head -c ${BYTES}`
    await large.job(`echo start >> ${starts}; ${numbers}`)
    const { pod, result } = await large.nth(1)
    expect(readFileSync(starts, 'utf8')).toBe('start\n')
    const { file, ...about } = result.output.stdout
    expect(about).toEqual({ bytes: BYTES, truncated: true })
    expect(result.stdout.length).toBeLessThan(LIMIT.outputHeadBytes + LIMIT.outputTailBytes + 1_000)
    expect(result.stdout.startsWith('1\n2\n3\n')).toBe(true)

    await large.job(`${numbers} | cmp - ${file} && tail -c ${LIMIT.outputTailBytes} ${file}`)
    const same = await large.nth(2)
    expect(same).toMatchObject({ pod, result: { exitCode: 0 } })
    expect(result.stdout.endsWith(same.result.stdout)).toBe(true)
    expect(same.result.stdout.length).toBe(LIMIT.outputTailBytes)

    const moreKiB = peakKiB(runnerOf(pod)) - peakKiB(runnerOf(less.pod))
    console.log(
      `the runner's peak for 1 GiB is ${Math.round(moreKiB / 1024)} MiB above that for a small output`,
    )
    expect(moreKiB).toBeLessThan(MORE_KIB)
    for (const holder of [small, large]) await holder.finish()
  } finally {
    await world.close()
  }
})
