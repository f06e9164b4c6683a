import { execFileSync, spawnSync } from 'node:child_process'
import { chmodSync, existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join, relative } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import type { ObservedPod } from '../contract/index.js'
import { listed, marked, order, podName, readyAddress, sh, World, waitUntil } from './pods.fixture.js'
import { identify, isAlive } from './process.js'

let world: World

beforeEach(() => {
  world = new World()
})

afterEach(() => world.end())

/** Starts a process in the pod that has left its parents and its session; gives its pid. */
async function escapee(address: string, command = 'sleep 600'): Promise<number> {
  await sh(address, `(setsid sh -c 'echo $$ > escaped; exec ${command}' >/dev/null 2>&1 &)`)
  const text = await waitUntil('the escapee says its pid', () => sh(address, 'cat escaped 2>/dev/null'))
  return Number(text)
}

function runnerPid(pod: string): number {
  return JSON.parse(readFileSync(join(world.dir, 'pods', pod, 'pod.json'), 'utf8')).runner.pid
}

describe('remove', () => {
  test('ends a process that left its parents and its session', async () => {
    const backend = world.open()
    const pod = podName()
    await backend.create([order(pod)])
    const pid = await escapee(await readyAddress(backend, pod))
    expect(marked(pod)).toContain(pid)
    await backend.remove([pod])
    expect(world.leftovers(pod)).toEqual([])
    expect(existsSync(`/proc/${pid}/exe`)).toBe(false)
  })

  test('ends a process that dropped its environment while its parent runs', async () => {
    const backend = world.open()
    const pod = podName()
    await backend.create([order(pod)])
    const address = await readyAddress(backend, pod)
    void sh(
      address,
      `env -i setsid sh -c 'echo $$ > ${world.runFolder(pod)}/work/escaped; sleep 600; :' ; :`,
    ).catch(() => {})
    const pid = Number(await waitUntil('its pid', () => sh(address, 'cat escaped 2>/dev/null')))
    expect(marked(pod)).not.toContain(pid)
    await backend.remove([pod])
    expect(existsSync(`/proc/${pid}/exe`)).toBe(false)
  })

  test('ends a runner that does not listen to SIGTERM', async () => {
    const backend = world.open()
    const pod = podName()
    await backend.create([order(pod, {}, { env: { IGNORE_TERM: '1' } })])
    await readyAddress(backend, pod)
    await Promise.all([backend.remove([pod]), backend.remove([pod]), world.open().remove([pod])])
    expect(world.leftovers(pod)).toEqual([])
  })

  test('does not touch a process that has the pid of a dead runner', async () => {
    const backend = world.open()
    const pod = podName()
    await backend.create([order(pod)])
    await readyAddress(backend, pod)
    backend.close()
    const innocent = world.start('sleep', ['600'])
    const file = join(world.dir, 'pods', pod, 'pod.json')
    const runner = runnerPid(pod)
    writeFileSync(file, readFileSync(file, 'utf8').replace(`"pid":${runner}`, `"pid":${innocent.pid}`))
    const other = world.open()
    expect((await listed(other, pod, 'failed')).reason).toBe('Exited')
    await other.remove([pod])
    expect(world.leftovers(pod)).toEqual([])
    expect(isAlive(identify(innocent.pid as number) as never)).toBe(true)
  })

  test('leaves a pod of the same name in another registry alone', async () => {
    const other = new World()
    try {
      const pod = podName()
      const [mine, theirs] = [world.open(), other.open()]
      await mine.create([order(pod)])
      await theirs.create([order(pod)])
      await readyAddress(mine, pod)
      const address = await readyAddress(theirs, pod)
      await mine.remove([pod])
      expect(existsSync(join(world.dir, 'pods', pod))).toBe(false)
      expect(await sh(address, 'echo here')).toBe('here\n')
    } finally {
      await other.end()
    }
  })

  test('of a pod whose folder was deleted by hand still ends its processes', async () => {
    const backend = world.open()
    const pod = podName()
    await backend.create([order(pod)])
    await readyAddress(backend, pod)
    execFileSync('rm', ['-rf', join(world.dir, 'pods', pod)])
    await backend.remove([pod])
    expect(world.leftovers(pod)).toEqual([])
  })

  test('removes many at once, and the name can be used again', async () => {
    const backend = world.open()
    const pods = Array.from({ length: 12 }, () => podName())
    await backend.create(pods.map((pod) => order(pod)))
    for (const pod of pods.slice(0, 6)) await readyAddress(backend, pod)
    await backend.remove(pods)
    for (const pod of pods) expect(world.leftovers(pod)).toEqual([])
    await backend.create([order(pods[0] as string)])
    await readyAddress(backend, pods[0] as string)
  })

  test('deletes read-only folders and paths of any length, also without being root', async () => {
    const folder = join(world.dir, '..', 'delete')
    const tree = join(folder, 'pod')
    mkdirSync(join(tree, 'closed', 'inner'), { recursive: true })
    writeFileSync(join(tree, 'closed', 'inner', 'file'), 'x')
    const deep =
      'for (let n = 0; n < 30; n++) { fs.mkdirSync("d".repeat(200)); process.chdir("d".repeat(200)) }'
    execFileSync(process.execPath, ['-e', deep], { cwd: tree })
    const module = join(world.compiled(), 'local', 'ending.js')
    execFileSync('chmod', ['a+rx', join(world.dir, '..')])
    execFileSync('chmod', ['-R', 'a+rX', world.compiled()])
    const asNobody = process.getuid?.() === 0 ? { uid: 65_534, gid: 65_534 } : {}
    if (asNobody.uid) execFileSync('chown', ['-R', '65534:65534', folder])
    chmodSync(join(tree, 'closed', 'inner'), 0o555)
    chmodSync(join(tree, 'closed'), 0o000)
    const code = `import(${JSON.stringify(module)}).then((m) => m.deleteFolder(${JSON.stringify(tree)}))`
    const done = spawnSync(process.execPath, ['-e', code], { ...asNobody, encoding: 'utf8' })
    expect(done.stderr).toBe('')
    expect(existsSync(tree)).toBe(false)
  })
})

