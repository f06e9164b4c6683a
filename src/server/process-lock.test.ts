import { randomUUID } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import { expect, test } from 'vitest'
import { withProcessLock } from './process-lock.js'

test('one at a time, under one name', async () => {
  const name = randomUUID()
  let inside = 0
  let most = 0
  const enter = () =>
    withProcessLock(name, async () => {
      inside += 1
      most = Math.max(most, inside)
      await sleep(20)
      inside -= 1
    })
  await Promise.all([enter(), enter(), enter(), withProcessLock(randomUUID(), async () => {})])
  expect(most).toBe(1)
})

test('an action that throws lets go of the lock', async () => {
  const name = randomUUID()
  await expect(withProcessLock(name, () => Promise.reject(new Error('no')))).rejects.toThrow('no')
  expect(await withProcessLock(name, async () => 'next')).toBe('next')
})

test('an abort ends the wait, not the holder', async () => {
  const name = randomUUID()
  const abort = new AbortController()
  const held = withProcessLock(name, async () => {
    const onWait = () => abort.abort(new Error('enough'))
    const second = withProcessLock(name, async () => 'second', { signal: abort.signal, onWait })
    await expect(second).rejects.toThrow()
    return 'first'
  })
  expect(await held).toBe('first')
})
