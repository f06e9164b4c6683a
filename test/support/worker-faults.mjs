import { isDeepStrictEqual } from 'node:util'
import { Context } from '@temporalio/activity'
import { Worker } from '@temporalio/worker'

/**
 * @typedef {{ pool: string, does: string, when: 'before' | 'after', asked?: Record<string, unknown>,
 *   answer?: Record<string, unknown> }} Stop
 *   Where a worker stands still until it is killed: before or after it did something for a pool. `does` is an effect's kind, or
 *   'run', 'runOnce', or 'tell' and the signal's name. With `asked`, only an effect that says so; with
 *   `answer`, only when that is what came of it.
 * @typedef {{ stops?: Stop[], twice?: boolean, jobSlots?: number }} WorkerFaults
 *   `twice`: each activity's function is called a second time with the same input, and the second answer counts.
 */

const HEARTBEAT_MS = 500
/** Workflows of a worker that was killed go to another one after this; by default after 10 s, which tests would wait for. */
const STICKY_MS = 2_000

/**
 * Wraps the activities of the workers that this process will create, so that they do wrong as they are told.
 * @param {WorkerFaults} faults
 * @param {(message: object) => void} report { stopped: Stop } or { twice: what was done }
 */
export function wrapWorkers({ stops = [], twice = false }, report) {
  const create = Worker.create
  Worker.create = (options) => {
    const activities = Object.entries(options.activities ?? {}).map(([name, activity]) => [
      name,
      async (input) => {
        const deeds = deedsOf(name, input)
        const stopsAt = (when, done) =>
          stops.find((stop) => stop.when === when && deeds.some((deed) => matches(stop, deed, done)))
        const before = stopsAt('before')
        if (before) await standStill(() => report({ stopped: before }))
        // firepool.runOnce knows by the number of its attempt whether one came before it, and no attempt is handed out twice.
        if (twice && name !== 'firepool.runOnce') {
          await activity(input).catch(() => undefined)
          for (const { does } of deeds) report({ twice: does })
        }
        const done = await activity(input)
        const after = stopsAt('after', done)
        if (after) await standStill(() => report({ stopped: after }))
        return done
      },
    ])
    return create.call(Worker, {
      ...options,
      activities: Object.fromEntries(activities),
      stickyQueueScheduleToStartTimeout: STICKY_MS,
    })
  }
}

/** What a call of an activity is asked to do, and for which pool. */
function deedsOf(name, input) {
  switch (name) {
    case 'firepool.run':
      return [{ does: 'run', pool: input.grant.pool }]
    case 'firepool.runOnce':
      return [{ does: 'runOnce', pool: input.pool }]
    case 'firepool.awaitLease':
      return [{ does: 'awaitLease', pool: input.pool }]
    case 'firepool.tellPool':
      return [{ does: `tell ${input.signal}`, pool: input.pool }]
    default:
      return (input?.effects ?? []).map((effect) => ({ does: effect.kind, pool: input.pool, effect }))
  }
}

function matches({ pool, does, asked = {}, answer = {} }, deed, done) {
  if (pool !== deed.pool || does !== deed.does) return false
  const result = done?.results?.find(({ id }) => id === deed.effect?.id)?.result
  return says(deed.effect, asked) && says(result, answer)
}

const says = (it, wanted) =>
  Object.entries(wanted).every(([key, value]) => isDeepStrictEqual(it?.[key], value))

/** Keeps the activity under way: the server hears heartbeats, and no answer ever. */
function standStill(report) {
  const context = Context.current()
  setInterval(() => context.heartbeat(), HEARTBEAT_MS)
  report()
  return new Promise(() => {})
}
