import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import type { JobSpec, PreloadStatus } from '../contract/index.js'
import { descendants, markedPids } from './process-tree.js'
import { makeWorld, PYTHON, problemOf, resultOf, type World, waitUntil } from './world.fixture.js'
import type { ZygoteOptions } from './zygote.js'

/** Jobs that a real Python interpreter forks. That they are jobs like others is in jobs.test.ts. */

let dir: string
const worlds: World[] = []
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'firepool-modules-'))
})
afterEach(async () => {
  for (const world of worlds.splice(0)) await world.end()
  rmSync(dir, { recursive: true, force: true })
})

/** A pod whose interpreter has preloaded modules of these texts. */
async function pod(modules: Record<string, string>, options: Partial<ZygoteOptions> = {}) {
  for (const [name, text] of Object.entries(modules)) writeFileSync(join(dir, `${name}.py`), text)
  const preload = { python: PYTHON, imports: ['json', ...Object.keys(modules)], seeds: [] }
  const world = await makeWorld({
    env: { PYTHONPATH: dir, PYTHONDONTWRITEBYTECODE: '1' },
    preload: { preload, ...options },
  })
  worlds.push(world)
  await world.bind(1)
  return world
}

const python = (code: string, ...args: string[]): JobSpec => ({ command: [PYTHON, '-c', code, ...args] })
const run = async (world: World, spec: JobSpec) => resultOf(await world.run(spec))
const statusOf = async (world: World) => (await world.broker.status()).preload as PreloadStatus
const marked = (world: World) => markedPids({ env: { FIREPOOL_POD: world.pod }, epochMax: 99 })
/** By its parent and its command: who is not root may not read its environment. */
const zygotePids = () =>
  descendants(process.pid)
    .map(({ pid }) => pid)
    .filter((pid) => read(pid, 'cmdline').includes('zygote.py') && parentOf(pid) === process.pid)
/** Children of the interpreter: while no job runs, what waits for the next one. */
const forkedPids = () =>
  zygotePids().flatMap((zygote) =>
    descendants(zygote)
      .map(({ pid }) => pid)
      .filter((pid) => parentOf(pid) === zygote),
  )
/** Whether it waits for what it is to do; a process that the interpreter only tries to fork never does. */
const isWaiting = (pid: number) =>
  read(pid, 'syscall').startsWith('45 ') || read(pid, 'wchan').includes('recv')
/** @param other than this one */
const waiting = (other?: number) =>
  waitUntil('a process waits for the next job', () =>
    forkedPids().find((pid) => pid !== other && isWaiting(pid)),
  )
/** It may hang on its way there. */
const forked = () => waitUntil('a process is forked for the next job', () => forkedPids()[0])
const parentOf = (pid: number) => Number(read(pid, 'stat').split(') ').at(-1)?.split(' ')[1])

/** A file that the kernel has of a process; empty when that has ended. */
function read(pid: number, name: string): string {
  try {
    return readFileSync(`/proc/${pid}/${name}`, 'latin1')
  } catch {
    return ''
  }
}

/** A text without where it was written: the pod's folder, and addresses in memory. */
const anywhere = (text: string, { dir }: World) => text.replaceAll(dir, 'DIR').replace(/0x[0-9a-f]+/g, '0x')

/** What a program can see of how it was started. */
const REPORT = `
import json, os, resource, signal, sys
main = sys.modules['__main__']
names = ['__name__', '__doc__', '__package__', '__spec__', '__file__', '__cached__']
print(json.dumps({
  'argv': sys.argv, 'orig_argv': sys.orig_argv, 'path': sys.path, 'flags': str(sys.flags), 'executable': sys.executable,
  'main': {name: repr(main.__dict__.get(name)) for name in names}, 'globals': main.__dict__ is globals(),
  'loader': type(main.__loader__).__name__ if not isinstance(main.__loader__, type) else main.__loader__.__name__,
  'cwd': os.getcwd(), 'env': {name: value for name, value in os.environ.items() if not name.startswith('FIREPOOL_')},
  'leader': [os.getsid(0) == os.getpid(), os.getpgrp() == os.getpid()],
  'signals': {s.name: str(signal.getsignal(s)) for s in signal.valid_signals() if isinstance(s, signal.Signals)},
  'blocked': list(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
  'umask': os.umask(0o22), 'nice': os.nice(0), 'files': resource.getrlimit(resource.RLIMIT_NOFILE),
  'streams': [(s.encoding, s.errors, s.line_buffering, s.isatty(), s.fileno()) for s in (sys.stdin, sys.stdout, sys.stderr)],
  'open': sorted(int(fd) for fd in os.listdir('/proc/self/fd') if os.path.exists('/proc/self/fd/' + fd) or int(fd) < 3),
  'stdin': sys.stdin.read(),
}, default=str))
`

