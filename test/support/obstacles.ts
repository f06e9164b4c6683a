import { execFile } from 'node:child_process'
import { promisify } from 'node:util'
import { findControlPlaneParts } from './control-plane-parts.js'

const run = promisify(execFile)

/**
 * Why this machine can have no cluster, in words for a test's report: undefined when it can. Anything else that is missing on Linux is
 * no such reason: then `obtainControlPlaneParts` fails, and with it the tests.
 */
export async function clusterObstacle(): Promise<string | undefined> {
  // Pods have addresses 127.x.y.z, processes are looked up in /proc, and the kubelet is for Linux.
  if (process.platform !== 'linux') return `a cluster for tests needs Linux, this is ${process.platform}`
  if (await findControlPlaneParts()) return undefined
  const hasGo = await run('go', ['version']).then(Boolean, () => false)
  return hasGo ? undefined : 'a control plane is built with Go, which is not on PATH'
}

/** The same of a real node: as root on Linux with Go there is no obstacle. */
export async function realNodeObstacle(): Promise<string | undefined> {
  const obstacle = await clusterObstacle()
  if (obstacle) return obstacle
  return process.getuid?.() === 0 ? undefined : 'a kubelet and containerd need root'
}

/** The name of tests that are skipped with this reason, or run. */
export const orSkipped = (name: string, obstacle: string | undefined) =>
  obstacle === undefined ? name : `${name} (skipped: ${obstacle})`
