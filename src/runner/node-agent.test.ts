import { mkdtempSync, rmSync } from 'node:fs'
import { createServer, type Server, type ServerResponse } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { type NodeAgentOptions, NodeAgentSeats } from './node-agent.js'
import { seatSettings } from './seat.js'
import { makeWorld, problemOf, resultOf, type World, waitUntil } from './world.fixture.js'

/** The runner's side of seats, against an agent that is scripted here. test/integration/seats.test.ts has the real one. */

interface Asked {
  method: string
  path: string
  authorization: string | undefined
  body: Record<string, unknown>
  res: ServerResponse
  closed: boolean
}

/** Stands for the node agent: what it is asked is recorded, what it answers is written by the test. */
class ScriptedAgent {
  readonly asked: Asked[] = []
  answer: (asked: Asked) => void = () => {}
  #server: Server | null = null

  constructor(readonly socket: string) {}

  /** @returns its URL, when it has one */
  async listen(where: string | { host: string; port: number } = this.socket): Promise<string> {
    const server = createServer((req, res) => {
      let text = ''
      req.on('data', (chunk) => {
        text += chunk
      })
      req.on('end', () => {
        const asked = {
          method: req.method!,
          path: req.url!,
          authorization: req.headers.authorization,
          body: text === '' ? {} : JSON.parse(text),
          res,
          closed: false,
        }
        res.on('close', () => {
          asked.closed = true
        })
        this.asked.push(asked)
        this.answer(asked)
      })
    })
    this.#server = server
    await new Promise<void>((resolve) => server.listen(where, resolve))
    const address = server.address()
    return typeof address === 'object' ? `http://127.0.0.1:${address?.port}` : ''
  }

  async close(): Promise<void> {
    const server = this.#server
    this.#server = null
    server?.closeAllConnections()
    await new Promise<void>((resolve) => (server === null ? resolve() : server.close(() => resolve())))
  }

  released(): unknown[] {
    return this.asked.filter(({ path }) => path === '/v1/seats/release').map(({ body }) => body.seatEpoch)
  }
}

function say(res: ServerResponse, status: number, body: unknown): void {
  res.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(body))
}

const grant = (seatEpoch: number, ...uuids: string[]) => ({ v: 1, seatEpoch, uuids })
const refusal = (code: string) => ({ v: 1, error: { code, message: 'a reason', remedy: 'a remedy' } })

/** Grants every request the next epoch, and hears releases. */
function generous(agent: ScriptedAgent): void {
  let epoch = 0
  agent.answer = ({ path, res }) =>
    path === '/v1/seats' ? say(res, 200, grant(++epoch, 'GPU-a')) : say(res, 200, { v: 1, xids: [] })
}

let dir: string
let agent: ScriptedAgent
let worlds: World[]

beforeEach(async () => {
  dir = mkdtempSync(join(tmpdir(), 'seat-'))
  agent = new ScriptedAgent(join(dir, 'agent.sock'))
  worlds = []
  await agent.listen()
})
afterEach(async () => {
  for (const world of worlds) await world.end()
  await agent.close()
  rmSync(dir, { recursive: true, force: true })
})

async function pod(options: Partial<NodeAgentOptions> & { url?: string } = {}): Promise<World> {
  const seats = new NodeAgentSeats({
    ...(options.url === undefined ? { socket: agent.socket } : { url: options.url }),
    gpus: 1,
    incarnation: 'inc',
    log: () => {},
    ...options,
  })
  const world = await makeWorld({ seats })
  worlds.push(world)
  await world.bind(7)
  return world
}

const SHOW = { command: 'echo "gpu=$CUDA_VISIBLE_DEVICES"' }

