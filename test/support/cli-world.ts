import { execFile } from 'node:child_process'
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { homedir, tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { CLI_MAIN, type Ended, type Running, startCli } from './cli.js'

/** What `firepool dev --json` says when it serves. */
export interface DevReady {
  address: string
  namespace: string
  uiUrl: string
  dir: string
  pools: { name: string; outcome: string }[]
}

/** A run without --caller leaves its pod to nobody, so it should not stay long; 'warm' is for those that come back. */
export const CLI_POOLS = `pools:
  - { name: cpu, budget: 8, standby: 1, keepAlive: 1s }
  - { name: warm, budget: 1, standby: 1, keepAlive: 10m }
`

/** The CLI in a shell command. */
export const CLI = `${process.execPath} ${CLI_MAIN}`

/** Nothing of the user's own state is seen or touched; `temporal` is found as usual. */
export function environmentIn(folder: string): NodeJS.ProcessEnv {
  const { PATH, HOME, FIREPOOL_CACHE_DIR } = process.env
  const temporary = join(folder, 'tmp')
  mkdirSync(temporary, { recursive: true })
  return {
    PATH: `${PATH}:${join(homedir(), 'go', 'bin')}`,
    HOME,
    XDG_STATE_HOME: join(folder, 'state'),
    TMPDIR: temporary,
    ...(FIREPOOL_CACHE_DIR ? { FIREPOOL_CACHE_DIR } : {}),
  }
}

/** `firepool dev` with the pools above, in a folder of its own, and the real CLI beside it. */
export class CliWorld {
  readonly env: NodeJS.ProcessEnv
  private files = 0
  private dev: Running | undefined
  private said: DevReady | undefined

  private constructor(readonly home: string) {
    this.env = environmentIn(home)
  }

  static async open(): Promise<CliWorld> {
    const world = new CliWorld(mkdtempSync(join(tmpdir(), 'firepool-cli-')))
    world.dev = startCli(['dev', '--json', '-f', world.poolFile(CLI_POOLS)], world.env)
    await world.dev.until('stdout', '\n')
    world.said = JSON.parse(world.dev.stdout()) as DevReady
    return world
  }

  get ready(): DevReady {
    return this.said!
  }

  async close(): Promise<void> {
    this.dev?.kill('SIGINT')
    await this.dev?.ended
    rmSync(this.home, { recursive: true, force: true })
  }

  /** @returns the path of a new file */
  poolFile(text: string): string {
    const file = join(this.home, `pools-${this.files++}.yaml`)
    writeFileSync(file, text)
    return file
  }

  start(args: readonly string[], input?: string | Buffer): Running {
    return startCli(args, this.env, input)
  }

  cli(args: readonly string[], input?: string | Buffer): Promise<Ended> {
    return this.start(args, input).ended
  }

  /** The CLI in a pipeline of a real shell, whose pipes are none of Node's. @returns its exit code, not the reader's */
  async shell(command: string, reader: string): Promise<{ code: number; stdout: string; stderr: string }> {
    const pipeline = `{ ${command}; echo "code $?" >&3; } 3>&2 | ${reader}`
    const options = { env: this.env, maxBuffer: 1e9 }
    const { stdout, stderr } = await promisify(execFile)('bash', ['-c', pipeline], options)
    const [, said, code] = /^([\s\S]*)code (\d+)\n$/.exec(stderr)!
    return { code: Number(code), stdout, stderr: said! }
  }
}
