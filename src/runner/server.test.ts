import { readdirSync, writeFileSync } from 'node:fs'
import { request as httpRequest } from 'node:http'
import { connect } from 'node:net'
import { join } from 'node:path'
import { Readable } from 'node:stream'
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest'
import { type ErrorReply, HTTP_STATUS, LIMIT } from '../contract/index.js'
import { createRunnerClient, jobDigest, RunnerUnreachable } from './client.js'
import { parseListen } from './server.js'
import { makeWorld, refusal, resultOf, type World } from './world.fixture.js'

let world: World
beforeEach(async () => {
  world = await makeWorld()
  await world.bind(1)
})
afterEach(() => world.end())

interface Answer {
  status: number
  body: ErrorReply
}

/** A call as any client might make it. */
function raw(
  method: string,
  path: string,
  body?: string | Buffer,
  token = world.sign(world.pod, 'lease', 1, 'lease-1'),
): Promise<Answer> {
  return new Promise((resolve, reject) => {
    const headers = token === '' ? {} : { authorization: `Bearer ${token}` }
    const call = httpRequest(`${world.runner.address}${path}`, { method, headers }, (res) => {
      const chunks: Buffer[] = []
      res.on('data', (chunk: Buffer) => chunks.push(chunk))
      res.on('end', () =>
        resolve({ status: res.statusCode!, body: JSON.parse(Buffer.concat(chunks).toString()) }),
      )
    })
    call.on('error', reject)
    call.end(body)
  })
}

const SPEC = { command: ['true'] }
function job(changes: object): string {
  return JSON.stringify({ v: 1, jobId: 's/1', digest: jobDigest(SPEC), epoch: 1, spec: SPEC, ...changes })
}

