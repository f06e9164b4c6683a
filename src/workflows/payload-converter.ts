import { defaultPayloadConverter, type Payload, type PayloadConverter } from '@temporalio/common'
import { type Problem, problem } from '../contract/errors.js'

/** Stands in for a payload that could not be decoded. Whoever reads it finds none of the fields it needs. */
export interface Undecodable {
  firepoolUndecodable: string
}

export function undecodableReason(value: unknown): string | null {
  if (typeof value !== 'object' || value === null) return null
  const reason = (value as Partial<Undecodable>).firepoolUndecodable
  return typeof reason === 'string' ? reason : null
}

/** For whoever sent what could not be decoded. */
export function undecodable(what: string, reason: string): Problem {
  return problem(
    'InvalidRequest',
    `${what} cannot be decoded (${reason}); callers and clients need the payload codec and the keys of Firepool's worker`,
  )
}

/**
 * The SDK decodes a signal's payload BEFORE a handler runs, and a throw there fails the workflow task for ever: one bad
 * payload would wedge an entity that serves everybody (failure F26). This converter never throws when it reads.
 */
export const payloadConverter: PayloadConverter = {
  toPayload(value) {
    return defaultPayloadConverter.toPayload(value)
  },
  fromPayload<T>(payload: Payload): T {
    try {
      return defaultPayloadConverter.fromPayload<T>(payload)
    } catch (error) {
      const reason = error instanceof Error ? error.message : String(error)
      const marker: Undecodable = { firepoolUndecodable: reason.slice(0, 200) }
      return marker as T
    }
  },
}
