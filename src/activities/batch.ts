import { Context } from '@temporalio/activity'
import type { Effect, EffectKind, EffectResult } from '../broker/index.js'
import { problem } from '../contract/errors.js'
import type { EffectActivity, EffectResults } from '../workflows/lanes.js'
import { activityFailure, reasonOf } from './failure.js'
import { beating } from './heartbeat.js'

type Handlers = { [K in EffectKind]?: (effect: Extract<Effect, { kind: K }>) => Promise<EffectResult> }

/** Effects of one batch that are carried out at once: more would only queue in the server and the kernel. */
const CONCURRENCY = 32

/**
 * An effect activity: each effect of the batch on its own, so that one failure does not hold up the others. What could
 * not be done is `undone`, and the core decides whether to try again.
 */
export function effectActivity(handlers: Handlers): EffectActivity {
  const one = async (effect: Effect): Promise<EffectResult> => {
    const handle = handlers[effect.kind] as ((effect: Effect) => Promise<EffectResult>) | undefined
    if (!handle) return { kind: 'undone', reason: `this worker does not know the effect ${effect.kind}` }
    try {
      return await handle(effect)
    } catch (error) {
      return { kind: 'undone', reason: reasonOf(error) }
    }
  }
  return async (batch) => {
    if (batch.v !== 1) {
      throw activityFailure(
        problem(
          'InvalidRequest',
          `this worker understands version 1 of an effect batch, not ${batch.v}; upgrade it`,
        ),
      )
    }
    const results: EffectResults['results'] = []
    const queue = batch.effects.values()
    const lane = async () => {
      for (const effect of queue) results.push({ id: effect.id, result: await one(effect) })
    }
    const all = Promise.all(Array.from({ length: Math.min(CONCURRENCY, batch.effects.length) }, lane))
    await beating(Context.current(), { v: 1, effects: batch.effects.length }, all)
    return { v: 1, results }
  }
}
