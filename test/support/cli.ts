import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { readdirSync, readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { waitUntil } from './world.js'

/** Path of the CLI's program. */
export const CLI_MAIN = fileURLToPath(new URL('../../dist/cli/main.js', import.meta.url))

export interface Ended {
  code: number | null
  signal: NodeJS.Signals | null
  stdout: Buffer
  stderr: string
  /** both streams, piece by piece as they came */
  pieces: { stream: 'stdout' | 'stderr'; text: string }[]
}

export interface Running {
  process: ChildProcess
  /** what has come so far */
  stdout(): string
  stderr(): string
  /** resolves when the stream holds the text */
  until(stream: 'stdout' | 'stderr', text: string | RegExp): Promise<void>
  kill(signal: NodeJS.Signals): void
  ended: Promise<Ended>
}

/** The real CLI as a process of its own. Standard input is what is given, else closed. */
export function startCli(args: readonly string[], env: NodeJS.ProcessEnv, input?: string | Buffer): Running {
  return startScript(CLI_MAIN, args, env, input)
}

/** A JavaScript file as a process of its own. */
export function startScript(
  file: string,
  args: readonly string[],
  env: NodeJS.ProcessEnv,
  input?: string | Buffer,
): Running {
  const child = spawn(process.execPath, [file, ...args], {
    env,
    stdio: [input === undefined ? 'ignore' : 'pipe', 'pipe', 'pipe'],
  })
  if (input !== undefined) {
    // It may end without reading all of it.
    child.stdin!.on('error', () => {})
    child.stdin!.end(input)
  }
  const out: Record<'stdout' | 'stderr', Buffer[]> = { stdout: [], stderr: [] }
  const pieces: Ended['pieces'] = []
  for (const stream of ['stdout', 'stderr'] as const) {
    child[stream]!.on('data', (bytes: Buffer) => {
      out[stream].push(bytes)
      pieces.push({ stream, text: bytes.toString() })
    })
  }
  const text = (stream: 'stdout' | 'stderr') => Buffer.concat(out[stream]).toString()
  let over = false
  const ended = once(child, 'close').then(([code, signal]): Ended => {
    over = true
    return { code, signal, stdout: Buffer.concat(out.stdout), stderr: text('stderr'), pieces }
  })
  return {
    process: child,
    stdout: () => text('stdout'),
    stderr: () => text('stderr'),
    async until(stream, wanted) {
      await waitUntil(`${args.join(' ')} prints ${wanted}`, () => {
        const so = text(stream)
        if (typeof wanted === 'string' ? so.includes(wanted) : wanted.test(so)) return true
        if (over) throw new Error(`it ended without; ${text('stdout')}${text('stderr')}`)
        return false
      })
    },
    kill: (signal) => void child.kill(signal),
    ended,
  }
}

/** Processes of this machine whose command line or environment holds a text. */
export function processesWith(text: string): number[] {
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name) && Number(name) !== process.pid)
    .filter((pid) =>
      ['cmdline', 'environ'].some((file) => readIfThere(`/proc/${pid}/${file}`).includes(text)),
    )
    .map(Number)
}

function readIfThere(path: string): string {
  try {
    return readFileSync(path, 'latin1')
  } catch {
    return ''
  }
}
