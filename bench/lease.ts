import type { WorkerOptions } from '@temporalio/worker'
import { ACTIVITY } from '../dist/contract/names.js'
import { FirepoolPlugin, shortJobActivities } from '../dist/plugin/index.js'
import { machine, quantile, round } from './report.js'
import { createPool, log, run, withBenchWorld } from './world.js'

export interface LeaseOptions {
  /** local activities of each kind */
  short: number
}

export const DEFAULTS: LeaseOptions = { short: 400 }

const BLOCKS = 10

/** When the local activities of the loop that runs now began, ms. */
const began: number[] = []

/**
 * Short jobs on a held lease against bare local activities that do the same work without Firepool (post to an HTTP server
 * that starts /bin/true). What an op took is the time between the starts of two local activities of one loop.
 */
export async function lease(options: LeaseOptions) {
  return await withBenchWorld(
    async (world) => {
      await createPool(world.client, 'short', { budget: 1, standby: 1, maxPods: 1 })
      log(`short: ${options.short} of each, in alternating blocks`)
      const each = Math.ceil(options.short / BLOCKS)
      const ms: Record<'bare' | 'short', number[]> = { bare: [], short: [] }
      await measured(() => run(world.client, 'localLoop', [2]))
      await measured(() => run(world.client, 'shortLoop', ['short', 'bench', 2]))
      for (let block = 0; block < BLOCKS; block++) {
        ms.bare.push(...(await measured(() => run(world.client, 'localLoop', [each + 1]))))
        ms.short.push(...(await measured(() => run(world.client, 'shortLoop', ['short', 'bench', each + 1]))))
      }
      const p50 = (kind: keyof typeof ms) => quantile(ms[kind], 0.5)
      return {
        machine: machine(world.server),
        options,
        ratios: { shortOverLocalActivityP50: round(p50('short') / p50('bare')) },
        shortMs: Object.fromEntries(
          Object.entries(ms).map(([kind, all]) => [
            kind,
            { p50: round(quantile(all, 0.5), 2), p90: round(quantile(all, 0.9), 2), n: all.length },
          ]),
        ),
      }
    },
    (dir, bare) => callerOptions(dir, bare),
  )
}

async function measured(loop: () => Promise<unknown>): Promise<number[]> {
  began.length = 0
  await loop()
  return began.slice(1).map((at, i) => at - began[i]!)
}

function callerOptions(dir: string, bare: () => Promise<unknown>): Partial<WorkerOptions> {
  const short = shortJobActivities({ dir })[ACTIVITY.runShort]
  const noted =
    <A extends unknown[], R>(activity: (...args: A) => R) =>
    (...args: A): R => {
      began.push(performance.now())
      return activity(...args)
    }
  class NotedPlugin extends FirepoolPlugin {
    override configureWorker(options: WorkerOptions): WorkerOptions {
      const { activities, ...rest } = super.configureWorker(options)
      return { ...rest, activities: { ...activities, [ACTIVITY.runShort]: noted(short) } }
    }
  }
  return { activities: { postBare: noted(bare) }, plugins: [new NotedPlugin({ dir })] }
}
