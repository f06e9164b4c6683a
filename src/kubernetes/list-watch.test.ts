import { afterEach, expect, test } from 'vitest'
import type { ApiAnswer, ApiCall, Connection, WatchEvent } from './connection.js'
import { ListWatch } from './list-watch.js'
import { Requests } from './requests.js'
import { Rights } from './rights.js'

interface Watching {
  query: Record<string, string>
  say(event: WatchEvent): void
  end(error?: Error & { statusCode?: number }): void
}

/** An API server whose lists and watches a test answers itself: how a real one fails cannot be had on demand. */
class ScriptedServer implements Connection {
  readonly namespace = 'x'
  lists: ApiCall[] = []
  watches: Watching[] = []
  list: () => ApiAnswer = () => items('1')

  async send(call: ApiCall): Promise<ApiAnswer> {
    this.lists.push(call)
    return this.list()
  }

  watch(_path: string, query: Record<string, string>, options: Parameters<Connection['watch']>[2]) {
    return new Promise<Error | null>((resolve) => {
      options.signal.addEventListener('abort', () =>
        resolve(Object.assign(new Error('aborted'), { name: 'AbortError' })),
      )
      this.watches.push({ query, say: options.onEvent, end: (error) => resolve(error ?? null) })
    })
  }

  reset(): void {}

  close(): void {}

  /** The watch that is under way, once there were `n`. */
  async nth(n: number): Promise<Watching> {
    while (this.watches.length < n) await new Promise((resolve) => setTimeout(resolve, 2))
    return this.watches[n - 1]!
  }
}

const pod = (uid: string, version: string) => ({ metadata: { name: uid, uid, resourceVersion: version } })
function items(version: string, ...uids: string[]): ApiAnswer {
  const body = { metadata: { resourceVersion: version }, items: uids.map((uid) => pod(uid, version)) }
  return { status: 200, headers: {}, text: JSON.stringify(body) }
}
const named = (name: string, more: object = {}) => Object.assign(new Error(name), { name, ...more })

let running: ListWatch<ReturnType<typeof pod>> | undefined
afterEach(() => running?.stop())

function start(server: ScriptedServer, options: { resyncMs?: number; rights?: Rights } = {}) {
  const { rights, ...more } = options
  const seen: string[] = []
  const lines: string[] = []
  running = new ListWatch(
    server,
    new Requests(server, rights ? { rights } : {}),
    { resource: 'pods', path: '/pods', backoffMs: 5, log: (line) => lines.push(line), ...more },
    { changed: (o) => seen.push(`+${o.metadata.uid}`), gone: (o) => seen.push(`-${o.metadata.uid}`) },
  ).start()
  return { seen, lines, watch: running }
}

test('it watches from its list on, and after an ordinary end from the last that was said, without a list', async () => {
  const server = new ScriptedServer()
  server.list = () => items('5', 'a')
  const { seen } = start(server)
  const first = await server.nth(1)
  expect(first.query).toMatchObject({ resourceVersion: '5', allowWatchBookmarks: 'true' })
  first.say({ type: 'ADDED', object: pod('b', '6') })
  first.say({ type: 'BOOKMARK', object: pod('', '9') })
  first.end()
  expect((await server.nth(2)).query.resourceVersion).toBe('9')
  expect(server.lists).toHaveLength(1)
  expect(seen).toEqual(['+a', '+b'])
})

test.each<[string, (watch: Watching) => void]>([
  [
    '410 inside of the stream',
    (watch) => watch.say({ type: 'ERROR', object: { code: 410, reason: 'Expired' } }),
  ],
  ['410 as its answer', (watch) => watch.end(named('Error', { statusCode: 410 }))],
  ['silence', (watch) => watch.end(named('TimeoutError'))],
  [
    '500 inside of the stream',
    (watch) => watch.say({ type: 'ERROR', object: { code: 500, message: 'etcd' } }),
  ],
  ['a broken connection', (watch) => watch.end(new TypeError('terminated'))],
  ['a refusal', (watch) => watch.end(named('Error', { statusCode: 403 }))],
])('after %s it lists anew, and tells what was missed', async (_name, fail) => {
  const server = new ScriptedServer()
  server.list = () => items('5', 'a', 'b')
  const { seen } = start(server)
  const first = await server.nth(1)
  server.list = () => items('50', 'b', 'c')
  fail(first)
  expect((await server.nth(2)).query.resourceVersion).toBe('50')
  expect(server.lists).toHaveLength(2)
  expect(seen).toEqual(['+a', '+b', '-a', '+b', '+c'])
})