describe('a job that needs a seat', () => {
  test('sees the GPUs that were granted, and gives them back before its result is told', async () => {
    agent.answer = ({ path, res }) =>
      path === '/v1/seats' ? say(res, 200, grant(41, 'GPU-a', 'GPU-b')) : say(res, 200, { v: 1, xids: [] })
    const world = await pod({ gpus: 2 })
    const spec = { ...SHOW, env: { CUDA_VISIBLE_DEVICES: 'GPU-of-somebody-else' } }
    expect(resultOf(await world.run(spec)).stdout).toBe('gpu=GPU-a,GPU-b\n')
    expect(agent.released()).toEqual([41])
    expect(agent.asked[0]!.body).toMatchObject({ v: 1, leaseEpoch: 7, gpus: 2 })
    expect(String(agent.asked[0]!.body.requestId).length).toBeLessThanOrEqual(128)
  })

  test('is not one that says so: it takes none and sees none', async () => {
    const world = await pod()
    expect(resultOf(await world.run({ ...SHOW, device: 'none' })).stdout).toBe('gpu=\n')
    expect(agent.asked).toEqual([])
  })

  test('fails typed when the agent refuses, and has not started', async () => {
    agent.answer = ({ res }) => say(res, 503, refusal('SeatUnavailable'))
    const world = await pod()
    const problem = problemOf(await world.run({ command: 'touch started' }))
    expect(problem).toMatchObject({ code: 'SeatUnavailable', details: { reason: 'SeatUnavailable' } })
    expect(problem.message).toContain('a reason')
    expect(() => world.read('started')).toThrow('ENOENT')
  })

  test('that is cancelled while it waits breaks its request off, which gives the seat back', async () => {
    const world = await pod()
    const running = world.run({ command: 'touch started' }, { jobId: 'waits' })
    const waiting = await waitUntil('the job waits', () => agent.asked[0])
    await world.broker.cancel('waits')
    expect(problemOf(await running).code).toBe('Cancelled')
    await waitUntil('the request is broken off', () => waiting.closed)
    expect(() => world.read('started')).toThrow('ENOENT')
  })

  test('waits for an agent that restarts, under the same request id', async () => {
    const world = await pod()
    const running = world.run(SHOW)
    await waitUntil('the job waits', () => agent.asked[0])
    await agent.close()
    generous(agent)
    await agent.listen()
    expect(resultOf(await running).stdout).toBe('gpu=GPU-a\n')
    const [first, second] = agent.asked.filter(({ path }) => path === '/v1/seats')
    expect(second!.body.requestId).toBe(first!.body.requestId)
  })

  test('is told when the agent stays away', async () => {
    await agent.close()
    const world = await pod({ waitMs: 0 })
    expect(problemOf(await world.run(SHOW))).toMatchObject({
      code: 'SeatUnavailable',
      details: { reason: 'AgentAway' },
    })
  })
})

describe('a seat', () => {
  test('whose release is not heard is given back later', async () => {
    let isDeaf = true
    agent.answer = ({ path, res }) => {
      if (path === '/v1/seats') say(res, 200, grant(5, 'GPU-a'))
      else if (isDeaf) res.destroy()
      else say(res, 200, { v: 1, xids: [] })
    }
    const world = await pod()
    expect(resultOf(await world.run(SHOW)).exitCode).toBe(0)
    const before = agent.released().length
    expect(before).toBeGreaterThan(0)
    isDeaf = false
    await waitUntil('it is given back', () => agent.released().length > before)
  })

  test('that an earlier process of the pod held is given back first', async () => {
    let held: number | null = 3
    agent.answer = ({ method, path, body, res }) => {
      if (method === 'GET') say(res, 200, { v: 1, held: held === null ? null : grant(held, 'GPU-a') })
      else if (path === '/v1/seats/release') {
        if (body.seatEpoch === held) held = null
        say(res, 200, { v: 1, xids: [] })
      } else if (held !== null) say(res, 409, refusal('HoldAndWait'))
      else say(res, 200, grant(4, 'GPU-a'))
    }
    const world = await pod()
    expect(resultOf(await world.run(SHOW)).stdout).toBe('gpu=GPU-a\n')
    expect(agent.released()).toEqual([3, 4])
  })

  test('is taken anew by each job, and given back when a job is killed', async () => {
    generous(agent)
    const world = await pod()
    await world.run(SHOW)
    const killed = world.run({ command: 'touch started; sleep 600' }, { jobId: 'killed' })
    await waitUntil('it runs', () => {
      try {
        return world.read('started') === ''
      } catch {
        return false
      }
    })
    await world.broker.revoke(7)
    expect(problemOf(await killed).details?.reason).toBe('Revoked')
    expect(agent.released()).toEqual([1, 2])
  })
})

test('over TCP, the token of the lease shows who asks; jobs never see it', async () => {
  await agent.close()
  const url = await agent.listen({ host: '127.0.0.1', port: 0 })
  generous(agent)
  const world = await pod({ url })
  expect(resultOf(await world.run({ command: 'env' })).stdout).not.toMatch(/bearer/i)
  const token = world.sign(world.pod, 'lease', 7, 'lease-7')
  expect(agent.asked.map(({ authorization }) => authorization)).toEqual([
    `Bearer ${token}`,
    `Bearer ${token}`,
  ])
  expect(agent.released()).toEqual([1])
})

test('the settings of a runner', () => {
  expect(seatSettings({})).toBeNull()
  expect(seatSettings({ FIREPOOL_SEAT_URL: 'http://node:9809' })).toEqual({
    url: 'http://node:9809',
    gpus: 1,
  })
  for (const FIREPOOL_SEAT_URL of ['node:9809', 'https://node', 'http://node/x', 'http://a@node'])
    expect(() => seatSettings({ FIREPOOL_SEAT_URL })).toThrow('http://HOST:PORT')
  expect(seatSettings({ FIREPOOL_SEAT_SOCKET: '/s' })).toEqual({ socket: '/s', gpus: 1 })
  expect(seatSettings({ FIREPOOL_SEAT_SOCKET: '/s', FIREPOOL_SEAT_GPUS: '8' })?.gpus).toBe(8)
  for (const FIREPOOL_SEAT_GPUS of ['0', '17', '1.5', 'x'])
    expect(() => seatSettings({ FIREPOOL_SEAT_SOCKET: '/s', FIREPOOL_SEAT_GPUS })).toThrow('1 to 16')
})