describe('a job that is forked sees what one that is started anew sees', () => {
  let forked: World
  let anew: World
  beforeAll(async () => {
    const preload = { python: PYTHON, imports: ['json', 'random'], seeds: [] }
    forked = await makeWorld({ preload: { preload } })
    anew = await makeWorld()
    for (const world of [forked, anew]) await world.bind(1)
  })
  afterAll(async () => {
    await forked.end()
    await anew.end()
  })

  const files = [
    { path: 'sub/report.py', content: `"""doc"""${REPORT}` },
    { path: 'sub/parts/__init__.py', content: '' },
    { path: 'sub/parts/__main__.py', content: REPORT },
  ]
  const at = { cwd: 'sub', files, env: { MINE: 'a b', TZ: 'Asia/Tokyo' } }
  test.each<[string, JobSpec]>([
    ['a file', { ...at, command: [PYTHON, 'report.py', 'a', '-c'], stdin: 'häy' }],
    ['a file elsewhere', { files, command: [PYTHON, './sub/report.py'] }],
    ['a text', { ...at, command: [PYTHON, '-c', REPORT, 'x', '-m'], stdin: '' }],
    ['a module', { ...at, command: [PYTHON, '-m', 'parts', 'x'] }],
  ])('as %s', async (_, spec) => {
    const one = await run(forked, spec)
    const other = await run(anew, spec)
    expect(one.preload).toEqual({ forked: true })
    expect(other.preload).toBeUndefined()
    expect(one.stderr).toBe('')
    expect(JSON.parse(anywhere(one.stdout, forked))).toEqual(JSON.parse(anywhere(other.stdout, anew)))
  })

  test.each<[string, JobSpec]>([
    [
      'raises',
      { files: [{ path: 'x.py', content: 'def f():\n  return 1 / 0\nf()\n' }], command: [PYTHON, 'x.py'] },
    ],
    ['raises as a text', python('def f(): raise ValueError("x")\nf()')],
    ['is no Python', { files: [{ path: 'x.py', content: 'def f(:\n' }], command: [PYTHON, 'x.py'] }],
    ['does not exist', { command: [PYTHON, 'none.py'] }],
    ['is a module that does not exist', { command: [PYTHON, '-m', 'none'] }],
    ['exits with a number', python('import sys; print("x"); sys.exit(7)')],
    ['exits with a text', python('import sys; sys.exit("why")')],
    ['is interrupted', python('raise KeyboardInterrupt')],
    ['has its own hook', python('import sys; sys.excepthook = lambda *a: print(a[0], a[2]); raise OSError')],
    ['is ended by a signal', python('import os, signal; os.kill(os.getpid(), signal.SIGSEGV)')],
    ['has something to do at its end', python('import atexit; atexit.register(print, "end"); 1 / 0')],
    [
      'has a thread that goes on',
      python(
        'import threading, time\ndef f(): time.sleep(0.1); print("t")\nthreading.Thread(target=f).start()',
      ),
    ],
    [
      'starts others',
      python(
        'import multiprocessing as m\nif __name__ == "__main__":\n  with m.get_context("fork").Pool(2) as p: print(p.map(abs, [-1, -2]))',
      ),
    ],
  ])('and ends so when it %s', async (_, spec) => {
    const [one, other] = [await run(forked, spec), await run(anew, spec)]
    const seen = ({ exitCode, signal, stdout, stderr }: typeof one, world: World) => ({
      ends: { exitCode, signal },
      stdout: anywhere(stdout, world),
      stderr: anywhere(stderr, world),
    })
    expect(seen(one, forked)).toEqual(seen(other, anew))
  })
})

