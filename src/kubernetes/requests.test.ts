import { expect, test } from 'vitest'
import type { ApiAnswer, ApiCall, Connection } from './connection.js'
import { Requests } from './requests.js'

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

const ASKED = { verb: 'get', resource: 'pods', namespace: 'x', name: 'p', path: '/p' } as const
const ok: ApiAnswer = { status: 200, headers: {}, text: '{}' }
const says = (status: number, headers: Record<string, string> = {}): ApiAnswer => ({
  status,
  headers,
  text: JSON.stringify({ reason: 'R', message: 'm' }),
})

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
})

test('what is transient is tried again, what is refused is not, and `once` is once', async () => {
  const failing = new ScriptedConnection((n) => (n < 2 ? [says(503), new TypeError('fetch failed')][n]! : ok))
  await new Requests(failing, () => 0).text(ASKED)
  expect(failing.calls).toHaveLength(3)
  const refusing = new ScriptedConnection(() => says(403))
  await expect(new Requests(refusing).text(ASKED)).rejects.toMatchObject({ status: 403 })
  expect(refusing.calls).toHaveLength(1)
  const once = new ScriptedConnection(() => says(503))
  await expect(new Requests(once).text({ ...ASKED, once: true })).rejects.toMatchObject({ status: 503 })
  expect(once.calls).toHaveLength(1)
})

test('a right that was there is waited for: an API server that starts has not read its roles yet', async () => {
  const forbids = { ...says(403), text: JSON.stringify({ reason: 'Forbidden', message: 'cannot get pods' }) }
  const server = new ScriptedConnection((n) => (n === 1 || n === 2 ? forbids : ok))
  const requests = new Requests(server, () => 0)
  await requests.text(ASKED)
  await requests.text(ASKED)
  expect(server.calls).toHaveLength(4)
  // That there was nothing of that name was an answer too.
  const empty = new ScriptedConnection((n) => [says(404), forbids, ok][n]!)
  const reader = new Requests(empty, () => 0)
  await expect(reader.text(ASKED)).rejects.toMatchObject({ status: 404 })
  await reader.text(ASKED)
  expect(empty.calls).toHaveLength(3)
  // Another right, and a quota, are what they are.
  const quota = { ...says(403), text: JSON.stringify({ reason: 'Forbidden', message: 'exceeded quota: q' }) }
  const refusing = new ScriptedConnection((n) => [ok, quota, forbids][n]!)
  const others = new Requests(refusing)
  await others.text(ASKED)
  await expect(others.text(ASKED)).rejects.toThrow(/exceeded quota/)
  await expect(others.text({ ...ASKED, verb: 'delete' })).rejects.toThrow(/cannot get pods/)
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
  expect(server.most).toBe(16)
  await requests.text(ASKED).catch(() => {})
})

test("ages are counted on the server's clock, however wrong ours is", async () => {
  const date = new Date(Date.now() + 3_600_000).toUTCString()
  const requests = new Requests(new ScriptedConnection(() => ({ ...ok, headers: { date } })))
  expect(Math.abs(requests.serverNowMs() - Date.now())).toBeLessThan(1_000)
  await requests.text(ASKED)
  expect(Math.abs(requests.serverNowMs() - Date.now() - 3_600_000)).toBeLessThan(2_000)
})
