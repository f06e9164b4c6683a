import { type ChildProcess, execFileSync, spawn } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { expect, test } from 'vitest'
import { REAPING, RUNNER_COMMAND } from './runner-command.js'

/** As process 1 of a pid namespace of its own, as in a container. */
const AS_FIRST = ['--pid', '--fork', '--mount-proc', '--kill-child', '/bin/sh', '-c', REAPING]

function canUnshare(): boolean {
  try {
    execFileSync('unshare', [...AS_FIRST, 'true'], { stdio: 'ignore' })
    return true
  } catch {
    console.log(
      'the runner as process 1 is not tested: this needs unshare and the right to make a pid namespace',
    )
    return false
  }
}
const isPossible = canUnshare()

/** A program in place of the runner, run by this node. */
function start(script: string): { child: ChildProcess; output: () => string; exit: Promise<unknown[]> } {
  const child = spawn('unshare', [...AS_FIRST, process.execPath, '-e', script], {
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  let output = ''
  child.stdout.on('data', (chunk) => {
    output += chunk
  })
  return {
    child,
    output: () => output,
    exit: new Promise((resolve) => child.on('close', (...how) => resolve(how))),
  }
}

/** Leaves processes that outlive their parents, and counts zombies until there is none, at most for a while. */
const LEAVE = `
const { execSync } = require('node:child_process')
const { readdirSync, readFileSync } = require('node:fs')
const states = () => readdirSync('/proc').filter((name) => /^[0-9]+$/.test(name)).map((pid) => {
  try { return readFileSync('/proc/' + pid + '/stat', 'latin1').split(') ')[1][0] } catch { return 'gone' }
})
execSync('for n in 1 2 3; do (setsid sleep 0.05 &); done')
let looks = 0
const timer = setInterval(() => {
  const left = states().filter((state) => state !== 'gone').length
  if (left > 2 && ++looks < 200) return
  clearInterval(timer)
  console.log(process.pid, left)
  process.exitCode = 7
}, 20)`

test.skipIf(!isPossible)(
  "what outlives its parent is waited for: no zombie stays, and the exit code is the runner's",
  async () => {
    const { output, exit } = start(LEAVE)
    expect(await exit).toEqual([7, null])
    // The shell and the runner, and nothing else.
    expect(output()).toBe('2 2\n')
  },
)

test.skipIf(!isPossible)('SIGTERM reaches the runner, which takes its time to end', async () => {
  const { child, output, exit } = start(
    `process.on('SIGTERM', () => setTimeout(() => { console.log('done'); process.exit(3) }, 300)); setInterval(() => {}, 1000); console.log('up')`,
  )
  await new Promise<void>((resolve) => child.stdout!.once('data', () => resolve()))
  const [first] = execFileSync('ps', ['-o', 'pid=', '--ppid', String(child.pid)], { encoding: 'utf8' })
    .trim()
    .split('\n')
  process.kill(Number(first), 'SIGTERM')
  expect(await exit).toEqual([3, null])
  expect(output()).toBe('up\ndone\n')
})

test('where it is not process 1 it becomes the runner', () => {
  const script =
    'console.log(require("node:fs").readFileSync("/proc/" + process.ppid + "/comm", "utf8"), process.argv[1])'
  const output = execFileSync('/bin/sh', ['-c', REAPING, process.execPath, '-e', script, 'x'], {
    encoding: 'utf8',
  })
  expect(output).not.toContain('sh\n')
  expect(output).toContain(' x\n')
})

test.each(['cpu', 'cuda'])('the image of %s.Dockerfile runs the runner so by itself', (name) => {
  const text = readFileSync(
    new URL(`../../deploy/kubernetes/images/${name}.Dockerfile`, import.meta.url),
    'utf8',
  )
  const [, command] = /^CMD (.*)$/m.exec(text)!
  expect(JSON.parse(command!)).toEqual(RUNNER_COMMAND)
})