describe('the processes of a forked job', () => {
  /** An interpreter that forks twice, with no exec between: its environment is the one that its parent was started with. */
  const TWICE = `
import os, sys, time
if os.fork() == 0:
  os.setsid()
  if os.fork() == 0:
    os.close(1); os.close(2)
    open('left', 'w').close()
    time.sleep(600)
  os._exit(0)
while not os.path.exists('left'): time.sleep(0.01)
`
  test('are found by their epoch, though they never called exec, and a revoke ends them', async () => {
    const world = await pod({})
    await run(world, python(TWICE))
    expect(marked(world)).toHaveLength(1)
    const env = readFileSync(`/proc/${marked(world)[0]}/environ`, 'latin1').split('\0')
    expect(env.filter((pair) => /EPOCH|JOB_ID|ROOM/.test(pair)).sort()).toEqual([
      'FIREPOOL_EPOCH=1',
      'FIREPOOL_JOB_ID=sandbox/1',
    ])
    await world.bind(2)
    await world.broker.revoke(1)
    expect(marked(world)).toEqual([])
    expect(await run(world, python('print("next")'))).toMatchObject({
      stdout: 'next\n',
      preload: { forked: true },
    })
  })

  test('end with it when it is killed', async () => {
    const world = await pod({})
    const outcome = await world.run({
      ...python(`${TWICE}\nprint("began", flush=True)\ntime.sleep(600)`),
      timeout: 1_000,
    })
    expect(problemOf(outcome)).toMatchObject({ code: 'JobTimeout' })
    expect(problemOf(outcome).message).toContain('began')
    expect(marked(world)).toEqual([])
  })

  test('have their variables from after the fork, and what they print is theirs alone', async () => {
    const world = await pod({ noisy: 'import sys\nprint("imported", end="")\nsys.stderr.write("warned")' })
    const spec = { ...python('import os; print(os.environ["SECRET"])'), env: { SECRET: 's3cret' } }
    expect(await run(world, spec)).toMatchObject({ stdout: 's3cret\n', stderr: '' })
    const [zygote] = zygotePids()
    const environ = () => readFileSync(`/proc/${zygote}/environ`, 'latin1')
    if (process.getuid?.() === 0) expect(environ()).not.toContain('s3cret')
    else expect(environ).toThrow('EACCES')
    expect(await run(world, python('import os; print(os.environ.get("SECRET"))'))).toMatchObject({
      stdout: 'None\n',
    })
  })

  test('may be looked into, the interpreter may not', async () => {
    const dumpable = 'import ctypes\nvalue = ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)'
    const world = await pod({ dumpable })
    expect(
      (await run(world, python(`import dumpable\nprint(dumpable.value)\n${dumpable}\nprint(value)`))).stdout,
    ).toBe('0\n1\n')
  })
})

describe('two jobs that are forked from one state', () => {
  test('do not draw the same random numbers', async () => {
    const own = 'state = 1\ndef seed(n):\n  global state\n  state = n\ndef draw(): return state'
    const preload = { python: PYTHON, imports: ['random', 'own'], seeds: ['own:seed'] }
    const world = await pod({ own }, { preload })
    const draw = python('import own, random; print(random.random(), own.draw())')
    const drawn = [await run(world, draw), await run(world, draw), await run(world, draw)]
    expect(drawn.map(({ preload }) => preload)).toEqual([
      { forked: true },
      { forked: true },
      { forked: true },
    ])
    const numbers = drawn.flatMap(({ stdout }) => stdout.trim().split(' '))
    expect(new Set(numbers).size).toBe(6)
  })

  test('are not forked when a seed cannot be set', async () => {
    const preload = { python: PYTHON, imports: ['json'], seeds: ['json:seed'] }
    const world = await pod({}, { preload })
    const result = await run(world, python('print(1)'))
    expect(result).toMatchObject({ stdout: '1\n', preload: { forked: false } })
    expect(result.preload).toHaveProperty('why', expect.stringContaining('seeds: json:seed: AttributeError'))
  })
})

