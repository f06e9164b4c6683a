import { type ChildProcess, execFile, spawn } from 'node:child_process'
import { once } from 'node:events'
import { closeSync, openSync, readFileSync } from 'node:fs'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'

const run = promisify(execFile)

/** After SIGTERM; a database that has to write down what it holds takes a moment. */
const GRACE_MS = 10_000

/**
 * Reads which process groups there are, those to be killed at once apart. When its input ends without "done", our process is gone:
 * these get SIGKILL, the others SIGTERM, and SIGKILL after $2 tenths of a second; the script $3 is run, and the folder $1 is removed, again and again until what was killed
 * has let go of it.
 * It says `kill -s TERM` because Debian's sh refuses `kill -TERM -- -1234`.
 */
const SCRIPT = `
groups= killed=
while read -r word group; do
  case "$word" in
    keep) groups="$groups $group" ;;
    kill) killed="$killed $group" ;;
    forget)
      left=; for g in $groups; do [ "$g" = "$group" ] || left="$left $g"; done; groups=$left
      left=; for g in $killed; do [ "$g" = "$group" ] || left="$left $g"; done; killed=$left ;;
    done) exit 0 ;;
  esac
done
all() { for g in $groups; do kill -s "$1" -- "-$g" 2>/dev/null; done; }
for g in $killed; do kill -s KILL -- "-$g" 2>/dev/null; done
alive() { for g in $groups; do kill -s 0 -- "-$g" 2>/dev/null && return 0; done; return 1; }
all TERM
all CONT
n=0
while [ "$n" -lt "$2" ] && alive; do sleep 0.1; n=$((n+1)); done
all KILL
/bin/sh -c "$3"
n=0
while [ "$n" -lt 50 ] && { rm -rf -- "$1"; [ -e "$1" ]; }; do sleep 0.1; n=$((n+1)); done
`

/** A process that ends with us, and what it printed. */
export interface Part {
  pid: number
  /** resolves when the process ends, however it ends */
  exited: Promise<string>
  hasExited(): boolean
  /** what it has printed so far */
  log(): string
  /** sends a signal to its group, such as SIGSTOP */
  signal(signal: NodeJS.Signals): void
  /** sends the signal (later SIGKILL) to its group and waits for the end; default SIGTERM, and SIGKILL to what is disposable */
  stop(signal?: NodeJS.Signals): Promise<void>
}

export interface PartOptions {
  /** of its log, and for messages */
  name: string
  env: NodeJS.ProcessEnv
  /** default: ours */
  cwd?: string
  /** nothing of it is worth an orderly end, which takes some programs many seconds: it is killed */
  disposable?: boolean
  /** run as this user */
  as?: { uid: number; gid: number }
}

/**
 * A temporary folder and processes that do not outlive us: `close` ends them in order, and when we are killed a shell in
 * a session of its own does.
 */
export class Keeper {
  private readonly parts: GroupPart[] = []
  private readonly watchdog: ChildProcess

  private constructor(
    readonly folder: string,
    private readonly cleanUp: string,
  ) {
    const args = ['-c', SCRIPT, 'firepool-keeper', folder, String(GRACE_MS / 100), cleanUp]
    this.watchdog = spawn('/bin/sh', args, { stdio: ['pipe', 'ignore', 'ignore'], detached: true })
    this.watchdog.stdin!.on('error', () => {})
    this.watchdog.unref()
  }

  /**
   * Makes the folder `{temporary folder}/{prefix}...`.
   * @param cleanUp a shell script for what is neither a process nor in the folder; run when all processes have ended
   */
  static async open(prefix: string, cleanUp = ''): Promise<Keeper> {
    return new Keeper(await mkdtemp(join(tmpdir(), prefix)), cleanUp)
  }

  /** Starts a process with a group of its own, so that a Ctrl-C reaches only us and we stop all in order. */
  start(
    command: string,
    args: readonly string[],
    { name, env, cwd, as, disposable = false }: PartOptions,
  ): Part {
    const logFile = join(this.folder, `${name}.log`)
    const logFd = openSync(logFile, 'a', 0o600)
    let child: ChildProcess
    try {
      child = spawn(command, args, {
        stdio: ['ignore', logFd, logFd],
        detached: true,
        env,
        ...(cwd === undefined ? {} : { cwd }),
        ...as,
      })
    } finally {
      closeSync(logFd)
    }
    const part = new GroupPart(name, child, logFile, disposable ? 'SIGKILL' : 'SIGTERM')
    if (child.pid !== undefined) {
      this.tell(`${disposable ? 'kill' : 'keep'} ${child.pid}`)
      part.exited.then(() => this.tell(`forget ${child.pid}`))
    }
    this.parts.push(part)
    return part
  }

  /** The processes that run now, by name: whoever measures asks the system about them. */
  running(): Map<string, number> {
    const alive = this.parts.filter((part) => !part.hasExited())
    return new Map(alive.map(({ name, pid }) => [name, pid]))
  }

  /** Stops what still runs, the last one first, and removes the folder. */
  async close(): Promise<void> {
    for (const part of this.parts.reverse()) await part.stop()
    if (this.cleanUp) await run('/bin/sh', ['-c', this.cleanUp])
    await rm(this.folder, { recursive: true, force: true, maxRetries: 10 })
    // Its arguments name the folder: who looks for what is left would find it.
    this.watchdog.ref()
    const ended = this.watchdog.exitCode === null ? once(this.watchdog, 'exit') : undefined
    this.watchdog.stdin!.end('done\n')
    await ended
  }

  private tell(order: string): void {
    this.watchdog.stdin!.write(`${order}\n`)
  }
}

class GroupPart implements Part {
  readonly pid: number
  readonly exited: Promise<string>
  private over = false

  constructor(
    readonly name: string,
    private readonly child: ChildProcess,
    private readonly logFile: string,
    private readonly end: NodeJS.Signals,
  ) {
    this.pid = child.pid ?? -1
    this.exited = new Promise<string>((resolve) => {
      child.once('error', (error) => resolve(error.message))
      child.once('exit', (code, signal) => resolve(signal === null ? `exit code ${code}` : signal))
    }).then((how) => {
      this.over = true
      return how
    })
  }

  hasExited(): boolean {
    return this.over
  }

  log(): string {
    return readFileSync(this.logFile, 'utf8')
  }

  async stop(signal = this.end): Promise<void> {
    if (this.child.exitCode !== null || this.child.signalCode !== null || this.pid < 0) return
    this.signal(signal)
    // Who was stopped by SIGSTOP hears of nothing else.
    this.signal('SIGCONT')
    const killer = setTimeout(() => this.signal('SIGKILL'), GRACE_MS)
    await this.exited
    clearTimeout(killer)
  }

  signal(signal: NodeJS.Signals): void {
    // It never started: there is no group, and -(-1) would be somebody else's process.
    if (this.pid < 0) return
    try {
      process.kill(-this.pid, signal)
    } catch {
      // It ended meanwhile.
    }
  }
}
