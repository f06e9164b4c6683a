import { setTimeout as sleep } from 'node:timers/promises'
import type { DataConverter, Payload, PayloadCodec } from '@temporalio/common'
import { ApplicationFailure, defaultPayloadConverter } from '@temporalio/common'
import type { ActivityInterceptorsFactory } from '@temporalio/worker'
import { activityFailure } from './activities/failure.js'
import { FAILURE_CONVERTER, PAYLOAD_CONVERTER } from './bundle.js'
import { type Undecodable, undecodable, undecodableReason } from './workflows/payload-converter.js'

/** The converters of a Firepool process. */
export interface Converters {
  /** of its workers: never throws at what others sent */
  worker: DataConverter
  /** of its client: an answer that cannot be decoded is an error of the call */
  client: DataConverter
  /** whether there is a codec: then failures are encoded as well */
  encoded: boolean
}

/**
 * Combines a user's codecs with the converters that Firepool needs: its messages are plain JSON, and one that cannot be read
 * must not wedge an entity that serves everybody. Failures (messages and stack traces) are encoded whenever there is a codec,
 * whatever failure converter was given: a failure of Firepool may quote a command.
 * @param log hears why a payload could not be decoded
 * @throws Error when more was given than codecs
 */
export function convertersWith(
  given: DataConverter | undefined,
  log: (line: string) => void = () => {},
): Converters {
  const { payloadConverterPath, externalStorage, payloadCodecs = [] } = given ?? {}
  if (payloadConverterPath !== undefined)
    throw new Error(
      'dataConverter.payloadConverterPath cannot be used by Firepool, whose messages are plain JSON; give payloadCodecs alone, and keep JSON in the converter of your own workers',
    )
  if (externalStorage !== undefined)
    throw new Error('dataConverter.externalStorage cannot be used by Firepool; give payloadCodecs alone')
  if (payloadCodecs.length === 0)
    return { worker: { payloadConverterPath: PAYLOAD_CONVERTER }, client: {}, encoded: false }
  const failureConverterPath = FAILURE_CONVERTER
  return {
    worker: {
      payloadConverterPath: PAYLOAD_CONVERTER,
      failureConverterPath,
      payloadCodecs: [tolerantCodec(payloadCodecs, log)],
    },
    client: { failureConverterPath, payloadCodecs },
    encoded: true,
  }
}

type Context = Parameters<PayloadCodec['decode']>[1]

/** An encode that failed is tried again after this, and then ever more rarely. */
const ENCODE_RETRY_MS = 100
const ENCODE_RETRY_MS_MAX = 5_000

/**
 * The codecs as one that the SDK's worker survives.
 *
 * - Its decode does not throw at a payload that is bad: a marker stands for it, which the payload converter hands on as it does
 *   its own (failure F26). Two failures are thrown all the same, and the task is tried again until the codec works, because
 *   dropping messages would lose them, and the next replay would read them: one that the codec calls passing (a retryable
 *   ApplicationFailure), and any while the codec cannot even read what it has just written.
 * - Its encode waits until it succeeds: failures are encoded as well, and one that cannot be ends the SDK's worker.
 */
export function tolerantCodec(codecs: PayloadCodec[], log: (line: string) => void): PayloadCodec {
  const encodeOnce = async (payloads: Payload[], context: Context) => {
    let encoded = payloads
    for (const codec of codecs) encoded = await codec.encode(encoded, context)
    return encoded
  }
  const encode = async (payloads: Payload[], context: Context) => {
    for (let pauseMs = ENCODE_RETRY_MS; ; pauseMs = Math.min(ENCODE_RETRY_MS_MAX, 2 * pauseMs)) {
      try {
        return await encodeOnce(payloads, context)
      } catch (error) {
        log(`the payload codec cannot encode, and is waited for: ${textOf(error)}`)
        await sleep(pauseMs, undefined, { ref: false })
      }
    }
  }
  const decode = async (payloads: Payload[], context: Context) => {
    let decoded = payloads
    for (const codec of codecs.toReversed()) decoded = await codec.decode(decoded, context)
    if (!Array.isArray(decoded) || decoded.length === 0) throw new TypeError('the codec returned no payload')
    return decoded
  }
  const works = async (context: Context) => {
    const probe = defaultPayloadConverter.toPayload(PROBE)
    const [back] = await decode(await encodeOnce([probe], context), context)
    return back !== undefined && defaultPayloadConverter.fromPayload(back) === PROBE
  }
  const decodeOne = async (payload: Payload, context: Context): Promise<Payload[]> => {
    try {
      return await decode([payload], context)
    } catch (error) {
      if (isPassing(error) || !(await works(context).catch(() => false))) throw error
      log(`a payload could not be decoded, and is treated as poison: ${textOf(error)}`)
      return [MARKER]
    }
  }
  return {
    encode,
    async decode(payloads, context) {
      if (payloads.length === 0) return payloads
      try {
        return await decode(payloads, context)
      } catch {
        return (await Promise.all(payloads.map((payload) => decodeOne(payload, context)))).flat()
      }
    },
  }
}

/**
 * Activities do not begin with what could not be decoded: whatever they expect, that is what is wrong with it.
 */
export const refuseUndecodable: ActivityInterceptorsFactory = () => ({
  inbound: {
    execute(input, next) {
      const reason = undecodableReason(input.args[0])
      if (reason !== null) throw activityFailure(undecodable('the argument of the activity', reason))
      return next(input)
    },
  },
})

const PROBE = 'firepool'

/** Always the same: it becomes a part of a workflow's state, and a replay must come to the same. */
const MARKER: Payload = defaultPayloadConverter.toPayload({
  firepoolUndecodable: "the payload codec of Firepool's worker cannot decode it",
} satisfies Undecodable)

function isPassing(error: unknown): boolean {
  return error instanceof ApplicationFailure && !error.nonRetryable
}

function textOf(error: unknown): string {
  return error instanceof Error ? `${error.name}: ${error.message}`.slice(0, 300) : 'not an Error'
}