test('lists that fail are tried again, said once, and nothing is forgotten meanwhile', async () => {
  let now = 0
  const server = new ScriptedServer()
  server.list = () => items('5', 'a')
  // A minute is over at each look: what was allowed is waited for.
  const { seen, lines, watch } = start(server, { rights: new Rights(() => (now += 60_000)) })
  const first = await server.nth(1)
  server.list = () => ({
    status: 403,
    headers: {},
    text: JSON.stringify({ reason: 'Forbidden', message: 'no' }),
  })
  first.end(named('TimeoutError'))
  while (server.lists.length < 4) await new Promise((resolve) => setTimeout(resolve, 2))
  expect(watch.problem).toMatchObject({ status: 403 })
  expect(lines).toEqual(['pods cannot be watched, it is tried again: list pods: 403 Forbidden: no'])
  expect(watch.store.size).toBe(1)
  const ageMs = watch.ageMs()
  server.list = () => items('7', 'a')
  await server.nth(2)
  expect(watch.problem).toBeNull()
  expect(watch.ageMs()).toBeLessThan(ageMs)
  expect(seen).toEqual(['+a', '+a'])
})

test('a right that is missing is said when it has been missing for a while, of lists and of watches', async () => {
  let now = 0
  const server = new ScriptedServer()
  const forbids = (message: string): ApiAnswer => ({
    status: 403,
    headers: {},
    text: JSON.stringify({ reason: 'Forbidden', message }),
  })
  server.list = () => forbids('no')
  const { lines, watch } = start(server, { rights: new Rights(() => now) })
  while (server.lists.length < 3) await new Promise((resolve) => setTimeout(resolve, 2))
  expect([watch.problem, lines]).toEqual([null, []])
  now = 10_000
  while (watch.problem === null) await new Promise((resolve) => setTimeout(resolve, 2))
  expect(lines).toEqual(['pods cannot be watched, it is tried again: list pods: 403 Forbidden: no'])
  server.list = () => items('5', 'a')
  const refused = () => named('Forbidden', { statusCode: 403 })
  ;(await server.nth(1)).end(refused())
  const next = await server.nth(2)
  expect(watch.problem).toBeNull()
  now = 20_000
  next.end(refused())
  while (watch.problem === null) await new Promise((resolve) => setTimeout(resolve, 2))
  expect(watch.problem).toMatchObject({ status: 403, asked: { verb: 'watch' } })
})

test('in any case it lists anew after a while: what a watch never said is seen then', async () => {
  const server = new ScriptedServer()
  server.list = () => items('5', 'a')
  const { seen } = start(server, { resyncMs: 30 })
  await server.nth(1)
  server.list = () => items('8')
  await server.nth(2)
  expect(seen).toEqual(['+a', '-a'])
})

test('a list of many pages that expires on the way begins again', async () => {
  const server = new ScriptedServer()
  let n = 0
  const page = (version: string, uid: string, next?: string): ApiAnswer => ({
    status: 200,
    headers: {},
    text: JSON.stringify({
      metadata: { resourceVersion: version, continue: next },
      items: [pod(uid, version)],
    }),
  })
  const expired: ApiAnswer = { status: 410, headers: {}, text: JSON.stringify({ reason: 'Expired' }) }
  server.list = () => [page('1', 'a', 'more'), expired, page('2', 'a', 'more'), page('2', 'b')][n++]!
  const { seen } = start(server)
  await server.nth(1)
  expect(server.lists.map(({ query }) => query?.continue)).toEqual([undefined, 'more', undefined, 'more'])
  expect(seen).toEqual(['+a', '+b'])
})
