import { type ChildProcess, spawn } from 'node:child_process'
import { existsSync, mkdirSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { HAS_PROC } from '../local/process.js'
import { forceEnd } from './force.js'

let dir: string
const children: ChildProcess[] = []
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'firepool-force-'))
})
afterEach(() => {
  for (const child of children.splice(0)) child.kill('SIGKILL')
  rmSync(dir, { recursive: true, force: true })
})

function start(env: NodeJS.ProcessEnv) {
  const child = spawn('sleep', ['60'], { env: { PATH: process.env.PATH, ...env }, detached: true })
  children.push(child)
  return {
    child,
    ended: new Promise<string | null>((done) => child.once('exit', (_, signal) => done(signal))),
  }
}

test.skipIf(!HAS_PROC)(
  'a forced end kills the server and the pods of its own folder, no others',
  async () => {
    mkdirSync(join(dir, 'pods'))
    const server = start({})
    const pod = start({ FIREPOOL_POD: 'a', FIREPOOL_POD_DIR: `${dir}/pods/a/run-1` })
    const otherPod = start({ FIREPOOL_POD: 'a', FIREPOOL_POD_DIR: `${dir}-other/pods/a/run-1` })
    const noPod = start({ HOME: `${dir}/pods` })
    forceEnd({ dir, serverPid: server.child.pid })
    expect(await Promise.all([server.ended, pod.ended])).toEqual(['SIGKILL', 'SIGKILL'])
    expect(existsSync(dir)).toBe(false)
    for (const { child } of [otherPod, noPod])
      expect([child.exitCode, child.signalCode]).toEqual([null, null])
    forceEnd({ dir, serverPid: server.child.pid })
  },
)

test('before anything was made there is nothing to kill', () => {
  forceEnd({})
})
