import {
  ApplicationFailure,
  defaultPayloadConverter,
  type Payload,
  type PayloadCodec,
} from '@temporalio/common'
import { describe, expect, test, vi } from 'vitest'
import { convertersWith, tolerantCodec } from './data-converter.js'
import { undecodableReason } from './workflows/payload-converter.js'

const payload = (value: unknown) => defaultPayloadConverter.toPayload(value)
const value = (from: Payload | undefined) => defaultPayloadConverter.fromPayload(from!)
const reverse = (bytes: Uint8Array | null | undefined) => Uint8Array.from(bytes ?? []).reverse()

/** Turns the bytes around; refuses what it has not encoded, and everything while it is down. */
class Mirror implements PayloadCodec {
  down: Error | null = null

  constructor(private readonly mark = 'mirror') {}

  async encode(payloads: Payload[]): Promise<Payload[]> {
    if (this.down) throw this.down
    return payloads.map(({ metadata, data }) => ({
      metadata: { ...metadata, [this.mark]: new Uint8Array([1]) },
      data: reverse(data),
    }))
  }

  async decode(payloads: Payload[]): Promise<Payload[]> {
    if (this.down) throw this.down
    return payloads.map(({ metadata, data }) => {
      const { [this.mark]: ours, ...rest } = metadata ?? {}
      if (!ours) throw new Error('not mine')
      return { metadata: rest, data: reverse(data) }
    })
  }
}

describe('a codec that is tolerant', () => {
  const lines: string[] = []
  const mirror = new Mirror()
  const codec = tolerantCodec([mirror], (line) => lines.push(line))

  test('reads what it wrote', async () => {
    const [encoded] = await codec.encode([payload({ a: 1 })])
    expect(encoded!.data).not.toEqual(payload({ a: 1 }).data)
    expect(value((await codec.decode([encoded!]))[0])).toEqual({ a: 1 })
    expect(await codec.decode([])).toEqual([])
  })

  test('puts a marker in the place of each payload that is bad, always the same one, and the log says why', async () => {
    const [good] = await codec.encode([payload('good')])
    const decoded = await codec.decode([good!, payload('bad'), good!, {}])
    expect(decoded.map(value).map((v) => undecodableReason(v) ?? v)).toEqual([
      'good',
      expect.stringContaining('cannot decode'),
      'good',
      expect.stringContaining('cannot decode'),
    ])
    expect(decoded[1]).toEqual(decoded[3])
    expect(lines.at(-1)).toContain('Error: not mine')
    expect(undecodableReason(value(decoded[1]))).not.toContain('not mine')
  })

  test('throws while it is out of order: nothing is dropped for that', async () => {
    const [good] = await codec.encode([payload('good')])
    mirror.down = new Error('no key service')
    await expect(codec.decode([good!])).rejects.toThrow('no key service')
    mirror.down = null
    expect(value((await codec.decode([good!]))[0])).toBe('good')
  })

  test('waits with what it has to encode until it works: the SDK would end its worker', async () => {
    mirror.down = new Error('no key service')
    const encoded = codec.encode([payload('kept')])
    await vi.waitFor(() => expect(lines.at(-1)).toMatch(/cannot encode, and is waited for: Error: no key/))
    mirror.down = null
    expect(value((await codec.decode(await encoded))[0])).toBe('kept')
  })

  test('throws what the codec calls passing, though it works otherwise', async () => {
    const moody: PayloadCodec = {
      encode: async (payloads) => payloads,
      decode: async (payloads) => {
        if (value(payloads[0]) === 'later') throw ApplicationFailure.retryable('key of another day', 'Keys')
        if (value(payloads[0]) === 'never') throw ApplicationFailure.nonRetryable('no such key', 'Keys')
        return payloads
      },
    }
    const patient = tolerantCodec([moody], () => {})
    await expect(patient.decode([payload('later')])).rejects.toThrow('key of another day')
    expect(undecodableReason(value((await patient.decode([payload('never')]))[0]))).not.toBeNull()
  })

  test('takes several codecs in their order', async () => {
    const both = tolerantCodec([new Mirror('first'), new Mirror('second')], () => {})
    const [encoded] = await both.encode([payload('x')])
    expect(value((await both.decode([encoded!]))[0])).toBe('x')
    expect(await new Mirror('second').decode([encoded!])).toHaveLength(1)
    await expect(
      new Mirror('first').decode([...(await new Mirror('first').decode([encoded!]))]),
    ).rejects.toThrow()
  })

  test('takes an answer that is none for a failure', async () => {
    const empty: PayloadCodec = {
      encode: async (payloads) => payloads,
      decode: async (payloads) => (value(payloads[0]) === 'firepool' ? payloads : []),
    }
    expect(
      undecodableReason(value((await tolerantCodec([empty], () => {}).decode([payload('x')]))[0])),
    ).not.toBeNull()
  })
})

describe('the data converter that a user gives', () => {
  test('none: failures stay readable', () => {
    const worker = { payloadConverterPath: expect.stringMatching(/payload-converter\.js$/) }
    expect(convertersWith(undefined)).toEqual({ encoded: false, client: {}, worker })
    expect(convertersWith({ payloadCodecs: [] }).encoded).toBe(false)
  })

  test('codecs: workers forgive, the client does not, and failures are encoded', async () => {
    const mirror = new Mirror()
    const { worker, client, encoded } = convertersWith({ payloadCodecs: [mirror], failureConverterPath: 'x' })
    expect(encoded).toBe(true)
    expect(client.payloadCodecs).toEqual([mirror])
    expect(worker.failureConverterPath).toMatch(/failure-converter\.js$/)
    expect(worker.payloadConverterPath).toMatch(/payload-converter\.js$/)
    expect(await worker.payloadCodecs![0]!.decode([payload('bad')])).toHaveLength(1)
  })

  test('more than codecs is refused', () => {
    expect(() => convertersWith({ payloadConverterPath: 'x' })).toThrow(/payloadConverterPath cannot be used/)
    expect(() => convertersWith({ externalStorage: {} as never })).toThrow(/externalStorage cannot be used/)
  })
})
