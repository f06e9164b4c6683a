import { LIMIT } from '../contract/limits.js'

/** How far a run has come. */
export interface Progress {
  signals: number
  updates: number
  /** in its history */
  events: number
}

/**
 * Whether a pool's run is to continue as new: `due`, once nothing is on its way; `forced`, it issues nothing more until
 * then; `must`, also with effects on their way, which the next run issues again under their ids.
 */
export type Continuation = 'goOn' | 'due' | 'forced' | 'must'

/** @param after when it is due; the later steps follow from it */
export function continuation(
  run: Progress,
  after: { signals: number; events: number } = DEFAULT,
): Continuation {
  const reached = (ofSignals: number, timesEvents: number) =>
    run.signals >= Math.max(after.signals, ofSignals) || run.events >= after.events * timesEvents
  if (reached(LIMIT.continueSignalsMust, LIMIT.continueEventsMust)) return 'must'
  if (reached(LIMIT.continueSignalsForced, LIMIT.continueEventsForced)) return 'forced'
  return reached(after.signals, 1) || run.updates >= LIMIT.continueUpdates ? 'due' : 'goOn'
}

const DEFAULT = { signals: LIMIT.continueSignals, events: LIMIT.continueEvents }
