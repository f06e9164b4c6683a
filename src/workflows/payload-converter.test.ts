import { defaultPayloadConverter, type Payload } from '@temporalio/common'
import { describe, expect, test } from 'vitest'
import { payloadConverter, undecodableReason } from './payload-converter.js'

const bytes = (text: string) => new TextEncoder().encode(text)
const encoded = (encoding: string, data: Uint8Array | undefined): Payload => ({
  metadata: { encoding: bytes(encoding) },
  ...(data ? { data } : {}),
})

describe('the payload converter of all workers of Firepool', () => {
  test.each<[string, Payload]>([
    ['JSON that ends in the middle', encoded('json/plain', bytes('{"v": 1, '))],
    ['JSON without data', encoded('json/plain', undefined)],
    ['bytes that are no text', encoded('json/plain', Uint8Array.from([0xff, 0xfe, 0]))],
    ['an encoding that nobody knows', encoded('binary/alien', bytes('???'))],
    ['an encoding of no bytes', { metadata: {}, data: bytes('{}') }],
    ['no metadata', { data: bytes('{}') }],
    ['nothing', {}],
    ['a protobuf', encoded('binary/protobuf', bytes('???'))],
    ['null', null as unknown as Payload],
  ])('never throws at %s: what it gives says why, and is none of our shapes', (_, payload) => {
    const value = payloadConverter.fromPayload<unknown>(payload)
    expect(undecodableReason(value)).toEqual(expect.any(String))
    expect(Object.keys(value as object)).toEqual(['firepoolUndecodable'])
  })

  test('reads and writes all else as the SDK does', () => {
    for (const value of [{ v: 1, a: ['\u{1F525}'] }, 'x', 0, null, undefined, Uint8Array.from([1, 2])]) {
      const payload = payloadConverter.toPayload(value)
      expect(payload).toEqual(defaultPayloadConverter.toPayload(value))
      const read = payloadConverter.fromPayload<unknown>(payload)
      expect(read).toEqual(value)
      expect(undecodableReason(read)).toBeNull()
    }
  })
})
