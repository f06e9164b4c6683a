import { afterEach, expect, test, vi } from 'vitest'
import type { ApiAnswer, ApiCall, Connection } from './connection.js'
import { PodWatch } from './pod-watch.js'
import { Requests } from './requests.js'

/** Lists are answered as told, and a watch says nothing. */
class QuietConnection implements Connection {
  readonly namespace = 'jobs'
  constructor(private readonly answer: () => Promise<ApiAnswer>) {}

  send(_: ApiCall): Promise<ApiAnswer> {
    return this.answer()
  }

  watch(...[, , { signal }]: Parameters<Connection['watch']>): Promise<null> {
    return new Promise((resolve) => signal.addEventListener('abort', () => resolve(null), { once: true }))
  }

  reset(): void {}

  close(): void {}
}

let pods: PodWatch
const open = (status: number, body: object) => {
  const connection = new QuietConnection(async () => ({
    status,
    headers: {},
    text: JSON.stringify(body),
  }))
  pods = new PodWatch(connection, new Requests(connection), {
    namespaces: ['jobs'],
    broker: 'b',
    log: () => {},
    timing: { backoffMs: 5 },
  })
}
afterEach(() => {
  pods.close()
  vi.useRealTimers()
})

test('what was never heard, and what was heard long ago, is no knowledge', async () => {
  vi.useFakeTimers({ toFake: ['performance'] })
  open(200, { items: [], metadata: { resourceVersion: '1' } })
  expect(pods.problem()).toBe('nothing was heard of the pods in namespace jobs yet')
  pods.start()
  await vi.waitFor(() => expect(pods.problem()).toBeNull())
  vi.advanceTimersByTime(89_000)
  expect(pods.problem()).toBeNull()
  vi.advanceTimersByTime(2_000)
  expect(pods.problem()).toBe('nothing was heard of the pods in namespace jobs for 91 s')
})

test('a missing right is said by verb and resource, once it has been missing for a while', async () => {
  vi.useFakeTimers({ toFake: ['performance'] })
  open(403, { reason: 'Forbidden', message: 'pods is forbidden' })
  pods.start()
  expect(pods.problem()).toBe('nothing was heard of the pods in namespace jobs yet')
  await vi.waitFor(() => {
    vi.advanceTimersByTime(10_000)
    expect(pods.problem()).toMatch(
      /^this worker may not list pods in namespace jobs; give its role the verb "list" on "pods".* or create the namespace/,
    )
  })
})
