/** What a kubelet asks of `firepool worker --health-port`. */
import { homedir } from 'node:os'
import { join } from 'node:path'
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest'
import { freePort } from '../../src/server/free-port.js'
import { type Running, startCli } from '../support/cli.js'
import { makeWorld, type World, waitUntil } from '../support/world.js'

let world: World
let port: number
const workers: Running[] = []
beforeAll(async () => {
  world = await makeWorld()
  await world.pool('cpu', { budget: 1, standby: 0 })
  port = await freePort()
})
afterEach(async () => {
  for (const { kill, ended } of workers.splice(0)) {
    kill('SIGKILL')
    await ended
  }
})
afterAll(() => world?.close())

function startWorker(address = world.address, more: string[] = []): Running {
  const env = {
    PATH: `${process.env.PATH}:${join(homedir(), 'go', 'bin')}`,
    HOME: world.dir,
    TEMPORAL_ADDRESS: address,
    FIREPOOL_DIR: join(world.dir, 'firepool'),
  }
  const worker = startCli(['worker', '--health-port', String(port), ...more], env)
  workers.push(worker)
  return worker
}

/** The status and the text of a path; undefined while nobody listens. */
async function ask(path: string): Promise<readonly [status: number, text: string] | undefined> {
  const answer = await fetch(`http://127.0.0.1:${port}${path}`).catch(() => undefined)
  return answer && ([answer.status, (await answer.text()).trim()] as const)
}

test('it lives from the beginning and is ready when it serves; at SIGTERM it is not ready, and then it ends', async () => {
  const worker = startWorker(world.address, ['--log', '-'])
  const answers = new Set<string>()
  await waitUntil('it is ready', async () => {
    const answer = await ask('/readyz')
    if (answer) answers.add(answer.join(' '))
    return answer?.[0] === 200
  })
  expect([...answers].at(-1)).toBe('200 ready')
  for (const answer of [...answers].slice(0, -1))
    expect(answer).toMatch(/^503 it is starting$|^503 the worker of/)
  await worker.until('stdout', 'worker serves namespace default')

  worker.kill('SIGTERM')
  const states: string[] = []
  for (;;) {
    const [ready, live] = [await ask('/readyz'), await ask('/livez')]
    if (ready === undefined || live === undefined) break
    states.push(`${ready.join(' ')}, ${live[0]}`)
  }
  const { code, stderr } = await worker.ended
  expect(code).toBe(0)
  expect(stderr, 'the log, asked for on standard error').toMatch(/INFO Worker state changed/)
  // What was asked before the signal came.
  while (states[0] === '200 ready, 200') states.shift()
  expect(new Set(states)).toEqual(new Set(['503 it is stopping, 200']))
})

test('a port that is taken, and one that cannot be', async () => {
  startWorker()
  await waitUntil('it lives', async () => (await ask('/livez'))?.[0] === 200)
  const second = await startWorker().ended
  expect(second.code).toBe(3)
  expect(second.stderr).toBe(
    `error: port ${port} of --health-port is taken [PortTaken]\nhint: choose another one, or stop who has it\n`,
  )
  const wrong = await startWorker(world.address, ['--health-port', '70000']).ended
  expect(wrong.code).toBe(64)
  expect(wrong.stderr).toContain('give a whole number from 1 to 65535')
})