describe('a job is started anew, and says why,', () => {
  const anew = (why: string) => ({
    stdout: 'ran\n',
    preload: { forked: false, why: expect.stringContaining(why) },
  })
  const job = python('print("ran")')

  test('while a preloaded module has threads', async () => {
    const world = await pod({
      threads: `import threading, time, os\ndef f():\n  while not os.path.exists('${dir}/stop'): time.sleep(0.01)\nthreading.Thread(target=f, daemon=True).start()`,
    })
    expect(world.logged.join()).toContain('they have started 1 threads')
    expect(await run(world, job)).toMatchObject(anew('it has 2 threads'))
    expect(world.logged.join()).toContain(
      'job sandbox/1 is not forked from the preloaded interpreter: it has 2 threads',
    )
    expect(await statusOf(world)).toMatchObject({ state: 'ready', forked: 0, notForked: 1 })
    writeFileSync(join(dir, 'stop'), '')
    await waitUntil('a job is forked', async () => {
      const { stdout, preload } = await run(world, job)
      expect(stdout).toBe('ran\n')
      return preload?.forked
    })
  })

  test('when a preloaded module has opened a GPU', async () => {
    writeFileSync(join(dir, 'nvidia0'), '')
    const world = await pod({
      gpu: `import sys\nsys.modules['__main__'].DEVICE = '${dir}/nvidia'\nfile = open('${dir}/nvidia0')`,
    })
    const why = `a preloaded module has opened ${dir}/nvidia0`
    expect(await statusOf(world)).toMatchObject({ state: 'off', why })
    expect(await run(world, job)).toMatchObject(anew(why))
    await waitUntil('the interpreter is gone', () => zygotePids().length === 0)
  })

  test('when CUDA could not be used in a forked process', async () => {
    const world = await pod({
      torch: `import os, sys, types\nparent = os.getpid()\nsys.modules['torch.cuda'] = types.SimpleNamespace(_is_in_bad_fork=lambda: os.getpid() != parent)`,
    })
    expect(await run(world, job)).toMatchObject(anew('CUDA was initialised by a preloaded module'))
  })

  test('when its environment sets what is read when an interpreter starts', async () => {
    const world = await pod({})
    const spec = { ...job, env: { PYTHONHASHSEED: '0' } }
    expect(await run(world, spec)).toMatchObject(anew('its env sets PYTHONHASHSEED'))
    expect(await run(world, { ...job, env: { PYTHONPATH: dir } })).toMatchObject({
      preload: { forked: true },
    })
  })

  test('when a fork hangs, and the interpreter is started again', async () => {
    const world = await pod({ hang: HANG() }, { forkMs: 500 })
    const before = zygotePids()
    writeFileSync(join(dir, 'hang'), '')
    process.kill(await forked(), 'SIGKILL')
    await waitUntil('it is missed', () => forkedPids().length === 0)
    const spec = python('print("ran"); open("count", "a").write("x")')
    expect(await run(world, spec)).toMatchObject(anew('did not begin within 500 ms'))
    rmSync(join(dir, 'hang'))
    await waitUntil('another one is ready', async () => {
      const [zygote] = zygotePids()
      return zygote !== undefined && zygote !== before[0] && (await statusOf(world)).state === 'ready'
    })
    expect(await run(world, spec)).toMatchObject({ preload: { forked: true } })
    expect(world.read('count')).toBe('xx')
  })
})

