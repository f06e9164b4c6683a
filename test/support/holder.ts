import type { Problem } from '../../dist/contract/index.js'
import type { Ran } from './callers.js'
import { type World, waitUntil } from './world.js'

/** A workflow that holds a sandbox and does what it is told; see callers.ts. */
export async function holderOf(
  world: World,
  pool: string,
  options: Record<string, unknown> = {},
  start: Record<string, unknown> = {},
) {
  const handle = await world.start<Ran[]>('holder', [{ pool, ...options }], start)
  const ran = () => handle.query<(Ran | Problem)[]>('ran')
  const outcome = (n: number) =>
    waitUntil(`job ${n} of ${handle.workflowId}`, async () => {
      const all = await ran()
      return all[n - 1] ?? null
    })
  return {
    handle,
    ran,
    outcome,
    job: (command: string | string[], more: Record<string, unknown> = {}) =>
      handle.signal('job', { command, ...more }),
    finish: (how: 'complete' | 'fail' | 'continue' = 'complete') => handle.signal('finish', how),
    /** the nth job's result; fails when it ended in a problem */
    async nth(n: number): Promise<Ran> {
      const last = await outcome(n)
      if ('code' in last) throw new Error(`job ${n} failed: ${last.code}: ${last.message}`)
      return last
    },
  }
}

/** A word that stands in nothing else on this machine. */
export function marker(): string {
  return `fp${Math.random().toString(36).slice(2)}`
}
