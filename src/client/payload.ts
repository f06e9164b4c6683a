import type { Client } from '@temporalio/client'
import type { Payload } from '@temporalio/common'

/** The value of the first of an event's payloads, decoded as the client's options say; undefined when it cannot be. */
export async function firstValue(
  client: Client,
  payloads: readonly object[] | null | undefined,
): Promise<unknown> {
  const first = payloads?.[0] as Payload | undefined
  if (!first) return undefined
  const { payloadConverter, payloadCodecs } = client.options.loadedDataConverter
  try {
    let decoded = [first]
    for (const codec of [...payloadCodecs].reverse()) decoded = await codec.decode(decoded)
    return payloadConverter.fromPayload(decoded[0]!)
  } catch {
    return undefined
  }
}

/** The encoding of what a client was given and cannot decode, when that is why it failed; else null. */
export function encodingOf(error: unknown): string | null {
  const message = error instanceof Error && error.name === 'ValueError' ? error.message : ''
  return /^Unknown encoding: (.*)/.exec(message)?.[1]?.slice(0, 60) ?? null
}
