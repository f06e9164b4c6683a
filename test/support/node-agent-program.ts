import { execFileSync } from 'node:child_process'
import { request } from 'node:http'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'

/** The node agent as a program, on a node whose GPUs are files. */

const MODULE = fileURLToPath(new URL('../../node-agent', import.meta.url))

/** Whether there is Go to build it with; says so when there is none. */
export function canBuildNodeAgent(): boolean {
  try {
    execFileSync('go', ['version'], { stdio: 'ignore' })
    return true
  } catch {
    console.log('what needs the node agent is not tested: there is no go on the PATH to build it')
    return false
  }
}

/** @returns the program, in the folder */
export function buildNodeAgent(folder: string): string {
  const program = join(folder, 'firepool-node')
  execFileSync('go', ['build', '-o', program, './cmd/firepool-node'], {
    cwd: MODULE,
    env: { ...process.env, CGO_ENABLED: '0' }, // NVML is not needed here
    stdio: 'pipe',
  })
  return program
}

/** Its arguments for a node below the folder: dev, state, pods. */
export function fakeNodeArguments(folder: string): string[] {
  return [
    '-device=fake',
    '-identity=fake',
    `-fake-dir=${join(folder, 'dev')}`,
    `-state-dir=${join(folder, 'state')}`,
    `-pods-dir=${join(folder, 'pods')}`,
    '-listen=',
  ]
}

/** A request of the node's root to the agent below the folder. @throws the text of what is not 200 */
export function askAsOperator(
  folder: string,
  method: string,
  path: string,
  body?: unknown,
): Promise<unknown> {
  return new Promise((resolve, reject) => {
    const socketPath = join(folder, 'state/operator.sock')
    const call = request({ socketPath, method, path, agent: false }, (answer) => {
      let text = ''
      answer.on('data', (chunk) => {
        text += chunk
      })
      answer.on('end', () =>
        answer.statusCode === 200 ? resolve(JSON.parse(text)) : reject(new Error(text)),
      )
    })
    call.on('error', reject)
    call.end(body === undefined ? '' : JSON.stringify(body))
  })
}
