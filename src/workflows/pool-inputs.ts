import type { PoolEvent } from '../broker/index.js'
import {
  type Checked,
  checkLeaseRequest,
  checkRelease,
  checkRenewal,
  checkResize,
  checkSetBudget,
  checkTokenOffer,
  isRecord,
} from '../contract/check.js'
import { readPoolSpec } from '../contract/check-spec.js'
import { LIMIT } from '../contract/limits.js'
import { SIGNAL } from '../contract/names.js'
import { undecodable, undecodableReason } from './payload-converter.js'

/** How a payload becomes an event. Anything else becomes `poison`: counted, named in status, dropped (F26). */
type Reader = (payload: unknown, now: number) => Checked<PoolEvent>

function event<T>(checked: Checked<T>, make: (value: T) => PoolEvent): Checked<PoolEvent> {
  return checked.problem ? checked : { value: make(checked.value) }
}

const MODES = { [SIGNAL.pause]: 'paused', [SIGNAL.resume]: 'running', [SIGNAL.drain]: 'draining' } as const

export const READERS: Record<string, Reader> = {
  [SIGNAL.request]: (payload, now) =>
    event(checkLeaseRequest(payload, now), (request) => ({ kind: 'request', request })),
  [SIGNAL.release]: (payload) => event(checkRelease(payload), (release) => ({ kind: 'release', release })),
  [SIGNAL.renew]: (payload) => event(checkRenewal(payload), (lease) => ({ kind: 'renew', ...lease })),
  [SIGNAL.token]: (payload) => event(checkTokenOffer(payload), (offer) => ({ kind: 'token', ...offer })),
  [SIGNAL.setBudget]: (payload) =>
    event(checkSetBudget(payload), (budget) => ({ kind: 'setBudget', ...budget })),
  [SIGNAL.resize]: (payload) => event(checkResize(payload), (resize) => ({ kind: 'resize', ...resize })),
  [SIGNAL.apply]: (payload) => event(readPoolSpec(payload), (spec) => ({ kind: 'apply', spec })),
  [SIGNAL.pause]: () => ({ value: { kind: 'mode', mode: MODES[SIGNAL.pause] } }),
  [SIGNAL.resume]: () => ({ value: { kind: 'mode', mode: MODES[SIGNAL.resume] } }),
  [SIGNAL.drain]: () => ({ value: { kind: 'mode', mode: MODES[SIGNAL.drain] } }),
}

/** The event of an update, which is refused with a typed failure where a signal would be poison. */
export function readUpdate(name: string, payload: unknown, now: number): Checked<PoolEvent> {
  const reason = undecodableReason(payload)
  return reason === null
    ? READERS[name]!(payload, now)
    : { problem: undecodable(`the argument of ${name}`, reason) }
}

/** Events of one signal. A payload may be one object or `{ v: 1, batch: [...] }`. */
export function readSignal(name: string, payload: unknown, now: number): PoolEvent[] {
  const reason = undecodableReason(payload)
  if (reason !== null) return [{ kind: 'poison', name, reason: `undecodable payload: ${reason}` }]
  const items =
    isRecord(payload) && Array.isArray(payload.batch) ? payload.batch.slice(0, LIMIT.queue) : [payload]
  return items.map((item): PoolEvent => {
    try {
      const checked = READERS[name]!(item, now)
      return checked.problem ? { kind: 'poison', name, reason: checked.problem.message } : checked.value
    } catch (error) {
      return { kind: 'poison', name, reason: error instanceof Error ? error.message : String(error) }
    }
  })
}
