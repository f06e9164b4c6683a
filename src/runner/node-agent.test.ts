import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { createServer, type Server, type ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { createRunnerClient, jobDigest } from './client.js'
import { type NodeAgentOptions, NodeAgentSeats } from './node-agent.js'
import { descendants, markedPids } from './process-tree.js'
import { seatSettings } from './seat.js'
import {
  makeWorld,
  PYTHON,
  problemOf,
  refusal as refusalOf,
  resultOf,
  type World,
  type WorldOptions,
  waitUntil,
} from './world.fixture.js'

/** The runner's side of seats, against an agent that is scripted here. test/integration/seats.test.ts has the real one. */

interface Asked {
  method: string
  path: string
  authorization: string | undefined
  body: Record<string, unknown>
  connection: Socket
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
          connection: req.socket,
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

async function pod(
  options: Partial<NodeAgentOptions> & { url?: string } = {},
  preload?: WorldOptions['preload'],
): Promise<World> {
  const seats = new NodeAgentSeats({
    ...(options.url === undefined ? { socket: agent.socket } : { url: options.url }),
    gpus: 1,
    incarnation: 'inc',
    log: () => {},
    ...options,
  })
  const world = await makeWorld({ seats, ...(preload === undefined ? {} : { preload }) })
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

describe('the connection to the agent', () => {
  test('is kept for the next request', async () => {
    generous(agent)
    const world = await pod()
    for (let job = 0; job < 3; job++) expect(resultOf(await world.run(SHOW)).exitCode).toBe(0)
    expect(agent.asked).toHaveLength(6)
    expect(new Set(agent.asked.map(({ connection }) => connection)).size).toBe(1)
  })

  test('that was closed at its other end costs nothing: the same is asked over a new one', async () => {
    generous(agent)
    const world = await pod({ waitMs: 0 })
    await world.run(SHOW)
    const { answer } = agent
    const used = agent.asked[0]!.connection
    agent.answer = (asked) => (asked.connection === used ? asked.res.destroy() : answer(asked))
    expect(resultOf(await world.run(SHOW)).stdout).toBe('gpu=GPU-a\n')
    const [, first, second] = agent.asked.filter(({ path }) => path === '/v1/seats')
    expect(second!.body).toEqual(first!.body)
  })
})

describe('a process that waits for the next job', () => {
  const PYTHON_JOB = { command: [PYTHON, '-c', 'import os; print(os.getpid())'] }
  /** forked and not a job's, by their parents: the runner is this process, the interpreter its child */
  const waiting = () =>
    descendants(process.pid)
      .map(({ pid }) => pid)
      .filter((pid) => parentOf(parentOf(pid)) === process.pid)
  const parentOf = (pid: number) => {
    try {
      return Number(readFileSync(`/proc/${pid}/stat`, 'latin1').split(') ').at(-1)?.split(' ')[1])
    } catch {
      return 0
    }
  }

  test('is forked after the seat was given back: it is no part of the job', async () => {
    generous(agent)
    const { answer } = agent
    const atRelease: number[][] = []
    agent.answer = (asked) => {
      if (asked.path === '/v1/seats/release') atRelease.push(waiting())
      answer(asked)
    }
    const world = await pod({}, {})
    const first = await waitUntil('one waits', () => waiting()[0])
    expect(resultOf(await world.run(PYTHON_JOB)).stdout).toBe(`${first}\n`)
    const second = await waitUntil('another one waits', () => waiting()[0])
    expect(resultOf(await world.run(SHOW)).exitCode).toBe(0)
    const third = await waitUntil('another one waits', () => waiting().find((pid) => pid !== second))
    expect(resultOf(await world.run(PYTHON_JOB)).stdout).toBe(`${third}\n`)
    expect(atRelease).toEqual([[], [], []])
  })

  test('is not forked while a seat is held between jobs', async () => {
    honest(agent)
    const world = await pod({ idle: 'hold' }, {})
    const first = await waitUntil('one waits', () => waiting()[0])
    expect(resultOf(await world.run(PYTHON_JOB)).stdout).toBe(`${first}\n`)
    expect(resultOf(await world.run(PYTHON_JOB))).toMatchObject({ preload: { forked: true } })
    const atRelease: number[][] = []
    const { answer } = agent
    agent.answer = (asked) => {
      if (asked.path === '/v1/seats/release') atRelease.push(waiting())
      answer(asked)
    }
    await world.bind(8)
    const next = await waitUntil('one waits', () => waiting()[0])
    expect(atRelease).toEqual([[]])
    expect(resultOf(await world.run(PYTHON_JOB)).stdout).toBe(`${next}\n`)
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

/** Holds at most one grant, as the real one: the same request is answered with the same grant. */
function honest(agent: ScriptedAgent): void {
  let epoch = 0
  let held: { requestId: unknown; seatEpoch: number } | null = null
  agent.answer = ({ path, body, res }) => {
    if (path === '/v1/seats/release' || path === '/v1/seats/suspend') {
      if (held?.seatEpoch === body.seatEpoch) held = null
      say(res, 200, path.endsWith('suspend') ? { v: 1, hostBytes: 100 } : { v: 1, xids: [] })
    } else if (path === '/v1/seats/resume') say(res, 200, { v: 1 })
    else if (held !== null && held.requestId !== body.requestId) say(res, 409, refusal('HoldAndWait'))
    else {
      held ??= { requestId: body.requestId, seatEpoch: ++epoch }
      say(res, 200, grant(held.seatEpoch, 'GPU-a'))
    }
  }
}

describe('a seat that is held between jobs', () => {
  const LEAVE =
    "setsid sh -c ': > left; exec sleep 600' >/dev/null 2>&1 & until [ -e left ]; do sleep 0.01; done"
  const asks = () => agent.asked.filter(({ path }) => path === '/v1/seats')
  const held = (world: World) => markedPids({ env: { FIREPOOL_POD: world.pod } }).length
  /** When each seat was given back: how many processes of the pod there were. */
  function processesAtRelease(world: World): number[] {
    const { answer } = agent
    const found: number[] = []
    agent.answer = (asked) => {
      if (asked.path === '/v1/seats/release') found.push(held(world))
      answer(asked)
    }
    return found
  }

  test('is taken with the first job that needs one, and is the same for all jobs of the epoch', async () => {
    honest(agent)
    const world = await pod({ idle: 'hold' })
    await world.run({ ...SHOW, device: 'none' })
    expect(agent.asked).toEqual([])
    for (let job = 0; job < 3; job++) expect(resultOf(await world.run(SHOW)).stdout).toBe('gpu=GPU-a\n')
    expect(new Set(asks().map(({ body }) => body.requestId)).size).toBe(1)
    expect(agent.released()).toEqual([])
  })

  test('is given back by a drain that succeeds, after what jobs have left is gone', async () => {
    honest(agent)
    const world = await pod({ idle: 'hold' })
    const found = processesAtRelease(world)
    const spec = { command: LEAVE }
    await world.run(spec, { jobId: 's/1' })
    await world.lease(7).ack({ v: 1, jobId: 's/1', digest: jobDigest(spec) })
    const drain = (useSeq: number) => world.broker.drain({ v: 1, drainId: `d${useSeq}`, epoch: 7, useSeq })
    expect(await drain(0)).toMatchObject({ drained: false })
    expect(agent.released()).toEqual([])
    expect(await drain(1)).toMatchObject({ drained: true })
    expect(agent.released()).toEqual([1])
    expect(found).toEqual([0])
  })

  test('is given back by a revoke, after the job that it kills is gone', async () => {
    honest(agent)
    const world = await pod({ idle: 'hold' })
    const found = processesAtRelease(world)
    await world.run({ command: LEAVE })
    const job = world.run({ command: 'touch began; sleep 600' })
    await waitUntil('it runs', () => existsSync(join(world.folders.work, 'began')))
    await world.broker.revoke(7)
    expect(problemOf(await job).details?.reason).toBe('Revoked')
    expect(agent.released()).toEqual([1])
    expect(found).toEqual([0])
  })

  test('is given back by a rebind, and the next epoch takes its own', async () => {
    honest(agent)
    const world = await pod({ idle: 'hold' })
    const found = processesAtRelease(world)
    await world.run({ command: LEAVE })
    await world.bind(8)
    await waitUntil('it is given back', () => agent.released().length > 0)
    expect(found).toEqual([0])
    expect(resultOf(await world.run(SHOW)).stdout).toBe('gpu=GPU-a\n')
    expect(asks().at(-1)?.body.leaseEpoch).toBe(8)
    expect(agent.released()).toEqual([1])
  })

  test('of a job that runs past a rebind is given back when the job ends', async () => {
    honest(agent)
    const world = await pod({ idle: 'hold' })
    const job = world.run({ command: 'touch began; until [ -e go ]; do sleep 0.02; done' })
    await waitUntil('it runs', () => existsSync(join(world.folders.work, 'began')))
    await world.bind(8)
    expect(agent.released()).toEqual([])
    await world.lease(8).putFile('go', Buffer.alloc(0))
    await job
    expect(agent.released()).toEqual([1])
  })

  test('is given back when the runner ends', async () => {
    honest(agent)
    const world = await pod({ idle: 'hold' })
    await world.run(SHOW)
    await world.runner.close()
    expect(agent.released()).toEqual([1])
  })

  test('serves on while the agent is away', async () => {
    honest(agent)
    const world = await pod({ idle: 'hold', waitMs: 0 })
    await world.run(SHOW)
    await agent.close()
    expect(resultOf(await world.run(SHOW)).stdout).toBe('gpu=GPU-a\n')
  })

  test('that the agent has taken back is granted anew before the next job', async () => {
    honest(agent)
    const world = await pod({ idle: 'hold' })
    await world.run(SHOW)
    agent.answer = ({ path, res }) =>
      path === '/v1/seats' ? say(res, 200, grant(9, 'GPU-b')) : say(res, 200, { v: 1, xids: [] })
    expect(resultOf(await world.run(SHOW)).stdout).toBe('gpu=GPU-b\n')
    await world.broker.revoke(7)
    expect(agent.released()).toEqual([9])
  })
})

describe('a seat that is kept and lost', () => {
  /** Answers as an honest agent, and says when it is told to how the seat has ended. */
  async function keeper() {
    honest(agent)
    const { answer } = agent
    const waiting: Asked[] = []
    agent.answer = (asked) => (asked.path === '/v1/seats/ended' ? void waiting.push(asked) : answer(asked))
    const useless: string[] = []
    const seats = new NodeAgentSeats({
      ...{ socket: agent.socket, gpus: 1, idle: 'hold', incarnation: 'inc', log: () => {} },
    })
    const world = await makeWorld({ seats, onUseless: (...why) => useless.push(why.join(': ')) })
    worlds.push(world)
    await world.bind(7)
    return { world, useless, waiting }
  }
  const LOST = { v: 1, lost: 'GPU GPU-a failed: XID 79' }

  test('between jobs is heard of at once: the pod takes no job any more and ends by that name', async () => {
    const { world, useless, waiting } = await keeper()
    await world.run(SHOW)
    await world.run(SHOW)
    const asked = await waitUntil('it waits for the end of its seat', () => waiting[0])
    expect(waiting.map(({ body }) => body)).toEqual([{ v: 1, seatEpoch: 1 }])
    say(asked.res, 200, LOST)
    await waitUntil('it is of no use', () => useless.length > 0)
    expect(useless).toEqual(['SeatLost: GPU GPU-a failed: XID 79'])
    expect((await refusalOf(world.run(SHOW))).code).toBe('LeaseRevoked')
  })

  test('under a job makes it PodLost, whatever it ended with', async () => {
    const { world, useless, waiting } = await keeper()
    const job = world.run({ command: 'touch began; until [ -e go ]; do sleep 0.02; done' })
    const asked = await waitUntil('it waits for the end of its seat', () => waiting[0])
    await waitUntil('it runs', () => existsSync(join(world.folders.work, 'began')))
    say(asked.res, 200, LOST)
    await waitUntil('it was heard', () => asked.closed)
    expect(useless).toEqual([])
    await world.lease(7).putFile('go', Buffer.alloc(0))
    expect(problemOf(await job)).toMatchObject({ code: 'PodLost', details: { reason: 'SeatLost' } })
    expect(useless.join()).toContain('XID 79')
  })

  test('by a ban ends the pod by that name', async () => {
    const { world, useless, waiting } = await keeper()
    await world.run(SHOW)
    const asked = await waitUntil('it waits for the end of its seat', () => waiting[0])
    say(asked.res, 200, { v: 1, banned: 'process 7 used GPU GPU-a' })
    await waitUntil('it is of no use', () => useless.length > 0)
    expect(useless).toEqual(['UngrantedUse: process 7 used GPU GPU-a'])
  })

  test('is waited for again when the agent was away, and no more once it is given back', async () => {
    const { world, useless, waiting } = await keeper()
    await world.run(SHOW)
    const first = await waitUntil('it waits for the end of its seat', () => waiting[0])
    first.res.destroy()
    const again = await waitUntil('it waits again', () => waiting[1])
    await world.broker.revoke(7)
    await waitUntil('it waits no more', () => again.closed)
    expect(agent.released()).toEqual([1])
    expect([waiting.length, useless]).toEqual([2, []])
  })

  test('with an agent that does not know the question is heard of by the next job', async () => {
    const { world, useless } = await keeper()
    const { answer } = agent
    const asked: string[] = []
    agent.answer = (each) => {
      asked.push(each.path)
      if (each.path === '/v1/seats/ended') each.res.writeHead(404).end('404 page not found')
      else answer(each)
    }
    for (let job = 0; job < 2; job++) expect(resultOf(await world.run(SHOW)).stdout).toBe('gpu=GPU-a\n')
    expect(asked.filter((path) => path === '/v1/seats/ended')).toHaveLength(1)
    expect(useless).toEqual([])
  })
})

describe('what jobs leave on a GPU, where it is suspended between them', () => {
  /** What the agent says to these paths instead of what the honest one says; null: as that. */
  function answering(answers: Record<string, () => [number, unknown] | null>) {
    honest(agent)
    const { answer } = agent
    agent.answer = (asked) => {
      const said = answers[asked.path]?.() ?? null
      if (said === null) answer(asked)
      else say(asked.res, ...said)
    }
  }
  const paths = () =>
    agent.asked.map(({ path, body }) => `${path.slice('/v1/'.length)} ${body.seatEpoch ?? ''}`)

  test('gives the seat back with what is on it, and is back on it before the next job starts', async () => {
    honest(agent)
    const world = await pod({ idle: 'checkpoint' })
    await world.run(SHOW)
    await world.run({ ...SHOW, device: 'none' })
    expect(resultOf(await world.run(SHOW)).stdout).toBe('gpu=GPU-a\n')
    await world.broker.revoke(7)
    // The last one says that what was suspended has ended.
    expect(paths()).toEqual([
      'seats ',
      'seats/suspend 1',
      'seats ',
      'seats/resume 2',
      'seats/suspend 2',
      'seats/release 2',
    ])
  })

  test('is nothing: the seat is given back', async () => {
    answering({ '/v1/seats/suspend': () => [409, refusal('NotSuspended')] })
    const world = await pod({ idle: 'checkpoint' })
    await world.run(SHOW)
    await world.run(SHOW)
    expect(paths().filter((path) => !path.startsWith('seats/suspend'))).toEqual([
      'seats ',
      'seats/release 1',
      'seats ',
      'seats/release 2',
    ])
  })

  test('has ended by itself meanwhile: the next job starts', async () => {
    answering({ '/v1/seats/resume': () => [409, refusal('NotSuspended')] })
    const world = await pod({ idle: 'checkpoint' })
    await world.run(SHOW)
    expect(resultOf(await world.run(SHOW)).stdout).toBe('gpu=GPU-a\n')
  })

  test.each(['suspend', 'resume'])(
    'is lost by a %s that fails: the job before has its result, the next one is LeaseRevoked, and the pod is of no use',
    async (what) => {
      answering({ [`/v1/seats/${what}`]: () => [500, refusal('CheckpointFailed')] })
      const useless: string[] = []
      const seats = new NodeAgentSeats({
        ...{ socket: agent.socket, gpus: 1, incarnation: 'inc', log: () => {} },
        idle: 'checkpoint',
      })
      const world = await makeWorld({ seats, onUseless: (reason) => useless.push(reason) })
      worlds.push(world)
      await world.bind(7)
      expect(resultOf(await world.run(SHOW)).exitCode).toBe(0)
      const problem = problemOf(await world.run({ command: 'touch started' }))
      expect(problem).toMatchObject({ code: 'LeaseRevoked', details: { reason: 'CheckpointFailed' } })
      expect(problem.message).toContain('a reason')
      expect(useless).toEqual(['CheckpointFailed'])
      expect(() => world.read('started')).toThrow('ENOENT')
      expect(agent.released().length).toBe(1)
    },
  )

  test('is taken off again by an agent that went away while it put it back', async () => {
    answering({})
    const { answer } = agent
    let isAway = true
    agent.answer = (asked) => {
      if (isAway && asked.path === '/v1/seats/resume') asked.res.destroy()
      else answer(asked)
    }
    const world = await pod({ idle: 'checkpoint', waitMs: 0 })
    await world.run(SHOW)
    const problem = problemOf(await world.run({ command: 'touch started' }))
    expect(problem).toMatchObject({ code: 'SeatUnavailable', details: { reason: 'AgentAway' } })
    expect(() => world.read('started')).toThrow('ENOENT')
    isAway = false
    await waitUntil('it is taken off', () => paths().includes('seats/suspend 2'))
    expect(resultOf(await world.run(SHOW)).stdout).toBe('gpu=GPU-a\n')
    expect(paths().slice(-2)).toEqual(['seats/resume 3', 'seats/suspend 3'])
    expect(agent.released()).toEqual([])
  })

  test('stays on it while the agent cannot say who is there, and is suspended later', async () => {
    let isBlind = true
    answering({ '/v1/seats/suspend': () => (isBlind ? [503, refusal('SeatUnavailable')] : null) })
    const world = await pod({ idle: 'checkpoint' })
    const seats = () => agent.asked.filter(({ path }) => path === '/v1/seats')
    await world.run(SHOW)
    expect(resultOf(await world.run(SHOW)).stdout).toBe('gpu=GPU-a\n')
    expect(seats()[1]!.body.requestId).toBe(seats()[0]!.body.requestId)
    isBlind = false
    const before = agent.asked.length
    await waitUntil('it is asked again', () => agent.asked.length > before)
    await world.run(SHOW)
    expect(seats()[2]!.body.requestId).not.toBe(seats()[0]!.body.requestId)
    expect(paths()).toContain('seats/resume 2')
    expect(agent.released()).toEqual([])
  })
})

test('a job whose GPU was lost under it is PodLost, whatever it ended with, and its pod is of no use', async () => {
  agent.answer = ({ path, res }) =>
    path === '/v1/seats'
      ? say(res, 200, grant(3, 'GPU-a'))
      : say(res, 200, { v: 1, xids: [79], lost: 'GPU GPU-a failed: xid 79' })
  const useless: string[] = []
  const seats = new NodeAgentSeats({ socket: agent.socket, gpus: 1, incarnation: 'inc', log: () => {} })
  const world = await makeWorld({ seats, onUseless: (reason) => useless.push(reason) })
  worlds.push(world)
  await world.bind(7)
  const problem = problemOf(await world.run({ command: 'exit 1' }))
  expect(problem).toMatchObject({ code: 'PodLost', details: { reason: 'SeatLost' } })
  expect(problem.message).toContain('xid 79')
  expect(useless).toEqual(['SeatLost'])
})

test('a pod that is refused all seats answers LeaseRevoked, also to what waits, and says that it is of no use', async () => {
  let refuse: () => void = () => {}
  agent.answer = ({ res }) => {
    refuse = () => say(res, 403, refusal('UngrantedUse'))
  }
  const useless: string[] = []
  const seats = new NodeAgentSeats({ socket: agent.socket, gpus: 1, incarnation: 'inc', log: () => {} })
  const world = await makeWorld({ seats, onUseless: (reason) => useless.push(reason) })
  worlds.push(world)
  await world.bind(7)
  const job = world.run({ command: 'touch started' })
  await waitUntil('it waits for its seat', () => agent.asked[0])
  const waiting = refusalOf(world.run({ command: 'touch started' }))
  await waitUntil('another one waits', async () => (await world.broker.status()).waiting === 1)
  refuse()
  expect(problemOf(await job)).toMatchObject({ code: 'LeaseRevoked', details: { reason: 'UngrantedUse' } })
  expect((await waiting).code).toBe('LeaseRevoked')
  expect(useless).toEqual(['UngrantedUse'])
  expect((await refusalOf(world.run(SHOW))).code).toBe('LeaseRevoked')
  expect(() => world.read('started')).toThrow('ENOENT')
})

describe('a seat set that is sick', () => {
  const sick = (asked: Asked) => say(asked.res, 503, refusal('SeatSetSick'))

  test('its pod answers LeaseRevoked, also to what waits, and says that it is of no use', async () => {
    let refuse: () => void = () => {}
    agent.answer = (asked) => {
      refuse = () => sick(asked)
    }
    const useless: string[] = []
    const seats = new NodeAgentSeats({
      ...{ socket: agent.socket, gpus: 1, isInSet: true, incarnation: 'inc', log: () => {} },
    })
    const world = await makeWorld({
      seats,
      onUseless: (reason, message) => useless.push(`${reason}: ${message}`),
    })
    worlds.push(world)
    await world.bind(7)
    const job = world.run({ command: 'touch started' })
    await waitUntil('it waits for its seat', () => agent.asked[0])
    const waiting = refusalOf(world.run({ command: 'touch started' }))
    await waitUntil('another one waits', async () => (await world.broker.status()).waiting === 1)
    refuse()
    expect(problemOf(await job)).toMatchObject({
      code: 'LeaseRevoked',
      details: { reason: 'SeatSetSick', said: 'a reason. a remedy.' },
    })
    expect((await waiting).code).toBe('LeaseRevoked')
    expect(useless).toEqual(['SeatSetSick: a reason. a remedy.'])
    expect(() => world.read('started')).toThrow('ENOENT')
  })

  test('a pod in no set says SeatUnavailable and stays: the cluster might put another one on the same GPU', async () => {
    agent.answer = sick
    const world = await pod()
    expect(problemOf(await world.run(SHOW))).toMatchObject({
      code: 'SeatUnavailable',
      details: { reason: 'SeatSetSick' },
    })
    generous(agent)
    expect(resultOf(await world.run(SHOW)).stdout).toBe('gpu=GPU-a\n')
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

test('a seat is asked for in the name of the tenant that the broker has bound the epoch to', async () => {
  generous(agent)
  const world = await pod()
  const bind = (epoch: number, tenant?: string) => {
    const token = () => world.sign(world.pod, 'broker', epoch, `lease-${epoch}`, tenant)
    const { incarnation } = world
    const request = { v: 1, epoch, leaseId: `lease-${epoch}`, ownerHash: 'owner-1', incarnation } as const
    return createRunnerClient(world.runner.address, token).bind(request)
  }
  await world.run(SHOW)
  await bind(8, 'team-a')
  await world.run(SHOW)
  await bind(9)
  await world.run(SHOW)
  const asked = agent.asked.filter(({ path }) => path === '/v1/seats').map(({ body }) => body.tenant)
  expect(asked).toEqual([undefined, 'team-a', undefined])
})

test('the settings of a runner', () => {
  expect(seatSettings({})).toBeNull()
  const usual = { gpus: 1, idle: 'park', isInSet: false }
  expect(seatSettings({ FIREPOOL_SEAT_SOCKET: '/s' })).toEqual({ socket: '/s', ...usual })
  expect(seatSettings({ FIREPOOL_SEAT_SOCKET: '/s', FIREPOOL_SEAT_SET: '0' })?.isInSet).toBe(true)
  expect(seatSettings({ FIREPOOL_SEAT_SOCKET: '/s', FIREPOOL_SEAT_IDLE: 'hold' })?.idle).toBe('hold')
  expect(() => seatSettings({ FIREPOOL_SEAT_SOCKET: '/s', FIREPOOL_SEAT_IDLE: 'keep' })).toThrow(
    'one of park, hold, checkpoint',
  )
  expect(seatSettings({ FIREPOOL_SEAT_URL: 'http://node:9809' })).toEqual({
    url: 'http://node:9809',
    ...usual,
  })
  for (const FIREPOOL_SEAT_URL of ['node:9809', 'https://node', 'http://node/x', 'http://a@node'])
    expect(() => seatSettings({ FIREPOOL_SEAT_URL })).toThrow('http://HOST:PORT')
  expect(seatSettings({ FIREPOOL_SEAT_SOCKET: '/s', FIREPOOL_SEAT_GPUS: '8' })?.gpus).toBe(8)
  for (const FIREPOOL_SEAT_GPUS of ['0', '17', '1.5', 'x'])
    expect(() => seatSettings({ FIREPOOL_SEAT_SOCKET: '/s', FIREPOOL_SEAT_GPUS })).toThrow('1 to 16')
})
