import { asyncLocalStorage, type Context } from '@temporalio/activity'
import { afterEach, beforeEach, expect, test, vi } from 'vitest'
import type { Backend, ObservedPod } from '../contract/backend.js'
import { TIMEOUT } from '../contract/limits.js'
import { createObserve } from './observe.js'

beforeEach(() => void vi.useFakeTimers())
afterEach(() => void vi.useRealTimers())

test('an observation says that it lives while the list of all pods takes long', async () => {
  let answer!: (pods: ObservedPod[]) => void
  const list = () =>
    new Promise<ObservedPod[]>((resolve) => {
      answer = resolve
    })
  const backend = { list, watch: () => () => {} } as unknown as Backend
  const beats: unknown[] = []
  const context = {
    heartbeat: (details: unknown) => void beats.push(details),
    cancellationSignal: new AbortController().signal,
  } as unknown as Context
  const observe = createObserve({ backend, signer: () => '' })
  const seen = asyncLocalStorage.run(context, () => observe({ v: 1, pool: 'p', cursor: null }))
  await vi.advanceTimersByTimeAsync(TIMEOUT.observeHeartbeatMs)
  expect(beats.length).toBeGreaterThan(1)
  const pod: ObservedPod = { pod: 'p-1', generation: 1, phase: 'starting' }
  answer([pod])
  expect(await seen).toMatchObject({ full: true, pods: [pod] })
  const before = beats.length
  await vi.advanceTimersByTimeAsync(TIMEOUT.observeHeartbeatMs)
  expect(beats).toHaveLength(before)
})