describe('an interpreter that dies', () => {
  test('is started again, and fails no job that has not begun', async () => {
    const world = await pod({})
    for (let death = 0; death < 2; death++) {
      process.kill(zygotePids()[0]!, 'SIGKILL')
      expect(await run(world, python('print("ran")'))).toMatchObject({ exitCode: 0, stdout: 'ran\n' })
      await waitUntil('it is there again', async () => (await statusOf(world)).state === 'ready')
    }
    expect(world.logged.join()).toContain('was ended by SIGKILL')
    expect(await run(world, python(''))).toMatchObject({ preload: { forked: true } })
  })

  test('is missed at once, also when a module has started a process that holds its pipes', async () => {
    const daemon = 'import subprocess\nsubprocess.Popen(["sleep", "600"])'
    const world = await pod({ daemon })
    const job = world.run(python('import time; open("began", "w").close(); time.sleep(600)'))
    await waitUntil('it runs', () => marked(world).length > 0)
    process.kill(zygotePids()[0]!, 'SIGKILL')
    expect(problemOf(await job)).toMatchObject({ code: 'PodLost', details: { reason: 'PreloadLost' } })
  })

  test('is done without when it dies again and again', async () => {
    const world = await pod({})
    for (let death = 0; death < 3; death++) {
      const zygote = await waitUntil(
        'it is there',
        async () => (await statusOf(world)).state === 'ready' && zygotePids()[0],
      )
      process.kill(zygote, 'SIGKILL')
      await waitUntil('it is missed', async () => (await statusOf(world)).state !== 'ready')
    }
    expect(await statusOf(world)).toMatchObject({
      state: 'off',
      why: expect.stringContaining('3 times in a row'),
    })
    expect(await run(world, python('print("ran")'))).toMatchObject({
      stdout: 'ran\n',
      preload: { forked: false },
    })
  })

  test('takes with it the job that runs, which is PodLost: nobody could tell how it ends', async () => {
    const world = await pod({})
    const job = world.run(python('import time; open("began", "w").close(); time.sleep(600)'))
    await waitUntil('it runs', () => marked(world).length > 0)
    process.kill(zygotePids()[0]!, 'SIGKILL')
    expect(problemOf(await job)).toMatchObject({ code: 'PodLost', details: { reason: 'PreloadLost' } })
    expect(marked(world)).toEqual([])
  })
})