describe('a pod fails', () => {
  test('when its runner is killed; what it ran has ended by the time that is told', async () => {
    const backend = world.open()
    const pod = podName()
    await backend.create([order(pod)])
    const pid = await escapee(await readyAddress(backend, pod))
    const seen: ObservedPod[] = []
    let leftWhenTold: number[] | undefined
    const unwatch = backend.watch('cpu', (change) => {
      seen.push(change)
      if (change.phase === 'failed') leftWhenTold = marked(pod)
    })
    await waitUntil('the watch shows it', () => seen.length > 0)
    process.kill(runnerPid(pod), 'SIGKILL')
    await waitUntil('the watch says failed', () => leftWhenTold)
    unwatch()
    expect(leftWhenTold).toEqual([])
    expect(existsSync(`/proc/${pid}/exe`)).toBe(false)
    expect(seen.map((change) => change.phase)).toEqual(['ready', 'failed'])
    expect(seen[1]).toMatchObject({ reason: 'Exited', generation: 1 })
    expect(seen[1]?.message).toMatch(/SIGKILL.*end of its log: stand-in of/)
    // Every worker tells the same story, and a failed pod stays registered until it is removed.
    expect(await world.open().list('cpu')).toEqual([{ ...seen[1] }])
    expect(await backend.create([order(pod)])).toEqual([{ pod }])
    expect((await backend.list('cpu'))[0]?.phase).toBe('failed')
  })

  test('with the exit code, when its program ends before it is ready', async () => {
    const program = join(world.dir, '..', 'broken.mjs')
    // The path may be relative to the worker's folder; the runner starts in another one.
    const broken = relative(process.cwd(), program)
    writeFileSync(program, 'console.error("no such module"); process.exit(7)')
    const backend = world.open(broken)
    const pod = podName()
    await backend.create([order(pod)])
    const failed = await listed(backend, pod, 'failed')
    expect(failed.reason).toBe('Exited')
    expect(failed.message).toBe('the runner ended with exit code 7; end of its log: no such module')
  })

  test('with the reason that the runner gives, when prepare fails', async () => {
    const backend = world.open()
    const pod = podName()
    await backend.create([
      order(pod, {}, { prepare: ['sh', '-c', 'sleep 600 >/dev/null 2>&1 & echo broken >&2; exit 3'] }),
    ])
    const failed = await listed(backend, pod, 'failed')
    expect(failed).toMatchObject({ reason: 'PrepareFailed', message: 'prepare ended with 3: broken\n' })
    expect(marked(pod)).toEqual([])
  })

  test('when it is not ready in time: it is killed first', async () => {
    const backend = world.open()
    const pod = podName()
    const seen: ObservedPod[] = []
    backend.watch('cpu', (change) => seen.push(change))
    await backend.create([order(pod, { startTimeoutMs: 300 }, { prepare: ['sleep', '600'] })])
    await waitUntil('the watch says failed', () => seen.some((change) => change.phase === 'failed'))
    expect(marked(pod)).toEqual([])
    expect(seen.map((change) => change.phase)).toEqual(['starting', 'failed'])
    expect(seen[1]).toMatchObject({ reason: 'StartTimeout' })
    expect(seen[1]?.message).toContain('not ready within 300 ms')
  })

  test('also in the eyes of a worker that adopted it, and while its parent does not reap it', async () => {
    const [orphan, zombie] = [podName(), podName()]
    const [dead, stopped] = [
      await world.otherWorker([order(orphan)]),
      await world.otherWorker([order(zombie)]),
    ]
    await Promise.all([dead.go(), stopped.go()])
    const mine = world.open()
    const phases = new Map<string, string[]>([
      [orphan, []],
      [zombie, []],
    ])
    mine.watch('cpu', (change) => phases.get(change.pod)?.push(change.phase))
    await waitUntil('both are ready', () => [...phases.values()].every((told) => told.includes('ready')))
    await dead.die()
    stopped.signal('SIGSTOP')
    const pids = [runnerPid(orphan), runnerPid(zombie)]
    for (const pid of pids) process.kill(pid, 'SIGKILL')
    await waitUntil('both failed', () => [...phases.values()].every((told) => told.includes('failed')))
    expect(readFileSync(`/proc/${pids[1]}/stat`, 'utf8')).toContain(') Z ')
    expect((await mine.list('cpu')).map((pod) => pod.reason)).toEqual(['Exited', 'Exited'])
    await mine.remove([orphan, zombie])
    expect([...world.leftovers(orphan), ...world.leftovers(zombie)]).toEqual([])
  })
})