describe('what cannot be right is a typed InvalidRequest and starts nothing', () => {
  afterEach(async () => {
    expect((await world.broker.status()).useSeq).toBe(0)
  })

  test('bodies that are no JSON, no object, of no version, or have unknown fields', async () => {
    for (const body of [
      '',
      '{',
      '[]',
      'null',
      '1',
      '\xff',
      '{"v":"2"}',
      job({ extra: 1 }),
      job({ v: undefined }),
      job({ v: 1.5 }),
    ]) {
      const answer = await raw('POST', '/jobs', body)
      expect([answer.status, answer.body.problem.code], body).toEqual([400, 'InvalidRequest'])
    }
  })

  test('but another version is refused by name: the pod is replaced, and a job goes elsewhere', async () => {
    for (const [path, code] of [
      ['/jobs', 'LeaseRevoked'],
      ['/ack', 'PodLost'],
      ['/cancel', 'PodLost'],
    ] as const) {
      // Whatever else that version has.
      const { body } = await raw('POST', path, JSON.stringify({ v: 2, newField: true }))
      expect(body.problem, path).toMatchObject({ code, details: { reason: 'ContractVersion' } })
      expect(body.problem.message).toMatch(/has version 2, this runner speaks version 1/)
    }
  })

  test('every field of a job, with what to do about it', async () => {
    const wrongSpecs: unknown[] = [
      null,
      [],
      {},
      { command: '' },
      { command: ' ' },
      { command: [] },
      { command: [''] },
      { command: [1] },
      { command: ['a\0b'] },
      { command: Array.from({ length: LIMIT.commandArgs + 1 }, () => 'x') },
      { ...SPEC, comand: 'x' },
      { ...SPEC, env: [] },
      { ...SPEC, env: { A: 1 } },
      { ...SPEC, env: { 'A=B': 'x' } },
      { ...SPEC, env: { '': 'x' } },
      { ...SPEC, env: { A: 'x\0' } },
      { ...SPEC, env: { FIREPOOL_POD: 'x' } },
      {
        ...SPEC,
        env: Object.fromEntries(Array.from({ length: LIMIT.envVars + 1 }, (_, n) => [`A${n}`, ''])),
      },
      { ...SPEC, cwd: 1 },
      { ...SPEC, cwd: 'a\0' },
      { ...SPEC, stdin: 1 },
      { ...SPEC, files: {} },
      { ...SPEC, files: [{ path: 'a' }] },
      { ...SPEC, files: [{ path: '', content: '' }] },
      { ...SPEC, files: [{ path: 'a/', content: '' }] },
      { ...SPEC, files: [{ path: 'a', content: '', encoding: 'hex' }] },
      { ...SPEC, files: [{ path: 'a', content: '??', encoding: 'base64' }] },
      { ...SPEC, files: [{ path: 'a', content: '', mode: 0o4755 }] },
      { ...SPEC, files: [{ path: 'a', content: '', mode: '755' }] },
      { ...SPEC, files: Array.from({ length: LIMIT.files + 1 }, (_, n) => ({ path: `f${n}`, content: '' })) },
      { ...SPEC, collect: 'a' },
      { ...SPEC, collect: [1] },
      { ...SPEC, timeout: 0 },
      { ...SPEC, timeout: -1 },
      { ...SPEC, timeout: '0s' },
      { ...SPEC, timeout: 'soon' },
      { ...SPEC, timeout: null },
      { ...SPEC, timeout: LIMIT.jobMsMax + 1 },
      { ...SPEC, timeout: '1000d' },
      { ...SPEC, outputTo: 'file:///etc/passwd' },
      { ...SPEC, outputTo: 'x' },
    ]
    for (const spec of wrongSpecs) {
      const answer = await raw('POST', '/jobs', job({ spec }))
      const shown = JSON.stringify(spec)?.slice(0, 100)
      expect([answer.status, answer.body.problem.code], shown).toEqual([400, 'InvalidRequest'])
      expect(answer.body.problem.message.length, shown).toBeGreaterThan(20)
    }
    expect((await raw('POST', '/jobs', job({ spec: { ...SPEC, timeout: 0 } }))).body.problem.message).toMatch(
      /timeout is 0 ms; it must be between 1 and/,
    )
    for (const changes of [
      { jobId: '' },
      { jobId: 1 },
      { jobId: 'a b' },
      { jobId: 'x'.repeat(300) },
      { digest: 'abc' },
      { epoch: 0 },
      { epoch: 1.5 },
      { epoch: '1' },
    ])
      expect((await raw('POST', '/jobs', job(changes))).status, JSON.stringify(changes)).toBe(400)
  })

  test('a job over LIMIT.jobBytes and a body over 4 MiB', async () => {
    const large = { ...SPEC, stdin: 'x'.repeat(LIMIT.jobBytes + 4_096) }
    expect((await raw('POST', '/jobs', job({ spec: large }))).body.problem.message).toContain('PUT /files')
    const huge = await raw('POST', '/jobs', Buffer.alloc(6 * 1024 * 1024, 0x20))
    expect([huge.status, huge.body.problem.code]).toEqual([400, 'InvalidRequest'])
  })

  test('unknown routes and methods', async () => {
    for (const [method, path] of [
      ['GET', '/'],
      ['GET', '/jobs'],
      ['DELETE', '/files?path=x'],
      ['POST', '/nothing'],
      ['POST', '/__proto__'],
    ] as const)
      expect((await raw(method, path)).body.problem.code, path).toBe('InvalidRequest')
  })

  test('bytes that are not HTTP, and a connection that breaks in a body', async () => {
    const port = Number(new URL(world.runner.address).port)
    const answer = await new Promise<string>((resolve) => {
      let text = ''
      const socket = connect(port, '127.0.0.1', () => socket.write('\x16\x03\x01 this is no HTTP\r\n\r\n'))
      socket.on('data', (chunk) => {
        text += chunk
      })
      socket.on('close', () => resolve(text))
    })
    expect(answer).toContain('InvalidRequest')
    await new Promise<void>((resolve) => {
      const socket = connect(port, '127.0.0.1', () => {
        const token = world.sign(world.pod, 'lease', 1, 'lease-1')
        socket.write(
          `POST /jobs HTTP/1.1\r\nhost: x\r\nauthorization: Bearer ${token}\r\ncontent-length: 1000\r\n\r\n{"v":`,
        )
        setTimeout(() => socket.destroy(), 50)
      })
      socket.on('close', () => resolve())
    })
  })
})

test('a drained runner lets go of the connections that clients keep, and keeps none', async () => {
  const { port } = new URL(world.runner.address)
  const status = `GET /status HTTP/1.1\r\nhost: x\r\nauthorization: Bearer ${world.sign(world.pod, 'lease', 1, 'lease-1')}\r\n\r\n`
  const open = () =>
    new Promise<{ closed: Promise<void>; text: () => string }>((resolve) => {
      let text = ''
      const socket = connect(Number(port), '127.0.0.1', () => socket.write(status))
      const closed = new Promise<void>((done) => socket.once('close', () => done()))
      socket.on('data', (chunk) => {
        text += chunk
        resolve({ closed, text: () => text })
      })
    })
  const kept = await open()
  expect(kept.text()).toContain('Connection: keep-alive')
  const { drained } = await world.broker.drain({ v: 1, drainId: 'd', epoch: 1, useSeq: 0 })
  expect(drained).toBe(true)
  await kept.closed
  const late = await open()
  expect(late.text()).toContain('Connection: close')
  await late.closed
  expect((await refusal(world.run(SPEC))).code).toBe('LeaseRevoked')
})

