import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { startDelayMs } from '../start-delay.js'
import { loopbackAddress } from './launch.js'
import { listed, marked, order, podName, readyAddress, sh, World } from './pods.fixture.js'
import { Registry } from './registry.js'

let world: World

beforeEach(() => {
  world = new World()
})

afterEach(() => world.end())

describe('a pod', () => {
  test('is created, listed, served and removed, and leaves nothing', async () => {
    const backend = world.open()
    const pod = podName()
    expect(await backend.create([order(pod)])).toEqual([{ pod }])
    const seen = await listed(backend, pod, 'ready')
    expect(seen).toMatchObject({ pod, generation: 1, phase: 'ready', incarnation: /^i-/ })
    expect(seen.address).toMatch(/^http:\/\/127\.[1-9]\d*\.\d+\.\d+:\d+$/)
    expect(await sh(seen.address as string, 'echo hello')).toBe('hello\n')
    expect(await backend.list('another-pool')).toEqual([])
    await backend.remove([pod])
    expect(world.leftovers(pod)).toEqual([])
    expect(await backend.list('cpu')).toEqual([])
    await backend.remove([pod, 'never-was', '../../etc'])
  })

  test('sees nothing of the worker but an allow-list, and has a home and a work folder of its own', async () => {
    process.env.FIREPOOL_TEST_SECRET = 'do-not-leak'
    try {
      const backend = world.open()
      const pods = [podName(), podName()] as const
      await backend.create(pods.map((pod) => order(pod, {}, { env: { ADDED: 'yes' } })))
      const [first, second] = [await readyAddress(backend, pods[0]), await readyAddress(backend, pods[1])]
      const runner = await sh(first, `tr '\\0' '\\n' < /proc/$PPID/environ`)
      expect(runner).not.toContain('do-not-leak')
      const names = runner
        .split('\n')
        .filter(Boolean)
        .map((line) => line.split('=')[0] as string)
      const allowed = ['PATH', 'LANG', 'LANGUAGE', 'LC_ALL', 'LC_CTYPE', 'TZ', 'TZDIR']
      expect(names.filter((name) => !name.startsWith('FIREPOOL_') && !allowed.includes(name))).toEqual([])
      expect(await sh(first, 'echo $ADDED')).toBe('yes\n')
      await sh(first, 'echo mine > note; echo x > ~/note')
      expect(await sh(second, 'ls; ls ~')).toBe('')
      expect(await sh(first, 'cat note')).toBe('mine\n')
      expect(new URL(first).hostname).not.toBe(new URL(second).hostname)
    } finally {
      delete process.env.FIREPOOL_TEST_SECRET
    }
  })

  test.each([0, 2])(
    'of version %i of the contract is failed by name, and holds nothing any more',
    async (v) => {
      const backend = world.open()
      const pod = podName()
      await backend.create([order(pod, {}, { env: { SPEAKS: String(v) } })])
      const failed = await listed(backend, pod, 'failed')
      expect(failed.reason).toBe('ContractVersion')
      expect(failed.message).toMatch(new RegExp(`speaks version ${v} of the contract, this worker version 1`))
      expect(marked(pod)).toEqual([])
    },
  )

  test('leads a session of its own, and its output goes to a log in its folder', async () => {
    const backend = world.open()
    const pod = podName()
    await backend.create([order(pod)])
    const address = await readyAddress(backend, pod)
    const stat = await sh(address, 'cat /proc/$PPID/stat')
    const [group, session] = stat
      .slice(stat.lastIndexOf(')') + 2)
      .split(' ')
      .slice(2, 4)
    expect(group).toBe(session)
    expect(stat.startsWith(`${session} `)).toBe(true)
    expect(readFileSync(join(world.runFolder(pod), 'runner.log'), 'utf8')).toBe(`stand-in of ${pod}\n`)
  })

  test('has a start delay that its name decides, within the bounds of the profile', () => {
    const delay = { minMs: 100, maxMs: 300 }
    const delays = Array.from({ length: 500 }, (_, n) =>
      startDelayMs(order(`p-${n}`, {}, { startDelay: delay })),
    )
    expect(Math.min(...delays)).toBeGreaterThanOrEqual(100)
    expect(Math.min(...delays)).toBeLessThan(110)
    expect(Math.max(...delays)).toBeLessThanOrEqual(300)
    expect(Math.max(...delays)).toBeGreaterThan(290)
    expect(startDelayMs(order('p-1', {}, { startDelay: delay }))).toBe(delays[1])
    expect(startDelayMs(order('p-1'))).toBe(0)
    const addresses = Array.from({ length: 500 }, (_, n) => loopbackAddress(`p-${n}`))
    expect(new Set(addresses).size).toBeGreaterThan(495)
    for (const address of addresses) expect(address).toMatch(/^127\.([1-9]\d*)\.\d+\.([1-9]\d*)$/)
  })
})

