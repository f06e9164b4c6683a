import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { JobResult, JobSpec } from '../../src/contract/index.js'
import { createRunnerClient, jobDigest } from '../../src/runner/client.js'
import { compileSources, type RunnerProcess, resultOf, startProcess } from '../../src/runner/world.fixture.js'
import { pythonWith } from '../support/python.js'

/** A pod that has preloaded the real numpy, whose libraries start threads and whose state a fork copies. */

const found = await pythonWith('numpy')
const skip = 'skip' in found ? found.skip : undefined
if (skip !== undefined) console.log(`jobs with a preloaded numpy are not tested: ${skip}`)
const python = 'python' in found ? found.python : ''

describe.skipIf(skip !== undefined)('with numpy preloaded', () => {
  let dir: string
  let compiled: { dir: string; remove: () => void }
  let runner: RunnerProcess
  let run: (spec: JobSpec) => Promise<JobResult>

  beforeAll(async () => {
    dir = mkdtempSync(join(tmpdir(), 'firepool-numpy-'))
    compiled = await compileSources(['src/runner/main.ts'])
    runner = startProcess(compiled.dir, join(dir, 'pod'), {
      profile: { preload: { python, imports: ['numpy', 'numpy.random'], seeds: [] } },
      env: { FIREPOOL_POD: 'numpy' },
    })
    const { address, incarnation } = await runner.ready()
    const broker = createRunnerClient(address, () => runner.sign('numpy', 'broker', 0, ''))
    await broker.bind({ v: 1, epoch: 1, leaseId: 'l', ownerHash: 'o', incarnation })
    const lease = createRunnerClient(address, () => runner.sign('numpy', 'lease', 1, 'l'))
    let jobs = 0
    run = async (spec) =>
      resultOf(await lease.jobs({ v: 1, jobId: `s/${++jobs}`, digest: jobDigest(spec), epoch: 1, spec }))
  })
  afterAll(async () => {
    runner?.kill('SIGTERM')
    await runner?.exit
    compiled?.remove()
    rmSync(dir, { recursive: true, force: true })
  })

  const job = (code: string, env: Record<string, string> = {}): JobSpec => ({
    command: [python, '-c', code],
    env,
  })

  test('two jobs do not draw the same numbers', async () => {
    const draw = job('import numpy; print(*numpy.random.random(3), *numpy.random.default_rng().random(3))')
    const drawn = [await run(draw), await run(draw)]
    for (const { preload } of drawn) expect(preload).toEqual({ forked: true })
    expect(new Set(drawn.flatMap(({ stdout }) => stdout.trim().split(' '))).size).toBe(12)
  })

  test('a job has the threads that its environment says, though numpy was imported with one', async () => {
    const count = `
import ctypes, numpy, os
path = next(line.split()[-1] for line in open('/proc/self/maps') if 'openblas' in line)
library = ctypes.CDLL(path)
names = ['scipy_openblas_get_num_threads64_', 'openblas_get_num_threads64_', 'openblas_get_num_threads']
threads = next(getattr(library, name) for name in names if hasattr(library, name))()
a = numpy.ones((200, 200))
assert (a @ a)[0, 0] == 200
print(threads, len(os.sched_getaffinity(0)), os.environ.get('OPENBLAS_NUM_THREADS'))`
    const [threads, processors, variable] = (await run(job(count))).stdout.trim().split(' ')
    expect([threads, variable]).toEqual([processors, 'None'])
    const one = await run(job(count, { OMP_NUM_THREADS: '1' }))
    expect(one).toMatchObject({ stdout: `1 ${processors} None\n`, preload: { forked: true } })
    expect((await run(job(count, { OPENBLAS_NUM_THREADS: '1' }))).stdout).toBe(`1 ${processors} 1\n`)
  })
})
