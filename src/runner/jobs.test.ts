import { existsSync, symlinkSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { type JobSpec, LIMIT } from '../contract/index.js'
import { jobDigest } from './client.js'
import { markedPids } from './process-tree.js'
import { limitWrapper } from './rlimit.js'
import {
  makeWorld,
  NO_LIMITS,
  PYTHON,
  problemOf,
  refusal,
  resultOf,
  type World,
  type WorldOptions,
  waitUntil,
} from './world.fixture.js'

/** Jobs through real HTTP and real processes, in both ways that a process can be started. */

const WAYS = ['spawned', 'forked from a preloaded interpreter'] as const
/** A forked interpreter that becomes the command: what it was given is what the command has. */
const BECOME = 'import os, sys; os.execvp(sys.argv[1], sys.argv[1:])'

function becoming(spec: JobSpec): JobSpec {
  const { command } = spec
  const argv = typeof command === 'string' ? ['/bin/sh', '-c', command] : command
  return { ...spec, command: [PYTHON, '-c', BECOME, ...argv] }
}

/** Starts one process in a session of its own; goes on when it is there: what is still in the job's group ends with the job. */
const LEAVE = "setsid sh -c ': > left; exec sleep 600'"
const LEFT = 'until [ -e left ]; do sleep 0.01; done'
const DAEMON = `${LEAVE} >/dev/null 2>&1 & ${LEFT}`
const DAEMON_WITH_PIPES = `${LEAVE} & ${LEFT}`

describe.each(WAYS)('jobs that are %s', (way) => {
  let world: World
  async function begin(options: WorldOptions = {}): Promise<void> {
    world = await makeWorld({ ...(way === 'spawned' ? {} : { preload: {} }), ...options })
    await world.bind(1)
  }
  beforeEach(() => begin())
  afterEach(() => world.end())

  async function again(options: WorldOptions): Promise<void> {
    await world.end()
    await begin(options)
  }

  /** The job, started in this way. */
  const by = (spec: JobSpec) => (way === 'spawned' ? spec : becoming(spec))
  const run: World['run'] = (spec, options) => world.run(by(spec), options)
  const marked = () => markedPids({ env: { FIREPOOL_POD: world.pod }, epochMax: 99 })

  describe('a job', () => {
    test('gives its exit code, its streams and who ran it; a non-zero exit is a result', async () => {
      const result = resultOf(await run({ command: 'echo out; echo err >&2; exit 3' }))
      expect(result).toMatchObject({
        v: 1,
        exitCode: 3,
        signal: null,
        stdout: 'out\n',
        stderr: 'err\n',
        output: { stdout: { bytes: 4, truncated: false }, stderr: { bytes: 4, truncated: false } },
        files: [],
        missing: [],
        pod: world.pod,
        epoch: 1,
      })
      expect(result.durationMs).toBeGreaterThan(0)
    })

    test('that is ended by a signal says which', async () => {
      expect(resultOf(await run({ command: 'kill -9 $$' }))).toMatchObject({
        exitCode: null,
        signal: 'SIGKILL',
      })
    })

    test('inherits nothing of the runner, and gets the pod, its own variables and the markers', async () => {
      process.env.FIREPOOL_LEAK_TEST = 'secret'
      try {
        const { stdout } = resultOf(await run({ command: ['env'], env: { MINE: 'a b' } }, { jobId: 's/7' }))
        const names = stdout.split('\n').map((line) => line.split('=')[0])
        expect(names.filter((name) => name !== '').sort()).toEqual(
          [
            ...['FIREPOOL_EPOCH', 'FIREPOOL_INCARNATION', 'FIREPOOL_JOB_ID', 'FIREPOOL_POD'],
            ...['HOME', 'LANG', 'MINE', 'PATH', 'TERM', 'TMPDIR'],
          ].sort(),
        )
        expect(stdout).toContain('MINE=a b\n')
        expect(stdout).toContain('FIREPOOL_JOB_ID=s/7\n')
      } finally {
        delete process.env.FIREPOOL_LEAK_TEST
      }
    })

    test('reads its standard input to its end, and may leave it unread', async () => {
      expect(resultOf(await run({ command: ['cat'], stdin: 'häy' })).stdout).toBe('häy')
      expect(resultOf(await run({ command: ['cat'] })).stdout).toBe('')
      expect(resultOf(await run({ command: ['true'], stdin: 'x'.repeat(500_000) })).exitCode).toBe(0)
    })

    test('a file below another file is refused, with what helps', async () => {
      const files = ['a', 'a/b'].map((path) => ({ path, content: 'x' }))
      const problem = problemOf(await run({ command: 'true', files }))
      expect(problem).toMatchObject({ code: 'InvalidRequest' })
      expect(problem.message).toMatch(/"a\/b" cannot be made .*use another path/)
    })

    test('finds its files, with their modes, and runs in its cwd', async () => {
      const result = resultOf(
        await run({
          command: ['./go.sh'],
          cwd: 'deep/er',
          files: [
            { path: 'deep/er/go.sh', content: '#!/bin/sh\npwd; od -An -tx1 data', mode: 0o755 },
            { path: 'deep/er/data', content: '/wA=', encoding: 'base64' },
          ],
        }),
      )
      expect(result.stdout).toBe(`${world.folders.work}/deep/er\n ff 00\n`)
    })

    test('returns collected files, and says why others are missing', async () => {
      const result = resultOf(
        await run({
          command: `printf hi > a; printf '\\377' > b; mkfifo pipe; mkdir dir; head -c ${LIMIT.collectBytes} /dev/zero > big`,
          collect: ['a', 'b', 'none', 'pipe', 'dir', 'big'],
        }),
      )
      expect(result.files).toMatchObject([
        { path: 'a', content: 'hi' },
        { path: 'b', content: '/w==', encoding: 'base64' },
      ])
      expect(result.missing.map(({ path }) => path)).toEqual(['none', 'pipe', 'dir', 'big'])
      expect(result.missing[3]?.reason).toContain('too large')
    })

    test.runIf(way === 'spawned')(
      'whose command does not exist is InvalidRequest naming it, and that stays its outcome',
      async () => {
        const problem = problemOf(await run({ command: ['no-such-tool', 'x'] }, { jobId: 's/1' }))
        expect(problem.code).toBe('InvalidRequest')
        expect(problem.message).toContain('"no-such-tool"')
        expect(problemOf(await run({ command: ['no-such-tool', 'x'] }, { jobId: 's/1' }))).toEqual(problem)
        expect(problemOf(await run({ command: ['/etc/passwd'] })).message).toContain('cannot be executed')
        const large = problemOf(await run({ command: ['true', 'x'.repeat(300_000)] }))
        expect(large).toMatchObject({ code: 'InvalidRequest', details: { reason: 'E2BIG' } })
      },
    )

    test('with a background child that holds its pipes does not hang, and the child is gone', async () => {
      const result = resultOf(await run({ command: 'sleep 600 & echo started' }))
      expect(result).toMatchObject({ exitCode: 0, stdout: 'started\n' })
      await waitUntil('the child is gone', () => marked().length === 0)
    })

    test('with a daemon in another session that holds its pipes does not hang', async () => {
      const result = resultOf(await run({ command: `${DAEMON_WITH_PIPES}; echo started` }))
      expect(result.stdout).toBe('started\n')
      expect(marked()).toHaveLength(1)
    })
  })

  describe('paths that leave the work folder', () => {
    test('are InvalidRequest, by .. and by /', async () => {
      for (const path of ['../x', 'a/../../x', '/etc/x', '..']) {
        for (const spec of [
          { command: 'true', cwd: path },
          { command: 'true', files: [{ path, content: '' }] },
          { command: 'true', collect: [path] },
        ])
          expect((await refusal(run(spec))).code, JSON.stringify(spec)).toBe('InvalidRequest')
        expect((await refusal(world.lease(1).getFile(path))).code).toBe('InvalidRequest')
        expect((await refusal(world.lease(1).putFile(path, Buffer.from('x')))).code).toBe('InvalidRequest')
      }
    })

    test('are InvalidRequest, by a symbolic link', async () => {
      symlinkSync(world.dir, join(world.folders.work, 'out'))
      symlinkSync(join(world.dir, 'target'), join(world.folders.work, 'link'))
      expect(problemOf(await run({ command: 'true', cwd: 'out' })).code).toBe('InvalidRequest')
      for (const path of ['out/x', 'out/new/x', 'link'])
        expect(problemOf(await run({ command: 'true', files: [{ path, content: '' }] })).code).toBe(
          'InvalidRequest',
        )
      expect((await refusal(world.lease(1).putFile('out/x', Buffer.from('x')))).code).toBe('InvalidRequest')
      expect((await refusal(world.lease(1).getFile('out/pod'))).code).toBe('InvalidRequest')
      for (const name of ['x', 'new', 'target']) expect(existsSync(join(world.dir, name))).toBe(false)
    })
  })

  describe('a time limit', () => {
    test('tells no more of the output than a person reads', async () => {
      const { message } = problemOf(await run({ command: 'seq 1000; sleep 600', timeout: '300ms' }))
      expect(message.split('\n').slice(-2)).toEqual(['999', '1000'])
      expect(message.split('\n').length).toBeLessThan(15)
    })

    test('ends the whole group, and the outcome is JobTimeout with the tail of the output', async () => {
      const problem = problemOf(
        await run({ command: 'echo began; echo oops >&2; sleep 600 & sleep 600', timeout: '300ms' }),
      )
      expect(problem).toMatchObject({ code: 'JobTimeout', origin: 'job', details: { timeoutMs: 300 } })
      expect(problem.message).toContain('began')
      expect(problem.message).toContain('oops')
      expect(marked()).toEqual([])
    })

    test('sends SIGTERM first and SIGKILL to a job that ignores it', async () => {
      await again({ killGraceMs: 200 })
      const polite = problemOf(
        await run({ command: 'trap "echo bye > bye; exit 0" TERM; sleep 600 & wait', timeout: 300 }),
      )
      expect(polite.code).toBe('JobTimeout')
      expect(world.read('bye')).toBe('bye\n')
      const stubborn = problemOf(
        await run({ command: 'trap "" TERM; while :; do sleep 0.05; done', timeout: 300 }),
      )
      expect(stubborn.code).toBe('JobTimeout')
      expect(marked()).toEqual([])
    })

    test('also ends what dropped its session and its environment', async () => {
      const command = 'setsid sleep 600 & env -i setsid sleep 613 & sleep 600'
      expect(problemOf(await run({ command, timeout: 500 })).code).toBe('JobTimeout')
      expect(marked()).toEqual([])
      const { stdout } = resultOf(
        await run({ command: 'cat /proc/[0-9]*/cmdline 2>/dev/null | tr "\\0" " "' }),
      )
      expect(stdout).not.toContain('sleep 613 ')
    })
  })

  describe('the same job posted again', () => {
    test('starts once, and every post is answered', async () => {
      const spec = { command: 'echo ran >> count; sleep 0.5; echo done' }
      const posts = Array.from({ length: 10 }, () => run(spec, { jobId: 's/1' }))
      const outcomes = await Promise.all(posts)
      for (const outcome of outcomes) expect(resultOf(outcome).stdout).toBe('done\n')
      expect(resultOf(await run(spec, { jobId: 's/1' })).stdout).toBe('done\n')
      expect(world.read('count')).toBe('ran\n')
    })

    test('a client that goes away detaches, the job goes on, the next post attaches', async () => {
      const spec = { command: 'echo ran >> count; while [ ! -e go ]; do sleep 0.02; done; echo done' }
      const request = { v: 1 as const, jobId: 's/1', digest: jobDigest(by(spec)), epoch: 1, spec: by(spec) }
      const abort = new AbortController()
      const first = world.lease(1).jobs(request, { signal: abort.signal })
      await waitUntil('the job runs', () => existsSync(join(world.folders.work, 'count')))
      abort.abort(new Error('worker shut down'))
      await expect(first).rejects.toThrow('worker shut down')
      expect((await world.broker.status()).running).toBe('s/1')
      const second = run(spec, { jobId: 's/1' })
      await world.lease(1).putFile('go', Buffer.alloc(0))
      expect(resultOf(await second).stdout).toBe('done\n')
      expect(world.read('count')).toBe('ran\n')
    })

    test('under another spec is InvalidRequest', async () => {
      await run({ command: 'true' }, { jobId: 's/1' })
      const problem = await refusal(run({ command: 'false' }, { jobId: 's/1' }))
      expect(problem).toMatchObject({ code: 'InvalidRequest', details: { reason: 'DigestMismatch' } })
    })
  })

  describe('jobs beside each other', () => {
    test('run one after the other in the order they came, past the bound PodBusy', async () => {
      const gate = run({ command: 'while [ ! -e go ]; do sleep 0.02; done' })
      await waitUntil('the first runs', async () => (await world.broker.status()).running !== null)
      const order: Promise<unknown>[] = []
      for (let n = 0; n < LIMIT.runnerQueue; n++) {
        order.push(run({ command: `echo ${n} >> order` }))
        await waitUntil('it waits', async () => (await world.broker.status()).waiting === n + 1)
      }
      expect(await refusal(run({ command: 'true' }))).toMatchObject({ code: 'PodBusy', origin: 'caller' })
      await world.lease(1).putFile('go', Buffer.alloc(0))
      await Promise.all([gate, ...order])
      expect(world.read('order')).toBe(Array.from({ length: LIMIT.runnerQueue }, (_, n) => `${n}\n`).join(''))
    })
  })

  describe('cancel', () => {
    test('ends a running job: Cancelled, and everything of it is gone', async () => {
      const job = run({ command: 'setsid sleep 600 & touch began; sleep 600' }, { jobId: 's/1' })
      await waitUntil('the job runs', () => existsSync(join(world.folders.work, 'began')))
      await world.lease(1).cancel('s/1')
      expect(problemOf(await job).code).toBe('Cancelled')
      expect(marked()).toEqual([])
      expect(resultOf(await run({ command: 'echo next' })).stdout).toBe('next\n')
    })

    test('that comes before the job refuses it', async () => {
      await world.lease(1).cancel('s/1')
      expect((await refusal(run({ command: 'touch ran' }, { jobId: 's/1' }))).code).toBe('Cancelled')
      expect(existsSync(join(world.folders.work, 'ran'))).toBe(false)
    })

    test('of a waiting job answers it at once', async () => {
      const running = run({ command: 'while [ ! -e go ]; do sleep 0.02; done' })
      await waitUntil('the first runs', async () => (await world.broker.status()).running !== null)
      const waiting = refusal(run({ command: 'touch ran' }, { jobId: 's/w' }))
      await waitUntil('the second waits', async () => (await world.broker.status()).waiting === 1)
      await world.lease(1).cancel('s/w')
      expect((await waiting).code).toBe('Cancelled')
      await world.lease(1).putFile('go', Buffer.alloc(0))
      await running
      expect(existsSync(join(world.folders.work, 'ran'))).toBe(false)
    })
  })

  describe('revoke', () => {
    test('kills what runs and what waits of that epoch, double forks included, before it is answered', async () => {
      const job = run({
        command: '(setsid sh -c "sleep 600 & exec sleep 600" &) ; touch began; sleep 600',
      })
      await waitUntil('the job runs', () => existsSync(join(world.folders.work, 'began')))
      const waiting = refusal(run({ command: 'touch ran' }))
      await waitUntil('the second waits', async () => (await world.broker.status()).waiting === 1)
      await waitUntil('the double fork runs', () => marked().length >= 4)
      await world.broker.revoke(1)
      expect(marked()).toEqual([])
      expect(problemOf(await job)).toMatchObject({ code: 'PodLost', details: { reason: 'Revoked' } })
      expect((await waiting).code).toBe('LeaseRevoked')
      expect((await refusal(run({ command: 'true' }))).code).toBe('LeaseRevoked')
      expect(existsSync(join(world.folders.work, 'ran'))).toBe(false)
    })

    test('kills what a finished job left in another session, not what a later epoch runs', async () => {
      await run({ command: DAEMON })
      expect(marked()).toHaveLength(1)
      await world.bind(2)
      const later = run({ command: 'touch began; while [ ! -e go ]; do sleep 0.02; done; echo done' })
      await waitUntil('the later job runs', () => existsSync(join(world.folders.work, 'began')))
      await world.broker.revoke(1)
      await world.lease(2).putFile('go', Buffer.alloc(0))
      expect(resultOf(await later).stdout).toBe('done\n')
      await waitUntil('all is gone', () => marked().length === 0)
    })

    test('of a job that has just begun to write its files starts nothing', async () => {
      const files = Array.from({ length: 200 }, (_, n) => ({ path: `f${n}`, content: 'x' }))
      const job = run({ command: 'touch ran; sleep 600', files })
      await waitUntil('it was accepted', () => world.runner.app.fence.useSeq === 1)
      await world.broker.revoke(1)
      expect(problemOf(await job).code).toBe('PodLost')
      expect(marked()).toEqual([])
    })
  })

  describe('drain', () => {
    test('is a compare-and-set on the use counter, and ends what jobs have left', async () => {
      const spec = { command: DAEMON }
      await run(spec, { jobId: 's/1' })
      await world.lease(1).ack({ v: 1, jobId: 's/1', digest: jobDigest(by(spec)) })
      const drain = (drainId: string, useSeq: number) =>
        world.broker.drain({ v: 1, drainId, epoch: 1, useSeq })
      expect(await drain('a', 0)).toMatchObject({ drained: false, useSeq: 1 })
      expect(marked()).toHaveLength(1)
      expect(await drain('b', 1)).toMatchObject({ drained: true, useSeq: 1 })
      expect(marked()).toEqual([])
      expect(await drain('b', 1)).toMatchObject({ drained: true, useSeq: 1 })
      expect((await refusal(run({ command: 'true' }))).code).toBe('LeaseRevoked')
      expect((await refusal(world.bind(2))).code).toBe('LeaseRevoked')
      expect((await refusal(world.lease(1).getFile('x'))).code).toBe('LeaseRevoked')
      expect(resultOf(await run(spec, { jobId: 's/1', epoch: 1 })).exitCode).toBe(0)
      expect((await world.broker.status()).state).toBe('draining')
    })

    test('is refused while a result was not fetched', async () => {
      const spec = { command: 'echo x' }
      const abort = new AbortController()
      const request = { v: 1 as const, jobId: 's/1', digest: jobDigest(by(spec)), epoch: 1, spec: by(spec) }
      const job = world.lease(1).jobs(request, { signal: abort.signal })
      await waitUntil('it was accepted', () => world.runner.app.fence.useSeq === 1)
      abort.abort()
      await job.catch(() => {})
      await waitUntil('it is over', async () => (await world.broker.status()).running === null)
      const reply = await world.broker.drain({ v: 1, drainId: 'a', epoch: 1, useSeq: 1 })
      expect(reply).toEqual({ v: 1, drained: false, useSeq: 1, idleMs: 0 })
    })
  })
})

describe('limits of the profile', () => {
  const limited = {
    memoryBytes: 1024 ** 3,
    openFiles: 99,
    processes: null,
    fileBytes: 10 * 512,
    cpuSeconds: 7,
  }
  let world: World | undefined
  afterEach(() => world?.end())

  test('cost no wrapper when there are none', () => {
    expect(limitWrapper(NO_LIMITS)).toBeNull()
  })

  for (const [name, prlimit] of [
    ['prlimit', '/usr/bin/prlimit'],
    ['ulimit', '/no/prlimit/here'],
    ['a forked interpreter', ''],
  ] as const) {
    const isForked = prlimit === ''
    const by = (spec: JobSpec) => (isForked ? becoming(spec) : spec)
    test.skipIf(name === 'prlimit' && !existsSync(prlimit))(`hold a job, by ${name}`, async () => {
      const limits = limitWrapper(limited, prlimit)
      world = await makeWorld({ limits, ...(isForked ? { preload: { limits: limited } } : {}) })
      await world.bind(1)
      if (!isForked) expect(limits?.name).toBe(name)
      const { stdout, preload } = resultOf(
        await world.run(by({ command: 'ulimit -v; ulimit -n; ulimit -f' })),
      )
      expect(stdout).toBe(`${1024 ** 2}\n99\n10\n`)
      expect(preload).toEqual(isForked ? { forked: true } : undefined)
      const cpu = await world.run(by({ command: ['sh', '-c', 'ulimit -S -t; exit 4'] }))
      expect(resultOf(cpu)).toMatchObject({ exitCode: 4, stdout: '7\n' })
      expect(problemOf(await world.run({ command: ['no-such-tool'] }))).toMatchObject({
        code: 'InvalidRequest',
        details: { command: 'no-such-tool' },
      })
      const cut = resultOf(await world.run(by({ command: 'head -c 9000 /dev/zero > big; wc -c < big' })))
      expect(Number(cut.stdout)).toBeLessThanOrEqual(10 * 512)
    })
  }
})