describe('create', () => {
  test('of a pod that exists is success and starts nothing', async () => {
    const backend = world.open()
    const pod = podName()
    expect(await backend.create([order(pod), order(pod)])).toEqual([{ pod }, { pod }])
    const address = await readyAddress(backend, pod)
    expect(await world.open().create([order(pod)])).toEqual([{ pod }])
    expect(await readyAddress(backend, pod)).toBe(address)
    expect(marked(pod)).toHaveLength(1)
  })

  test('by several workers at once makes one pod of each name', async () => {
    const orders = Array.from({ length: 6 }, () => order(podName()))
    const workers = await Promise.all([world.otherWorker(orders), world.otherWorker(orders)])
    const mine = world.open()
    const results = await Promise.all([...workers.map((worker) => worker.go()), mine.create(orders)])
    for (const result of results) expect(result).toEqual(orders.map(({ pod }) => ({ pod })))
    for (const { pod } of orders) {
      await readyAddress(mine, pod)
      expect(marked(pod)).toHaveLength(1)
      expect(
        readdirSync(join(world.dir, 'pods', pod)).filter((name) => name.startsWith('run-')),
      ).toHaveLength(1)
    }
  })

  test('says by name what is wrong', async () => {
    const bad = ['', '..', 'a/b', 'Upper', 'a.b', 'x'.repeat(300)]
    const results = await world.open().create(bad.map((pod) => order(pod)))
    expect(results.map((result) => result.problem?.reason)).toEqual(bad.map(() => 'InvalidPodName'))
    const [missing] = await world.open('/nowhere/runner.js').create([order(podName())])
    expect(missing?.problem?.reason).toBe('RunnerMissing')
  })

  test('is not stopped by what a creator left that died half-way', async () => {
    const pod = podName()
    // A worker that died before it could register the runner that it had started.
    const dead = join(world.dir, 'pods', pod, 'run-1-00000000-1-0a0b0c0d')
    mkdirSync(dead, { recursive: true })
    const stray = world.start('sleep', ['600'], { FIREPOOL_POD: pod, FIREPOOL_POD_DIR: dead })
    const strayEnded = new Promise((resolve) => stray.once('exit', (_, signal) => resolve(signal)))
    const backend = world.open()
    expect(await backend.create([order(pod)])).toEqual([{ pod }])
    expect(await strayEnded).toBe('SIGKILL')
    await readyAddress(backend, pod)
    expect(existsSync(dead)).toBe(false)
    expect(marked(pod)).toHaveLength(1)
  })

  test('list clears half-made pods whose creator is dead, and leaves those alone that are being made', async () => {
    const [dead, making] = [podName(), podName()]
    const run = new Registry(world.dir).makeRun(making)
    mkdirSync(join(world.dir, 'pods', dead, 'run-1-00000000-1-0a0b0c0d', 'work'), { recursive: true })
    expect(await world.open().list('cpu')).toEqual([])
    expect(existsSync(join(world.dir, 'pods', dead))).toBe(false)
    expect(existsSync(join(world.dir, 'pods', making, run))).toBe(true)
  })
})

describe('several workers', () => {
  test('a pod outlives the worker that made it; another adopts it, serves it and removes it', async () => {
    const pod = podName()
    const worker = await world.otherWorker([order(pod)])
    await worker.go()
    const mine = world.open()
    const address = await readyAddress(mine, pod)
    await worker.die()
    expect(await sh(address, 'echo still here')).toBe('still here\n')
    expect((await mine.list('cpu')).map((item) => item.phase)).toEqual(['ready'])
    expect(await world.open().stopAll()).toBe(1)
    expect(world.leftovers(pod)).toEqual([])
  })

  test('stopAll takes one pool, or all', async () => {
    const backend = world.open()
    const [a, b, c] = [podName(), podName(), podName()]
    await backend.create([order(a), order(b, { pool: 'other' }), order(c)])
    expect(await backend.stopAll('other')).toBe(1)
    expect((await backend.list('cpu')).map((item) => item.pod).sort()).toEqual([a, c].sort())
    expect(await backend.stopAll()).toBe(2)
    expect(await backend.stopAll()).toBe(0)
  })

  test('what is broken or foreign in the registry does not hide the pods', async () => {
    const backend = world.open()
    const [good, broken, empty, foreign, wrongPid] = [podName(), podName(), podName(), podName(), podName()]
    await backend.create([order(good)])
    await readyAddress(backend, good)
    const pods = join(world.dir, 'pods')
    writeFileSync(join(pods, 'README'), 'a file')
    mkdirSync(join(pods, 'Not.A-Pod'))
    for (const [name, text] of [
      [broken, '{"v":1,'],
      [empty, ''],
      [foreign, '{"v":9,"order":null}'],
      [
        wrongPid,
        readFileSync(join(pods, good, 'pod.json'), 'utf8')
          .replaceAll(good, wrongPid)
          .replace(/"pid":\d+/, '"pid":-1'),
      ],
    ] as const) {
      mkdirSync(join(pods, name))
      writeFileSync(join(pods, name, 'pod.json'), text)
    }
    expect((await backend.list('cpu')).map((item) => item.pod)).toEqual([good])
    expect(await backend.create([order(broken)])).toEqual([{ pod: broken }])
    await readyAddress(backend, broken)
    await backend.remove([empty])
    expect(world.leftovers(empty)).toEqual([])
  })
})
