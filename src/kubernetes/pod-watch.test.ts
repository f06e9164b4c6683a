import { afterEach, expect, test, vi } from 'vitest'
import type { ApiAnswer, ApiCall, Connection, WatchEvent } from './connection.js'
import { ANNOTATION, LABEL } from './names.js'
import type { Pod } from './objects.js'
import { PodWatch } from './pod-watch.js'
import { Requests } from './requests.js'

/** Lists are answered as told; a watch says what a test has it say. */
class QuietConnection implements Connection {
  readonly namespace = 'jobs'
  say: ((event: WatchEvent) => void) | undefined
  constructor(private readonly answer: () => Promise<ApiAnswer>) {}

  send(_: ApiCall): Promise<ApiAnswer> {
    return this.answer()
  }

  watch(...[path, , { signal, onEvent }]: Parameters<Connection['watch']>): Promise<null> {
    if (path.endsWith('/pods')) this.say = onEvent
    return new Promise((resolve) => signal.addEventListener('abort', () => resolve(null), { once: true }))
  }

  reset(): void {}

  close(): void {}
}

let pods: PodWatch
let connection: QuietConnection
let lines: string[]
let gpus: string[]
const open = (status: number, body: object) => {
  connection = new QuietConnection(async () => ({ status, headers: {}, text: JSON.stringify(body) }))
  lines = []
  pods = new PodWatch(connection, new Requests(connection), {
    namespaces: ['jobs'],
    broker: 'b',
    log: (line) => lines.push(line),
    askRunner: async () => ({ v: 1, incarnation: 'i', gpus }),
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

test('that what is known may be old is said once; before anything was heard there is nothing to be old', async () => {
  vi.useFakeTimers({ toFake: ['performance', 'setInterval'] })
  open(200, { items: [], metadata: { resourceVersion: '1' } })
  pods.start()
  vi.advanceTimersByTime(1_000)
  expect(lines).toEqual([])
  await vi.waitFor(() => expect(pods.problem()).toBeNull())
  vi.advanceTimersByTime(62_000)
  expect(lines).toEqual([
    expect.stringMatching(/^nothing was heard of the pods for 6\d s: what is known of them may be old$/),
  ])
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

const pod = (name: string, uid: string, version = '1'): Pod => ({
  metadata: {
    name,
    namespace: 'jobs',
    uid,
    resourceVersion: version,
    labels: { [LABEL.pool]: 'p', [LABEL.generation]: '1' },
    annotations: { [ANNOTATION.pod]: name },
  },
  spec: {},
})

test('a pod is found by its name as it is now, also when another one has taken the name', async () => {
  open(200, { items: [pod('a', 'u1')], metadata: { resourceVersion: '1' } })
  pods.start()
  await vi.waitFor(() => expect(connection.say).toBeDefined())
  expect(pods.find('a')?.metadata.uid).toBe('u1')
  expect(pods.find('b')).toBeUndefined()
  connection.say!({ type: 'MODIFIED', object: pod('a', 'u1', '2') })
  expect(pods.find('a')?.metadata.resourceVersion).toBe('2')
  connection.say!({ type: 'ADDED', object: pod('a', 'u2', '3') })
  connection.say!({ type: 'DELETED', object: pod('a', 'u1', '4') })
  expect(pods.find('a')?.metadata.uid).toBe('u2')
  // Without its labels it is nobody's.
  connection.say!({
    type: 'DELETED',
    object: { ...pod('a', 'u2', '5'), metadata: { ...pod('a', 'u2', '5').metadata, labels: {} } },
  })
  expect(pods.find('a')).toBeUndefined()
})

test('who waits for the end of a pod is told whether it was seen', async () => {
  open(200, { items: [pod('a', 'u1'), pod('b', 'u2')], metadata: { resourceVersion: '1' } })
  pods.start()
  await vi.waitFor(() => expect(connection.say).toBeDefined())
  const gone = pods.gone('u1', 60_000)
  connection.say!({ type: 'DELETED', object: pod('a', 'u1', '2') })
  expect(await gone).toBe(true)
  expect(await pods.gone('u1', 60_000)).toBe(true)
  expect(await pods.gone('u2', 1)).toBe(false)
})

test('a seat set whose next pod is ready on another node is said to have moved', async () => {
  const ready = (uid: string, nodeName: string): Pod => {
    const { metadata } = pod('a', uid)
    const labels = { ...metadata.labels, [LABEL.seatSet]: '0' }
    const claim = { name: 'firepool-gpus', resourceClaimName: 'firepool-p-set-0' }
    const conditions = [{ type: 'Ready', status: 'True' as const }]
    return {
      metadata: { ...metadata, labels },
      spec: { nodeName, ...{ resourceClaims: [claim] } },
      status: { phase: 'Running', podIP: '10.0.0.1', conditions },
    }
  }
  const gpu = (n: number) => `GPU-0000000${n}-0000-0000-0000-000000000000`
  const observed: string[] = []
  gpus = [gpu(1)]
  open(200, { items: [ready('u1', 'n1')], metadata: { resourceVersion: '1' } })
  pods.watch('p', ({ phase }) => observed.push(phase))
  await vi.waitFor(() => expect(observed).toContain('ready'))
  gpus = [gpu(2)]
  connection.say!({ type: 'DELETED', object: ready('u1', 'n1') })
  connection.say!({ type: 'ADDED', object: ready('u2', 'n2') })
  await vi.waitFor(() =>
    expect(lines).toEqual([
      `seat set 0 of pool p has moved: from node n1 (${gpu(1)}) to node n2 (${gpu(2)})`,
    ]),
  )
})
