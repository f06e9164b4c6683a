import { afterEach, beforeEach, expect, test, vi } from 'vitest'
import type { ObservedPod } from '../contract/backend.js'
import { TIMEOUT } from '../contract/limits.js'
import { PodFeed } from './pod-feed.js'

let tell: (pod: ObservedPod) => void
let feed: PodFeed
let touched: string[]
beforeEach(() => {
  vi.useFakeTimers()
  touched = []
  const watch = (_: string, onChange: typeof tell) => {
    tell = onChange
    return () => {}
  }
  feed = new PodFeed(
    { watch },
    'p',
    (pod) => touched.push(pod),
    () => {},
  )
})
afterEach(() => {
  feed.close()
  vi.useRealTimers()
})

const ready = (pod: string): ObservedPod => ({ pod, generation: 1, phase: 'ready', address: `http://${pod}` })
const { signal } = new AbortController()

test('an observation has the last state of each pod that changed since the one before', () => {
  tell({ pod: 'a', generation: 1, phase: 'starting' })
  const { cursor } = feed
  tell(ready('a'))
  tell({ pod: 'b', generation: 1, phase: 'starting' })
  tell(ready('b'))
  expect(feed.since(cursor)).toEqual([ready('a'), ready('b')])
  expect(feed.since(feed.cursor)).toEqual([])
  expect(feed.since('another:0')).toBeNull()
  expect(feed.since(null)).toBeNull()
})

test('a cursor that is older than what is remembered gets everything', () => {
  const { cursor } = feed
  for (let i = 0; i < 10_001; i++) tell(ready(`pod-${i}`))
  expect(feed.since(cursor)).toBeNull()
  expect(feed.since(cursor.replace(/:0$/, ':9990'))).toHaveLength(11)
})

test('the first change after a pause is told at once, others wait until the last observation is a while ago', async () => {
  const told = () => {
    const at = Date.now()
    return feed.changedSince(feed.cursor, 60_000, signal).then(() => Date.now() - at)
  }
  const first = told()
  await vi.advanceTimersByTimeAsync(1_000)
  tell(ready('a'))
  await vi.advanceTimersByTimeAsync(15)
  expect(await first).toBe(1_015)
  const second = told()
  tell(ready('b'))
  await vi.advanceTimersByTimeAsync(99)
  const { cursor } = feed
  tell(ready('c'))
  await vi.advanceTimersByTimeAsync(1)
  expect(await second).toBe(100)
  // What came before it was asked for waits as well.
  const third = feed.changedSince(cursor, 60_000, signal).then(() => Date.now())
  const from = Date.now()
  await vi.advanceTimersByTimeAsync(100)
  expect((await third) - from).toBe(100)
})

test('pods that are ready are touched in turn, each in its time and never all at once', async () => {
  for (let i = 0; i < 600; i++) tell(ready(`pod-${i}`))
  await vi.advanceTimersByTimeAsync(TIMEOUT.brokerGoneMs / 5 / 60)
  expect(touched).toHaveLength(10)
  tell({ pod: 'pod-599', generation: 1, phase: 'gone' })
  for (let read = 0; read < 10; read++) {
    await vi.advanceTimersByTimeAsync(TIMEOUT.brokerGoneMs / 5 / 10)
    // One that nobody reads would be closed.
    feed.since(feed.cursor)
  }
  expect(new Set(touched).size).toBe(599)
})