describe('watch', () => {
  test('tells what is there first, then each change once, then gone once', async () => {
    const [maker, watcher] = [world.open(), world.open()]
    const [old, young, other] = [podName(), podName(), podName()]
    await maker.create([order(old), order(other, { pool: 'other' })])
    await readyAddress(maker, old)
    const seen: string[] = []
    const unwatch = watcher.watch('cpu', ({ pod, phase }) =>
      seen.push(`${pod === old ? 'old' : 'young'} ${phase}`),
    )
    expect(seen).toEqual([])
    await waitUntil('old is told', () => seen.length === 1)
    await maker.create([order(young)])
    await waitUntil('young is ready', () => seen.includes('young ready'))
    await maker.remove([old])
    await waitUntil('old is gone', () => seen.includes('old gone'))
    const expected = ['old ready', 'young starting', 'young ready', 'old gone']
    // The watcher is another worker: it may see young only when that is ready already.
    expect(expected).toEqual(expect.arrayContaining(seen))
    expect(new Set(seen).size).toBe(seen.length)
    unwatch()
    unwatch()
    await maker.remove([young])
    await sleep(300)
    expect(seen).not.toContain('young gone')
  })

  test('says gone, not failed, of a pod that is removed, whoever removes it', async () => {
    const [mine, remover] = [world.open(), world.open()]
    const pods = [podName(), podName()] as const
    await mine.create(pods.map((pod) => order(pod)))
    const phases = new Map<string, string[]>(pods.map((pod) => [pod, []]))
    mine.watch('cpu', (change) => phases.get(change.pod)?.push(change.phase))
    await waitUntil('both are ready', () => [...phases.values()].every((told) => told.includes('ready')))
    await Promise.all([mine.remove([pods[0]]), remover.remove([pods[1]])])
    await waitUntil('both are gone', () => [...phases.values()].every((told) => told.includes('gone')))
    for (const told of phases.values()) expect(told).toEqual(['starting', 'ready', 'gone'])
  })

  test('a callback that throws does not stop the others, and two watches hear the same', async () => {
    const backend = world.open()
    const pod = podName()
    const [first, second]: [string[], string[]] = [[], []]
    backend.watch('cpu', () => {
      throw new Error('a bug of the callee')
    })
    backend.watch('cpu', ({ phase }) => first.push(phase))
    await backend.create([order(pod)])
    await waitUntil('ready', () => first.includes('ready'))
    backend.watch('cpu', ({ phase }) => second.push(phase))
    await waitUntil('told', () => second.length > 0)
    expect(second).toEqual(['ready'])
    await backend.remove([pod])
    await waitUntil('gone', () => first.includes('gone') && second.includes('gone'))
  })
})