describe('a process that waits for the next job', () => {
  const PID = python('import os; print(os.getpid())')
  const COUNTED = python('import os; print(os.getpid()); open("count", "a").write("x")')

  test('is that job, and another one waits after it', async () => {
    const world = await pod({})
    const first = await waiting()
    expect(await run(world, PID)).toMatchObject({ stdout: `${first}\n`, preload: { forked: true } })
    const second = await waiting(first)
    expect(await run(world, PID)).toMatchObject({ stdout: `${second}\n`, preload: { forked: true } })
    expect(await statusOf(world)).toMatchObject({ forked: 2, notForked: 0 })
  })

  test('is of no job until then: what ends the processes of jobs does not end it', async () => {
    const world = await pod({})
    await run(world, python(''))
    const pid = await waiting()
    await world.bind(2)
    await world.broker.revoke(1)
    expect(marked(world)).toEqual([])
    expect(await run(world, PID)).toMatchObject({ stdout: `${pid}\n` })
  })

  test('may not be looked into until then', async () => {
    const dumpable = `
import ctypes, sys
main = sys.modules['__main__']
receive, seen = main.receive, []
def watched(*args):
  seen.append(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))
  return receive(*args)
main.receive = watched`
    const world = await pod({ dumpable })
    await waiting()
    // It waits for its job's length, for the job, and for the word to begin.
    expect((await run(world, python('import dumpable; print(dumpable.seen)'))).stdout).toBe('[0, 0, 1]\n')
  })

  test('takes files, time zone and modules as they are when its job comes', async () => {
    const world = await pod({ fresh: '' })
    const pid = await waiting()
    const code =
      'import fresh, late, os, time; print(os.getpid(), late.value, time.tzname[0], os.environ["MINE"], os.getcwd())'
    const files = [{ path: 'sub/late.py', content: 'value = 7' }]
    const spec = { ...python(code), cwd: 'sub', files, env: { TZ: 'Asia/Tokyo', MINE: 'x' } }
    expect((await run(world, spec)).stdout).toBe(`${pid} 7 JST x ${world.folders.work}/sub\n`)
  })

  test('ends when a job begins that is not forked: nothing waits beside a job', async () => {
    const world = await pod({})
    const pid = await waiting()
    const job = world.run({ command: 'until [ -e go ]; do sleep 0.01; done' })
    await waitUntil('it runs', () => marked(world).length > 0)
    await waitUntil('nothing waits', () => forkedPids().length === 0)
    await world.lease(1).putFile('go', Buffer.alloc(0))
    expect(resultOf(await job).exitCode).toBe(0)
    const next = await waiting(pid)
    expect((await run(world, PID)).stdout).toBe(`${next}\n`)
  })

  test('and dies is replaced when a job comes, which runs once', async () => {
    const world = await pod({})
    for (let death = 0; death < 3; death++) {
      process.kill(await waiting(), 'SIGKILL')
      expect(await run(world, COUNTED)).toMatchObject({ exitCode: 0, preload: { forked: true } })
    }
    expect(world.read('count')).toBe('xxx')
  })

  test('and hangs is replaced when a job comes, which runs once', async () => {
    const world = await pod({}, { forkMs: 500 })
    const zygotes = zygotePids()
    const pid = await waiting()
    process.kill(pid, 'SIGSTOP')
    const result = await run(world, COUNTED)
    expect(result).toMatchObject({ exitCode: 0, preload: { forked: true } })
    expect(result.stdout).not.toBe(`${pid}\n`)
    expect(world.read('count')).toBe('x')
    expect(world.logged.join()).toContain('the process that waited for the next job is of no use')
    expect(zygotePids()).toEqual(zygotes)
    await waitUntil('it is gone', () => read(pid, 'cmdline') === '')
  })

  test('ends with the interpreter, and the next interpreter forks another', async () => {
    const world = await pod({})
    const pid = await waiting()
    process.kill(zygotePids()[0]!, 'SIGKILL')
    const next = await waiting(pid)
    await waitUntil('it is gone', () => read(pid, 'cmdline') === '')
    expect((await run(world, PID)).stdout).toBe(`${next}\n`)
  })

  test('ends with a drain, and with the pod', async () => {
    const world = await pod({})
    const pid = await waiting()
    const { useSeq } = await world.broker.status()
    expect(await world.broker.drain({ v: 1, drainId: 'd', epoch: 1, useSeq })).toMatchObject({
      drained: true,
    })
    await waitUntil('it is gone', () => forkedPids().length === 0)
    const other = await pod({})
    const last = await waiting(pid)
    await other.end()
    await waitUntil('it is gone', () => read(last, 'cmdline') === '')
    worlds.pop()
  })
})

/** A module after whose import forked processes hang while there is a file of this name. */
const HANG = () =>
  `import os, time\ndef hang():\n  while os.path.exists('${dir}/hang'): time.sleep(0.01)\nos.register_at_fork(after_in_child=hang)`

test('a job that is ended while it is forked never begins', async () => {
  const world = await pod({ hang: HANG() })
  writeFileSync(join(dir, 'hang'), '')
  process.kill(await forked(), 'SIGKILL')
  await waitUntil('it is missed', () => forkedPids().length === 0)
  const job = world.run(python('open("began", "w")'), { jobId: 's/1' })
  await waitUntil('it is forked', async () => (await world.broker.status()).running)
  await world.broker.cancel('s/1')
  expect(problemOf(await job).code).toBe('Cancelled')
  rmSync(join(dir, 'hang'))
  expect(await run(world, python('print("next")'))).toMatchObject({ stdout: 'next\n' })
  expect(() => world.read('began')).toThrow('ENOENT')
})

test('the status of a pod says what is preloaded', async () => {
  const world = await pod({ mine: '' })
  expect(await statusOf(world)).toEqual({
    python: PYTHON,
    imports: ['json', 'mine'],
    state: 'ready',
    forked: 0,
    notForked: 0,
  })
  expect(world.logged).toEqual([`${PYTHON} has preloaded json, mine`])
})
