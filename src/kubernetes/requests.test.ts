import { afterEach, expect, test, vi } from 'vitest'
import type { ApiAnswer, ApiCall, Connection } from './connection.js'
import { Requests } from './requests.js'
import { Rights } from './rights.js'

/** An API server that says what it is told to, in order: how a real one floods and fails cannot be had on demand. */
class ScriptedConnection implements Connection {
  readonly namespace = 'x'
  readonly calls: { call: ApiCall; at: number }[] = []
  running = 0
  most = 0
  constructor(readonly script: (n: number) => ApiAnswer | Error | Promise<ApiAnswer>) {}

  async send(call: ApiCall): Promise<ApiAnswer> {
    this.calls.push({ call, at: performance.now() })
    this.most = Math.max(this.most, ++this.running)
    try {
      const answer = await this.script(this.calls.length - 1)
      if (answer instanceof Error) throw answer
      return answer
    } finally {
      this.running--
    }
  }

  watch(): Promise<null> {
    return Promise.resolve(null)
  }

  reset(): void {}

  close(): void {}
}

afterEach(() => vi.restoreAllMocks())

const ASKED = { verb: 'get', resource: 'pods', namespace: 'x', name: 'p', path: '/p' } as const
const ok: ApiAnswer = { status: 200, headers: {}, text: '{}' }
const says = (status: number, headers: Record<string, string> = {}): ApiAnswer => ({
  status,
  headers,
  text: JSON.stringify({ reason: 'R', message: 'm' }),
})

const forbids: ApiAnswer = {
  ...says(403),
  text: JSON.stringify({ reason: 'Forbidden', message: 'cannot get pods' }),
}

test('a flooded server is left alone by everybody for as long as it asks', async () => {
  const server = new ScriptedConnection((n) => (n === 0 ? says(429, { 'retry-after': '1' }) : ok))
  const requests = new Requests(server)
  const first = requests.text(ASKED)
  await new Promise((resolve) => setTimeout(resolve, 50))
  await Promise.all([first, requests.text(ASKED)])
  const [refused, ...later] = server.calls.map(({ at }) => at)
  expect(later).toHaveLength(2)
  // A timer may ring a millisecond early.
  for (const at of later) expect(at - refused!).toBeGreaterThanOrEqual(990)
  const [asked, waits, seconds] = requests.stats.metrics().map(({ samples }) => samples)
  expect(asked).toEqual([
    [{ verb: 'get', resource: 'pods', code: '429' }, 1],
    [{ verb: 'get', resource: 'pods', code: '200' }, 2],
  ])
  expect(waits!.map(([labels]) => labels)).toEqual([{ reason: 'throttled' }])
  expect(seconds![0]![1]).toBeGreaterThan(0.5)
})

test('what is transient is tried again, what is refused is not, and `once` is once', async () => {
  const failing = new ScriptedConnection((n) => (n < 2 ? [says(503), new TypeError('fetch failed')][n]! : ok))
  await new Requests(failing, { random: () => 0 }).text(ASKED)
  expect(failing.calls).toHaveLength(3)
  const refusing = new ScriptedConnection(() => says(422))
  await expect(new Requests(refusing).text(ASKED)).rejects.toMatchObject({ status: 422 })
  expect(refusing.calls).toHaveLength(1)
  const once = new ScriptedConnection(() => says(503))
  await expect(new Requests(once).text({ ...ASKED, once: true })).rejects.toMatchObject({ status: 503 })
  expect(once.calls).toHaveLength(1)
})

test('a right that is refused is waited for: an API server that starts has not read its roles yet', async () => {
  const server = new ScriptedConnection((n) => (n < 2 ? forbids : ok))
  await new Requests(server, { random: () => 0 }).text(ASKED)
  expect(server.calls).toHaveLength(3)
  // A quota is what it is, and a right that is missing is said in the end.
  const quota = { ...forbids, text: JSON.stringify({ reason: 'Forbidden', message: 'exceeded quota: q' }) }
  const full = new ScriptedConnection(() => quota)
  await expect(new Requests(full).text(ASKED)).rejects.toThrow(/exceeded quota/)
  expect(full.calls).toHaveLength(1)
  const optional = new ScriptedConnection(() => forbids)
  await expect(new Requests(optional).text({ ...ASKED, optional: true })).rejects.toThrow(/cannot get pods/)
  expect(optional.calls).toHaveLength(1)
  const refusing = new ScriptedConnection(() => forbids)
  const requests = new Requests(refusing, { random: () => 0, rights: new Rights(undefined, 300) })
  await expect(requests.text(ASKED)).rejects.toThrow(/cannot get pods/)
  const tries = refusing.calls.length
  expect(tries).toBeGreaterThan(1)
  await expect(requests.text(ASKED)).rejects.toThrow(/cannot get pods/)
  expect(refusing.calls).toHaveLength(tries + 1)
})

test('no more than 16 at once, whoever asks; those that fail give their place away too', async () => {
  let open = () => {}
  const gate = new Promise<void>((resolve) => {
    open = resolve
  })
  const server = new ScriptedConnection(async (n) => {
    await gate
    return n % 3 === 0 ? says(404) : ok
  })
  const requests = new Requests(server)
  const all = Promise.allSettled(Array.from({ length: 60 }, () => requests.text(ASKED)))
  await new Promise((resolve) => setTimeout(resolve, 20))
  expect(server.running).toBe(16)
  open()
  expect((await all).filter(({ status }) => status === 'rejected')).toHaveLength(20)
  expect(requests.stats.metrics()[1]!.samples).toEqual([[{ reason: 'places' }, 44]])
  expect(server.most).toBe(16)
  await requests.text(ASKED).catch(() => {})
})

test("ages are counted on the server's clock, however wrong ours is, and when it is set meanwhile", async () => {
  const date = new Date(Date.now() + 3_600_000).toUTCString()
  const requests = new Requests(new ScriptedConnection(() => ({ ...ok, headers: { date } })))
  expect(Math.abs(requests.serverNowMs() - Date.now())).toBeLessThan(1_000)
  await requests.text(ASKED)
  expect(Math.abs(requests.serverNowMs() - Date.now() - 3_600_000)).toBeLessThan(2_000)
  const before = requests.serverNowMs()
  vi.spyOn(Date, 'now').mockReturnValue(0)
  expect(requests.serverNowMs() - before).toBeLessThan(60_000)
})
