#!/usr/bin/env node
import { readFileSync } from 'node:fs'
import { exitWithOutput } from '../exit.js'
import { type CommandEntry, createProgram } from './program.js'

/** Only the command that is asked for is loaded: Temporal's SDK takes a second, `--help` should not. */
const COMMANDS: readonly CommandEntry[] = [
  {
    name: 'demo',
    summary: 'two loops, with warm pods and without, side by side',
    load: async () => (await import('./commands/demo.js')).demoCommand(),
  },
  {
    name: 'dev',
    summary: 'a server with its UI, a worker and pools on this machine, until Ctrl-C',
    load: async () => (await import('./commands/dev.js')).devCommand(),
  },
  {
    name: 'worker',
    summary: 'only the worker, against a server that runs already',
    load: async () => (await import('./commands/worker.js')).workerCommand(),
  },
  {
    name: 'pool',
    summary: 'create, look at, change and delete pools',
    load: async () => (await import('./commands/pool.js')).poolCommand(),
  },
  {
    name: 'run',
    summary: 'run one job on a pod and print its output',
    load: async () => (await import('./commands/run.js')).runCommand(),
  },
  {
    name: 'simulate',
    summary: 'what a pool would do for a workload, on simulated time',
    load: async () => (await import('./commands/simulate.js')).simulateCommand(),
  },
]

const { version } = JSON.parse(readFileSync(new URL('../../package.json', import.meta.url), 'utf8')) as {
  version: string
}
const argv = process.argv.slice(2)
const program = await createProgram(version, COMMANDS, argv)
const exitCode = await program.run()
// Not left to the event loop: Temporal's runtime and open connections would keep it for a while.
await exitWithOutput(exitCode)