describe('tokens', () => {
  test('are needed on every route', async () => {
    for (const [method, path] of [
      ...['bind', 'jobs', 'ack', 'cancel', 'revoke', 'drain', 'promote'].map(
        (name) => ['POST', `/${name}`] as const,
      ),
      ['GET', '/status'],
      ['GET', '/files?path=x'],
      ['PUT', '/files?path=x'],
    ] as const) {
      const answer = await raw(method, path, method === 'GET' ? undefined : job({}), '')
      expect(answer.body.problem.details?.reason, path).toBe('TokenMissing')
    }
    expect((await world.broker.status()).useSeq).toBe(0)
  })

  test('of a lease do not control the pod, the broker does not run jobs', async () => {
    const lease = world.lease(1)
    const scoped = { code: 'InvalidRequest', details: { reason: 'TokenScope' } }
    expect(await refusal(lease.revoke(1))).toMatchObject(scoped)
    expect(await refusal(lease.promote())).toMatchObject(scoped)
    expect(await refusal(lease.drain({ v: 1, drainId: 'd', epoch: 1, useSeq: 0 }))).toMatchObject(scoped)
    const bind = { v: 1 as const, epoch: 2, leaseId: 'l', ownerHash: 'o', incarnation: world.incarnation }
    expect(await refusal(lease.bind(bind))).toMatchObject(scoped)
    const request = { v: 1 as const, jobId: 's/1', digest: jobDigest(SPEC), epoch: 1, spec: SPEC }
    expect(await refusal(world.broker.jobs(request))).toMatchObject(scoped)
    expect((await lease.status()).pod).toBe(world.pod)
  })

  test('are good for the lease that the pod is bound to, not for another one under the same epoch', async () => {
    const other = createRunnerClient(world.runner.address, () => world.sign(world.pod, 'lease', 1, 'guessed'))
    const refused = { code: 'InvalidRequest', details: { reason: 'TokenForAnotherLease' } }
    const request = { v: 1 as const, jobId: 's/9', digest: jobDigest(SPEC), epoch: 1, spec: SPEC }
    expect(await refusal(other.jobs(request))).toMatchObject(refused)
    expect(await refusal(other.getFile('a'))).toMatchObject(refused)
    expect(await refusal(other.cancel('s/9'))).toMatchObject(refused)
    expect((await world.broker.status()).useSeq).toBe(0)
  })

  test('of a guessed lease do not see the jobs of one that is over', async () => {
    await world.run(SPEC, { jobId: 's/1' })
    await world.bind(2)
    const request = { v: 1 as const, jobId: 's/1', digest: jobDigest(SPEC), epoch: 1, spec: SPEC }
    expect((await world.lease(1).jobs(request)).kind).toBe('result')
    const other = createRunnerClient(world.runner.address, () => world.sign(world.pod, 'lease', 1, 'guessed'))
    const refused = { code: 'InvalidRequest', details: { reason: 'TokenForAnotherLease' } }
    expect(await refusal(other.jobs(request))).toMatchObject(refused)
    expect(await refusal(other.cancel('s/1'))).toMatchObject(refused)
  })

  test('of an epoch that is over do not touch files', async () => {
    await world.lease(1).putFile('a', Buffer.from('x'))
    await world.bind(2)
    expect((await refusal(world.lease(1).getFile('a'))).code).toBe('LeaseRevoked')
    expect((await refusal(world.lease(1).putFile('a', Buffer.from('y')))).code).toBe('LeaseRevoked')
    expect(world.read('a')).toBe('x')
    await world.broker.getFile('a').then((stream) => stream.destroy())
  })
})

describe('statuses of HTTP', () => {
  test('are those of the table', async () => {
    await world.bind(2)
    const refused = await raw('POST', '/jobs', job({}))
    expect([refused.status, refused.body.problem.code]).toEqual([HTTP_STATUS.LeaseRevoked, 'LeaseRevoked'])
    await world.lease(2).cancel('s/1')
    expect((await raw('POST', '/jobs', job({}))).status).toBe(HTTP_STATUS.Cancelled)
  })
})

describe('files', () => {
  test('come and go as streams of any size, whole or not at all', async () => {
    const bytes = Buffer.alloc(3_000_000, 'abc')
    await world.lease(1).putFile('deep/er/a b.bin', Readable.from([bytes.subarray(0, 1), bytes.subarray(1)]))
    const back: Buffer[] = []
    for await (const chunk of await world.lease(1).getFile('deep/er/a b.bin')) back.push(chunk as Buffer)
    expect(Buffer.concat(back).equals(bytes)).toBe(true)
    await world.lease(1).putFile('deep/er/a b.bin', Buffer.alloc(0))
    expect(world.read('deep/er/a b.bin')).toBe('')
    const broken = new Readable({ read() {} })
    const upload = world.lease(1).putFile('deep/er/a b.bin', broken)
    broken.push('half')
    setTimeout(() => broken.destroy(new Error('source broke')), 50)
    await expect(upload).rejects.toThrow(RunnerUnreachable)
    expect(world.read('deep/er/a b.bin')).toBe('')
    await expect.poll(() => readdirSync(world.folders.jobs), { timeout: 30_000 }).toEqual([])
  })

  test('that are not there, or are no files, are InvalidRequest', async () => {
    expect((await refusal(world.lease(1).getFile('none'))).message).toContain('"none"')
    expect((await refusal(world.lease(1).getFile('../jobs'))).code).toBe('InvalidRequest')
    expect((await refusal(world.lease(1).getFile('../jobs/..'))).code).toBe('InvalidRequest')
    writeFileSync(join(world.folders.work, 'file'), '')
    expect((await refusal(world.lease(1).putFile('file/x', Buffer.from('x')))).code).toBe('InvalidRequest')
    expect((await raw('GET', '/files')).body.problem.message).toContain('path=')
  })
})

describe('the client', () => {
  test('knows when nobody listens, and when an answer did not come', async () => {
    const nobody = createRunnerClient('http://127.0.0.1:1', 'x')
    await expect(nobody.status()).rejects.toMatchObject({
      name: 'RunnerUnreachable',
      refused: true,
      code: 'ECONNREFUSED',
    })
    const hanging = world.lease(1).jobs(
      {
        v: 1,
        jobId: 's/1',
        digest: jobDigest({ command: 'sleep 600' }),
        epoch: 1,
        spec: { command: 'sleep 600' },
      },
      { timeoutMs: 100 },
    )
    await expect(hanging).rejects.toMatchObject({
      name: 'RunnerUnreachable',
      refused: false,
      code: 'ETIMEDOUT',
    })
  })

  test('an abort before the call sends nothing', async () => {
    const request = { v: 1 as const, jobId: 's/1', digest: jobDigest(SPEC), epoch: 1, spec: SPEC }
    await expect(
      world.lease(1).jobs(request, { signal: AbortSignal.abort(new Error('gone')) }),
    ).rejects.toThrow('gone')
    expect((await world.broker.status()).useSeq).toBe(0)
  })

  test('digests do not depend on the order of keys', () => {
    const one = jobDigest({ command: 'x', env: { A: '1', B: '2' } })
    expect(jobDigest({ env: { B: '2', A: '1' }, command: 'x' })).toBe(one)
    expect(jobDigest({ command: 'x', env: { A: '1', B: '3' } })).not.toBe(one)
    expect(one).toMatch(/^[0-9a-f]{64}$/)
  })
})

describe('status', () => {
  test('tells what the pod does', async () => {
    expect(await world.broker.status()).toMatchObject({
      v: 1,
      pod: world.pod,
      incarnation: world.incarnation,
      epoch: 1,
      state: 'bound',
      useSeq: 0,
      running: null,
      waiting: 0,
      undelivered: 0,
    })
    resultOf(await world.run({ command: 'true' }))
    expect(await world.broker.promote()).toMatchObject({ useSeq: 1, undelivered: 1, idleMs: 0 })
  })
})

test('idle time and age are durations of this process: a clock that is set anew changes neither', async () => {
  vi.useFakeTimers({ toFake: ['Date'] })
  try {
    // Less than what a token has left: that one does go by the clock.
    for (const ms of [60_000, -3_600_000]) {
      const before = await world.broker.status()
      vi.setSystemTime(Date.now() + ms)
      const after = await world.broker.status()
      expect(after.idleMs).toBeGreaterThanOrEqual(before.idleMs)
      expect(after.idleMs - before.idleMs).toBeLessThan(60_000)
      expect(after.lifetimeLeftMs).toBeLessThanOrEqual(before.lifetimeLeftMs)
      expect(before.lifetimeLeftMs - after.lifetimeLeftMs).toBeLessThan(60_000)
    }
  } finally {
    vi.useRealTimers()
  }
})

test('listen addresses', () => {
  expect(parseListen('127.0.3.1:0')).toEqual({ host: '127.0.3.1', port: 0 })
  expect(parseListen('[::1]:80')).toEqual({ host: '::1', port: 80 })
  expect(parseListen('fd00::1:80')).toEqual({ host: 'fd00::1', port: 80 })
  for (const wrong of ['', '127.0.0.1', ':x', '1.2.3.4:70000'])
    expect(() => parseListen(wrong)).toThrow('FIREPOOL_LISTEN')
})
